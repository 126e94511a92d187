//! Allocations that outlive the launch of their graph. Until they are freed they are pinned: in the store for sure, and part of
//! their graph's footprint, so that they are no residue of a graph that is gone.
//!
//! ```text
//!   instantiate ─▶ a block an allocation ─▶ launched: the graph's blocks are pinned ─▶ freed: the block is not
//!                                                                  launched again, destroyed: none of them is
//! ```
//!
//! A graph that frees some of its allocations, or another graph's, ends this: its launch frees what no call names. Then nothing
//! is pinned in this process any more, and residue stays longer.

use core::sync::atomic::{AtomicU32, Ordering};

use super::demand::{GraphDemand, Left, each_allocation};
use super::stores::{EXECS, Exec, Execs};
use crate::accounting::alloc_map::{AllocMap, Key, NoRoom};
use crate::sys::KeepErrno;

#[derive(Clone, Copy, Debug)]
struct Block {
    exec: u64,
    bytes: u64,
    /// The launch whose allocation was freed, by its number.
    freed: u64,
}

/// By address.
static BLOCKS: AllocMap<Block> = AllocMap::new();
static STATE: AtomicU32 = AtomicU32::new(NONE);
/// There was no block, which is so in most programs.
const NONE: u32 = 0;
const SOME: u32 = 1;
/// Blocks may be freed unseen.
const UNKNOWN: u32 = 2;

/// A graph is about to be instantiated, or to be what an executable one becomes.
pub(super) fn read(left: Left) {
    if left == Left::Unknown && STATE.swap(UNKNOWN, Ordering::AcqRel) != UNKNOWN {
        EXECS.with(|execs| execs.each_exec(|_| true, Execs::unpin));
    }
}

/// Notes what launches of an executable graph leave, in bytes; 0: nothing, or it is not known.
pub(super) fn note(exec: u64, graph: u64, footprint: &GraphDemand, left: Left) -> u64 {
    if left != Left::All || footprint.only_card().is_none() || STATE.load(Ordering::Acquire) == UNKNOWN {
        return 0;
    }
    let (mut sum, mut is_whole) = (0_u64, true);
    let read = each_allocation(graph, |address, bytes| {
        sum = sum.saturating_add(bytes);
        is_whole &= match BLOCKS.insert(Key(address), Block { exec, bytes, freed: 0 }) {
            Ok(None) => address != 0,
            Ok(Some(stale)) => {
                EXECS.with(|execs| execs.forget_left(stale.exec));
                stale.exec != exec
            }
            Err(NoRoom) => false,
        };
    });
    let _first = STATE.compare_exchange(NONE, SOME, Ordering::AcqRel, Ordering::Acquire);
    let most = footprint.each().map(|(_, bytes)| bytes).sum();
    if read.is_ok() && is_whole && sum <= most {
        return sum;
    }
    forget(exec);
    0
}

/// A graph was launched: all of it is there.
pub(super) fn launched(exec: u64) {
    let is_tracked = || STATE.load(Ordering::Acquire) == SOME;
    if !is_tracked() {
        return;
    }
    let _errno = KeepErrno::new();
    let pin = |known: &mut Exec| {
        known.launches = known.launches.saturating_add(1);
        known.pinned = if is_tracked() { known.left } else { 0 };
    };
    EXECS.with(|execs| execs.change_pinned(exec, pin));
}

/// An address is about to be freed.
#[inline]
pub(crate) fn freeing(address: u64) {
    if STATE.load(Ordering::Acquire) == SOME {
        free(address);
    }
}

#[cold]
fn free(address: u64) {
    let _errno = KeepErrno::new();
    let Some(Block { exec, bytes, freed }) = BLOCKS.get(Key(address)) else { return };
    let mut launch = freed;
    let unpin = |known: &mut Exec| {
        launch = known.launches;
        if launch != freed {
            known.pinned = known.pinned.saturating_sub(bytes);
        }
    };
    EXECS.with(|execs| execs.change_pinned(exec, unpin));
    BLOCKS.update(Key(address), |block| block.freed = launch);
}

/// An executable graph is about to be destroyed.
pub(super) fn ended(exec: u64, known: &Exec) {
    if known.left > 0 {
        forget(exec);
    }
}

fn forget(exec: u64) {
    let _errno = KeepErrno::new();
    BLOCKS.sweep(|_, block| block.exec == exec, |_| ());
}
