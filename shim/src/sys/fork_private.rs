//! Tables of this process: private memory that a fork wipes, changed under a short lock.
//!
//! The lock is held for some loads and stores, never while a vendor library or the heap is called. A forked child finds
//! empty tables and an open lock, whatever its parent's other threads were doing.

// UNSAFETY: the tables lie in a mapping of our own.
#![expect(unsafe_code, reason = "private tables lie in a mapping")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::sys::{self, KeepErrno};

/// Looks at the lock before a thread sleeps.
const SPINS: u32 = 100;
/// Longest sleep before a thread looks again, in nanoseconds.
const SLEEP_NANOS: u64 = 1_000_000;

const OPEN: u32 = 0;
const TAKEN: u32 = 1;

/// A type of which bytes of zero are a value: empty.
///
/// # Safety
/// Zeroed memory is a valid value.
pub(crate) unsafe trait Empty {}

/// A value under a lock.
struct Locked<T> {
    lock: AtomicU32,
    /// Threads that sleep, or are about to.
    waiting: AtomicU32,
    value: UnsafeCell<T>,
}

/// A table of this process; made when it is first needed.
pub(crate) struct ForkPrivate<T>(AtomicPtr<Locked<T>>);

impl<T: Empty> ForkPrivate<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Reads or changes it. `None`: there is no memory for it. `inside` calls nothing that is not ours.
    pub(crate) fn with<R>(&self, inside: impl FnOnce(&mut T) -> R) -> Option<R> {
        let locked = self.locked()?;
        locked.take();
        // SAFETY: the lock is ours.
        let answer = inside(unsafe { &mut *locked.value.get() });
        locked.open();
        Some(answer)
    }

    fn locked(&self) -> Option<&Locked<T>> {
        let mut base = self.0.load(Ordering::Acquire);
        if base.is_null() {
            let _errno = KeepErrno::new();
            let made = sys::map_wiped_on_fork(size_of::<Locked<T>>())?.cast::<Locked<T>>().as_ptr();
            let first =
                self.0.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
            // Two threads at once leave one untouched mapping behind, once.
            base = first.err().unwrap_or(made);
        }
        // SAFETY: a mapping of that size, zeroed, of which zero is a value; it is never unmapped.
        Some(unsafe { &*base })
    }
}

impl<T> Locked<T> {
    #[inline]
    fn take(&self) {
        for _ in 0..SPINS {
            if self.lock.compare_exchange_weak(OPEN, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        self.wait();
    }

    #[cold]
    fn wait(&self) {
        let _errno = KeepErrno::new();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while self.lock.compare_exchange(OPEN, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            sys::wait_while(&self.lock, TAKEN, SLEEP_NANOS);
        }
        self.waiting.fetch_sub(1, Ordering::Release);
    }

    /// A store and a load, which the processor may exchange: a thread that begins to wait in between finds the lock open, or
    /// sleeps once for nothing. A read-modify-write instead would cost every call what waiting costs hardly any.
    #[inline]
    fn open(&self) {
        self.lock.store(OPEN, Ordering::Release);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let _errno = KeepErrno::new();
        sys::wake_all(&self.lock);
    }
}

/// Values by key, `N` at most, a power of two. Key 0 is no key.
///
/// Entries lie side by side, so a walk costs what there is and not what there may be; the index says where each one lies.
pub(crate) struct Table<V, const N: usize> {
    count: usize,
    /// Where an entry lies, plus one; 0: nowhere.
    index: [u16; N],
    entries: [(u64, V); N],
}

// SAFETY: zeros are no keys and no places, and V's zeros are values by its own promise.
unsafe impl<V: Empty, const N: usize> Empty for Table<V, N> {}

impl<V: Copy, const N: usize> Table<V, N> {
    const FITS: () = assert!(N.is_power_of_two() && N <= 1 << 15);

    fn home(key: u64) -> usize {
        let () = Self::FITS;
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        usize::try_from(mixed).unwrap_or(0) % N
    }

    /// Where the entry of a slot of the index lies.
    fn place(&self, slot: usize) -> Option<usize> {
        usize::from(*self.index.get(slot)?).checked_sub(1)
    }

    fn point(&mut self, slot: usize, place: Option<usize>) {
        if let Some(pointer) = self.index.get_mut(slot) {
            *pointer = place.and_then(|place| u16::try_from(place + 1).ok()).unwrap_or(0);
        }
    }

    /// The slot of a key, or the empty one where it would be.
    fn slot(&self, key: u64) -> Option<usize> {
        let home = Self::home(key);
        (0..N).map(|step| (home + step) % N).find(|slot| match self.place(*slot) {
            Some(place) => self.entries.get(place).is_some_and(|(found, _)| *found == key),
            None => true,
        })
    }

    /// The value of a key.
    pub(crate) fn get(&mut self, key: u64) -> Option<&mut V> {
        let place = self.place(self.slot(key)?)?;
        self.entries.get_mut(place).map(|entry| &mut entry.1)
    }

    /// Sets the value of a key; false: the table is full.
    pub(crate) fn set(&mut self, key: u64, value: V) -> bool {
        let Some(slot) = self.slot(key).filter(|_| key != 0) else { return false };
        let known = self.place(slot);
        // Some slots stay empty, so that a search for what is not there ends soon.
        if known.is_none() && self.count >= N / 4 * 3 {
            return false;
        }
        let place = known.unwrap_or(self.count);
        let Some(entry) = self.entries.get_mut(place) else { return false };
        *entry = (key, value);
        if known.is_none() {
            self.point(slot, Some(place));
            self.count += 1;
        }
        true
    }

    /// Takes a key out.
    pub(crate) fn take(&mut self, key: u64) -> Option<V> {
        let mut hole = self.slot(key)?;
        let place = self.place(hole)?;
        let value = self.entries.get(place)?.1;
        // The last entry takes its place.
        let last = *self.entries.get(self.count.checked_sub(1)?)?;
        let slot_of_last = self.slot(last.0)?;
        *self.entries.get_mut(place)? = last;
        self.point(slot_of_last, Some(place));
        self.count -= 1;
        // What stands behind in the index moves up, so that no search ends too early.
        while let Some(from) = self.successor(hole) {
            let moved = self.place(from);
            self.point(hole, moved);
            hole = from;
        }
        self.point(hole, None);
        Some(value)
    }

    /// The slot that may move into a hole: the next one whose home is not behind the hole.
    fn successor(&self, hole: usize) -> Option<usize> {
        for step in 1..N {
            let at = (hole + step) % N;
            let key = self.entries.get(self.place(at)?)?.0;
            if (at + N - Self::home(key)) % N >= step {
                return Some(at);
            }
        }
        None
    }

    /// The last entry before a place, and where it lies: for walks from the end that let the lock go in between. What is taken
    /// out meanwhile is replaced by an entry from behind, so a walk may meet one twice and misses none that stays.
    pub(crate) fn before(&self, place: usize) -> Option<(usize, u64, V)> {
        let at = place.min(self.count).checked_sub(1)?;
        let entry = self.entries.get(at)?;
        Some((at, entry.0, entry.1))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

/// Numbers that were noted, the last of each place: looked up without a lock. A forked child finds none.
pub(crate) struct NotedNumbers<const N: usize>(AtomicPtr<AtomicU64>);

impl<const N: usize> NotedNumbers<N> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    fn place(base: *mut AtomicU64, number: u64) -> Option<&'static AtomicU64> {
        // SAFETY: null, or a mapping of so many zeroed words, which is never unmapped; the place is within it.
        (!base.is_null()).then(|| unsafe { &*base.add(Table::<(), N>::home(number)) })
    }

    /// Whether a number, not 0, is there.
    pub(crate) fn has(&self, number: u64) -> bool {
        let place = Self::place(self.0.load(Ordering::Acquire), number);
        place.is_some_and(|place| place.load(Ordering::Relaxed) == number)
    }

    /// Notes a number, in place of what was there.
    pub(crate) fn note(&self, number: u64) {
        let mut base = self.0.load(Ordering::Acquire);
        if base.is_null() {
            let _errno = KeepErrno::new();
            let Some(made) = sys::map_wiped_on_fork(N * size_of::<AtomicU64>()) else { return };
            let made = made.cast::<AtomicU64>().as_ptr();
            let first =
                self.0.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
            // Two threads at once leave one untouched mapping behind, once.
            base = first.err().unwrap_or(made);
        }
        if let Some(place) = Self::place(base, number) {
            place.store(number, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: an integer.
    unsafe impl Empty for u32 {}

    fn table() -> ForkPrivate<Table<u32, 16>> {
        ForkPrivate::new()
    }

    #[test]
    fn a_table_holds_what_was_set_whatever_is_taken_out() {
        let (table, mut random) = (table(), crate::sys::test_seed());
        let mut model = std::collections::BTreeMap::new();
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (key, value) = ((random >> 33) % 24 + 1, u32::try_from(random >> 40).unwrap_or(0));
            if random >> 62 == 0 {
                assert_eq!(table.with(|table| table.take(key)), Some(model.remove(&key)));
            } else if model.len() < 12 || model.contains_key(&key) {
                assert_eq!(table.with(|table| table.set(key, value)), Some(true));
                model.insert(key, value);
            } else {
                assert_eq!(table.with(|table| table.set(key, value)), Some(false));
            }
            for key in 0..26 {
                assert_eq!(table.with(|table| table.get(key).copied()), Some(model.get(&key).copied()));
            }
            assert_eq!(table.with(|table| table.count()), Some(model.len()));
        }
    }

    #[test]
    fn many_threads_change_one_table_and_lose_nothing() {
        let table = table();
        table.with(|table| table.set(7, 0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        table.with(|table| table.get(7).map(|value| *value += 1));
                    }
                });
            }
        });
        assert_eq!(
            table.with(|table| table.before(usize::MAX)).flatten().map(|(_, key, value)| (key, value)),
            Some((7, 80_000))
        );
    }

    #[test]
    fn walk_misses_no_staying_entry_while_others_are_removed() {
        for gone in 1..=9 {
            let table = table();
            for key in 1..=9 {
                table.with(|table| table.set(key, 1));
            }
            let (mut place, mut met) = (usize::MAX, Vec::new());
            while let Some((at, key, _)) = table.with(|table| table.before(place)).flatten() {
                (place, _) = (at, met.push(key));
                if met.len() == 4 {
                    table.with(|table| table.take(gone));
                }
            }
            met.sort_unstable();
            met.dedup();
            met.retain(|key| *key != gone);
            assert_eq!(met, (1..=9).filter(|key| *key != gone).collect::<Vec<_>>(), "{gone} is gone");
        }
    }

    #[test]
    fn noted_entry_stays_until_replaced() {
        let noted = NotedNumbers::<16>::new();
        assert!(!noted.has(7));
        noted.note(7);
        noted.note(7);
        assert!(noted.has(7) && !noted.has(8));
        for number in 1..=1_000 {
            noted.note(number);
            assert!(noted.has(number));
        }
        assert_eq!((1..=1_000).filter(|number| noted.has(*number)).count(), 16);
    }
}
