//! Predicts the cost of a launch: learnt for each function and shape, in a lock-free table of fixed size.
//!
//! | word | meaning |
//! |---|---|
//! | key | a function with its grid and block, or a graph, or a kind of copy with the size of its size |
//! | family | the function whatever the shape: the first guess for a shape that never ran |
//! | sample | device time of one launch as markers showed it, nanoseconds |
//! | exact | no other work could run between the markers, and the device was never idle there |
//! | bound | other work may have run there: the launch cost at most this |
//! | own part | of a bound beside other tenants, what was the tenant's in the mean |
//!
//! Beside other tenants no sample is exact. For launches of constant length, the least sample is the cost. If the mean own part
//! exceeds it by half, some launches take longer, and the mean is the cost.
//!
//! Two keys with equal hashes share an estimate; the measured bill corrects it. In a full table a new key replaces an old one.

mod runs;

use core::sync::atomic::{AtomicU64, Ordering};

use crate::ablation::Heuristic;
use crate::units::Nanos;
use runs::Runs;

/// Unit of stored samples beside other tenants, in nanoseconds: 32 bits hold a minute.
const GRAIN: u64 = 16;
/// Keys kept. Thirty-two bytes each.
pub const COSTS: usize = 2048;
/// Places looked at for one key.
const PROBES: usize = 8;
/// A measured cost is at least this: nothing takes no time.
const COST_MIN: u64 = 100;
/// Of a cost: a launch may take far longer.
const HELD: u64 = 1 << 63;
/// Least believed part of a sample, as a divisor: below it so many launches would pass before the next sample that their
/// undercharge could not be corrected.
const PART_MIN: u64 = 64;

/// What identifies launches that cost the same; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

/// A launch by what its cost depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Of exactly this.
    pub key: Key,
    /// Of the function in any shape.
    pub family: Key,
    /// How often the work of the smallest shape; a family's cost is kept for one.
    pub blocks: u64,
}

/// What a launch will cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// As such launches did.
    Measured(Nanos, Trust),
    /// As the function did in another shape, at most.
    Guessed(Nanos),
    /// Nothing is known.
    Unknown,
}

/// What a sample says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The cost.
    Exact,
    /// The cost or more.
    Bound,
    /// More than was charged. Of what was never measured it says nothing.
    Short,
    /// The cost, more or less.
    Mean,
}

#[derive(Debug)]
struct Entry {
    /// 0: free.
    key: AtomicU64,
    /// 0: not measured yet. Odd: a bound. With [`HELD`] none goes without a question.
    nanos: AtomicU64,
    /// The least sample beside other tenants, and above that the mean of the own parts, in [`GRAIN`]s; 0: there was none.
    beside: AtomicU64,
    /// [`Runs`].
    runs: AtomicU64,
}

/// The table.
#[derive(Debug)]
pub struct Costs {
    entries: [Entry; COSTS],
}

const fn mix(a: u64, b: u64) -> u64 {
    // The multiplier of splitmix64: every bit of the input moves half the bits of the output's upper part.
    let product = (a ^ b.rotate_left(32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    product ^ (product >> 29)
}

impl Key {
    const fn of(hash: u64) -> Self {
        Self(if hash == 0 { 1 } else { hash })
    }

    /// Of a kernel launch.
    #[must_use]
    #[inline]
    pub const fn kernel(function: u64, grid: [u32; 3], block: [u32; 3]) -> Self {
        let [gx, gy, gz] = grid;
        let [bx, by, bz] = block;
        // Blocks have at most 1024 threads a side, so a block's sides fit beside each other; grids of more than a million
        // layers may share a key with smaller ones.
        let threads = bx as u64 | (by as u64) << 11 | (bz as u64) << 22 | (gz as u64) << 33;
        let sides = gx as u64 | (gy as u64) << 32;
        // Three products that do not wait for each other, with odd multipliers: those of splitmix64 and the golden section.
        let sum = function
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .wrapping_add(sides.wrapping_mul(0x94d0_49bb_1331_11eb))
            .wrapping_add(threads.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self::of(sum ^ (sum >> 32))
    }

    /// As a number that is never zero.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl Shape {
    /// A kernel launch.
    #[must_use]
    #[inline]
    pub const fn kernel(function: u64, grid: [u32; 3], block: [u32; 3]) -> Self {
        let [gx, gy, gz] = grid;
        let blocks = (gx as u64).saturating_mul(gy as u64).saturating_mul(gz as u64);
        Self { key: Key::kernel(function, grid, block), family: Key::of(mix(function, 1)), blocks }
    }

    /// As plain numbers: key, family, blocks.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 3] {
        [self.key.0, self.family.0, self.blocks]
    }

    /// What [`Shape::numbers`] gave; `None` for numbers that are no shape.
    #[must_use]
    pub const fn from_numbers([key, family, blocks]: [u64; 3]) -> Option<Self> {
        if key == 0 || family == 0 { None } else { Some(Self { key: Key(key), family: Key(family), blocks }) }
    }

    /// One launch of a graph.
    #[must_use]
    pub const fn graph(graph: u64) -> Self {
        let key = Key::of(mix(graph, 2));
        Self { key, family: key, blocks: 1 }
    }

    /// Copying or setting memory: `kind` tells apart what runs at different rates.
    #[must_use]
    pub fn bytes(kind: u64, bytes: u64) -> Self {
        let size = u64::from(64 - bytes.leading_zeros());
        let family = Key::of(mix(kind, 3));
        Self { key: Key::of(mix(mix(kind, 4), size)), family, blocks: 1 << size.min(62) }
    }
}

impl Costs {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: [const {
                Entry {
                    key: AtomicU64::new(0),
                    nanos: AtomicU64::new(0),
                    beside: AtomicU64::new(0),
                    runs: AtomicU64::new(0),
                }
            }; COSTS],
        }
    }

    fn places(&self, key: Key) -> impl Iterator<Item = &Entry> {
        let at = usize::try_from(key.0 >> 33).unwrap_or(0);
        (0..PROBES).filter_map(move |probe| self.entries.get((at + probe) % COSTS))
    }

    /// Cost of launches of this very key; `None` when it was never measured, or one may take far longer.
    #[must_use]
    #[inline]
    pub fn measured(&self, key: Key) -> Option<Nanos> {
        self.nanos(key).filter(|nanos| nanos & HELD == 0).map(Nanos)
    }

    #[inline]
    fn nanos(&self, key: Key) -> Option<u64> {
        for entry in self.places(key) {
            match entry.key.load(Ordering::Relaxed) {
                found if found == key.0 => {
                    let nanos = entry.nanos.load(Ordering::Relaxed);
                    return (nanos != 0).then_some(nanos);
                }
                0 => return None,
                _ => {}
            }
        }
        None
    }

    /// The best that is known about a launch.
    #[must_use]
    pub fn estimate(&self, shape: &Shape) -> Estimate {
        if let Some(nanos) = self.nanos(shape.key) {
            let trust = if nanos & 1 == 0 { Trust::Exact } else { Trust::Bound };
            return Estimate::Measured(Nanos(nanos & !HELD), trust);
        }
        // Time grows at most in proportion to blocks; a card that has room for more of them needs less.
        let family = self.nanos(shape.family).filter(|_| Heuristic::Guesses.is_on());
        family.map_or(Estimate::Unknown, |block| {
            let nanos = u128::from(block & !HELD) * u128::from(shape.blocks.max(1)) / FAMILY_SCALE;
            Estimate::Guessed(Nanos(u64::try_from(nanos).unwrap_or(u64::MAX).max(COST_MIN)))
        })
    }

    /// Takes in a sample of one launch.
    pub fn learn(&self, shape: &Shape, sample: Nanos, trust: Trust) {
        let nanos = sample.0.max(COST_MIN);
        self.entry(shape.key, nanos, trust);
        if shape.family != shape.key {
            let block = u128::from(nanos) * FAMILY_SCALE / u128::from(shape.blocks.max(1));
            self.entry(shape.family, u64::try_from(block).unwrap_or(u64::MAX).max(1), trust);
        }
    }

    /// Takes in a sample beside other tenants, and its own part.
    pub fn learn_beside(&self, shape: &Shape, sample: Nanos, own: Nanos, trust: Trust) {
        let own = own.max(Nanos(sample.0 / PART_MIN));
        self.learn(shape, if trust == Trust::Mean { own } else { sample }, trust);
        let Some(entry) = self.entry_of(shape.key) else { return };
        let grains = |time: Nanos| (time.0 / GRAIN).clamp(1, u64::from(u32::MAX));
        let (sample, own) = (grains(sample), grains(own));
        // Races between two learners lose one sample of many.
        let word = entry.beside.load(Ordering::Relaxed);
        let both = if word == 0 {
            Parts { least: sample, mean: own }
        } else {
            let Parts { least, mean } = Parts::of(word);
            Parts { least: least - least.saturating_sub(sample) / 2, mean: mean - mean / 8 + own / 8 }
        };
        entry.beside.store(both.mean << 32 | both.least, Ordering::Relaxed);
        if both.vary() {
            entry.put(marked(both.mean * GRAIN, Trust::Mean));
        }
    }

    /// So many launches of this key were billed so much each.
    pub fn ran(&self, key: Key, launches: u32, each: Nanos) {
        if let Some(entry) = self.entry_of(key) {
            // Races between two learners lose one sample of many.
            let runs = Runs::of(entry.runs.load(Ordering::Relaxed)).then(launches, each);
            entry.runs.store(runs.word(), Ordering::Relaxed);
        }
    }

    /// From now on launches of this key that may take far longer than they cost go with a question.
    pub fn hold(&self, key: Key) {
        if let Some(entry) = self.entry_of(key) {
            let cost = entry.nanos.load(Ordering::Relaxed) & !HELD;
            let held = if entry.longest(Nanos(cost)).is_some() { HELD } else { 0 };
            entry.nanos.store(cost | held, Ordering::Relaxed);
        }
    }

    /// From now on they go without one.
    pub fn let_go(&self, key: Key) {
        if let Some(entry) = self.entry_of(key) {
            entry.nanos.store(entry.nanos.load(Ordering::Relaxed) & !HELD, Ordering::Relaxed);
        }
    }

    /// What a launch of this key may take beyond its cost, where that is far more.
    #[must_use]
    pub fn beyond(&self, key: Key, cost: Nanos) -> Nanos {
        self.entry_of(key)
            .and_then(|entry| entry.longest(cost))
            .map_or(Nanos::ZERO, |longest| longest.minus(cost))
    }

    /// Whether some launches of this key take longer than others, by what was seen beside other tenants.
    #[must_use]
    pub fn varies(&self, key: Key) -> bool {
        self.entry_of(key).is_some_and(|entry| Parts::of(entry.beside.load(Ordering::Relaxed)).vary())
    }

    fn entry_of(&self, key: Key) -> Option<&Entry> {
        self.places(key).find(|entry| entry.key.load(Ordering::Relaxed) == key.0)
    }

    fn entry(&self, key: Key, nanos: u64, trust: Trust) {
        if let Some(entry) = self.entry_of(key) {
            let before = entry.nanos.load(Ordering::Relaxed) & !HELD;
            // Races between two learners lose one sample of many.
            entry.put(blend(before, nanos, trust));
            return;
        }
        if trust == Trust::Short {
            return;
        }
        let free = self.places(key).find(|entry| entry.key.load(Ordering::Relaxed) == 0);
        // A full neighbourhood: one of its places, by other bits of the key.
        let turn = usize::try_from(key.0 % 8).unwrap_or(0);
        let Some(entry) = free.or_else(|| self.places(key).nth(turn)) else { return };
        // Unmeasured for a moment, so that no thread reads another key's cost.
        entry.nanos.store(0, Ordering::Release);
        entry.beside.store(0, Ordering::Release);
        entry.runs.store(0, Ordering::Release);
        entry.key.store(key.0, Ordering::Release);
        entry.nanos.store(blend(0, nanos, trust), Ordering::Release);
    }
}

impl Entry {
    /// A new cost; held as before.
    fn put(&self, nanos: u64) {
        let held = self.nanos.load(Ordering::Relaxed) & HELD;
        self.nanos.store(nanos & !HELD | held, Ordering::Relaxed);
    }

    fn longest(&self, cost: Nanos) -> Option<Nanos> {
        Runs::of(self.runs.load(Ordering::Relaxed)).longest(cost)
    }
}

/// Samples of one key beside other tenants, in [`GRAIN`]s.
#[derive(Clone, Copy, Debug)]
struct Parts {
    least: u64,
    mean: u64,
}

impl Parts {
    const fn of(word: u64) -> Self {
        Self { least: word & 0xffff_ffff, mean: word >> 32 }
    }

    fn vary(self) -> bool {
        Heuristic::MeanCosts.is_on() && self.mean > self.least + self.least / 2
    }
}

/// A family's cost is kept in 1024ths of a nanosecond a block.
const FAMILY_SCALE: u128 = 1024;

fn blend(before: u64, sample: u64, trust: Trust) -> u64 {
    match trust {
        Trust::Short if before == 0 => 0,
        _ if before == 0 => marked(sample, trust),
        // The truth ends all guessing.
        Trust::Exact if before & 1 == 1 => marked(sample, trust),
        Trust::Exact if sample > before => marked(before + (sample - before) / 4, trust),
        // It says nothing new, and does not unsay what is known.
        Trust::Bound if sample > before => before,
        Trust::Short if sample > before => marked(before + (sample - before) / 4, trust),
        Trust::Short => before,
        Trust::Mean => marked(before - before / 4 + sample / 4, trust),
        Trust::Exact => marked(before - (before - sample) / 4, trust),
        Trust::Bound => marked(before - (before - sample) / 2, trust),
    }
}

/// Even for exact, odd for a bound.
const fn marked(nanos: u64, trust: Trust) -> u64 {
    let even = nanos & !1;
    match trust {
        Trust::Exact if even == 0 => 2,
        Trust::Exact => even,
        Trust::Bound | Trust::Short | Trust::Mean => even | 1,
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmeasured_function_gets_no_cost_from_short_bills() {
        let costs = Costs::new();
        let shape = Shape::kernel(1, [64, 1, 1], [256, 1, 1]);
        costs.learn(&shape, Nanos::from_millis(13), Trust::Short);
        assert_eq!(costs.estimate(&shape), Estimate::Unknown);
        costs.learn(&shape, Nanos::from_millis(200), Trust::Bound);
        let least = Nanos::from_millis(199);
        assert!(matches!(costs.estimate(&shape), Estimate::Measured(cost, Trust::Bound) if cost > least));
    }

    #[test]
    fn a_part_of_next_to_nothing_does_not_make_long_work_cheap() {
        let costs = Costs::new();
        let shape = Shape::kernel(1, [64, 1, 1], [256, 1, 1]);
        for own in [Nanos::ZERO, Nanos(1), Nanos::from_micros(3)] {
            costs.learn_beside(&shape, Nanos::from_millis(240), own, Trust::Mean);
            let Estimate::Measured(cost, _) = costs.estimate(&shape) else { panic!("it was measured") };
            assert!(cost >= Nanos::from_millis(3), "{cost:?}");
        }
    }
}
