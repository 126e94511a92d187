//! Driver figures of this machine's own cards. The driver reports the card's and each process's part of recent time, not total
//! times: this module adds them up from look to look.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::card::{Card, Supply};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::CardUuid;
use aliquot_core::ports::{CardUsage, DeviceBackend, LivePartition};
use aliquot_enforce::rounding::Rounding;
use aliquot_enforce::units::Nanos;

use super::chain;
use super::snapshot::{CardAnswer, DriverProcess, DriverView};
use crate::hardware::MachineCards;
use crate::hardware::vendors::NoCards;
use crate::run::processes::{command, grants_of};
use crate::run::samples::SampleClock;

/// The cards, and the device time counted on each so far.
pub(super) struct MachineView {
    node: Result<Arc<dyn DeviceBackend>, NoCards>,
    spent: BTreeMap<CardUuid, Time>,
}

/// The result of one look.
#[derive(Debug, Default)]
pub(super) struct MachineReading {
    pub(super) cards: Vec<Card>,
    pub(super) drivers: Vec<DriverView>,
    /// Cards that cannot be queried, and the reason.
    pub(super) trouble: Vec<(String, String)>,
}

/// Device time of a card, in nanoseconds since the first look.
#[derive(Debug)]
struct Time {
    looked_at: Duration,
    busy: u64,
    samples: SampleClock,
    processes: BTreeMap<u32, u64>,
}

// === impl MachineView ===

impl fmt::Debug for MachineView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("spent", &self.spent).finish_non_exhaustive()
    }
}

impl MachineView {
    pub(super) fn open() -> Self {
        let opened = MachineCards::open(&Catalogue::embedded());
        Self { node: opened.map(|machine| machine.backend()), spent: BTreeMap::new() }
    }

    /// Cards that are open already.
    pub(super) fn of(machine: &MachineCards) -> Self {
        Self { node: Ok(machine.backend()), spent: BTreeMap::new() }
    }

    /// The load of the driver that serves them, if there is one.
    pub(super) fn driver_load(&self) -> Option<String> {
        self.node.as_ref().ok()?.driver_load()
    }

    /// The present state of the wanted cards. A machine without a driver has none, which is no error.
    pub(super) fn look(
        &mut self,
        wanted: &dyn Fn(&CardUuid) -> bool,
        clock: &impl Fn() -> Duration,
    ) -> MachineReading {
        let mut found = MachineReading::default();
        let subject = || "this machine's cards".to_owned();
        let node = match &self.node {
            Ok(node) => node,
            Err(error) if error.is_absence() => return found,
            Err(error) => {
                found.trouble.push((subject(), chain(error)));
                return found;
            }
        };
        let cards = match node.discover() {
            Ok(found) => found,
            Err(error) => {
                found.trouble.push((subject(), chain(&error)));
                return found;
            }
        };
        found.trouble.extend(node.trouble().into_iter().map(|why| (subject(), why)));
        for card in cards.cards.into_iter().filter(|card| wanted(&card.uuid)) {
            let parts = parts(node.as_ref(), &card, clock);
            match node.usage(&card.uuid) {
                Ok(mut usage) => {
                    // The driver reports a process in a MIG instance also for the card.
                    let inside =
                        |pid: &u32| parts.iter().flat_map(|part| &part.processes).any(|p| p.pid == *pid);
                    usage.processes.retain(|(pid, _)| !inside(pid));
                    let at = clock();
                    let time = self.spent.entry(card.uuid.clone()).or_insert_with(|| Time::from(at));
                    time.add(node.as_ref(), &card.uuid, &usage, at);
                    found.drivers.push(driver(&card, usage, Some(time), at));
                }
                Err(error) => found.trouble.push((format!("card {}", card.uuid), chain(&error))),
            }
            found.drivers.extend(parts);
            found.cards.push(card);
        }
        found
    }
}

/// Partitions of a card, of any origin, if the driver reports their use. It does not report their time.
fn parts(node: &dyn DeviceBackend, card: &Card, clock: &impl Fn() -> Duration) -> Vec<DriverView> {
    let Some(table) = card.table().filter(|_| card.supply == Supply::NewParts) else { return Vec::new() };
    // A card that does not answer now is reported as a card.
    let live = node.partitions().unwrap_or_default().into_iter().filter(|live| live.at.card == card.uuid);
    let one = |LivePartition { at, handle }| {
        let usage = node.usage(&handle.uuid).ok()?;
        let memory = table.template(&at.template).map_or(usage.memory, |template| template.memory);
        Some(DriverView {
            uuid: handle.uuid.to_string(),
            name: format!("{} MIG {}", card.product_name, at.template),
            memory,
            whole: false,
            busy_nanos: None,
            ..driver(card, usage, None, clock())
        })
    };
    live.filter_map(one).collect()
}

fn driver(card: &Card, usage: CardUsage, time: Option<&Time>, at: Duration) -> DriverView {
    let spent = |pid| time.map(|time| time.processes.get(&pid).copied().unwrap_or(0));
    let processes = usage.processes.into_iter().map(|(pid, held)| DriverProcess {
        pid,
        held,
        device_nanos: spent(pid),
        command: command(pid),
        grants: grants_of(pid),
    });
    DriverView {
        state: None,
        uuid: card.uuid.to_string(),
        name: card.product_name.clone(),
        memory: card.memory,
        whole: true,
        in_use: usage.in_use,
        high_water: None,
        busy_nanos: usage.busy_percent.and_then(|_| time.map(|time| time.busy)),
        health: CardAnswer::Well,
        processes: processes.collect(),
        at,
    }
}

// === impl Time ===

impl Time {
    const fn from(at: Duration) -> Self {
        Self { looked_at: at, busy: 0, samples: SampleClock::for_view(), processes: BTreeMap::new() }
    }

    fn add(&mut self, node: &dyn DeviceBackend, card: &CardUuid, usage: &CardUsage, at: Duration) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let passed = nanos(at.saturating_sub(self.looked_at));
        self.looked_at = at;
        let percent = u64::from(usage.busy_percent.unwrap_or(0).min(100));
        self.busy = self.busy.saturating_add((passed / 100).saturating_mul(percent));
        // Without samples the processes have no time.
        let Ok(Some(samples)) = node.samples(card, self.samples.newest_micros()) else { return };
        let Some(window) = self.samples.window(Nanos(nanos(at)), &samples) else { return };
        for spent in window.processes {
            let time = self.processes.entry(spent.pid).or_insert(0);
            *time = time.saturating_add(Rounding::new().time(spent.percent, window.length).0);
        }
    }
}
