//! Tables of this process: private memory that a fork wipes, changed under a short lock.
//!
//! The lock is held for some loads and stores, never while a vendor library or the heap is called. A forked child finds
//! empty tables and an open lock, whatever its parent's other threads were doing.

// UNSAFETY: the tables lie in a mapping of our own.
#![expect(unsafe_code, reason = "private tables lie in a mapping")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys::{self, KeepErrno};

/// Looks at the lock before a thread sleeps.
const SPINS: u32 = 100;
/// Longest sleep before a thread looks again, in nanoseconds.
const SLEEP_NANOS: u64 = 1_000_000;

const OPEN: u32 = 0;
const TAKEN: u32 = 1;
const AWAITED: u32 = 2;

/// A type of which bytes of zero are a value: empty.
///
/// # Safety
/// Zeroed memory is a valid value.
pub(crate) unsafe trait Empty {}

/// A value under a lock.
struct Locked<T> {
    lock: AtomicU32,
    value: UnsafeCell<T>,
}

/// A table of this process; made when it is first needed.
pub(crate) struct Kept<T>(AtomicPtr<Locked<T>>);

impl<T: Empty> Kept<T> {
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
    fn take(&self) {
        for _ in 0..SPINS {
            if self.lock.compare_exchange_weak(OPEN, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        let _errno = KeepErrno::new();
        while self.lock.swap(AWAITED, Ordering::Acquire) != OPEN {
            sys::wait_while(&self.lock, AWAITED, SLEEP_NANOS);
        }
    }

    fn open(&self) {
        if self.lock.swap(OPEN, Ordering::Release) == AWAITED {
            let _errno = KeepErrno::new();
            sys::wake_all(&self.lock);
        }
    }
}

/// Values by key, `N` at most, a power of two. Key 0 is no key.
pub(crate) struct Table<V, const N: usize> {
    count: usize,
    entries: [(u64, V); N],
}

// SAFETY: zeros are no keys, and V's zeros are values by its own promise.
unsafe impl<V: Empty, const N: usize> Empty for Table<V, N> {}

impl<V: Copy, const N: usize> Table<V, N> {
    fn home(key: u64) -> usize {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        usize::try_from(mixed).unwrap_or(0) % N
    }

    /// Where a key is, or the empty place where it would be.
    fn place(&self, key: u64) -> Option<usize> {
        let home = Self::home(key);
        (0..N)
            .map(|step| (home + step) % N)
            .find(|place| self.entries.get(*place).is_some_and(|(found, _)| *found == key || *found == 0))
    }

    /// The value of a key.
    pub(crate) fn get(&mut self, key: u64) -> Option<&mut V> {
        let place = self.place(key)?;
        self.entries.get_mut(place).filter(|entry| entry.0 == key && key != 0).map(|entry| &mut entry.1)
    }

    /// Sets the value of a key; false: the table is full.
    pub(crate) fn set(&mut self, key: u64, value: V) -> bool {
        if key == 0 {
            return false;
        }
        let Some(entry) = self.place(key).and_then(|place| self.entries.get_mut(place)) else { return false };
        if entry.0 != key {
            // Some places stay empty, so that a search for what is not there ends soon.
            if self.count >= N / 4 * 3 {
                return false;
            }
            self.count += 1;
        }
        *entry = (key, value);
        true
    }

    /// Takes a key out.
    pub(crate) fn take(&mut self, key: u64) -> Option<V> {
        let mut hole = self.place(key)?;
        let value = self.entries.get(hole).filter(|entry| entry.0 == key && key != 0)?.1;
        self.count = self.count.saturating_sub(1);
        // What stands behind moves up, so that no search ends too early.
        while let Some(from) = self.successor(hole) {
            let moved = self.entries.get(from).copied()?;
            *self.entries.get_mut(hole)? = moved;
            hole = from;
        }
        self.entries.get_mut(hole)?.0 = 0;
        Some(value)
    }

    /// The entry that may move into a hole: the next one whose home is not behind the hole.
    fn successor(&self, hole: usize) -> Option<usize> {
        for step in 1..N {
            let at = (hole + step) % N;
            let key = self.entries.get(at)?.0;
            if key == 0 {
                return None;
            }
            if (at + N - Self::home(key)) % N >= step {
                return Some(at);
            }
        }
        None
    }

    /// Takes out every entry that `wanted` says yes to, and hands it over.
    pub(crate) fn sweep(&mut self, wanted: impl Fn(&V) -> bool, mut taken: impl FnMut(u64, V)) {
        let mut place = 0;
        while let Some((next, key, value)) = self.from(place) {
            if wanted(&value) {
                self.take(key);
                taken(key, value);
                // Another may have moved up to where this one was.
                place = next - 1;
            } else {
                place = next;
            }
        }
    }

    /// The first entry at or behind a place, and the place behind it: for walks that let the lock go in between.
    pub(crate) fn from(&self, place: usize) -> Option<(usize, u64, V)> {
        let rest = self.entries.get(place..)?;
        let (step, entry) = rest.iter().enumerate().find(|(_, entry)| entry.0 != 0)?;
        Some((place + step + 1, entry.0, entry.1))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: an integer.
    unsafe impl Empty for u32 {}

    fn table() -> Kept<Table<u32, 16>> {
        Kept::new()
    }

    #[test]
    fn a_table_holds_what_was_set_whatever_is_taken_out() {
        let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos()) | 1;
        println!("seed {seed}");
        let (table, mut random) = (table(), u64::from(seed));
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
            table.with(|table| table.from(0)).flatten().map(|(_, key, value)| (key, value)),
            Some((7, 80_000))
        );
    }

    #[test]
    fn a_sweep_takes_what_is_wanted_and_nothing_else() {
        let table = table();
        for key in 1..=12 {
            table.with(|table| table.set(key, u32::try_from(key % 3).unwrap_or(0)));
        }
        let mut taken = Vec::new();
        table.with(|table| table.sweep(|value| *value == 1, |key, _| taken.push(key)));
        taken.sort_unstable();
        assert_eq!(taken, [1, 4, 7, 10]);
        for key in 1..=12 {
            assert_eq!(table.with(|table| table.get(key).is_some()), Some(key % 3 != 1), "{key}");
        }
    }

    #[test]
    fn a_walk_meets_every_entry_once() {
        let table = table();
        for key in 1..=9 {
            table.with(|table| table.set(key, 1));
        }
        let (mut place, mut met) = (0, Vec::new());
        while let Some((next, key, _)) = table.with(|table| table.from(place)).flatten() {
            (place, _) = (next, met.push(key));
        }
        met.sort_unstable();
        assert_eq!(met, (1..=9).collect::<Vec<_>>());
    }
}
