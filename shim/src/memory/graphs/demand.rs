//! The footprint of a graph: what its memory nodes need, by card.
//!
//! A node has its addresses from the moment it is made, and the driver gives those of an allocation that is freed before another
//! one in the same graph to that one, too. What is behind the addresses of all nodes together is the most that an executable
//! graph can have. An allocation that the graph does not free outlives its launch.

use crate::loader::vendor::{self, MemoryNodeParameters, SUCCESS};
use crate::sys;

/// CU_GRAPH_NODE_TYPE_GRAPH, MEM_ALLOC and MEM_FREE.
const CHILD_NODE: u32 = 4;
pub(super) const MEMORY_NODE: u32 = 10;
const FREE_NODE: u32 = 11;

/// Cards of one graph that are told apart.
pub(super) const CARDS_MAX: usize = 16;
/// Nodes that wait to be looked at, and memory nodes of all, without a mapping of their own.
const NODES_FEW: usize = 64;
const MEMORY_FEW: usize = 16;
/// What addresses are backed by, in bytes: no driver has smaller pages on a card.
pub(super) const PAGE: u64 = 2 << 20;
/// Words noted of a memory node: its card, its address, and the end of its pages.
const NOTED: usize = 3;
type Note = [u64; NOTED];

/// What memory nodes want, by card. Zeros: there are none.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphDemand {
    cards: [i32; CARDS_MAX],
    /// Of each of these; behind the last 0.
    bytes: [u64; CARDS_MAX],
}

/// A node that allocates or frees.
#[derive(Clone, Copy, Debug)]
enum Met {
    Allocation { card: i32, address: u64, bytes: u64 },
    Free { address: u64 },
}

/// Which allocations outlive a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// None: the graph frees what it allocates.
    Nothing,
    /// All: it frees nothing.
    All,
    /// Some, or it frees another graph's.
    Unknown,
}

/// Nodes that allocate and that free, and a sum of the addresses of the former less that of the latter.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    allocations: usize,
    frees: usize,
    sum: u64,
}

impl Tally {
    fn add(&mut self, met: Met) {
        // So that no sum of other addresses is the same.
        let mixed = |address: u64| {
            let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
        };
        match met {
            Met::Allocation { address, .. } => {
                self.allocations += 1;
                self.sum = self.sum.wrapping_add(mixed(address));
            }
            Met::Free { address } => {
                self.frees += 1;
                self.sum = self.sum.wrapping_sub(mixed(address));
            }
        }
    }

    fn left(self) -> Left {
        match self {
            Self { frees: 0, .. } => Left::All,
            Self { allocations, frees, sum: 0 } if allocations == frees => Left::Nothing,
            Self { .. } => Left::Unknown,
        }
    }
}

/// Why a graph was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreadableGraph;

impl GraphDemand {
    pub(super) const NOTHING: Self = Self { cards: [0; CARDS_MAX], bytes: [0; CARDS_MAX] };

    /// What the nodes of a graph want, and of all graphs inside it, and what its launches leave; `round` is what a store grows by
    /// for so many bytes.
    #[inline(never)]
    pub(super) fn of(graph: u64, round: fn(u64) -> u64) -> Result<(Self, Left), UnreadableGraph> {
        let mut tally = Tally::default();
        walk(graph, &mut |met| tally.add(met))?;
        let (mut demand, count) = (Self::NOTHING, tally.allocations);
        if count > MEMORY_FEW {
            let mut noted = Err(UnreadableGraph);
            sys::with_words(count.saturating_mul(NOTED), |words| noted = demand.note(graph, words));
            noted?;
        } else if count > 0 {
            demand.note(graph, &mut [0; MEMORY_FEW * NOTED])?;
        }
        demand.bytes.iter_mut().filter(|bytes| **bytes > 0).for_each(|bytes| *bytes = round(*bytes));
        Ok((demand, tally.left()))
    }

    /// The one card that pays; `None`: there are several, or none.
    pub(super) fn only_card(&self) -> Option<i32> {
        let mut cards = self.each().map(|(card, _)| card);
        cards.next().filter(|_| cards.next().is_none())
    }

    fn note(&mut self, graph: u64, words: &mut [u64]) -> Result<(), UnreadableGraph> {
        let (notes, _) = words.as_chunks_mut::<NOTED>();
        let mut count = 0;
        walk(graph, &mut |met| {
            let Met::Allocation { card, address, bytes } = met else { return };
            if let Some(note) = notes.get_mut(count) {
                *note = note_of(card, address, bytes);
            }
            count += 1;
        })?;
        // Another thread may have added nodes.
        let notes = notes.get_mut(..count).ok_or(UnreadableGraph)?;
        sort(notes);
        self.add_notes(notes)
    }

    /// By notes in order of card and address.
    fn add_notes(&mut self, notes: &[Note]) -> Result<(), UnreadableGraph> {
        let mut last = (u64::MAX, 0);
        for [card, address, end] in notes {
            let behind = if last.0 == *card { last.1 } else { 0 };
            let start = address / PAGE * PAGE;
            // Without an address nothing is known to lie at the same one.
            let is_told = *address != 0;
            self.add(*card, end.saturating_sub(if is_told { start.max(behind) } else { start }))?;
            last = (*card, if is_told { behind.max(*end) } else { behind });
        }
        Ok(())
    }

    fn add(&mut self, card: u64, bytes: u64) -> Result<(), UnreadableGraph> {
        let number = i32::try_from(card).map_err(|_| UnreadableGraph)?;
        let (place, held) = self.place(number).ok_or(UnreadableGraph)?;
        (*place, *held) = (number, held.saturating_add(bytes));
        Ok(())
    }

    /// That of a card, or one that it may have.
    fn place(&mut self, card: i32) -> Option<(&mut i32, &mut u64)> {
        let mut places = self.cards.iter_mut().zip(&mut self.bytes);
        places.find(|(other, held)| **held == 0 || **other == card)
    }

    /// Whether there is anything.
    pub(super) fn is_nothing(&self) -> bool {
        self.each().next().is_none()
    }

    /// Each card, and the bytes of it.
    pub(super) fn each(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        self.cards.iter().copied().zip(self.bytes.iter().copied()).filter(|(_, bytes)| *bytes > 0)
    }

    /// What this wants beyond the other one.
    pub(super) fn beyond(&self, other: &Self) -> Self {
        let mut more = *self;
        for (card, bytes) in more.cards.iter().zip(&mut more.bytes) {
            let has = other.each().find(|(own, _)| own == card).map_or(0, |(_, bytes)| bytes);
            *bytes = bytes.saturating_sub(has);
        }
        // Bytes of 0 end the list.
        let mut packed = Self::NOTHING;
        for ((card, bytes), (place, held)) in more.each().zip(packed.cards.iter_mut().zip(&mut packed.bytes))
        {
            (*place, *held) = (card, bytes);
        }
        packed
    }

    /// Both together. `None`: on more cards than are told apart.
    pub(super) fn with(mut self, more: &Self) -> Option<Self> {
        for (card, bytes) in more.each() {
            let (number, held) = self.place(card)?;
            (*number, *held) = (card, held.saturating_add(bytes));
        }
        Some(self)
    }
}

fn note_of(card: i32, address: u64, bytes: u64) -> Note {
    let end = address.saturating_add(bytes).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    [u64::from(card.unsigned_abs()), address, end]
}

/// Visits the allocations of a graph: address and bytes.
pub(super) fn each_allocation(graph: u64, mut visit: impl FnMut(u64, u64)) -> Result<(), UnreadableGraph> {
    walk(graph, &mut |met| {
        if let Met::Allocation { address, bytes, .. } = met {
            visit(address, bytes);
        }
    })
}

/// The library's own sort can panic. This one is a heap, whose largest note goes to the end again and again.
fn sort(notes: &mut [Note]) {
    for root in (0..notes.len() / 2).rev() {
        sift(notes, root, notes.len());
    }
    for end in (1..notes.len()).rev() {
        exchange(notes, 0, end);
        sift(notes, 0, end);
    }
}

/// Below `root`, and before `end`, no note is larger than the one it hangs from.
fn sift(notes: &mut [Note], mut root: usize, end: usize) {
    while 2 * root + 1 < end {
        let (left, right) = (2 * root + 1, 2 * root + 2);
        let larger = if right < end && notes.get(right) > notes.get(left) { right } else { left };
        if notes.get(larger) <= notes.get(root) {
            return;
        }
        exchange(notes, root, larger);
        root = larger;
    }
}

fn exchange(notes: &mut [Note], one: usize, other: usize) {
    if let Ok([one, other]) = notes.get_disjoint_mut([one, other]) {
        core::mem::swap(one, other);
    }
}

/// Looks at all nodes of a graph, and of the graphs inside it, however deep.
fn walk(graph: u64, visit: &mut dyn FnMut(Met)) -> Result<(), UnreadableGraph> {
    walk_on(&mut [0; NODES_FEW], 0, graph, visit)
}

/// The same, where so many nodes in front wait to be looked at.
fn walk_on(
    nodes: &mut [u64],
    mut waiting: usize,
    mut graph: u64,
    visit: &mut dyn FnMut(Met),
) -> Result<(), UnreadableGraph> {
    loop {
        let mut count = 0;
        // Of one that is none, the driver says so at the call.
        let is_known = vendor::cuGraphGetNodes(graph, core::ptr::null_mut(), &raw mut count) == Some(SUCCESS);
        if is_known && count > 0 {
            let all = waiting.saturating_add(count);
            let Some(room) = nodes.get_mut(waiting..).filter(|room| room.len() >= count) else {
                let length = all.max(nodes.len().saturating_mul(2));
                let front = nodes.get(..waiting).ok_or(UnreadableGraph)?;
                return walk_in(length, front, graph, visit);
            };
            let mut count = room.len();
            if vendor::cuGraphGetNodes(graph, room.as_mut_ptr(), &raw mut count) != Some(SUCCESS) {
                return Err(UnreadableGraph);
            }
            waiting += count.min(room.len());
        }
        graph = loop {
            let Some(last) = waiting.checked_sub(1) else { return Ok(()) };
            waiting = last;
            if let Some(inside) = look(*nodes.get(last).ok_or(UnreadableGraph)?, visit)? {
                break inside;
            }
        };
    }
}

/// The same in a mapping for so many nodes.
fn walk_in(
    length: usize,
    front: &[u64],
    graph: u64,
    visit: &mut dyn FnMut(Met),
) -> Result<(), UnreadableGraph> {
    let mut walked = Err(UnreadableGraph);
    sys::with_words(length, |nodes| {
        nodes.iter_mut().zip(front).for_each(|(place, node)| *place = *node);
        walked = walk_on(nodes, front.len(), graph, visit);
    });
    walked
}

/// A graph inside the node, which is to be walked, too.
fn look(node: u64, visit: &mut dyn FnMut(Met)) -> Result<Option<u64>, UnreadableGraph> {
    let mut kind = 0;
    if vendor::cuGraphNodeGetType(node, &raw mut kind) != Some(SUCCESS) {
        return Err(UnreadableGraph);
    }
    match kind {
        CHILD_NODE => {
            let mut child = 0;
            match vendor::cuGraphChildGraphNodeGetGraph(node, &raw mut child) {
                Some(SUCCESS) => Ok(Some(child)),
                _ => Err(UnreadableGraph),
            }
        }
        MEMORY_NODE => {
            let mut told = MemoryNodeParameters::EMPTY;
            if vendor::cuGraphMemAllocNodeGetParams(node, &raw mut told) != Some(SUCCESS) {
                return Err(UnreadableGraph);
            }
            if let Some(card) = vendor::card_of(told.location_kind, told.location) {
                visit(Met::Allocation { card: card.0, address: told.address, bytes: told.bytes });
            }
            Ok(None)
        }
        FREE_NODE => {
            let mut address = 0;
            if vendor::cuGraphMemFreeNodeGetParams(node, &raw mut address) != Some(SUCCESS) {
                return Err(UnreadableGraph);
            }
            visit(Met::Free { address });
            Ok(None)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(notes: &[Note]) -> Result<GraphDemand, UnreadableGraph> {
        let mut notes = notes.to_vec();
        sort(&mut notes);
        let mut demand = GraphDemand::NOTHING;
        demand.add_notes(&notes).map(|()| demand)
    }

    fn on(demand: &GraphDemand, card: i32) -> u64 {
        demand.each().find(|(other, _)| *other == card).map_or(0, |(_, bytes)| bytes)
    }

    fn bytes_of<const N: usize>(notes: &[Note]) -> [u64; N] {
        let demand = of(notes).unwrap();
        core::array::from_fn(|card| on(&demand, i32::try_from(card).unwrap()))
    }

    fn taken(card: i32, address: u64, bytes: u64) -> Note {
        note_of(card, address * MIB, bytes * MIB)
    }

    #[test]
    fn addresses_that_are_used_again_want_memory_once() {
        let notes = [taken(0, 64, 10), taken(0, 64, 4), taken(0, 66, 6), taken(0, 100, 2)];
        assert_eq!(bytes_of(&notes), [12 * MIB, 0]);
        assert_eq!(bytes_of(&[taken(1, 64, 10), taken(0, 64, 10), taken(0, 70, 10)]), [16 * MIB, 10 * MIB]);
    }

    #[test]
    fn allocations_outlive_a_launch_where_nothing_frees_them() {
        let left = |allocations: &[u64], frees: &[u64]| {
            let mut tally = Tally::default();
            allocations.iter().for_each(|at| {
                tally.add(Met::Allocation { card: 0, address: at * MIB, bytes: MIB });
            });
            frees.iter().for_each(|at| tally.add(Met::Free { address: at * MIB }));
            tally.left()
        };
        assert_eq!(left(&[64, 96], &[]), Left::All);
        assert_eq!(left(&[64, 96, 64], &[96, 64, 64]), Left::Nothing);
        assert_eq!(left(&[64, 96], &[64]), Left::Unknown);
        assert_eq!(left(&[], &[64]), Left::Unknown);
        assert_eq!(left(&[64, 160], &[96, 128]), Left::Unknown, "another graph's");
    }

    #[test]
    fn notes_are_put_in_order() {
        let mut random = crate::sys::test_seed();
        for count in 0..200_usize {
            let mut next = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random >> 60
            };
            let mut notes: Vec<_> = (0..count).map(|_| [next(), next(), next()]).collect();
            let mut expected = notes.clone();
            expected.sort_unstable();
            sort(&mut notes);
            assert_eq!(notes, expected);
        }
    }

    #[test]
    fn memory_comes_in_whole_pages() {
        // 1 MiB across the border of two pages, and two small ones in one page.
        assert_eq!(bytes_of(&[note_of(0, 3 * MIB / 2, MIB)]), [4 * MIB]);
        assert_eq!(bytes_of(&[note_of(0, 4 * MIB, 1), taken(0, 5, 1)]), [2 * MIB]);
    }

    #[test]
    fn larger_demand_is_the_smaller_one_and_the_rest() {
        let small = of(&[taken(0, 2, 2), taken(1, 2, 8)]).unwrap();
        let large = of(&[taken(1, 2, 4), taken(0, 2, 6), taken(2, 2, 2)]).unwrap();
        let more = large.beyond(&small);
        assert_eq!([on(&more, 0), on(&more, 1), on(&more, 2)], [4 * MIB, 0, 2 * MIB]);
        let both = small.with(&more).unwrap();
        assert_eq!([on(&both, 0), on(&both, 1), on(&both, 2)], [6 * MIB, 8 * MIB, 2 * MIB]);
        assert!(small.beyond(&both).is_nothing());
    }

    #[test]
    fn more_cards_than_are_told_apart_are_no_answer() {
        let all = |count: i32| {
            let notes: Vec<_> = (0..count).map(|card| taken(card, 64, 2)).collect();
            of(&notes).map(|demand| demand.each().count())
        };
        assert_eq!((all(16), all(17)), (Ok(16), Err(UnreadableGraph)));
    }

    #[test]
    fn nonsense_of_a_driver_is_as_much_as_there_may_be() {
        assert!(bytes_of::<1>(&[note_of(0, u64::MAX - 1, u64::MAX), taken(0, 2, 2)])[0] >= 2 * MIB);
        assert_eq!(bytes_of(&[note_of(0, 0, u64::MAX)]), [u64::MAX]);
        assert_eq!(
            bytes_of(&[taken(0, 0, 2), taken(0, 0, 4), taken(0, 2, 2)]),
            [8 * MIB],
            "no addresses told"
        );
    }
}
