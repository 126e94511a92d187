//! The driver's account of a card's memory against the slots of its grants: every [`LOOK`], and sooner if a process is about to be
//! refused.
//!
//! ```text
//!   slots of each grant ─▶ driver: bytes of each process ─▶ slots again
//!     └─▶ residue of the grant ─▶ its limits file ─▶ new presumptions fall to what the driver shows
//! ```
//!
//! A process belongs to the grants in which it has a slot, else to the grant that it was started under, by its mounts,
//! environment and ancestors: what bypasses the shim is charged to its tenant. The residue is published before presumptions fall, so
//! that no byte is missing in between. If the driver reports no bytes of a process, presumptions stay and nothing is added.
//!
//! A presumption is compared once, when it is new: later the process's exact bytes may be more than the driver's, such as pages
//! that no allocation fills, and would hide some of it. Contexts of a published size are compared only while their process holds
//! nothing else, whenever that is.
//!
//! The next context is presumed to take the least that the driver showed of a process with a new one, since the governor began,
//! within [`CONTEXT_SIZES`]. Tenants say which processes have one: so what one shows lowers a published size for its own grant
//! alone, and others get it only if nothing was published.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aliquot_abi::limits::{CONTEXT_BYTES_PRESUMED, Limits, ManagedPolicy, MemoryLimit};
use aliquot_core::units::Bytes;
use aliquot_enforce::residue::{self, Calls, Look, ResidueHistory};
use aliquot_enforce::units::Nanos;

use super::grant::GovernedGrant;
use super::owners::StartedGrants;
use super::{LOOK, Reign};
use crate::clock::monotonic;
use crate::region::{SlotBytes, TotalState, start_time};

/// Shortest time between two looks, however often tenants want one.
const SOON: Duration = Duration::from_millis(10);
/// What may be a context's size. A process that shows less has none; one that shows more has allocations too, and what is presumed
/// without knowledge is better.
const CONTEXT_SIZES: RangeInclusive<Bytes> = Bytes(16 << 20)..=Bytes(CONTEXT_BYTES_PRESUMED);
/// Most processes of which the grant is remembered.
const PROCESSES_MAX: usize = 4_096;

/// Looks at one card's memory.
#[derive(Debug, Default)]
pub(super) struct MemoryLooks {
    looked_at: Option<Nanos>,
    /// What a process without a slot was started under, by pid and start time. Its share may get its first slot later.
    started: BTreeMap<(u32, u64), StartedGrants>,
    /// Least bytes of a process with a new context, of any grant.
    context: Option<Bytes>,
}

/// What looks remember of one grant.
#[derive(Debug, Default)]
pub(super) struct GrantLooks {
    history: ResidueHistory,
    /// Value of the tenant's word at the last look.
    wanted: u32,
    /// Presumed bytes of slots, as they were compared last.
    compared: BTreeMap<(usize, u64), u64>,
    /// The total has presumed bytes that were taken off.
    is_total_high: bool,
}

/// One grant in one look.
struct GrantLook {
    dir: PathBuf,
    limit: Bytes,
    /// What a context is published to take; 0: that is not known.
    context: u64,
    before: Vec<SlotBytes>,
    total: u64,
    wanted: u32,
}

/// Bytes of the card's processes, as the driver reports them.
type Listed = BTreeMap<u32, Option<Bytes>>;

// === impl Reign ===

impl Reign<'_> {
    /// Looks, if it is time or a tenant wants it.
    pub(super) fn look_at_memory(&mut self) {
        let Some(driver) = self.scope.processes.clone() else { return };
        let began = monotonic();
        let since = self.memory.looked_at.map(|at| Duration::from_nanos(began.minus(at).0));
        let is_due = since.is_none_or(|since| since >= LOOK || since >= SOON && self.is_look_wanted());
        if !is_due {
            return;
        }
        self.memory.looked_at = Some(began);
        let looks: Vec<GrantLook> =
            self.grants.iter_mut().filter_map(|(dir, grant)| GrantLook::begin(dir, grant)).collect();
        if looks.is_empty() {
            return;
        }
        // A driver that does not answer now: what was found last stays.
        let Some(processes) = driver.processes() else { return };
        let mut listed = Listed::new();
        for (pid, held) in processes {
            let sum = listed.entry(pid).or_insert(Some(Bytes(0)));
            *sum = sum.zip(held).map(|(sum, held)| Bytes(sum.0.saturating_add(held.0)));
        }
        let unshimmed = self.without_slots(&listed, &looks);
        for look in looks {
            let beside = unshimmed.get(&look.dir).cloned().unwrap_or_default();
            if let Some(grant) = self.grants.get_mut(&look.dir) {
                look.end(grant, (&listed, &beside), began, &mut self.memory.context);
            }
        }
    }

    /// Whether any grant's memory is looked at.
    pub(super) fn looks_at_memory(&self) -> bool {
        self.scope.processes.is_some() && self.grants.values().any(GovernedGrant::limits_memory)
    }

    /// Whether a process wants a look before it is refused.
    fn is_look_wanted(&self) -> bool {
        self.grants.values().any(|grant| grant.look_word().is_some_and(|word| word != grant.looks.wanted))
    }

    /// By share, the processes on the card that have no slot in any share.
    fn without_slots(&mut self, listed: &Listed, looks: &[GrantLook]) -> BTreeMap<PathBuf, BTreeSet<u32>> {
        let with_slot: BTreeSet<u32> =
            looks.iter().flat_map(|look| look.before.iter().filter_map(|slot| slot.pid)).collect();
        let grants = self.scope.grants.clone();
        let mut by_share = BTreeMap::<PathBuf, BTreeSet<u32>>::new();
        let mut alive = BTreeSet::new();
        for pid in listed.keys().filter(|pid| !with_slot.contains(pid)) {
            let Some(start) = start_time(*pid) else { continue };
            alive.insert((*pid, start));
            let known = &mut self.memory.started;
            if !known.contains_key(&(*pid, start)) && known.len() < PROCESSES_MAX {
                known.insert((*pid, start), StartedGrants::of(*pid, &grants));
            }
            let Some(started) = known.get(&(*pid, start)) else { continue };
            if let Some(look) = looks.iter().find(|look| started.is_under(&look.dir)) {
                by_share.entry(look.dir.clone()).or_default().insert(*pid);
            }
        }
        self.memory.started.retain(|process, _| alive.contains(process));
        by_share
    }

    /// The words by which tenants want a look, with their values now, and how long the next look has to wait if one does.
    pub(super) fn look_words(&self) -> (Vec<(&AtomicU32, u32)>, Duration) {
        let longest = if self.is_look_wanted() { SOON } else { LOOK };
        let limited = self.grants.values().filter(|grant| grant.limits_memory());
        let word = |grant| {
            let word = GovernedGrant::look_wanted(grant)?;
            Some((word, word.load(Ordering::SeqCst)))
        };
        (limited.filter_map(word).collect(), longest)
    }
}

// === impl GrantLook ===

impl GrantLook {
    /// Reads the slots before the driver is asked. `None`: no process uses the grant, or its memory is not limited.
    fn begin(dir: &Path, grant: &mut GovernedGrant) -> Option<Self> {
        let limits = grant.limits.read().ok()?;
        let MemoryLimit::Bytes(limit) = limits.memory else { return None };
        // Managed memory that is free of charge is among the driver's bytes.
        let is_used = limits.managed == ManagedPolicy::Charge && grant.usage.is_used();
        if !is_used {
            grant.forget_residue();
            return None;
        }
        let wanted = grant.look_word().unwrap_or_default();
        let before = grant.usage.slot_bytes();
        // Bytes enter the total before a slot, and leave the slot before the total.
        let total = grant.usage.total();
        let context = limits.context_bytes;
        Some(Self { dir: dir.to_owned(), limit: Bytes(limit), context, before, total, wanted })
    }

    /// After the driver was asked: publishes the residue, then lowers new presumptions.
    fn end(
        self,
        grant: &mut GovernedGrant,
        (listed, beside): (&Listed, &BTreeSet<u32>),
        began: Nanos,
        context: &mut Option<Bytes>,
    ) {
        grant.looks.wanted = self.wanted;
        let after = grant.usage.slot_bytes();
        let ours: BTreeSet<u32> = self
            .before
            .iter()
            .chain(&after)
            .filter_map(|slot| slot.pid)
            .chain(beside.iter().copied())
            .collect();
        let held: Option<Vec<Bytes>> = ours.iter().filter_map(|pid| listed.get(pid)).copied().collect();
        let Some(held) = held else {
            grant.publish_residue(Bytes(0));
            return grant.publish_look(began);
        };
        let lowered = self.lowered(grant, &after, listed);
        let less = sum(lowered.iter().map(|(_, less)| less.0));
        // Processes are admitted by the total: slots that say more than it hide nothing.
        let exact = |slots: &[SlotBytes], total: u64| {
            sum(slots.iter().map(|slot| slot.used)).min(total).saturating_sub(less)
        };
        // Slots are the tenant's words: no more is shared than its limit, by no more processes than the driver shows.
        let processes = u64::try_from(held.len()).unwrap_or(0);
        let shared = sum(self.before.iter().filter(|slot| slot.is_shared).map(|slot| slot.used));
        let look = Look {
            driver: sum(held.iter().map(|held| held.0)),
            before: exact(&self.before, self.total),
            after: exact(&after, grant.usage.total()),
            counted_again: shared.min(self.limit.0).saturating_mul(processes.saturating_sub(1)),
        };
        let is_calm = !self.before.iter().chain(&after).any(|slot| slot.calls == Calls::UnderWay)
            && !after.iter().any(|slot| slot.has_moved_since(&self.before));
        let calls = if is_calm { Calls::None } else { Calls::UnderWay };
        let residue = grant.looks.history.after(look.residue(self.limit.0), calls);
        grant.publish_residue(Bytes(residue));
        grant.lower_presumptions(&lowered);
        grant.publish_look(began);
        let shown = lowered.iter().filter_map(|(slot, _)| *listed.get(&slot.pid?)?);
        let own = shown.filter(|held| CONTEXT_SIZES.contains(held)).min();
        *context = own.into_iter().chain(*context).min();
        own.into_iter().for_each(|own| grant.publish_context(own, |now| now == 0 || now > own.0));
        context.iter().for_each(|context| grant.publish_context(*context, |now| now == 0));
    }
}

// === impl GrantLook, presumptions ===

impl GrantLook {
    /// Slots with a presumption that no look compared yet, made for memory that the driver had given by then; and by how much the
    /// driver shows less. The smaller reading of a slot counts: what was taken after the driver's answer is not in its figure, and
    /// would be taken off the presumption.
    fn lowered(
        &self,
        grant: &mut GovernedGrant,
        after: &[SlotBytes],
        listed: &Listed,
    ) -> Vec<(SlotBytes, Bytes)> {
        let compared = std::mem::take(&mut grant.looks.compared);
        let mut lowered = Vec::new();
        for slot in self.before.iter().filter(|slot| slot.presumed > 0) {
            let id = slot.identity();
            let is_known = slot.presumed.checked_rem(self.context) == Some(0);
            let driver = slot.pid.and_then(|pid| *listed.get(&pid)?).filter(|_| slot.calls == Calls::None);
            if compared.get(&id).is_some_and(|bytes| *bytes >= slot.presumed) {
                grant.looks.compared.insert(id, slot.presumed);
            } else if let Some(driver) = driver.filter(|_| !is_known || slot.is_presumed_alone(after)) {
                let shown = residue::shown(driver.0, slot.least_used(after), slot.presumed);
                grant.looks.compared.insert(id, shown);
                lowered.push((*slot, Bytes(slot.presumed - shown)));
            }
        }
        lowered
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

// === impl GovernedGrant ===

impl GovernedGrant {
    fn look_wanted(&self) -> Option<&AtomicU32> {
        Some(self.usage.view().ok()?.look_wanted())
    }

    fn look_word(&self) -> Option<u32> {
        Some(self.look_wanted()?.load(Ordering::SeqCst))
    }

    /// No look concerns it any more.
    pub(super) fn forget_residue(&mut self) {
        let wanted = self.look_word().unwrap_or_default();
        self.looks = GrantLooks { wanted, ..GrantLooks::default() };
        self.publish_residue(Bytes(0));
        // Its first process knows that a governor runs.
        self.publish_look(monotonic());
    }

    /// A file that cannot be written now keeps its residue until the next look.
    fn publish_residue(&mut self, residue: Bytes) {
        match self.limits.publish_residue(residue) {
            Ok(()) | Err(_) => {}
        }
    }

    fn publish_look(&mut self, began: Nanos) {
        match self.limits.publish_look(began, self.looks.wanted) {
            Ok(()) | Err(_) => {}
        }
    }

    /// Lowers presumptions, or counts again what was left in the total.
    fn lower_presumptions(&mut self, lowered: &[(SlotBytes, Bytes)]) {
        let part = self.own();
        let slots = lowered.iter().map(|(slot, less)| (slot, *less));
        let counted = match self.usage.lower_presumptions(part, slots) {
            Ok(TotalState::Exact) if self.looks.is_total_high => self.usage.recount_total(part),
            lowered => lowered,
        };
        self.looks.is_total_high = !matches!(counted, Ok(TotalState::Exact));
    }

    /// Publishes what a context takes, if `is_news` beside what was published (0: nothing).
    fn publish_context(&mut self, context: Bytes, is_news: impl Fn(u64) -> bool) {
        if self.limits.read().is_ok_and(|now| is_news(now.context_bytes)) {
            let change = |now: &Limits| {
                is_news(now.context_bytes).then_some(Limits { context_bytes: context.0, ..*now })
            };
            // Limits that cannot be written now are changed by a later look.
            let _written = self.limits.change(change);
        }
    }
}
