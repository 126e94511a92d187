//! What an entry says of an allocation.

use crate::accounting::account::Bytes;
use crate::accounting::pages::{Edges, Owner, PageSize};
use crate::grants::GRANTS_MAX;

/// The number of the context that an allocation goes with; 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tie(pub(crate) u32);

impl Tie {
    /// The greatest number of a context.
    pub(crate) const LAST: u32 = (1 << TIE_BITS) - 1;
}

/// An allocation, in one word: bytes, shared first and last page, whether they are set apart, grant and tie, from above.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllocEntry(u64);

const TIE_BITS: u32 = 17;
const GRANT_BITS: u32 = 5;
/// The bytes are in a slot of their own ([`crate::memory::ipc_memory`]).
const APART: u64 = 1 << (TIE_BITS + GRANT_BITS);
/// It shares its first page with other allocations ([`crate::accounting::pages`]), or its last one: their bytes are not among
/// its own.
const FIRST: u64 = APART << 1;
const LAST: u64 = APART << 2;
const BYTES_AT: u32 = TIE_BITS + GRANT_BITS + 3;
/// Half a tebibyte: no card has so much.
const BYTES_BITS: u32 = 64 - BYTES_AT;

const _: () = assert!(GRANTS_MAX <= 1 << GRANT_BITS && size_of::<AllocEntry>() == 8);

impl AllocEntry {
    /// So many bytes, charged to the grant of this number in this process. `None`: one of them is too large.
    pub(crate) fn new(bytes: Bytes, grant: usize, tie: Tie) -> Option<Self> {
        let grant = u64::try_from(grant).ok().filter(|grant| *grant < 1 << GRANT_BITS)?;
        let fits = bytes.0 < 1 << BYTES_BITS && tie.0 <= Tie::LAST;
        fits.then_some(Self(bytes.0 << BYTES_AT | grant << TIE_BITS | u64::from(tie.0)))
    }

    /// The same with no bytes of its own.
    pub(crate) fn without_bytes(self) -> Self {
        Self(self.0 & ((1 << BYTES_AT) - 1))
    }

    /// The same with these outer pages shared.
    pub(crate) fn with_edges(self, edges: Edges) -> Self {
        let bit = |bit: u64, is_set: bool| if is_set { bit } else { 0 };
        Self(self.0 & !(FIRST | LAST) | bit(FIRST, edges.first) | bit(LAST, edges.last))
    }

    /// Outer pages that it shares.
    pub(crate) fn edges(self) -> Edges {
        Edges { first: self.0 & FIRST != 0, last: self.0 & LAST != 0 }
    }

    /// The owner of its shared pages.
    pub(crate) fn owner(self, size: PageSize) -> Owner {
        Owner { grant: self.grant(), tie: self.tie(), size }
    }

    /// Charged to it alone.
    pub(crate) fn bytes(self) -> Bytes {
        Bytes(self.0 >> BYTES_AT)
    }

    /// The grant's number in this process.
    pub(crate) fn grant(self) -> u32 {
        u32::try_from(self.0 >> TIE_BITS & ((1 << GRANT_BITS) - 1)).unwrap_or(u32::MAX)
    }

    /// Whether the bytes are in a slot of their own.
    pub(crate) fn is_apart(self) -> bool {
        self.0 & APART != 0
    }

    /// Moves them there. False: they are there already.
    pub(crate) fn set_apart(&mut self) -> bool {
        let was = self.is_apart();
        self.0 |= APART;
        !was
    }

    /// Takes them back.
    pub(crate) fn join(&mut self) {
        self.0 &= !APART;
    }

    /// What it goes with.
    pub(crate) fn tie(self) -> Tie {
        Tie(u32::try_from(self.0 & u64::from(Tie::LAST)).unwrap_or(0))
    }
}

impl core::fmt::Debug for AllocEntry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Held").field(&self.bytes()).field(&self.grant()).field(&self.tie()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_returns_its_content_and_refuses_excess() {
        let most = (1 << BYTES_BITS) - 1;
        for bytes in [0, 1, 512, most] {
            for (grant, tie) in [(0, 0), (1, Tie::LAST), (GRANTS_MAX - 1, 7)] {
                let held = AllocEntry::new(Bytes(bytes), grant, Tie(tie)).unwrap();
                assert_eq!((held.bytes(), held.tie()), (Bytes(bytes), Tie(tie)));
                assert_eq!(usize::try_from(held.grant()), Ok(grant));
            }
        }
        let mut held = AllocEntry::new(Bytes(most), GRANTS_MAX - 1, Tie(Tie::LAST)).unwrap();
        let plain = held;
        assert!(!held.is_apart() && held.set_apart() && held.is_apart() && !held.set_apart());
        assert_eq!((held.bytes(), held.grant(), held.tie()), (plain.bytes(), plain.grant(), plain.tie()));
        held.join();
        assert_eq!(held, plain);
        let edges = Edges { first: false, last: true };
        assert_eq!(held.with_edges(edges).edges(), edges);
        assert_eq!(held.with_edges(edges).with_edges(Edges::default()), held);
        assert_eq!(AllocEntry::new(Bytes(most + 1), 0, Tie(0)), None);
        assert_eq!(AllocEntry::new(Bytes(0), 32, Tie(0)), None);
        assert_eq!(AllocEntry::new(Bytes(0), 0, Tie(Tie::LAST + 1)), None);
    }
}
