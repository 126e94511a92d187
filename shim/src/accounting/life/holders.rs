//! The processes of a container, and what accounting says of each.

use core::sync::atomic::Ordering;

use aliquot_abi::layout::slot::LENT;
use aliquot_abi::view::SlotView;

use super::{is_lent, pid_of, slots};
use crate::grants::Usage;
use crate::sys::process::{self, Pid};

/// Readings of what a process has and lends, until nothing moves meanwhile.
const BOTH_TRIES: u32 = 8;

/// A process of this pid namespace, and what accounting says it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) pid: Pid,
    pub(crate) bytes: u64,
}

/// The processes of a grant that this process can name: those of other pid namespaces have numbers that mean nothing here. What
/// a process lends and still has is among what it holds.
pub(crate) fn holders(usage: Usage) -> impl Iterator<Item = Holder> + Clone {
    let namespace = process::namespace();
    let is_here = move |slot: SlotView<'_>| slot.pid_namespace().load(Ordering::Acquire) == namespace;
    let lent_by = move |pid: Pid| {
        let is_its = move |slot: &SlotView<'_>| {
            pid_of(*slot) == pid && slot.kind().load(Ordering::Acquire) == LENT && is_here(*slot)
        };
        let lent = slots(usage).map(|(_, slot)| slot).filter(is_its);
        lent.fold(0_u64, |sum, slot| sum.saturating_add(slot.used().load(Ordering::Acquire)))
    };
    slots(usage).filter_map(move |(_, slot)| {
        let pid = pid_of(slot);
        if pid.0 == 0 || is_lent(slot) || !is_here(slot) {
            return None;
        }
        let bytes = both(|| slot.used().load(Ordering::Acquire), || lent_by(pid));
        (bytes > 0).then_some(Holder { pid, bytes })
    })
}

/// What a process has and what it lends together: what goes from the one to the other meanwhile is in the sum once, or, where
/// that goes on and on, in none of both, as in the slots for a moment.
fn both(own: impl Fn() -> u64, lent: impl Fn() -> u64) -> u64 {
    let (mut before, mut sum) = (own(), 0);
    for _ in 0..BOTH_TRIES {
        let lent = lent();
        let after = own();
        sum = after.saturating_add(lent);
        if after == before {
            break;
        }
        before = after;
    }
    sum
}
