//! Dense numbers of what is published, and maps by them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

macro_rules! numbered {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) struct $name(pub(super) u32);

        impl $name {
            /// The number of the item that is pushed next to a list of this length.
            pub(super) fn after(length: usize) -> Self {
                // Four thousand million items do not fit in memory, so this never saturates.
                Self(u32::try_from(length).unwrap_or(u32::MAX))
            }

            /// As an index.
            pub(super) const fn at(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

pub(super) use numbered;

numbered! {
    /// A (driver, pool name) pair.
    PoolNo,
    /// One generation of a pool.
    VersionNo,
    /// A device identity.
    DeviceNo,
    /// One description of a device.
    EntryNo,
    /// One counter of one counter set of one pool version.
    SlotNo,
    /// A distinct counter.
    CounterNo,
    /// A distinct capacity map.
    ProfileNo,
    /// A slice.
    SliceNo,
}

/// A node of a [`super::World`], by its place in the list the world was made from (duplicates left out).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u32);

/// A map by numbers of this world, which no outside input chooses.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Mixes numbers by a multiplication each: a few of the default hasher's nanoseconds are most of a look-up here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

// === impl NumberHasher ===

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        // The odd number nearest to 2^64 divided by the golden ratio, as in Fibonacci hashing.
        self.0 = (self.0.rotate_left(29) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u32(SlotNo::after(number).0);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
