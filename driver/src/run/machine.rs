//! The NVIDIA cards of this machine, for commands that run on them: the driver's libraries are the system's own, and its samples
//! are the governors' measurements.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_backend_nvidia::NvidiaNode;
use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::health::Cause;
use aliquot_core::id::{CardUuid, Vendor};
use aliquot_core::partition::Part;
use aliquot_core::ports::{CardEvents, DeviceBackend as _};
use aliquot_core::units::Bytes;
use aliquot_enforce::units::Nanos;

use super::cards::{CardAccess, Cards, Events, Meter, Window};
use super::commands::Commands;
use super::samples::SampleClock;
use crate::view::chain;
use crate::view::processes::{grants_of, grants_of_run};

/// Time between two calls of the driver: at most as often as it samples.
const PERIOD: Nanos = Nanos(166_666_667);

/// Environment variable that container runtimes read, if the command starts one.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// The NVIDIA cards of this machine.
#[derive(Clone, Debug)]
pub struct Machine(pub Arc<NvidiaNode>);

/// The driver's word on one card.
#[derive(Debug)]
struct OfCard {
    node: Arc<NvidiaNode>,
    card: CardUuid,
    samples: SampleClock,
    asked: Option<Nanos>,
}

// === impl Machine ===

impl Cards for Machine {
    fn vendor(&self) -> Vendor {
        NvidiaNode::vendor()
    }

    fn reach(&self, grant: &Grant, visible: &CardUuid, _: &Inventory) -> io::Result<CardAccess> {
        if grant.partition().is_some() {
            // The driver reports no process times for a MIG instance.
            let environment = vec![(VISIBLE_DEVICES, visible.as_str().into())];
            return Ok(CardAccess { libraries: None, environment, footprint: None, meter: None });
        }
        let (node, card) = (Arc::clone(&self.0), visible.clone());
        let meter = Box::new(OfCard { node, card, samples: SampleClock::for_governor(), asked: None });
        Ok(CardAccess { libraries: None, environment: Vec::new(), footprint: None, meter: Some(meter) })
    }

    fn follow(&self, grant: &Grant, _: &CardUuid) -> Result<Box<dyn Events>, String> {
        let events = self.0.events(&grant.card).map_err(|error| chain(&error))?;
        Ok(Box::new(Followed(events)))
    }

    fn no_partitions(&self) -> &[String] {
        self.0.no_partitions()
    }

    fn others(&self, visible: &CardUuid, grants: &Path) -> Vec<(u32, Bytes)> {
        // A card that does not answer now is met by the command itself.
        let processes = self.0.usage(visible).map(|usage| usage.processes).unwrap_or_default();
        let held = processes.into_iter().filter_map(|(pid, held)| Some((pid, held?)));
        let commands = Commands::of(grants.parent());
        let ours = |pid| {
            let mut started = grants_of(pid).into_iter().chain(grants_of_run(pid, &commands));
            started.any(|dir| dir.starts_with(grants))
        };
        held.filter(|(pid, _)| !ours(*pid)).collect()
    }

    fn remove_others(&self, _: &dyn Fn(&str) -> bool) -> io::Result<()> {
        // Nothing was made.
        Ok(())
    }
}

/// Events of a card, as a run reads them.
#[derive(Debug)]
struct Followed(Box<dyn CardEvents>);

impl Events for Followed {
    fn next(&mut self, longest: Duration) -> Result<Option<(Cause, Part)>, String> {
        let event = self.0.next(longest).map_err(|error| chain(&error))?;
        Ok(event.map(|event| (event.cause, event.part)))
    }
}

// === impl OfCard ===

impl Meter for OfCard {
    fn window(&mut self, now: Nanos) -> Option<Window> {
        if self.asked.is_some_and(|asked| now.minus(asked) < PERIOD) {
            return None;
        }
        self.asked = Some(now);
        // A card that does not say is governed by the tenants' own bills.
        let samples = self.node.samples(&self.card, self.samples.newest_micros()).ok()??;
        self.samples.window(now, &samples)
    }
}
