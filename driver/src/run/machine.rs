//! The cards of this machine, for commands that run on them: the driver's libraries are the system's own, and its samples
//! are the governors' measurements.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::health::Cause;
use aliquot_core::id::{CardUuid, Vendor};
use aliquot_core::partition::Part;
use aliquot_core::ports::{CardEvents, CardUsage, DeviceBackend};
use aliquot_core::units::Bytes;
use aliquot_enforce::units::Nanos;

use crate::hardware::MachineCards;

use super::cards::{CardAccess, CardProcesses, Cards, Events, Meter, Reporter, UsageSource, Window};
use super::commands::Commands;
use super::processes::{grants_of, grants_of_run};
use super::samples::SampleClock;
use crate::error_text::chain;

/// Time between two calls of the driver: at most as often as it samples.
const PERIOD: Nanos = Nanos(166_666_667);

/// The cards of this machine.
#[derive(Clone)]
pub struct LocalMachine {
    cards: Arc<dyn DeviceBackend>,
    vendors: Vec<Vendor>,
}

/// The driver's word on one card.
struct MachineCard {
    node: Arc<dyn DeviceBackend>,
    card: CardUuid,
    samples: SampleClock,
    asked: Option<Nanos>,
}

/// The driver's account of the processes on a card or partition.
struct MachineProcesses {
    node: Arc<dyn DeviceBackend>,
    part: CardUuid,
}

// === impl LocalMachine ===

impl LocalMachine {
    /// Those that were opened.
    #[must_use]
    pub fn of(machine: &MachineCards) -> Self {
        Self { cards: machine.backend(), vendors: machine.vendors().to_vec() }
    }
}

impl Cards for LocalMachine {
    fn vendors(&self) -> Vec<Vendor> {
        self.vendors.clone()
    }

    fn reach(&self, grant: &Grant, visible: &CardUuid, _: &Inventory) -> io::Result<CardAccess> {
        let (node, card) = (Arc::clone(&self.cards), visible.clone());
        let processes = Some(Arc::new(MachineProcesses { node, part: card }) as Arc<dyn CardProcesses>);
        let (node, card) = (Arc::clone(&self.cards), visible.clone());
        // No driver reports process times for a partition.
        let meter = grant.partition().is_none().then(|| {
            Box::new(MachineCard { node, card, samples: SampleClock::for_governor(), asked: None })
                as Box<dyn Meter>
        });
        Ok(CardAccess { libraries: None, environment: Vec::new(), footprint: None, meter, processes })
    }

    fn follow(&self, grant: &Grant, _: &CardUuid) -> Result<Box<dyn Events>, String> {
        let events = self.cards.events(&grant.card).map_err(|error| chain(&error))?;
        Ok(Box::new(BackendEvents(events)))
    }

    fn follow_card(&self, card: &CardUuid, _: &Inventory) -> Result<Box<dyn Events>, String> {
        let events = self.cards.events(card).map_err(|error| chain(&error))?;
        Ok(Box::new(BackendEvents(events)))
    }

    fn reporter(&self, _: &Grant) -> Reporter {
        Reporter::Card
    }

    fn driver_load(&self) -> Option<String> {
        self.cards.driver_load()
    }

    fn no_partitions(&self) -> Vec<String> {
        self.cards.no_partitions()
    }

    fn usage_source(
        &self,
        _: &CardUuid,
        _: &Part,
        visible: &CardUuid,
        _: &Inventory,
    ) -> Option<Box<dyn UsageSource>> {
        Some(Box::new(MachineProcesses { node: Arc::clone(&self.cards), part: visible.clone() }))
    }

    fn others(&self, visible: &CardUuid, grants: &Path) -> Vec<(u32, Bytes)> {
        // A card that does not answer now is met by the command itself.
        let processes = self.cards.usage(visible).map(|usage| usage.processes).unwrap_or_default();
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
pub(super) struct BackendEvents(pub(super) Box<dyn CardEvents>);

impl Events for BackendEvents {
    fn next(&mut self, longest: Duration) -> Result<Option<(Cause, Part)>, String> {
        let event = self.0.next(longest).map_err(|error| chain(&error))?;
        Ok(event.map(|event| (event.cause, event.part)))
    }
}

// === impl MachineCard ===

impl fmt::Debug for MachineCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfCard").field("card", &self.card).finish_non_exhaustive()
    }
}

impl fmt::Debug for MachineProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineProcesses").field("part", &self.part).finish_non_exhaustive()
    }
}

impl CardProcesses for MachineProcesses {
    fn processes(&self) -> Option<Vec<(u32, Option<Bytes>)>> {
        Some(self.node.usage(&self.part).ok()?.processes)
    }
}

impl UsageSource for MachineProcesses {
    fn usage(&self) -> Option<CardUsage> {
        self.node.usage(&self.part).ok()
    }
}

impl Meter for MachineCard {
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
