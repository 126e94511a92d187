//! Random draws, and what they may touch.

use serde_json::Value;

/// Whether cases may touch what upstream 1.36 is known to get wrong: `distinctAttribute` over a request of several
/// devices, admin access beside counters, capacity keys that are qualified with the driver's own name, one attribute
/// under its bare and its qualified name, requests for a binary fraction such as `2.5Gi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownDefects {
    /// Stay away from them: every difference is ours to mend.
    Avoid,
    /// Go there too.
    Touch,
}

/// A small generator of numbers that only have to look random (splitmix64), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.bits() % bound).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// One of the items.
    ///
    /// # Panics
    ///
    /// When there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Each item with the given chance in a hundred, in order.
    pub fn subset<T: Clone>(&mut self, items: &[T], chance: usize) -> Vec<T> {
        items.iter().filter(|_| self.percent(chance)).cloned().collect()
    }

    /// A random UUID (version 4, lower case).
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.bits(), self.bits());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 48) & 0x3fff,
            low & 0xffff_ffff_ffff
        )
    }
}

/// Sets a field of an object that is being built.
pub(super) fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}
