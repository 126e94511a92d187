//! Bytes that a driver has given to a tenant's processes beyond what their slots hold: what took memory without an accounted
//! call, or past the shim.
//!
//! ```text
//!   slots ─▶ driver's bytes of each process ─▶ slots again        one look of the governor
//!      └──────────────┬───────────────────────────┘
//!            residue = driver − exact             admission: reserved + residue + request ≤ limit
//! ```
//!
//! - *exact*: bytes in slots, of a size that the shim knows. An allocation or a free between the three readings is in one reading of
//!   the slots, so the larger sum counts.
//! - *presumed*: bytes in slots, of a size that only the driver knows, such as a context's. They are reserved before the driver takes
//!   them. The first look after that lowers them to what the driver shows, if no call of their process is under way: its figure
//!   contains those bytes by then. What it shows beyond them is residue.
//! - A call that is under way has bytes reserved that the driver has not given yet. The residue is too small by them, so it falls
//!   only by a look without such a call, or after [`LOOKS_KEPT`] looks.
//!
//! What is reserved and what the driver shows are maxima of each other: reserved + residue is at least the driver's figure of
//! the last look, and at least what was reserved ahead of it. Tenants write their slots: a tenant above its limit by the
//! driver's figure alone has no room, whatever its slots say.

use core::sync::atomic::{AtomicU64, Ordering};

/// Looks that a residue outlasts while calls are always under way: 200 ms.
pub const LOOKS_KEPT: usize = 4;

/// One grant's memory in one look, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Of all processes of the tenant, as the driver reports it.
    pub driver: u64,
    /// In slots, before the driver was asked, without what this look takes off presumptions.
    pub before: u64,
    /// The same after it.
    pub after: u64,
    /// Of memory that processes share: a driver may count it once for each process that has it open, beyond the first.
    pub counted_again: u64,
}

/// Whether calls of the tenant that move memory were under way during a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// There was none.
    None,
    /// There was one, or one began.
    UnderWay,
}

/// Residues of the last looks, of one grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidueHistory {
    last: [u64; LOOKS_KEPT],
}

impl Look {
    /// Bytes beyond the slots. A tenant beyond `limit` by the driver's figure has no room at all.
    #[must_use]
    pub fn residue(self, limit: u64) -> u64 {
        let driver = self.driver.saturating_sub(self.counted_again);
        let beyond = driver.saturating_sub(self.before.max(self.after));
        if driver > limit { beyond.max(limit) } else { beyond }
    }
}

impl ResidueHistory {
    /// The residue to publish after a look that found `residue`.
    pub fn after(&mut self, residue: u64, calls: Calls) -> u64 {
        if calls == Calls::None {
            self.last = [0; LOOKS_KEPT];
        }
        self.last.rotate_right(1);
        if let Some(first) = self.last.first_mut() {
            *first = residue;
        }
        self.last.iter().copied().fold(0, u64::max)
    }
}

/// The presumed part of a process's reserved bytes: one word in its slot, which the governor lowers, and the process's own copy.
#[derive(Clone, Copy, Debug)]
pub struct Presumption<'a> {
    /// Shared, this process's slot.
    pub shown: &'a AtomicU64,
    /// Private: as this process left it.
    pub own: &'a AtomicU64,
}

impl Presumption<'_> {
    /// Marks `bytes` as presumed, which are reserved already.
    pub fn add(&self, bytes: u64) {
        // The slot first: a thread that compares the two takes the difference for lowered.
        add(self.shown, bytes);
        add(self.own, bytes);
    }

    /// What is presumed is gone: how much of it is reserved still, and is to be released by the caller. It has asked for what was
    /// [`Self::lowered`] before.
    #[must_use]
    pub fn take(&self, bytes: u64) -> u64 {
        let own = take(self.own, bytes);
        take(self.shown, own)
    }

    /// Bytes that the governor took off since the last call: they are this process's no more.
    #[must_use]
    pub fn lowered(&self) -> u64 {
        let own = self.own.load(Ordering::SeqCst);
        if own == 0 {
            return 0;
        }
        let lowered = own.saturating_sub(self.shown.load(Ordering::SeqCst));
        let less = self.own.compare_exchange(own, own - lowered, Ordering::SeqCst, Ordering::SeqCst);
        if less.is_ok() { lowered } else { 0 }
    }
}

/// The governor takes `bytes` off a presumption that the driver shows less of, and off the slot's bytes; how much, which the total
/// has too much until it is counted again. A governor killed in between leaves bytes reserved, never the opposite.
#[must_use]
pub fn lower(shown: &AtomicU64, used: &AtomicU64, bytes: u64) -> u64 {
    let lowered = take(shown, bytes);
    take(used, lowered)
}

/// How much of a process's presumed bytes the driver shows: it has `driver` bytes of the process, and the slot has `used` bytes
/// with the presumed ones.
#[must_use]
pub fn shown(driver: u64, used: u64, presumed: u64) -> u64 {
    driver.saturating_sub(used.saturating_sub(presumed)).min(presumed)
}

fn add(word: &AtomicU64, bytes: u64) {
    let more = |held: u64| Some(held.saturating_add(bytes));
    let _always = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
}

/// Takes bytes off without passing zero; how many.
fn take(word: &AtomicU64, bytes: u64) -> u64 {
    let less = |held: u64| Some(held.saturating_sub(bytes));
    let before = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    before.map_or(0, |held| held.min(bytes))
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    fn look(driver: u64, before: u64, after: u64) -> u64 {
        Look { driver, before, after, counted_again: 0 }.residue(LIMIT)
    }

    #[test]
    fn residue_is_what_the_driver_shows_beyond_the_slots() {
        assert_eq!(look(500, 100, 100), 400);
        assert_eq!(look(100, 500, 500), 0, "reserved ahead of the driver");
        assert_eq!(look(400, 400, 100), 0, "freed after the driver was asked");
        assert_eq!(look(400, 100, 400), 0, "allocated before the driver was asked");
        let shared = Look { driver: 900, before: 400, after: 400, counted_again: 400 };
        assert_eq!(shared.residue(LIMIT), 100);
    }

    #[test]
    fn tenant_above_its_limit_has_no_room_whatever_its_slots_say() {
        for slots in [0, 500, LIMIT, u64::MAX] {
            assert!(look(LIMIT + 1, slots, slots) >= LIMIT, "{slots}");
            assert!(look(u64::MAX, slots, 0) >= LIMIT, "{slots}");
        }
        assert_eq!(look(LIMIT, u64::MAX, 0), 0);
    }

    #[test]
    fn residue_falls_only_by_a_look_without_calls() {
        let mut history = ResidueHistory::default();
        assert_eq!(history.after(300, Calls::UnderWay), 300);
        for _ in 1..LOOKS_KEPT {
            assert_eq!(history.after(10, Calls::UnderWay), 300, "a call under way hides some of it");
        }
        assert_eq!(history.after(10, Calls::UnderWay), 10, "not for ever");
        assert_eq!(history.after(300, Calls::UnderWay), 300);
        assert_eq!(history.after(20, Calls::None), 20);
        assert_eq!(history.after(40, Calls::UnderWay), 40);
    }

    #[test]
    fn presumption_is_released_or_lowered_and_never_both() {
        let [shown, own, used] = [const { AtomicU64::new(0) }; 3];
        let presumption = Presumption { shown: &shown, own: &own };
        used.store(170, Ordering::SeqCst);
        presumption.add(100);
        assert_eq!((presumption.lowered(), presumption.take(30)), (0, 30));
        assert_eq!(lower(&shown, &used, 100), 70, "at most what is there");
        assert_eq!((presumption.lowered(), presumption.lowered()), (70, 0));
        assert_eq!(presumption.take(30), 0, "the driver did not show it");
        presumption.add(50);
        assert_eq!(lower(&shown, &used, 20), 20);
        assert_eq!((presumption.lowered(), presumption.take(50)), (20, 30));
        assert_eq!((presumption.lowered(), own.into_inner(), used.into_inner()), (0, 0, 80));
    }

    #[test]
    fn presumption_falls_to_what_the_driver_shows() {
        assert_eq!(super::shown(580, 612, 512), 480);
        assert_eq!(super::shown(700, 612, 512), 512, "the rest is residue");
        assert_eq!(super::shown(90, 612, 512), 0);
        assert_eq!(super::shown(u64::MAX, 0, u64::MAX), u64::MAX);
    }

    #[test]
    fn hostile_words_of_a_presumption_wrap_nowhere() {
        let [shown, own] = [const { AtomicU64::new(0) }; 2];
        let presumption = Presumption { shown: &shown, own: &own };
        presumption.add(u64::MAX);
        presumption.add(u64::MAX);
        shown.store(0, Ordering::SeqCst);
        assert_eq!(presumption.lowered(), u64::MAX);
        shown.store(u64::MAX, Ordering::SeqCst);
        assert_eq!((presumption.lowered(), presumption.take(7)), (0, 0), "another process wrote it");
    }
}
