//! The units in which a driver hands out device memory, by what the memory of a process grows by.
//!
//! ```text
//!   large requests ──▶ whole pages      every growth is a multiple of the page
//!   small requests ──▶ a slab at a time one byte grows the process by a slab, or by nothing if a slab is open
//! ```
//!
//! Two growths of requests with odd sizes give a page: the largest power of two that divides both. A family is charged in its
//! coarsest unit, so accounting may exceed the card's figure and never falls below it.
//!
//! Pools, physical memory (VMM) and modules need no unit here: the driver reports their bytes, or demands its granularity.

use aliquot_abi::limits::{PAGE_BITS_ASSUMED, Pages};
use aliquot_core::units::Bytes;

use crate::hardware::vendors::Probe;

/// What the growth of a probe tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeStep {
    /// Nothing: the driver may set up memory of its own.
    Settle,
    /// The page of plain memory.
    Plain,
    /// The page of pitched memory.
    Pitched,
    /// The page of managed memory; none is known if the driver keeps it elsewhere.
    Managed,
    /// The slab of small requests with an address.
    Slab,
    /// The same, if a slab was open: several requests fill it.
    SlabFilled,
    /// The page of arrays.
    Array,
    /// The slab of small arrays.
    ArraySlab,
    /// The same, if a slab was open.
    ArraySlabFilled,
}

/// Allocations of the holder, in order. The sizes lie just above powers of two, so that pages of different sizes leave different
/// remainders; the sizes of a step are odd multiples of each other's halves.
pub(crate) const PROBES: [(ProbeStep, Probe); 25] = [
    (ProbeStep::Settle, Probe::Linear((8 << 20) + 1)),
    (ProbeStep::Plain, Probe::Linear((4 << 20) + 1)),
    (ProbeStep::Plain, Probe::Linear((8 << 20) + 1)),
    (ProbeStep::Pitched, Probe::Pitched(4100, 1025)),
    (ProbeStep::Pitched, Probe::Pitched(4100, 2050)),
    (ProbeStep::Managed, Probe::Managed((4 << 20) + 1)),
    (ProbeStep::Managed, Probe::Managed((8 << 20) + 1)),
    (ProbeStep::Slab, Probe::Linear(1)),
    (ProbeStep::SlabFilled, Probe::Linear((256 << 10) + 1)),
    (ProbeStep::SlabFilled, Probe::Linear((512 << 10) + 1)),
    (ProbeStep::SlabFilled, Probe::Linear((256 << 10) + 1)),
    (ProbeStep::SlabFilled, Probe::Linear((512 << 10) + 1)),
    (ProbeStep::SlabFilled, Probe::Linear((512 << 10) + 1)),
    (ProbeStep::SlabFilled, Probe::Linear((512 << 10) + 1)),
    (ProbeStep::Settle, Probe::Array(2049, 1025)),
    (ProbeStep::Array, Probe::Array(1025, 1025)),
    (ProbeStep::Array, Probe::Array(2049, 1025)),
    (ProbeStep::ArraySlab, Probe::Array(1, 1)),
    (ProbeStep::ArraySlabFilled, Probe::Array(257, 257)),
    (ProbeStep::ArraySlabFilled, Probe::Array(363, 363)),
    (ProbeStep::ArraySlabFilled, Probe::Array(257, 257)),
    (ProbeStep::ArraySlabFilled, Probe::Array(363, 363)),
    (ProbeStep::ArraySlabFilled, Probe::Array(363, 363)),
    (ProbeStep::ArraySlabFilled, Probe::Array(363, 363)),
    (ProbeStep::ArraySlabFilled, Probe::Array(363, 363)),
];

/// Growths of the holder, a step at a time.
struct Growths(Vec<(ProbeStep, u64)>);

impl Growths {
    /// By the memory of the holder before the probes and after each. `None`: not as many readings, or it shrank.
    fn of(readings: &[Bytes]) -> Option<Self> {
        let growths = readings.windows(2).map(|pair| pair[1].0.checked_sub(pair[0].0));
        let growths: Vec<u64> = growths.collect::<Option<_>>()?;
        let is_all = growths.len() == PROBES.len();
        is_all.then(|| Self(PROBES.iter().map(|(step, _)| *step).zip(growths).collect()))
    }

    /// The power of two that divides all growths of a step. `None`: there was none.
    fn unit(&self, step: ProbeStep) -> Option<u8> {
        let all = self.0.iter().filter(|(of, _)| *of == step).fold(0, |all, (_, growth)| all | growth);
        u8::try_from(all.trailing_zeros()).ok().filter(|_| all > 0)
    }

    /// The slab, by a request of one byte and others that fill an open slab.
    fn slab(&self, first: ProbeStep, filled: ProbeStep) -> u8 {
        let known = self.unit(first).unwrap_or(PAGE_BITS_ASSUMED);
        self.unit(filled).map_or(known, |filled| known.max(filled))
    }
}

/// The units by the memory of the holder before the probes and after each. `None`: a large request took nothing, or no driver has
/// such pages.
pub(super) fn pages(readings: &[Bytes]) -> Option<Pages> {
    let growths = Growths::of(readings)?;
    let large = growths.unit(ProbeStep::Plain)?.max(growths.unit(ProbeStep::Pitched)?);
    let managed = growths.unit(ProbeStep::Managed).unwrap_or(PAGE_BITS_ASSUMED);
    let pointers = large.max(managed).max(growths.slab(ProbeStep::Slab, ProbeStep::SlabFilled));
    let arrays =
        growths.unit(ProbeStep::Array)?.max(growths.slab(ProbeStep::ArraySlab, ProbeStep::ArraySlabFilled));
    Pages::measured(pointers, arrays)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver: powers of two of its pages and slabs.
    #[derive(Clone, Copy, Debug)]
    struct Driver {
        pointers: (u32, u32),
        arrays: (u32, u32),
        /// Bytes that slabs have left from the start on.
        open: u64,
        /// Managed memory is on the card.
        is_managed_seen: bool,
    }

    /// Readings of a driver: requests of at most half a slab share slabs.
    fn readings(driver: Driver) -> Vec<Bytes> {
        let (mut held, mut left) = (500 << 20, [driver.open; 2]);
        let mut readings = vec![Bytes(held)];
        for (_, probe) in PROBES {
            let (bytes, (page, slab), family) = match probe {
                Probe::Managed(_) if !driver.is_managed_seen => (0, driver.pointers, 0),
                Probe::Linear(bytes) | Probe::Managed(bytes) => (bytes as u64, driver.pointers, 0),
                Probe::Pitched(row, rows) => ((row.next_multiple_of(512) * rows) as u64, driver.pointers, 0),
                Probe::Array(width, height) => ((width * height * 4) as u64, driver.arrays, 1),
            };
            if slab > 9 && bytes <= 1 << (slab - 1) {
                let room: &mut u64 = &mut left[family];
                if *room < bytes {
                    held += 1 << slab;
                    *room = 1 << slab;
                }
                *room -= bytes;
            } else {
                held += bytes.next_multiple_of(1 << page);
            }
            readings.push(Bytes(held));
        }
        readings
    }

    fn even(pointers: u32, arrays: u32) -> Driver {
        Driver { pointers: (pointers, pointers), arrays: (arrays, arrays), open: 0, is_managed_seen: true }
    }

    fn measured(pointers: u32, arrays: u32) -> Option<Pages> {
        Pages::measured(u8::try_from(pointers).unwrap(), u8::try_from(arrays).unwrap())
    }

    #[test]
    fn page_of_each_family_follows_from_its_growths() {
        for pointers in 9..=23 {
            for arrays in [9, 12, 16, 21, 22, 23] {
                let found = pages(&readings(even(pointers, arrays)));
                assert_eq!(found, measured(pointers, arrays), "{pointers} {arrays}");
            }
        }
    }

    #[test]
    fn slab_that_is_coarser_than_a_page_is_the_unit() {
        for page in 9..=20 {
            for slab in page..=22 {
                let driver = Driver { pointers: (page, slab), arrays: (16, slab.max(16)), ..even(16, 16) };
                assert_eq!(pages(&readings(driver)), measured(slab, slab.max(16)), "{driver:?}");
            }
        }
    }

    #[test]
    fn unit_is_never_finer_than_what_the_card_loses() {
        for slab in 16..=22 {
            for open in [1, 512, 4096, 300 << 10, 1 << 20, 1 << 22] {
                let driver = Driver {
                    pointers: (16, slab),
                    arrays: (16, slab),
                    open: open.min(1 << slab),
                    ..even(16, 16)
                };
                let found = pages(&readings(driver)).unwrap();
                assert!(found.pointer_bits() >= slab.min(21), "{driver:?}: {found:?}");
                assert!(found.array_bits() >= slab.min(21), "{driver:?}: {found:?}");
            }
        }
    }

    #[test]
    fn managed_memory_off_the_card_leaves_the_assumed_page() {
        let unseen = |bits| Driver { is_managed_seen: false, ..even(bits, 16) };
        assert_eq!(pages(&readings(unseen(16))), measured(21, 16));
        assert_eq!(pages(&readings(unseen(22))), measured(22, 16));
    }

    #[test]
    fn memory_that_shrinks_or_stays_is_no_page() {
        let right = readings(even(21, 21));
        assert_eq!(pages(&right[..right.len() - 1]), None, "a reading is missing");
        assert_eq!(pages(&vec![Bytes(5); right.len()]), None, "nothing grew");
        for at in 1..right.len() {
            let mut readings = right.clone();
            readings[at] = Bytes(0);
            assert_eq!(pages(&readings), None, "{readings:?}");
        }
    }
}
