//! The contexts in which this process allocates: each has a number of its own, as the driver uses handles again.
//!
//! ```text
//!   allocation ─▶ current() ─▶ number, kept with the allocation
//!   end of a context ─▶ going(handle) ─▶ vendor call ─▶ gone(): everything with the number is credited
//!                                                  └──▶ stays(): it has the number again
//! ```
//!
//! While a context may be about to end it has no number, and what is allocated in it gets it another one. If it stays it has
//! both: the older one is a former number of the newer, with which it ends. A process keeps [`FORMER_MAX`] of them at once.
//!
//! Contexts past [`CONTEXTS_MAX`] at once have no number: what was allocated in one that ends stays charged until its
//! address comes again or the process ends.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::accounting::alloc_map::Tie;
use crate::accounting::listeners::{CONTEXT_LISTENERS, Note, OnContextEnd, listeners, on_context_end};
use crate::loader::vendor::{self, Device};
use crate::sys;

/// Contexts of a process that are told apart.
const CONTEXTS_MAX: usize = 256;

/// Former numbers of contexts that are there.
const FORMER_MAX: usize = 256;

/// Turns of the processor given away while another thread writes, which takes it some nanoseconds.
const WRITING_TURNS_MAX: u32 = 100_000;

/// Where an allocation is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    /// The card.
    pub(crate) device: Device,
    /// The context's number.
    pub(crate) tie: Tie,
}

/// One context. Read without a lock, written under [`WRITING`].
struct ContextSlot {
    handle: AtomicU64,
    /// 0: free.
    number: AtomicU32,
}

static PLACES: [ContextSlot; CONTEXTS_MAX] =
    [const { ContextSlot { handle: AtomicU64::new(0), number: AtomicU32::new(0) } }; CONTEXTS_MAX];
static WRITING: AtomicU32 = AtomicU32::new(0);

/// A former number of a context, and its later one, which is no context's former number; 0: nothing. Written under [`WRITING`].
struct FormerNumber {
    number: AtomicU32,
    later: AtomicU32,
}

static FORMER: [FormerNumber; FORMER_MAX] =
    [const { FormerNumber { number: AtomicU32::new(0), later: AtomicU32::new(0) } }; FORMER_MAX];
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The current context and its card. `None`: there is none, and the driver will refuse.
pub(crate) fn current() -> Option<Current> {
    let device = vendor::current_device()?;
    let handle = vendor::current_context()?;
    Some(Current { device, tie: find(handle).unwrap_or_else(|| first_use(device, handle)) })
}

#[cold]
fn first_use(device: Device, handle: u64) -> Tie {
    listeners().into_iter().for_each(|listeners| (listeners.on_context_use)(device, handle));
    enter(handle)
}

/// Where a handle's place is looked for first.
fn home(handle: u64) -> usize {
    usize::try_from(handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap_or(0)
}

fn places(handle: u64) -> impl Iterator<Item = &'static ContextSlot> {
    let home = home(handle);
    (0..CONTEXTS_MAX).filter_map(move |step| PLACES.get(home.wrapping_add(step) % CONTEXTS_MAX))
}

/// The number of a context; `None`: it has none now.
pub(crate) fn find(handle: u64) -> Option<Tie> {
    for place in places(handle) {
        let found = place.handle.load(Ordering::Acquire);
        if found == 0 {
            return None;
        }
        if found == handle {
            let number = place.number.load(Ordering::Acquire);
            // A place changes hands only without a number: still this handle, so the number was its own.
            let same = place.handle.load(Ordering::Acquire) == handle;
            return (number != 0 && same).then_some(Tie(number));
        }
    }
    None
}

/// The place of a handle, or one that it may have; for the thread that is in [`write`].
fn place_for(handle: u64) -> Option<&'static ContextSlot> {
    let own = places(handle).find(|place| place.handle.load(Ordering::Acquire) == handle);
    own.or_else(|| places(handle).find(|place| place.number.load(Ordering::Acquire) == 0))
}

fn write<R>(inside: impl FnOnce() -> R) -> R {
    let mut turns = 0;
    // Past the bound its holder was in another process, of which this one is a fork.
    while WRITING.swap(1, Ordering::Acquire) != 0 && turns < WRITING_TURNS_MAX {
        turns += 1;
        sys::yield_now();
    }
    let answer = inside();
    WRITING.store(0, Ordering::Release);
    answer
}

/// A number that no context has. After [`Tie::LAST`] contexts they come again: what went with an earlier one ended with it.
fn free_number() -> u32 {
    loop {
        let number = NEXT.fetch_add(1, Ordering::AcqRel) & Tie::LAST;
        let is_free = |place: &ContextSlot| place.number.load(Ordering::Acquire) != number;
        let is_past = |former: &FormerNumber| former.number.load(Ordering::Acquire) != number;
        // Places and former numbers are far fewer than numbers: this ends.
        if number != 0 && PLACES.iter().all(is_free) && FORMER.iter().all(is_past) {
            return number;
        }
    }
}

/// Gives a context a number.
#[cold]
fn enter(handle: u64) -> Tie {
    write(|| {
        if let Some(tie) = find(handle) {
            return tie;
        }
        let Some(place) = place_for(handle) else { return Tie(0) };
        let number = free_number();
        place.handle.store(handle, Ordering::Release);
        place.number.store(number, Ordering::Release);
        Tie(number)
    })
}

/// Has a handle stand for another context, and use that one's memory.
pub(crate) fn join(handle: u64, other: u64) {
    let tie = find(other).unwrap_or_else(|| enter(other));
    write(|| {
        if let Some(place) = place_for(handle) {
            place.number.store(0, Ordering::Release);
            place.handle.store(handle, Ordering::Release);
            place.number.store(tie.0, Ordering::Release);
        }
    });
}

/// Such a handle stands for nothing any more.
pub(crate) fn part(handle: u64) {
    write(|| {
        if let Some(place) = places(handle).find(|place| place.handle.load(Ordering::Acquire) == handle) {
            place.number.store(0, Ordering::Release);
        }
    });
}

/// Everything of one number, and of its former ones, ends with a later one; for the thread that is in [`write`].
fn follow(tie: Tie, later: Tie) {
    for former in FORMER.iter().filter(|former| former.later.load(Ordering::Acquire) == tie.0) {
        former.later.store(later.0, Ordering::Release);
    }
    // Where there is no place, what has this number stays charged as with a context that has none.
    if let Some(free) = FORMER.iter().find(|former| former.later.load(Ordering::Acquire) == 0) {
        free.number.store(tie.0, Ordering::Release);
        free.later.store(later.0, Ordering::Release);
    }
}

/// The former numbers of what has this one.
fn former(tie: Tie) -> impl Iterator<Item = &'static FormerNumber> {
    FORMER.iter().filter(move |former| former.later.load(Ordering::Acquire) == tie.0)
}

/// One of them, which is none any more.
fn take_former(tie: Tie) -> Option<Tie> {
    write(|| {
        let taken = former(tie).next()?;
        taken.later.store(0, Ordering::Release);
        Some(Tie(taken.number.swap(0, Ordering::AcqRel)))
    })
}

/// Whether a context ends by a call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextEnd {
    /// It does.
    Comes,
    /// It is there no more: the driver is not to be given its handle.
    Was,
}

/// A context of this handle was made: an earlier one has ended, with all that was in it.
pub(crate) fn begins(handle: u64) {
    if find(handle).is_some() {
        going(handle, ContextEnd::Was).gone();
    }
}

/// What the listeners found when a context began to end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notes([Note; CONTEXT_LISTENERS]);

/// A context that is about to end, or has.
#[must_use]
#[derive(Debug)]
pub(crate) struct EndingContext {
    handle: u64,
    tie: Option<Tie>,
    notes: Notes,
}

/// Before the driver is asked to end a context: whatever is allocated from now on under this handle is another one's.
pub(crate) fn going(handle: u64, end: ContextEnd) -> EndingContext {
    going_as(handle, end, find(handle))
}

/// The same for the context that had this number, where another one may have its handle by now.
pub(crate) fn going_as(handle: u64, end: ContextEnd, tie: Option<Tie>) -> EndingContext {
    let notes = handle_going(handle, end);
    let tie = write(|| {
        let place = places(handle).find(|place| place.handle.load(Ordering::Acquire) == handle)?;
        let is_its =
            |tie: &Tie| place.number.compare_exchange(tie.0, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        tie.filter(is_its)
    });
    if let Some(tie) = tie {
        each_of(tie, |listener, tie| listener.number_going(tie));
    }
    EndingContext { handle, tie, notes }
}

/// Says it to the thread that has work or events in a context of this handle.
pub(crate) fn handle_going(handle: u64, end: ContextEnd) -> Notes {
    let mut notes = Notes::default();
    for (listener, note) in on_context_end().zip(&mut notes.0) {
        *note = listener.going(handle, end);
    }
    notes
}

/// It ended.
pub(crate) fn handle_gone(handle: u64, notes: Notes) {
    on_context_end().zip(notes.0).for_each(|(listener, note)| listener.gone(handle, note));
}

/// Everything under a number ended.
fn gone_with(tie: Tie) {
    on_context_end().for_each(|listener| listener.number_gone(tie));
}

/// With a number and its former ones.
fn each_of(tie: Tie, act: fn(&dyn OnContextEnd, Tie)) {
    let act = |tie| on_context_end().for_each(|listener| act(listener, tie));
    act(tie);
    for former in former(tie) {
        let number = write(|| {
            let is_still = former.later.load(Ordering::Acquire) == tie.0;
            is_still.then(|| former.number.load(Ordering::Acquire))
        });
        number.into_iter().for_each(|number| act(Tie(number)));
    }
}

impl EndingContext {
    /// It ended: so did everything allocated in it.
    pub(crate) fn gone(self) {
        handle_gone(self.handle, self.notes);
        if let Some(tie) = self.tie {
            gone_with(tie);
            while let Some(former) = take_former(tie) {
                gone_with(former);
            }
        }
    }

    /// It did not.
    pub(crate) fn stays(self) {
        let Some(tie) = self.tie else { return };
        each_of(tie, |listener, tie| listener.number_stays(tie));
        write(|| {
            let Some(place) = place_for(self.handle) else { return };
            // An allocation of the meantime may have given it another number.
            let other = place.number.load(Ordering::Acquire);
            if place.handle.load(Ordering::Acquire) == self.handle && other != 0 {
                return follow(tie, Tie(other));
            }
            place.handle.store(self.handle, Ordering::Release);
            place.number.store(tie.0, Ordering::Release);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places and numbers are of the whole process.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn numbers_come_again_and_never_to_two_contexts_at_once() {
        let _alone = ALONE.lock();
        let ties: Vec<_> = (1..=20_u64).map(|handle| enter(handle << 40)).collect();
        for next in [ties[0].0, u32::MAX] {
            NEXT.store(next, Ordering::Release);
            for handle in 30..=60_u64 {
                let tie = enter(handle << 40);
                assert!(tie.0 != 0 && tie.0 <= Tie::LAST && !ties.contains(&tie), "{tie:?}");
                going(handle << 40, ContextEnd::Comes).gone();
            }
        }
        for handle in 1..=20_u64 {
            going(handle << 40, ContextEnd::Comes).gone();
        }
    }

    #[test]
    fn all_numbers_of_a_context_end_with_it() {
        let _alone = ALONE.lock();
        let numbers =
            |tie: Tie| former(tie).map(|former| former.number.load(Ordering::Acquire)).collect::<Vec<_>>();
        let first = enter(0x61_0000);
        let (one, second) = (going(0x61_0000, ContextEnd::Comes), enter(0x61_0000));
        let (two, third) = (going(0x61_0000, ContextEnd::Comes), enter(0x61_0000));
        assert_eq!((one.tie, two.tie), (Some(first), Some(second)));
        two.stays();
        one.stays();
        assert_eq!((find(0x61_0000), numbers(third)), (Some(third), vec![second.0, first.0]));
        let (three, fourth) = (going(0x61_0000, ContextEnd::Comes), enter(0x61_0000));
        three.stays();
        assert_eq!((numbers(third), numbers(fourth)), (vec![], vec![second.0, first.0, third.0]));
        NEXT.store(first.0, Ordering::Release);
        assert!(
            ![first, second, third, fourth].contains(&enter(0x62_0000)),
            "none of them is anybody else's"
        );
        // One that no thread gave another number meanwhile has its own again, and another one that goes follows it.
        let (four, five) = (going(0x61_0000, ContextEnd::Comes), going(0x61_0000, ContextEnd::Comes));
        assert_eq!((four.tie, five.tie), (Some(fourth), None));
        five.stays();
        four.stays();
        assert_eq!(find(0x61_0000), Some(fourth));
        going(0x61_0000, ContextEnd::Comes).gone();
        assert!(numbers(fourth).is_empty() && find(0x61_0000).is_none());
        going(0x62_0000, ContextEnd::Comes).gone();
    }

    #[test]
    fn a_handle_that_comes_again_is_another_context() {
        let _alone = ALONE.lock();
        let first = enter(0x51_0000);
        assert_eq!(find(0x51_0000), Some(first));
        let going_one = going(0x51_0000, ContextEnd::Comes);
        assert_eq!(going_one.tie, Some(first));
        assert_eq!(find(0x51_0000), None);
        let second = enter(0x51_0000);
        assert_ne!(first, second);
        assert_eq!(find(0x51_0000), Some(second));
        let refused = going(0x51_0000, ContextEnd::Comes);
        refused.stays();
        assert_eq!(find(0x51_0000), Some(second));
        assert_eq!(going(0x77, ContextEnd::Was).tie, None);
        for other in 1..300_u64 {
            let tie = enter(other << 20);
            assert!(tie == Tie(0) || find(other << 20) == Some(tie));
            if other % 2 == 0 {
                going(other << 20, ContextEnd::Was).gone();
                assert_eq!(find(other << 20), None);
            }
        }
    }
}
