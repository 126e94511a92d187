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
use aliquot_core::ports::{CardEvents, DeviceBackend as _, Samples};
use aliquot_core::units::Bytes;
use aliquot_enforce::units::Nanos;

use super::cards::{Cards, Events, Meter, Reach, Spent, Window};
use crate::view::chain;
use crate::view::processes::grants_of;

/// Time between two calls of the driver: at most as often as it samples.
const PERIOD: Nanos = Nanos(166_666_667);
/// A driver samples at least once a second: without a newer sample for so long no process ran.
const SILENCE: Nanos = Nanos::from_millis(1_000);

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
    windows: Windows,
    asked: Option<Nanos>,
}

/// Samples as time: each stands for the time from the one before it, as long as that is not too long ago.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    longest: Nanos,
    begun: Option<Nanos>,
    newest_micros: u64,
}

// === impl Machine ===

impl Cards for Machine {
    fn vendor(&self) -> Vendor {
        NvidiaNode::vendor()
    }

    fn reach(&self, grant: &Grant, visible: &CardUuid, _: &Inventory) -> io::Result<Reach> {
        if grant.partition().is_some() {
            // The driver reports no process times for a MIG instance.
            let environment = vec![(VISIBLE_DEVICES, visible.as_str().into())];
            return Ok(Reach { libraries: None, environment, context: None, meter: None });
        }
        let (node, card) = (Arc::clone(&self.0), visible.clone());
        let meter = Box::new(OfCard { node, card, windows: Windows::of_at_most(SILENCE), asked: None });
        Ok(Reach { libraries: None, environment: Vec::new(), context: None, meter: Some(meter) })
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
        held.filter(|(pid, _)| !grants_of(*pid).iter().any(|dir| dir.starts_with(grants))).collect()
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
        let samples = self.node.samples(&self.card, self.windows.since_micros()).ok()??;
        let window = self.windows.end(now, &samples)?;
        Some(Window { busy_percent: self.node.busy(&self.card).ok().flatten(), ..window })
    }
}

// === impl Windows ===

impl Windows {
    /// Windows of so long at most.
    pub(crate) const fn of_at_most(longest: Nanos) -> Self {
        Self { longest, begun: None, newest_micros: 0 }
    }

    /// The driver's time of the newest sample.
    pub(crate) const fn since_micros(&self) -> u64 {
        self.newest_micros
    }

    /// What processes had since the window before, by samples that are newer; `None`: there are none yet. Of the card they say
    /// nothing.
    pub(crate) fn end(&mut self, now: Nanos, samples: &Samples) -> Option<Window> {
        let begun = *self.begun.get_or_insert(now);
        let passed = now.minus(begun);
        let first = self.newest_micros == 0 && passed == Nanos::ZERO;
        if first || (samples.newest_micros == 0 && passed < SILENCE) {
            self.newest_micros = self.newest_micros.max(samples.newest_micros);
            return None;
        }
        self.begun = Some(now);
        self.newest_micros = self.newest_micros.max(samples.newest_micros);
        let processes = samples.processes.iter().map(|(pid, percent)| Spent { pid: *pid, percent: *percent });
        Some(Window { length: passed.min(self.longest), busy_percent: None, processes: processes.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(newest_micros: u64, processes: &[(u32, u32)]) -> Samples {
        Samples { processes: processes.to_vec(), newest_micros }
    }

    #[test]
    fn a_sample_stands_for_the_time_since_the_one_before() {
        let at = Nanos::from_millis;
        let mut windows = Windows::of_at_most(SILENCE);
        assert_eq!(
            windows.end(at(5_000), &samples(70, &[(1, 50)])),
            None,
            "the first sample has no known length"
        );
        assert_eq!(windows.since_micros(), 70);
        let window = |length, processes: &[(u32, u32)]| {
            let processes = processes.iter().map(|(pid, percent)| Spent { pid: *pid, percent: *percent });
            Some(Window { length: at(length), busy_percent: None, processes: processes.collect() })
        };
        let second = windows.end(at(5_200), &samples(90, &[(1, 50), (2, 1), (3, 0)]));
        assert_eq!(second, window(200, &[(1, 50), (2, 1), (3, 0)]));
        // The driver has nothing newer yet: the next sample stands for both times.
        assert_eq!(windows.end(at(5_300), &samples(0, &[])), None);
        assert_eq!(windows.since_micros(), 90);
        assert_eq!(windows.end(at(5_400), &samples(95, &[(1, 100)])), window(200, &[(1, 100)]));
        // No sample for a second: no process ran. A late read counts for at most a second.
        assert_eq!(windows.end(at(6_400), &samples(0, &[])), window(1_000, &[]));
        assert_eq!(windows.end(at(9_000), &samples(99, &[(1, 100)])), window(1_000, &[(1, 100)]));
    }
}
