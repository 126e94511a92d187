//! Holdings, as sums that are kept up to date: devices, capacities of shareable devices, counters.
//!
//! The same sums carry what a search has taken so far and gives back before it ends; between two calls nothing is in
//! flight. Counters hold what is *available* and may be negative, when claims hold more than is published; one
//! negative counter stops every counted device of its pool, as in Kubernetes.

use super::groups::GroupCounts;
use super::index::{CounterUse, DeviceEntry, DeviceNo, Draw, Index, SlotNo};
use super::options::Release;
use crate::dra::Sharing;

/// Sums over held claims and over the search in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) devices: Vec<DeviceState>,
    /// Used capacity in nano-units; entries say where theirs start.
    pub(super) used: Vec<i128>,
    /// What is left of each counter, in nano-units.
    pub(super) available: Vec<i128>,
    /// Counters below zero, by pool version.
    pub(super) negative: Vec<u32>,
    pub(super) groups: GroupCounts,
    /// How many takings of the search in flight drew on counters.
    pub(super) draws_in_flight: u32,
    pub(super) release: Release,
}

/// Holders of one device identity, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceState {
    /// Results that hold the whole device; more than one only if claims arrived that way.
    pub(super) exclusive: u32,
    /// Shares held.
    pub(super) shares: u32,
    /// Shares held that record a consumed capacity.
    pub(super) measured_shares: u32,
    /// Takings of the whole device by the search in flight.
    pub(super) exclusive_in_flight: u32,
    /// Shares taken by the search in flight.
    pub(super) shares_in_flight: u32,
}

/// Whether what stands in the way is held, or only taken by the search itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The device or its counters are held: it blocks every claim until something is released.
    Held,
    /// Too little capacity is left: in the way of this amount until something is released.
    Used,
    /// Perhaps only in flight.
    InFlight,
}

// === impl State ===

impl State {
    pub(super) fn new(index: &Index) -> Self {
        let available: Vec<i128> =
            index.slots.iter().map(|slot| index.counter(*slot).total.nanos()).collect();
        let mut negative = vec![0; index.versions.len()];
        for (slot, left) in index.slots.iter().zip(&available) {
            negative[slot.version.at()] += u32::from(*left < 0);
        }
        Self {
            devices: vec![DeviceState::default(); index.devices.len()],
            used: vec![0; index.amounts],
            available,
            negative,
            groups: GroupCounts::new(&index.compatibility),
            draws_in_flight: 0,
            release: Release::default(),
        }
    }

    /// Whether the whole device is held or taken.
    pub(super) fn in_use(&self, device: DeviceNo) -> Option<Obstacle> {
        let state = &self.devices[device.at()];
        match (state.exclusive, state.exclusive_in_flight) {
            (0, 0) => None,
            (0, _) => Some(Obstacle::InFlight),
            _ => Some(Obstacle::Held),
        }
    }

    /// Whether `amounts` more of each capacity of the entry would pass its whole.
    pub(super) fn lacks_capacity(
        &self,
        entry: &DeviceEntry,
        amounts: &[i128],
        whole: &[i128],
    ) -> Option<Obstacle> {
        let used = &self.used[entry.amounts()..entry.amounts() + whole.len()];
        let lacking = used.iter().zip(amounts).zip(whole).any(|((used, more), whole)| used + more > *whole);
        lacking.then(|| match self.devices[entry.device.at()].shares_in_flight {
            0 => Obstacle::Used,
            _ => Obstacle::InFlight,
        })
    }

    /// Whether a further share of the device is free of counters, because one is there already.
    pub(super) fn counters_are_paid(&self, entry: &DeviceEntry) -> bool {
        let state = &self.devices[entry.device.at()];
        // To 1.36, held shares without an amount are overlooked, and the device is charged again.
        let held = match self.release {
            Release::V1_36 => state.measured_shares,
            Release::V1_37 => state.shares,
        };
        entry.sharing == Sharing::Shareable && (held > 0 || state.shares_in_flight > 0)
    }

    /// Takes the entry's counters for the search; on failure nothing is taken.
    pub(super) fn draw_in_flight(&mut self, index: &Index, entry: &DeviceEntry) -> Result<(), Obstacle> {
        if self.groups.clash(index.compatibility.draws(entry)).is_none() {
            self.draw(index, entry);
            if self.negative[entry.version.at()] == 0 {
                self.draws_in_flight += 1;
                return Ok(());
            }
            self.undraw(index, entry);
        }
        Err(if self.draws_in_flight == 0 { Obstacle::Held } else { Obstacle::InFlight })
    }

    /// Gives back what [`Self::draw_in_flight`] took.
    pub(super) fn undraw_in_flight(&mut self, index: &Index, entry: &DeviceEntry) {
        self.undraw(index, entry);
        self.draws_in_flight -= 1;
    }

    /// Charges the entry's counters.
    pub(super) fn draw(&mut self, index: &Index, entry: &DeviceEntry) {
        if entry.counted == CounterUse::Yes {
            self.groups.add(index.compatibility.draws(entry));
            for Draw { slot, nanos } in index.draws(entry) {
                self.shift(entry, slot, -nanos);
            }
        }
    }

    /// Credits the entry's counters.
    pub(super) fn undraw(&mut self, index: &Index, entry: &DeviceEntry) {
        if entry.counted == CounterUse::Yes {
            self.groups.remove(index.compatibility.draws(entry));
            for Draw { slot, nanos } in index.draws(entry) {
                self.shift(entry, slot, nanos);
            }
        }
    }

    fn shift(&mut self, entry: &DeviceEntry, slot: SlotNo, by: i128) {
        let left = &mut self.available[slot.at()];
        let negative = &mut self.negative[entry.version.at()];
        let before = *left < 0;
        *left += by;
        match (before, *left < 0) {
            (false, true) => *negative += 1,
            (true, false) => *negative -= 1,
            _ => {}
        }
    }

    /// Adds amounts to the used capacity of an entry.
    pub(super) fn consume(&mut self, entry: &DeviceEntry, amounts: &[i128]) {
        for (used, more) in self.used[entry.amounts()..].iter_mut().zip(amounts) {
            *used += more;
        }
    }

    /// Takes amounts back from the used capacity of an entry.
    pub(super) fn restore(&mut self, entry: &DeviceEntry, amounts: &[i128]) {
        for (used, less) in self.used[entry.amounts()..].iter_mut().zip(amounts) {
            *used -= less;
        }
    }

    /// Whether any claim holds the device or a share of it; that is what counters are charged for.
    pub(super) fn is_held(&self, device: DeviceNo) -> bool {
        let state = &self.devices[device.at()];
        state.exclusive > 0 || state.shares > 0
    }
}
