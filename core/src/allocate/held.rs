//! What claims hold: taken in from their allocations, given back by UID, recounted from scratch on demand.

use super::holders::{ClaimHolder, DeviceShare, HeldResult};
use super::index::{CounterUse, DeviceNo, Index};
use super::named::name_of;
use super::problem::InputProblem;
use super::state::{DeviceState, State};
use super::world::World;
use crate::dra::{Access, AllocationResult, DeviceId, ResourceClaim};
use crate::quantity::Quantity;

/// Why an allocation is not taken in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The claim has no allocation.
    #[error("claim {claim} has no allocation, so there is nothing to hold. Allocate it first")]
    NotAllocated {
        /// The claim, as namespace/name.
        claim: String,
    },
    /// The UID holds something already.
    #[error("claim {claim} (uid {uid}) is held already. Release it before holding it again")]
    AlreadyHeld {
        /// The claim, as namespace/name.
        claim: String,
        /// Its UID.
        uid: String,
    },
}

/// A UID that holds nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no claim with uid {uid} is held, so nothing is released")]
pub struct NotHeld {
    /// The requested UID.
    pub uid: String,
}

/// More held than there is: claims arrived that way, or what is published shrank under them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Excess {
    /// Several claims hold the whole device, or some hold all and some a share.
    #[error("device {device} is held {holders} times although one holder excludes all others")]
    Device {
        /// The device.
        device: DeviceId,
        /// How many results hold it or a share of it.
        holders: u32,
    },
    /// Shares add up to more than the device has.
    #[error("device {device}: shares hold {held} of `{capacity}`, which is {whole}")]
    Capacity {
        /// The device.
        device: DeviceId,
        /// The capacity.
        capacity: String,
        /// Sum of the shares.
        held: Quantity,
        /// What the device has.
        whole: Quantity,
    },
    /// Devices draw more from a counter than it has.
    #[error("pool {pool}, counter set `{set}`: claims draw {held} of `{counter}`, which has {total}")]
    Counter {
        /// The pool, as driver/name.
        pool: String,
        /// The set.
        set: String,
        /// The counter.
        counter: String,
        /// Sum of what is drawn.
        held: Quantity,
        /// What the set has.
        total: Quantity,
    },
}

/// The running sums differ from a recount: a bug in this module, never in the input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {which}: kept {kept}, recounted {recounted}")]
pub struct SumViolation {
    /// Kind of sum.
    pub what: &'static str,
    /// Which one, by number.
    pub which: usize,
    /// The running sum.
    pub kept: String,
    /// What the recount gave.
    pub recounted: String,
}

// === impl World ===

impl World {
    /// Takes in what the claim's allocation holds. Administrative results hold nothing; unpublished devices
    /// are remembered ([`Self::lost`]) and charge nothing. Work is proportional to the allocation.
    ///
    /// # Errors
    /// The claim has no allocation, or its UID holds something already. Nothing is changed then.
    pub fn hold(&mut self, claim: &ResourceClaim) -> Result<(), HoldError> {
        match &claim.allocation {
            Some(allocation) => self.hold_as(claim, allocation),
            None => Err(HoldError::NotAllocated { claim: name_of(claim) }),
        }
    }

    /// As [`Self::hold`], with an allocation that is not written into the claim.
    ///
    /// # Errors
    /// The claim's UID holds something already. Nothing is changed then.
    pub fn hold_as(&mut self, claim: &ResourceClaim, allocation: &AllocationResult) -> Result<(), HoldError> {
        self.hold_for_now(claim, allocation)?;
        self.release_order = None;
        Ok(())
    }

    /// As [`Self::hold_as`], until [`Self::take_out`].
    pub(super) fn hold_for_now(
        &mut self,
        claim: &ResourceClaim,
        allocation: &AllocationResult,
    ) -> Result<(), HoldError> {
        if self.holds(&claim.uid) {
            return Err(HoldError::AlreadyHeld { claim: name_of(claim), uid: claim.uid.clone() });
        }
        let mut holder =
            ClaimHolder { claim: name_of(claim).into(), holdings: Vec::new(), unknown: Vec::new() };
        for result in allocation.devices.iter().filter(|result| result.access == Access::Normal) {
            let id = &result.device;
            match self.index.device(&id.driver, &id.pool, &id.device) {
                Some(device) => holder.holdings.push(HeldResult { device, part: DeviceShare::of(result) }),
                None => holder.unknown.push(id.clone()),
            }
        }
        self.charge(&holder);
        self.held.insert(claim.uid.clone(), holder);
        Ok(())
    }

    /// Gives back everything that the claim with this UID holds. Work is proportional to its size.
    ///
    /// # Errors
    /// Nothing is held under this UID.
    pub fn release(&mut self, uid: &str) -> Result<(), NotHeld> {
        self.take_out(uid).ok_or_else(|| NotHeld { uid: uid.to_owned() })?;
        self.release_order = None;
        Ok(())
    }

    /// Takes a holder out, for good or for a trial; [`Self::put_back`] undoes it.
    pub(super) fn take_out(&mut self, uid: &str) -> Option<ClaimHolder> {
        let holder = self.held.remove(uid)?;
        for holding in &holder.holdings {
            credit(&mut self.state, &self.index, holding);
            let pool = self.index.devices[holding.device.at()].pool;
            self.memo.released(pool, &mut self.neighbourhoods);
        }
        Some(holder)
    }

    /// Puts back what [`Self::take_out`] took out.
    pub(super) fn put_back(&mut self, uid: String, holder: ClaimHolder) {
        self.charge(&holder);
        self.held.insert(uid, holder);
    }

    fn charge(&mut self, holder: &ClaimHolder) {
        for holding in &holder.holdings {
            charge(&mut self.state, &self.index, holding);
        }
        for holding in &holder.holdings {
            let facts = &self.index.devices[holding.device.at()];
            let mut versions =
                self.index.entries_of(holding.device).map(|entry| self.index.entries[entry.at()].version);
            if versions.any(|version| self.state.negative[version.at()] > 0) {
                // An overdrawn counter frees later shares of the device from it: refusals may no longer hold.
                self.memo.released(facts.pool, &mut self.neighbourhoods);
            }
        }
    }

    /// Whether a claim with this UID holds something.
    #[must_use]
    pub fn holds(&self, uid: &str) -> bool {
        self.held.claims.contains_key(uid)
    }

    /// Unpublished devices that claims hold, by claim.
    #[must_use]
    pub fn lost(&self) -> Vec<InputProblem> {
        let mut lost: Vec<_> =
            self.held.all().flat_map(|(_, h)| h.unknown.iter().map(|d| (&h.claim, d))).collect();
        lost.sort();
        lost.into_iter()
            .map(|(claim, device)| InputProblem::UnknownDevice {
                claim: claim.to_string(),
                device: device.clone(),
            })
            .collect()
    }

    /// Everything of which more is held than there is. Empty unless claims were held that this world did not allocate.
    #[must_use]
    pub fn excesses(&self) -> Vec<Excess> {
        let (index, state) = (&self.index, &self.state);
        let mut found = Vec::new();
        for (number, device) in state.devices.iter().enumerate() {
            if device.exclusive > 1 || device.exclusive > 0 && device.shares > 0 {
                let device_id = index.id(DeviceNo::after(number));
                found.push(Excess::Device { device: device_id, holders: device.exclusive + device.shares });
            }
        }
        for entry in &index.entries {
            let profile = &index.profiles[entry.profile.at()];
            for ((name, capacity), used) in profile.capacities.iter().zip(&state.used[entry.amounts()..]) {
                if *used > capacity.value.nanos() {
                    found.push(Excess::Capacity {
                        device: index.id(entry.device),
                        capacity: name.clone(),
                        held: Quantity::from_nanos(*used, capacity.value.format()),
                        whole: capacity.value,
                    });
                }
            }
        }
        for (slot, left) in index.slots.iter().zip(&state.available) {
            if *left < 0 {
                let counter = index.counter(*slot);
                let pool = &index.pools[index.versions[slot.version.at()].pool.at()];
                found.push(Excess::Counter {
                    pool: format!("{}/{}", pool.driver, pool.name),
                    set: counter.set.clone(),
                    counter: counter.counter.clone(),
                    held: Quantity::from_nanos(counter.total.nanos() - left, counter.total.format()),
                    total: counter.total,
                });
            }
        }
        found
    }

    /// Recounts everything from what each claim holds and compares with the running sums.
    ///
    /// # Errors
    /// The first sum that differs; always a bug here.
    pub fn invariants(&self) -> Result<(), SumViolation> {
        let mut recount = State::new(&self.index);
        for holding in self.held.all().flat_map(|(_, holder)| &holder.holdings) {
            charge(&mut recount, &self.index, holding);
        }
        compare("holders of device", &self.state.devices, &recount.devices)?;
        compare("used capacity", &self.state.used, &recount.used)?;
        compare("available counter", &self.state.available, &recount.available)?;
        compare("overdrawn counters of pool", &self.state.negative, &recount.negative)?;
        compare("devices by compatibility group", &self.state.groups.all(), &recount.groups.all())?;
        compare("draws in flight", &[self.state.draws_in_flight], &[0])
    }
}

fn compare<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    kept: &[T],
    recounted: &[T],
) -> Result<(), SumViolation> {
    match kept.iter().zip(recounted).position(|(kept, recounted)| kept != recounted) {
        None => Ok(()),
        Some(which) => Err(SumViolation {
            what,
            which,
            kept: format!("{:?}", kept[which]),
            recounted: format!("{:?}", recounted[which]),
        }),
    }
}

fn charge(state: &mut State, index: &Index, holding: &HeldResult) {
    let counters = if state.is_held(holding.device) { CounterUse::No } else { CounterUse::Yes };
    let device = &mut state.devices[holding.device.at()];
    match &holding.part {
        DeviceShare::Whole => device.exclusive += 1,
        DeviceShare::Share(consumed) => {
            device.shares += 1;
            device.measured_shares += u32::from(!consumed.is_empty());
        }
    }
    settle(state, index, holding, counters, State::draw, |used, amount| *used += amount);
}

fn credit(state: &mut State, index: &Index, holding: &HeldResult) {
    let device: &mut DeviceState = &mut state.devices[holding.device.at()];
    match &holding.part {
        DeviceShare::Whole => device.exclusive -= 1,
        DeviceShare::Share(consumed) => {
            device.shares -= 1;
            device.measured_shares -= u32::from(!consumed.is_empty());
        }
    }
    let counters = if state.is_held(holding.device) { CounterUse::No } else { CounterUse::Yes };
    settle(state, index, holding, counters, State::undraw, |used, amount| *used -= amount);
}

/// Records a holding on every description of its device: counters if it is the first or last holder, and capacities.
fn settle(
    state: &mut State,
    index: &Index,
    holding: &HeldResult,
    counters: CounterUse,
    draw: fn(&mut State, &Index, &super::index::DeviceEntry),
    book: fn(&mut i128, i128),
) {
    for entry in index.entries_of(holding.device) {
        let entry = &index.entries[entry.at()];
        if counters == CounterUse::Yes {
            draw(state, index, entry);
        }
        let DeviceShare::Share(consumed) = &holding.part else { continue };
        let capacities = &index.profiles[entry.profile.at()].capacities;
        for ((name, _), used) in capacities.iter().zip(&mut state.used[entry.amounts()..]) {
            if let Some(amount) = consumed.get(name) {
                book(used, amount.nanos());
            }
        }
    }
}

// === impl DeviceShare ===
