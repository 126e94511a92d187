//! Pages of the card that allocations of this process cover. A driver hands out device memory in pages: it keeps a page as
//! long as any allocation covers a part of it.
//!
//! ```text
//!   allocation ─▶ whole pages              in its own entry (`AllocEntry::bytes`)
//!             └─▶ its first and last page, where it covers them in part: PAGES[page, context] {users}
//!                 the first user is charged the page, the last one is credited
//! ```
//!
//! A page is left after the driver freed the allocation. An allocation that covers the same page meanwhile finds it charged.

use crate::accounting::account::Bytes;
use crate::accounting::alloc_map::{AllocMap, Fate, Key, NoRoom, Tie};
use crate::accounting::credit::Sums;

/// Pages up to this size are never shared: drivers align addresses to it.
const ALIGNED_BITS: u32 = 9;
const TIE_BITS: u32 = 17;

/// A page that allocations of one context cover in part.
#[derive(Clone, Copy, Debug)]
struct Page {
    users: u32,
    grant: u16,
    bits: u16,
}

static PAGES: AllocMap<Page> = AllocMap::new();

/// The size of pages, as a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageSize(pub(crate) u32);

/// Which of its outer pages an allocation shares with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edges {
    pub(crate) first: bool,
    pub(crate) last: bool,
}

/// What an allocation covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cover {
    /// Pages that it covers whole.
    pub(crate) own: Bytes,
    pub(crate) edges: Edges,
}

/// The owner of the pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) grant: u32,
    pub(crate) tie: Tie,
    pub(crate) size: PageSize,
}

impl PageSize {
    pub(crate) fn bytes(self) -> u64 {
        1 << self.0
    }

    /// The least whole pages that hold so many bytes. `None`: more than there are numbers.
    pub(crate) fn rounded(self, bytes: Bytes) -> Option<Bytes> {
        bytes.0.checked_next_multiple_of(self.bytes()).map(Bytes)
    }

    /// What `bytes` bytes from `address` on cover.
    pub(crate) fn cover(self, address: u64, bytes: u64) -> Option<Cover> {
        if bytes == 0 {
            return Some(Cover { own: Bytes(0), edges: Edges::default() });
        }
        let page = self.bytes();
        let end = address.checked_add(bytes)?;
        if self.0 <= ALIGNED_BITS {
            return Some(Cover { own: self.rounded(Bytes(bytes))?, edges: Edges::default() });
        }
        let (first, last) = (address >> self.0, end.checked_sub(1)? >> self.0);
        let (is_first, is_last) = (address & (page - 1) != 0, end & (page - 1) != 0);
        let edges = if first == last {
            Edges { first: is_first || is_last, last: false }
        } else {
            Edges { first: is_first, last: is_last }
        };
        let own = (last - first + 1) - edges.count();
        Some(Cover { own: Bytes(own << self.0), edges })
    }
}

impl Edges {
    pub(crate) fn count(self) -> u64 {
        u64::from(self.first) + u64::from(self.last)
    }

    pub(crate) fn is_any(self) -> bool {
        self.first || self.last
    }
}

impl Owner {
    fn key(self, page: u64) -> Key {
        Key(page << TIE_BITS | u64::from(self.tie.0))
    }

    /// The outer pages of an allocation that has `own` bytes between them.
    fn pages(self, address: u64, own: Bytes, edges: Edges) -> [Option<u64>; 2] {
        let first = address >> self.size.0;
        let last = first + u64::from(edges.first) + (own.0 >> self.size.0);
        [edges.first.then_some(first), edges.last.then_some(last)]
    }

    /// One more user of the outer pages of an allocation: bytes of those that had none.
    pub(crate) fn join(self, address: u64, cover: Cover) -> Result<Bytes, NoRoom> {
        let mut charged = 0;
        let pages = self.pages(address, cover.own, cover.edges);
        for (place, page) in pages.into_iter().enumerate() {
            let Some(page) = page else { continue };
            let (grant, bits) = (u16::try_from(self.grant), u16::try_from(self.size.0));
            let new = Page { users: 1, grant: grant.map_err(|_| NoRoom)?, bits: bits.map_err(|_| NoRoom)? };
            let more = |page: Page| Page { users: page.users.saturating_add(1), ..page };
            match PAGES.insert_or(self.key(page), new, more) {
                Ok(None) => charged += self.size.bytes(),
                Ok(Some(_)) => {}
                Err(NoRoom) => {
                    if place > 0
                        && let Some(first) = pages[0]
                    {
                        self.leave_page(first);
                    }
                    return Err(NoRoom);
                }
            }
        }
        Ok(Bytes(charged))
    }

    /// One user less of a page: its bytes, where that was the last. `None`: its place cannot be had.
    fn leave_page(self, page: u64) -> Option<Bytes> {
        let less = |page: &mut Page| {
            page.users = page.users.saturating_sub(1);
            if page.users == 0 { Fate::Goes } else { Fate::Stays }
        };
        match PAGES.try_decide(self.key(page), less)? {
            Some(Fate::Goes) => Some(self.size.bytes()),
            // Pages of a context that ended are credited with it.
            Some(Fate::Stays) | None => Some(0),
        }
        .map(Bytes)
    }

    /// One user less of the outer pages: bytes of those that have none left, and the pages that could not be had.
    pub(crate) fn leave(self, address: u64, own: Bytes, edges: Edges) -> (Bytes, Edges) {
        let [first, last] = self.pages(address, own, edges);
        let mut credited = 0;
        let mut left = |page: Option<u64>| match page.map(|page| self.leave_page(page)) {
            Some(None) => true,
            Some(Some(bytes)) => {
                credited += bytes.0;
                false
            }
            None => false,
        };
        let stuck = Edges { first: left(first), last: left(last) };
        (Bytes(credited), stuck)
    }
}

/// A context ended: its pages are the card's again.
pub(crate) fn context_ended(tie: Tie, sums: &mut Sums) {
    let mask = (1 << TIE_BITS) - 1;
    PAGES.sweep(
        |key, _| key.0 & mask == u64::from(tie.0),
        |page| sums.add_bytes(u32::from(page.grant), Bytes(1 << page.bits)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: PageSize = PageSize(21);
    const MIB: u64 = 1 << 20;

    #[test]
    fn cover_counts_whole_pages_and_names_partial_ones() {
        let at = 0x7f00_0000_0000;
        let cover = |from: u64, bytes: u64| {
            let cover = SIZE.cover(at + from, bytes).unwrap();
            (cover.own.0 / MIB, cover.edges.first, cover.edges.last)
        };
        for (from, bytes, expected) in [
            (0, 2 * MIB, (2, false, false)),
            (0, 1, (0, true, false)),
            (512, 512, (0, true, false)),
            (MIB, MIB, (0, true, false)),
            (0, 2 * MIB + 1, (2, false, true)),
            (MIB, 2 * MIB, (0, true, true)),
            (MIB, 3 * MIB, (2, true, false)),
            (512, 4 * MIB, (2, true, true)),
            (0, 64 * MIB, (64, false, false)),
        ] {
            assert_eq!(cover(from, bytes), expected, "{bytes} bytes from {from}");
        }
        assert_eq!(SIZE.cover(u64::MAX, 2), None);
        assert_eq!(SIZE.cover(at, 0).map(|cover| cover.own.0), Some(0));
        let units = PageSize(9).cover(at + 512, 513).unwrap();
        assert_eq!((units.own.0, units.edges), (1024, Edges::default()));
    }

    #[test]
    fn page_is_charged_with_first_user_and_credited_with_last() {
        let owner = Owner { grant: 3, tie: Tie(77), size: SIZE };
        let other = Owner { tie: Tie(78), ..owner };
        let at = 0x7e00_0000_0000;
        let cover = |from: u64, bytes: u64| SIZE.cover(at + from, bytes).unwrap();
        let (small, wide) = (cover(512, 512), cover(MIB, 2 * MIB));
        assert_eq!(owner.join(at + 512, small), Ok(Bytes(2 * MIB)));
        assert_eq!(owner.join(at + MIB, wide), Ok(Bytes(2 * MIB)), "its last page is new");
        assert_eq!(other.join(at + 512, small), Ok(Bytes(2 * MIB)), "another context's");
        let leave = |owner: Owner, from: u64, cover: Cover| owner.leave(at + from, cover.own, cover.edges);
        let nothing_stuck = Edges::default();
        assert_eq!(leave(owner, 512, small), (Bytes(0), nothing_stuck));
        assert_eq!(leave(owner, MIB, wide), (Bytes(4 * MIB), nothing_stuck));
        assert_eq!(leave(owner, MIB, wide), (Bytes(0), nothing_stuck), "no user is left");
        let mut sums = Sums::default();
        context_ended(Tie(78), &mut sums);
        assert_eq!(sums.of(3), Bytes(2 * MIB));
        assert_eq!(leave(other, 512, small), (Bytes(0), nothing_stuck));
    }
}
