//! What of this process is charged: a device pointer or a handle, and how much it holds of which grant.
//!
//! ```text
//!   key ─hash─▶ shard (a spin lock of a few loads and stores) ─▶ open addressing, linear, at most half full
//! ```
//!
//! With many entries a search costs what it waits for memory and what the processor guesses wrong: so an entry of
//! [`AllocEntry`] is a quarter of a cache line, half of the places are free, and where a search begins is hashed a line at a time.
//!
//! The tables lie in mappings of our own, which a forked child sees as zeros: it begins with an empty map and free locks, as it
//! begins with empty accounting. A shard grows by doubling; the new table is mapped before the lock is taken. Removal closes
//! the gap, so nothing slows down with age. Where no more can be mapped, or a shard holds [`SHARD_ENTRIES_MAX`], an entry is
//! refused: the caller frees the allocation again, since what is not recorded could never be credited.
//!
//! A thread that cannot have the lock of a shard ([`crate::sys::short_lock`]) does without it where accounting is not below
//! the card for that: what it makes is refused as well, and what it frees stays charged until its address is in use again. A
//! thread that looks something up, or counts a hold more or less, waits for the lock without end: an unknown entry is no
//! absent one.

// UNSAFETY: tables are raw mappings, guarded by the lock of their shard.
#![expect(unsafe_code, reason = "tables lie in mappings")]

mod alloc_entry;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::sys::short_lock::ShortLock;
use crate::sys::{self, KeepErrno};

pub(crate) use alloc_entry::{AllocEntry, Tie};

/// Shards: threads rarely meet.
const SHARDS: usize = 64;
/// Places of a shard's first table: half a page of small entries.
const FIRST_PLACES: usize = 128;
/// Most entries of a shard, so 32 million in all.
const SHARD_ENTRIES_MAX: usize = 1 << 19;

/// A device pointer or a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It stays, as changed.
    Stays,
    /// It is taken out.
    Goes,
}

/// There is no place for another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// A map; empty at first. Of a value, zero bytes are a value.
#[derive(Debug)]
pub(crate) struct AllocMap<V = AllocEntry> {
    shards: AtomicPtr<Shard<V>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<V> {
    /// The key plus one; 0: a free place.
    key: u64,
    value: V,
}

#[derive(Debug)]
#[repr(align(64))]
struct Shard<V> {
    lock: ShortLock,
    places: AtomicUsize,
    count: AtomicUsize,
    table: AtomicPtr<Entry<V>>,
}

/// A shard while its lock is held.
struct Locked<'a, V>(&'a Shard<V>);

impl<V> Drop for Locked<'_, V> {
    fn drop(&mut self) {
        self.0.lock.open();
    }
}

/// The shard of a key, and where in it the key is looked for first: anywhere, but for four addresses side by side, which have a
/// cache line of small entries together.
fn hash(key: Key) -> (usize, usize) {
    let is_address = key.0 & 511 == 0;
    let (group, within) = if is_address { (key.0 >> 11, key.0 >> 9 & 3) } else { (key.0, 0) };
    let mixed = group.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let part = |bits: u64| usize::try_from(bits).unwrap_or(0);
    (part(mixed >> 58), part((mixed >> 24 & 0xffff_fffc) + within))
}

impl<V: Copy> AllocMap<V> {
    pub(crate) const fn new() -> Self {
        Self { shards: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn shard(&self, number: usize) -> Option<&Shard<V>> {
        let mut base = self.shards.load(Ordering::Acquire);
        if base.is_null() {
            let _errno = KeepErrno::new();
            let made = sys::map_wiped_on_fork(SHARDS * size_of::<Shard<V>>())?.cast::<Shard<V>>();
            let first = self.shards.compare_exchange(
                core::ptr::null_mut(),
                made.as_ptr(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            base = match first {
                Ok(_) => made.as_ptr(),
                Err(other) => {
                    sys::unmap(made.cast(), SHARDS * size_of::<Shard<V>>());
                    other
                }
            };
        }
        // SAFETY: a mapping of that many shards, zero being a value of each; it is never unmapped.
        (number < SHARDS).then(|| unsafe { &*base.add(number) })
    }

    /// Records an entry. What stood under the key is answered: its memory is gone, since its key is in use again.
    pub(crate) fn insert(&self, key: Key, value: V) -> Result<Option<V>, NoRoom> {
        self.insert_or(key, value, |_| value)
    }

    /// Records an entry, or changes the one that stands under the key; that one, as it was. `change` is called under a lock: it
    /// only reckons.
    pub(crate) fn insert_or(&self, key: Key, value: V, change: impl Fn(V) -> V) -> Result<Option<V>, NoRoom> {
        let (shard, place) = hash(key);
        let shard = self.shard(shard).ok_or(NoRoom)?;
        if key.0 == u64::MAX {
            return Err(NoRoom);
        }
        loop {
            let places = {
                let locked = shard.lock().ok_or(NoRoom)?;
                if let Some(answer) = locked.insert(key, value, place, &change) {
                    return Ok(answer);
                }
                shard.places.load(Ordering::Relaxed)
            };
            shard.grow(places)?;
        }
    }

    /// Takes an entry out.
    pub(crate) fn take(&self, key: Key) -> Option<V> {
        let (shard, place) = hash(key);
        let locked = self.shard(shard)?.lock()?;
        let found = locked.find(key, place)?;
        let value = locked.at(found).value;
        locked.remove(found);
        Some(value)
    }

    /// Changes an entry. `change` is called under a lock: it only reckons.
    pub(crate) fn update<R>(&self, key: Key, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let (shard, place) = hash(key);
        let locked = self.shard(shard)?.lock_at_last();
        let found = locked.find(key, place)?;
        let mut entry = locked.at(found);
        let answer = change(&mut entry.value);
        locked.put(found, entry);
        Some(answer)
    }

    /// Changes an entry and decides what becomes of it; that, and the entry as changed. Called under a lock, as in `update`.
    pub(crate) fn decide(&self, key: Key, decide: impl FnOnce(&mut V) -> Fate) -> Option<(Fate, V)> {
        let (shard, place) = hash(key);
        let locked = self.shard(shard)?.lock_at_last();
        let found = locked.find(key, place)?;
        let mut entry = locked.at(found);
        let fate = decide(&mut entry.value);
        match fate {
            Fate::Stays => locked.put(found, entry),
            Fate::Goes => locked.remove(found),
        }
        Some((fate, entry.value))
    }

    /// The same, where the lock can be had; the inner `None`: there is no such entry.
    pub(crate) fn try_decide(&self, key: Key, decide: impl FnOnce(&mut V) -> Fate) -> Option<Option<Fate>> {
        let (shard, place) = hash(key);
        let locked = self.shard(shard)?.lock()?;
        let Some(found) = locked.find(key, place) else { return Some(None) };
        let mut entry = locked.at(found);
        let fate = decide(&mut entry.value);
        match fate {
            Fate::Stays => locked.put(found, entry),
            Fate::Goes => locked.remove(found),
        }
        Some(Some(fate))
    }

    /// A copy of an entry.
    pub(crate) fn get(&self, key: Key) -> Option<V> {
        self.update(key, |value| *value)
    }

    /// What `answer` finds in some entry; looks at all of them.
    pub(crate) fn find<R>(&self, answer: impl Fn(Key, &V) -> Option<R>) -> Option<R> {
        (0..SHARDS).filter_map(|number| self.shard(number)).find_map(|shard| {
            let locked = shard.lock_at_last();
            (0..shard.places.load(Ordering::Relaxed)).find_map(|place| {
                let entry = locked.at(place);
                (entry.key != 0).then(|| answer(Key(entry.key - 1), &entry.value)).flatten()
            })
        })
    }

    /// Takes out every entry that is `wanted`. Both are called under a lock: they only look and add up.
    pub(crate) fn sweep(&self, wanted: impl Fn(Key, &V) -> bool, mut each: impl FnMut(V)) {
        for shard in (0..SHARDS).filter_map(|number| self.shard(number)) {
            let Some(locked) = shard.lock() else { continue };
            let mut place = 0;
            while place < shard.places.load(Ordering::Relaxed) {
                let entry = locked.at(place);
                if entry.key != 0 && wanted(Key(entry.key - 1), &entry.value) {
                    each(entry.value);
                    // The gap is closed from behind, so the place is looked at again.
                    locked.remove(place);
                } else {
                    place += 1;
                }
            }
        }
    }
}

impl<V: Copy> Shard<V> {
    /// `None`: it cannot be had.
    #[inline]
    fn lock(&self) -> Option<Locked<'_, V>> {
        // Made only where it is had: its end opens the lock.
        self.lock.take().then(|| Locked(self))
    }

    #[inline]
    fn lock_at_last(&self) -> Locked<'_, V> {
        self.lock.take_at_last();
        Locked(self)
    }

    /// A larger table in place of one of `places` places, unless another thread was faster.
    #[cold]
    fn grow(&self, places: usize) -> Result<(), NoRoom> {
        let _errno = KeepErrno::new();
        let next = (places * 2).max(FIRST_PLACES);
        if places / 2 >= SHARD_ENTRIES_MAX {
            return Err(NoRoom);
        }
        let fresh = sys::map_wiped_on_fork(next * size_of::<Entry<V>>()).ok_or(NoRoom)?;
        let old = {
            match self.lock() {
                Some(locked) if self.places.load(Ordering::Relaxed) == places => {
                    locked.move_to(fresh.cast(), next).map(|old| (old, places))
                }
                // A thread that inserts finds out that there is no lock.
                Some(_) | None => Some((fresh, next)),
            }
        };
        if let Some((old, places)) = old {
            sys::unmap(old, places * size_of::<Entry<V>>());
        }
        Ok(())
    }
}

impl<V: Copy> Locked<'_, V> {
    fn mask(&self) -> usize {
        self.0.places.load(Ordering::Relaxed).wrapping_sub(1)
    }

    fn place(&self, number: usize) -> *mut Entry<V> {
        // SAFETY: every caller masks the number or compares it with the count of places of this table.
        unsafe { self.0.table.load(Ordering::Relaxed).add(number) }
    }

    fn at(&self, number: usize) -> Entry<V> {
        // SAFETY: inside the table, whose lock is held; zero is a value of an entry.
        unsafe { self.place(number).read() }
    }

    fn put(&self, number: usize, entry: Entry<V>) {
        // SAFETY: inside the table, and its lock is held.
        unsafe { self.place(number).write(entry) }
    }

    fn find(&self, key: Key, place: usize) -> Option<usize> {
        if self.0.places.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut place = place & self.mask();
        // Half of the places are free: this ends.
        loop {
            let found = self.at(place).key;
            if found == 0 {
                return None;
            }
            if found == key.0 + 1 {
                return Some(place);
            }
            place = (place + 1) & self.mask();
        }
    }

    /// `None`: the table is full.
    #[inline]
    fn insert(&self, key: Key, value: V, place: usize, change: impl Fn(V) -> V) -> Option<Option<V>> {
        if let Some(found) = self.find(key, place) {
            let before = self.at(found).value;
            self.put(found, Entry { key: key.0 + 1, value: change(before) });
            return Some(Some(before));
        }
        let count = self.0.count.load(Ordering::Relaxed);
        if (count + 1) * 2 > self.0.places.load(Ordering::Relaxed) {
            return None;
        }
        self.put_new(Entry { key: key.0 + 1, value }, place);
        self.0.count.store(count + 1, Ordering::Relaxed);
        Some(None)
    }

    fn put_new(&self, entry: Entry<V>, place: usize) {
        let mut place = place & self.mask();
        while self.at(place).key != 0 {
            place = (place + 1) & self.mask();
        }
        self.put(place, entry);
    }

    /// Empties a place and moves up what was pushed past it.
    fn remove(&self, place: usize) {
        let mask = self.mask();
        let (mut gap, mut next) = (place, (place + 1) & mask);
        loop {
            let entry = self.at(next);
            if entry.key == 0 {
                break;
            }
            let home = hash(Key(entry.key - 1)).1 & mask;
            // It may move where its home is not between the gap and it.
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(gap) & mask {
                self.put(gap, entry);
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.put(gap, Entry { key: 0, ..self.at(gap) });
        let count = self.0.count.load(Ordering::Relaxed);
        self.0.count.store(count.saturating_sub(1), Ordering::Relaxed);
    }

    /// Moves everything to a new table of zeros; the old one, if there was any.
    fn move_to(&self, fresh: NonNull<Entry<V>>, places: usize) -> Option<NonNull<u8>> {
        let old = self.0.table.swap(fresh.as_ptr(), Ordering::Relaxed);
        let before = self.0.places.swap(places, Ordering::Relaxed);
        for number in 0..before {
            // SAFETY: inside the old table, which only this thread still knows.
            let entry = unsafe { old.add(number).read() };
            if entry.key != 0 {
                self.put_new(entry, hash(Key(entry.key - 1)).1);
            }
        }
        NonNull::new(old.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::account::Bytes;
    use std::collections::BTreeMap;

    fn held(bytes: u64, tie: u32) -> AllocEntry {
        AllocEntry::new(Bytes(bytes), 1, Tie(tie)).unwrap()
    }

    /// A generator of numbers whose seed is printed where a test fails.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    #[test]
    fn the_map_answers_like_a_map_of_the_standard_library() {
        let seed = crate::sys::test_seed();
        let mut random = Random(seed);
        let (map, mut model) = (AllocMap::new(), BTreeMap::new());
        for step in 0..300_000_u64 {
            // Few keys, near each other as a driver gives them.
            let key = 0x7f00_0000_0000 + random.next() % 20_000 * 512;
            if random.next() % 5 < 3 {
                let entry = held(step, u32::try_from(step % 3).unwrap());
                assert_eq!(
                    map.insert(Key(key), entry),
                    Ok(model.insert(key, entry)),
                    "seed {seed}, step {step}"
                );
            } else {
                assert_eq!(map.take(Key(key)), model.remove(&key), "seed {seed}, step {step}");
            }
        }
        let (mut swept, mut expected) = (0, 0);
        map.sweep(|_, held: &AllocEntry| held.tie() == Tie(1), |held| swept += held.bytes().0);
        model.retain(|_, held| {
            expected += if held.tie() == Tie(1) { held.bytes().0 } else { 0 };
            held.tie() != Tie(1)
        });
        assert_eq!(swept, expected, "seed {seed}");
        for (key, held) in model {
            assert_eq!(map.take(Key(key)), Some(held), "seed {seed}");
        }
        map.sweep(|_, _| true, |held| panic!("{held:?} is left over, seed {seed}"));
    }

    #[test]
    fn threads_do_not_lose_each_others_entries() {
        let map = AllocMap::new();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let map = &map;
                scope.spawn(move || {
                    for number in 0..20_000_u64 {
                        // A third of them look like handles.
                        let key = Key((number << 12 | thread << 9) + number % 3 * 16);
                        assert_eq!(map.insert(key, held(number, 0)), Ok(None));
                        if number % 2 == 0 {
                            assert_eq!(map.take(key), Some(held(number, 0)));
                        }
                    }
                });
            }
        });
        let mut left = 0;
        map.sweep(|_, _| true, |_| left += 1);
        assert_eq!(left, 8 * 10_000);
    }

    #[test]
    fn lock_owner_and_waiter_on_an_orphaned_lock_proceed_without() {
        let (map, key) = (AllocMap::new(), Key(512));
        assert_eq!(map.insert(key, held(512, 1)), Ok(None));
        let inner = map.update(key, |_| (map.insert(key, held(1, 0)), map.take(key)));
        assert_eq!(inner, Some((Err(NoRoom), None)));
        let shard = map.shard(hash(key).0).unwrap();
        std::thread::scope(|scope| scope.spawn(|| shard.lock().map(core::mem::forget)).join().unwrap());
        assert_eq!(map.take(key), None, "its holder is gone");
        assert_eq!(map.insert(key, held(1, 0)), Err(NoRoom));
        map.sweep(|_, _| true, |held| panic!("{held:?} lies where no search looks"));
        // Its holder was slow only.
        shard.lock.open();
        assert_eq!(map.take(key), Some(held(512, 1)));
    }

    #[test]
    fn a_key_that_cannot_be_kept_is_refused() {
        let map = AllocMap::new();
        assert_eq!(map.insert(Key(u64::MAX), held(1, 0)), Err(NoRoom));
        assert_eq!(map.insert(Key(0), held(1, 0)), Ok(None));
        assert_eq!(map.take(Key(0)), Some(held(1, 0)));
        assert_eq!(map.take(Key(0)), None);
    }

    #[test]
    fn a_search_is_short_however_far_apart_addresses_are() {
        for (apart, first) in [512, 1024, 4096, 65_536, 2 << 20, 16].map(|apart| (apart, 0x7f00_0000_0000)) {
            for count in [200, 2_000, 20_000, 60_000_u64] {
                let map = AllocMap::new();
                let keys = || (0..count).map(move |number| Key(first + number * apart));
                keys().for_each(|key| assert_eq!(map.insert(key, held(1, 0)), Ok(None)));
                // From where a key is looked for to the next free place: what a removal looks at.
                let looks = keys().map(|key| {
                    let (shard, mut place) = hash(key);
                    let locked = map.shard(shard).unwrap().lock().unwrap();
                    let from = place;
                    while locked.at(place & locked.mask()).key != 0 {
                        place += 1;
                    }
                    place - from
                });
                let sum: usize = looks.sum();
                assert!(sum < usize::try_from(count * 12).unwrap(), "{count}, {apart} apart: {sum}");
            }
        }
    }
}
