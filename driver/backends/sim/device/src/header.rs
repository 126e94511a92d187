//! The first bytes of a card's file: its layout, and the width and number of the records behind them. A
//! process that maps the file trusts every offset in it. A file from a build with other records is therefore
//! refused, whatever its layout number.
//!
//! Written once, the first word last, and checked before anything is mapped. Pure: no file is touched here.

use crate::card::State;
use crate::{ipc_memory, mig, schedule, xid};

/// The number of the layout: what means what, where widths and counts do not tell.
const LAYOUT: u8 = 9;
/// The word behind which a card stands.
pub(crate) const MAGIC: u64 = u64::from_be_bytes([b'A', b'L', b'Q', b'S', b'I', b'M', b'C', LAYOUT]);
/// Records that the header describes.
pub(crate) const RECORDS: usize = 8;
/// Bytes of the header.
pub(crate) const BYTES: usize = size_of::<u64>() + RECORDS * size_of::<Record>();

/// How wide a kind of record is, and how many of them there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// Bytes of one.
    pub bytes: u32,
    /// How many.
    pub count: u32,
}

/// Why a file is not mapped as a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardFault {
    /// Something else.
    #[error("it begins with {found:#018x}, and a card with {MAGIC:#018x}")]
    Foreign {
        /// Its first word.
        found: u64,
    },
    /// A card of another version.
    #[error("it has layout {found} of cards, expected {LAYOUT}")]
    Layout {
        /// The number found.
        found: u8,
    },
    /// A card of a build that has other records under this number.
    #[error("its {name} are {} of {} bytes, expected {} of {}", .found.count, .found.bytes, .expected.count, .expected.bytes)]
    Records {
        /// What they are.
        name: &'static str,
        /// As in the file.
        found: Record,
        /// As this build has them.
        expected: Record,
    },
    /// A part of a card.
    #[error("it ends after {found} bytes, expected {expected}")]
    Short {
        /// Bytes of the file.
        found: u64,
        /// Bytes of a card.
        expected: u64,
    },
    /// A card that lost its first bytes.
    #[error("its first {BYTES} bytes are not written, and some behind them are")]
    Headless,
}

/// What the first bytes of a file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// A card of this build.
    Card,
    /// Unwritten: the file is new, or its creator was killed before it wrote the header.
    Unwritten,
}

impl Record {
    /// So many of a type.
    pub(crate) const fn of<T>(count: usize) -> Self {
        // A record of 4 GiB does not compile.
        assert!(size_of::<T>() <= u32::MAX as usize && count <= u32::MAX as usize);
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        Self { bytes: size_of::<T>() as u32, count: count as u32 }
    }
}

/// What this build has, with the C library's lock before the state.
pub(crate) const fn records<Guard>() -> [(&'static str, Record); RECORDS] {
    [
        ("locks", Record::of::<Guard>(1)),
        ("states", Record::of::<State>(1)),
        ("seats", State::SEAT),
        ("works", Record::of::<schedule::Work>(schedule::SEATS)),
        ("places of IPC memory", ipc_memory::PLACE),
        ("GPU instances", Record::of::<mig::GpuInstance>(mig::INSTANCES)),
        ("reports of errors", xid::REPORT),
        ("processes that left", State::DEPARTED),
    ]
}

/// What a file of `length` bytes that begins so is. Bytes that it does not have are zero.
pub(crate) fn check(
    head: &[u8; BYTES],
    (length, expected): (u64, u64),
    records: &[(&'static str, Record); RECORDS],
) -> Result<Head, CardFault> {
    let (magic, told) = head.split_at(size_of::<u64>());
    let magic = magic.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    let [name @ .., layout] = magic.to_be_bytes();
    let [expected_name @ .., _] = MAGIC.to_be_bytes();
    match magic {
        0 => return Ok(Head::Unwritten),
        MAGIC => {}
        _ if name == expected_name => return Err(CardFault::Layout { found: layout }),
        found => return Err(CardFault::Foreign { found }),
    }
    for ((name, expected), found) in records.iter().zip(told.chunks_exact(size_of::<Record>())) {
        let half =
            |at: usize| found.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_ne_bytes(*b));
        let found = Record { bytes: half(0), count: half(4) };
        if found != *expected {
            return Err(CardFault::Records { name, found, expected: *expected });
        }
    }
    if length < expected { Err(CardFault::Short { found: length, expected }) } else { Ok(Head::Card) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXPECTED: u64 = 1 << 20;

    fn ours() -> [(&'static str, Record); RECORDS] {
        records::<[u64; 5]>()
    }

    fn written() -> [u8; BYTES] {
        let words = ours().into_iter().flat_map(|(_, record)| [record.bytes, record.count]);
        let bytes = MAGIC.to_ne_bytes().into_iter().chain(words.flat_map(u32::to_ne_bytes));
        let mut head = [0; BYTES];
        head.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        head
    }

    fn checked(head: &[u8; BYTES], length: u64) -> Result<Head, CardFault> {
        check(head, (length, EXPECTED), &ours())
    }

    #[test]
    fn header_of_this_build_is_a_card_and_an_empty_one_is_none() {
        assert_eq!(checked(&written(), EXPECTED), Ok(Head::Card));
        assert_eq!(checked(&written(), EXPECTED + 1), Ok(Head::Card), "another build made it longer");
        assert_eq!(checked(&[0; BYTES], 0), Ok(Head::Unwritten));
        let short = checked(&written(), EXPECTED - 1);
        assert_eq!(short, Err(CardFault::Short { found: EXPECTED - 1, expected: EXPECTED }));
    }

    #[test]
    fn a_record_half_as_wide_is_told_by_its_name() {
        for (number, (name, expected)) in ours().into_iter().enumerate() {
            let mut head = written();
            let at = size_of::<u64>() + number * size_of::<Record>();
            let found = Record { bytes: expected.bytes / 2, count: expected.count * 2 };
            head[at..at + 4].copy_from_slice(&found.bytes.to_ne_bytes());
            head[at + 4..at + 8].copy_from_slice(&found.count.to_ne_bytes());
            assert_eq!(checked(&head, EXPECTED), Err(CardFault::Records { name, found, expected }));
        }
    }

    proptest! {
        /// Whatever is torn or written over is no card, and what was never written is none yet.
        #[test]
        fn a_header_with_any_byte_changed_is_refused(at in 0..BYTES, byte in 1_u8.., cut in 0..=BYTES) {
            let mut head = written();
            head[at] ^= byte;
            prop_assert!(checked(&head, EXPECTED).is_err());
            let mut torn = written();
            torn[cut..].fill(0);
            let is_whole = torn == written();
            let found = checked(&torn, EXPECTED);
            let expected = if is_whole { Ok(Head::Card) } else { Ok(Head::Unwritten) };
            prop_assert!(found == expected && (is_whole || cut == 0) || found.is_err(), "{cut}: {found:?}");
        }
    }
}
