//! Plain memory of which another process may have a range (`cuMemGetHandleForAddressRange`): freed, it is on the card as long
//! as it does, and no driver tells how long. So it is charged as exported physical memory is ([`crate::memory::physical`]).

use core::sync::atomic::{AtomicU32, Ordering};

use crate::accounting::alloc_map::{AllocEntry, AllocMap, Fate, Key, Tie};
use crate::loader::vendor::SUCCESS;
use crate::memory::physical::{self, DroppedHolds, Number};
use crate::memory::plain::{self, POINTERS};

/// An allocation, by its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    number: Number,
    tie: Tie,
}

static RANGES: AllocMap<Range> = AllocMap::new();
/// 1: there was one, which most programs never have.
static ANY: AtomicU32 = AtomicU32::new(0);

/// A range of the allocation at this address was exported. What is shared as well stays in its own slot.
pub(crate) fn export(base: u64) {
    let key = Key(base);
    if POINTERS.get(key).is_none_or(AllocEntry::is_apart) {
        return;
    }
    let Some(held) = plain::detach(key).filter(|held| !held.is_apart()) else { return };
    let Some(number) = physical::range_exported(held.bytes(), held.grant()) else { return };
    ANY.store(1, Ordering::Release);
    let noted = RANGES.insert(key, Range { number, tie: held.tie() });
    // What was there before ended without us.
    noted.into_iter().flatten().for_each(Range::ended);
    let is_same = |found: &mut _| if *found == held { Fate::Goes } else { Fate::Stays };
    let moved = noted.is_ok() && matches!(POINTERS.decide(key, is_same), Some((Fate::Goes, _)));
    if !moved {
        // It has no place, was freed meanwhile, or another thread was faster: it is charged where it was.
        RANGES.decide(key, |range| if range.number == number { Fate::Goes } else { Fate::Stays });
        number.discard();
    }
}

/// What is about to be freed, if it is one.
pub(crate) fn take(address: u64) -> Option<Range> {
    if ANY.load(Ordering::Acquire) == 0 {
        return None;
    }
    RANGES.take(Key(address))
}

impl Range {
    /// Has the vendor free it.
    pub(crate) fn free(self, address: u64, call: impl FnOnce() -> i32) -> i32 {
        let mut going = DroppedHolds::default();
        self.number.begin_drop(&mut going);
        let (answer, seen, _moving) = going.ask(call);
        if answer == SUCCESS {
            self.number.dropped(seen);
        } else {
            self.number.keep();
            // Without a place for it it stays charged.
            let _stays = RANGES.insert(Key(address), self);
        }
        answer
    }

    /// Has the vendor write down that it is to be freed: in a capture nothing is freed yet.
    pub(crate) fn stays(self, address: u64, call: impl FnOnce() -> i32) -> i32 {
        let answer = call();
        let _stays = RANGES.insert(Key(address), self);
        answer
    }

    /// It is gone here, and no process saw whether elsewhere.
    fn ended(self) {
        self.number.unhold();
    }
}

/// A context ended with its memory, which others may still have.
pub(crate) fn context_ended(tie: Tie) {
    if ANY.load(Ordering::Acquire) == 0 {
        return;
    }
    while let Some(key) = RANGES.find(|key, range| (range.tie == tie).then_some(key)) {
        if let Some(range) = RANGES.take(key) {
            range.ended();
        }
    }
}
