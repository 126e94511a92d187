//! What the memory nodes of a graph want, by card.
//!
//! A node has its addresses from the moment it is made, and the driver gives those of an allocation that is freed before another
//! one in the same graph to that one, too. What is behind the addresses of all nodes together is the most that an executable
//! graph can have.

use aliquot_enforce::backing::AllocationLifetime;

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
const PAGE: u64 = 2 << 20;
/// Words noted of a memory node.
const NOTED: usize = 3;
/// Where a freed address is noted; cards are counted from 1.
const NO_CARD: u64 = 0;

/// What memory nodes want, by card. Zeros: there are none.
#[derive(Clone, Copy, Debug)]
pub(super) struct GraphDemand {
    cards: [i32; CARDS_MAX],
    /// Of each of these; behind the last 0.
    bytes: Amounts,
    pub(super) leaves: AllocationLifetime,
}

/// Bytes of each card, by its place in what is wanted.
pub(super) type Amounts = [u64; CARDS_MAX];

/// No bytes.
pub(super) const NONE: Amounts = [0; CARDS_MAX];

/// Why a graph was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnreadableGraph;

/// What is met on the way through a graph.
enum NodeVisit {
    Taken { card: i32, address: u64, bytes: u64 },
    Freed { address: u64 },
}

impl GraphDemand {
    pub(super) const NOTHING: Self =
        Self { cards: [0; CARDS_MAX], bytes: NONE, leaves: AllocationLifetime::Nothing };

    /// Becomes what the nodes of a graph want, and of all graphs inside it.
    #[inline(never)]
    pub(super) fn read(&mut self, graph: u64) -> Result<(), UnreadableGraph> {
        *self = Self::NOTHING;
        let (mut count, mut takes) = (0_usize, false);
        walk(graph, &mut |met| {
            count += 1;
            takes |= matches!(met, NodeVisit::Taken { .. });
        })?;
        if !takes {
            return Ok(());
        }
        if count <= MEMORY_FEW {
            return self.note(graph, &mut [0; MEMORY_FEW * NOTED]);
        }
        let mut noted = Err(UnreadableGraph);
        sys::with_words(count.saturating_mul(NOTED), |words| noted = self.note(graph, words));
        noted
    }

    fn note(&mut self, graph: u64, words: &mut [u64]) -> Result<(), UnreadableGraph> {
        let (notes, _) = words.as_chunks_mut::<NOTED>();
        let mut count = 0;
        walk(graph, &mut |met| {
            if let Some(note) = notes.get_mut(count) {
                *note = met.note();
            }
            count += 1;
        })?;
        // Another thread may have added nodes.
        let notes = notes.get_mut(..count).ok_or(UnreadableGraph)?;
        sort(notes);
        self.add_notes(notes)
    }

    /// By notes in order: what is freed, then what is taken, by card and address.
    fn add_notes(&mut self, notes: &[[u64; NOTED]]) -> Result<(), UnreadableGraph> {
        let frees = notes.partition_point(|[card, ..]| *card == NO_CARD);
        let (freed, taken) = notes.split_at_checked(frees).ok_or(UnreadableGraph)?;
        let mut last = (NO_CARD, 0);
        for [card, address, end] in taken {
            let behind = if last.0 == *card { last.1 } else { 0 };
            let start = address / PAGE * PAGE;
            // Without an address nothing is known to lie at the same one.
            let is_told = *address != 0;
            self.add(*card, end.saturating_sub(if is_told { start.max(behind) } else { start }))?;
            last = (*card, if is_told { behind.max(*end) } else { behind });
        }
        let is_own = |address: u64| {
            self.each().any(|(card, _)| {
                let key = (number_of(card), address);
                taken.binary_search_by_key(&key, |[card, address, _]| (*card, *address)).is_ok()
            })
        };
        // Of each allocation of a graph one node of it frees, or none.
        if freed.iter().filter(|[_, address, _]| is_own(*address)).count() < taken.len() {
            self.leaves = AllocationLifetime::Something;
        }
        Ok(())
    }

    fn add(&mut self, card: u64, bytes: u64) -> Result<(), UnreadableGraph> {
        let number = i32::try_from(card.wrapping_sub(1)).map_err(|_| UnreadableGraph)?;
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

    /// Whether its memory is enough for the other one, and nothing of either outlives a launch.
    pub(super) fn serves(&self, other: &Self) -> bool {
        let is_enough = |(card, bytes)| self.each().any(|(own, held)| own == card && held >= bytes);
        self.leaves == AllocationLifetime::Nothing
            && other.leaves == AllocationLifetime::Nothing
            && other.each().all(is_enough)
    }

    /// As much as either, of each card.
    pub(super) fn or(mut self, other: &Self) -> Self {
        for (card, bytes) in other.each() {
            if let Some((number, held)) = self.place(card) {
                (*number, *held) = (card, bytes.max(*held));
            }
        }
        if other.leaves == AllocationLifetime::Something {
            self.leaves = AllocationLifetime::Something;
        }
        self
    }
}

impl NodeVisit {
    fn note(&self) -> [u64; NOTED] {
        match *self {
            Self::Freed { address } => [NO_CARD, address, 0],
            Self::Taken { card, address, bytes } => {
                let end = address.saturating_add(bytes).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
                [number_of(card), address, end]
            }
        }
    }
}

/// The library's own sort can panic. This one is a heap, whose largest note goes to the end again and again.
fn sort(notes: &mut [[u64; NOTED]]) {
    for root in (0..notes.len() / 2).rev() {
        sift(notes, root, notes.len());
    }
    for end in (1..notes.len()).rev() {
        exchange(notes, 0, end);
        sift(notes, 0, end);
    }
}

/// Below `root`, and before `end`, no note is larger than the one it hangs from.
fn sift(notes: &mut [[u64; NOTED]], mut root: usize, end: usize) {
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

fn exchange(notes: &mut [[u64; NOTED]], one: usize, other: usize) {
    if let Ok([one, other]) = notes.get_disjoint_mut([one, other]) {
        core::mem::swap(one, other);
    }
}

/// Cards are counted from 1 in notes.
fn number_of(card: i32) -> u64 {
    u64::from(card.unsigned_abs()) + 1
}

/// Looks at all nodes of a graph, and of the graphs inside it, however deep.
fn walk(graph: u64, visit: &mut dyn FnMut(&NodeVisit)) -> Result<(), UnreadableGraph> {
    walk_on(&mut [0; NODES_FEW], 0, graph, visit)
}

/// The same, where so many nodes in front wait to be looked at.
fn walk_on(
    nodes: &mut [u64],
    mut waiting: usize,
    mut graph: u64,
    visit: &mut dyn FnMut(&NodeVisit),
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
    visit: &mut dyn FnMut(&NodeVisit),
) -> Result<(), UnreadableGraph> {
    let mut walked = Err(UnreadableGraph);
    sys::with_words(length, |nodes| {
        nodes.iter_mut().zip(front).for_each(|(place, node)| *place = *node);
        walked = walk_on(nodes, front.len(), graph, visit);
    });
    walked
}

/// A graph inside the node, which is to be walked, too.
fn look(node: u64, visit: &mut dyn FnMut(&NodeVisit)) -> Result<Option<u64>, UnreadableGraph> {
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
                visit(&NodeVisit::Taken { card: card.0, address: told.address, bytes: told.bytes });
            }
            Ok(None)
        }
        FREE_NODE => {
            let mut address = 0;
            if vendor::cuGraphMemFreeNodeGetParams(node, &raw mut address) == Some(SUCCESS) {
                visit(&NodeVisit::Freed { address });
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of_notes(notes: &[[u64; NOTED]]) -> Result<GraphDemand, UnreadableGraph> {
        let mut wanted = GraphDemand::NOTHING;
        wanted.add_notes(notes).map(|()| wanted)
    }

    fn of(met: &[NodeVisit]) -> GraphDemand {
        let mut notes: Vec<_> = met.iter().map(NodeVisit::note).collect();
        sort(&mut notes);
        of_notes(&notes).unwrap()
    }

    impl GraphDemand {
        fn on(&self, card: i32) -> u64 {
            self.each().find(|(other, _)| *other == card).map_or(0, |(_, bytes)| bytes)
        }
    }

    fn taken(card: i32, address: u64, bytes: u64) -> NodeVisit {
        NodeVisit::Taken { card, address: address * MIB, bytes: bytes * MIB }
    }

    fn freed(address: u64) -> NodeVisit {
        NodeVisit::Freed { address: address * MIB }
    }

    #[test]
    fn addresses_that_are_used_again_want_memory_once() {
        let wanted = of(&[taken(0, 64, 10), taken(0, 64, 4), taken(0, 66, 6), taken(0, 100, 2)]);
        assert_eq!((wanted.on(0), wanted.on(1)), (12 * MIB, 0));
        let wanted = of(&[taken(1, 64, 10), taken(0, 64, 10), taken(0, 70, 10)]);
        assert_eq!((wanted.on(0), wanted.on(1)), (16 * MIB, 10 * MIB));
    }

    #[test]
    fn notes_are_put_in_order() {
        let mut random = u64::from(std::process::id());
        println!("seed {random}");
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
        assert_eq!(of(&[NodeVisit::Taken { card: 0, address: 3 * MIB / 2, bytes: MIB }]).on(0), 4 * MIB);
        assert_eq!(
            of(&[NodeVisit::Taken { card: 0, address: 4 * MIB, bytes: 1 }, taken(0, 5, 1)]).on(0),
            2 * MIB
        );
    }

    #[test]
    fn memory_a_graph_does_not_free_is_left() {
        let leaves = |met: &[NodeVisit]| of(met).leaves == AllocationLifetime::Something;
        assert!(leaves(&[taken(0, 64, 10)]));
        assert!(!leaves(&[taken(0, 64, 10), freed(64)]));
        assert!(leaves(&[taken(0, 64, 10), taken(0, 64, 10), freed(64)]), "freed once, used again");
        assert!(!leaves(&[taken(0, 64, 10), taken(0, 64, 10), freed(64), freed(64)]));
        assert!(leaves(&[taken(0, 64, 10), freed(66), freed(128)]), "another graph's");
        assert!(!leaves(&[freed(64)]));
    }

    #[test]
    fn more_cards_than_are_told_apart_are_no_answer() {
        let all = |count: i32| {
            let mut notes: Vec<_> = (0..count).map(|card| taken(card, 64, 2).note()).collect();
            sort(&mut notes);
            of_notes(&notes).map(|wanted| wanted.each().count())
        };
        assert_eq!((all(16), all(17)), (Ok(16), Err(UnreadableGraph)));
    }

    #[test]
    fn nonsense_of_a_driver_is_as_much_as_there_may_be() {
        let wanted =
            of(&[NodeVisit::Taken { card: 0, address: u64::MAX - 1, bytes: u64::MAX }, taken(0, 2, 2)]);
        assert!(wanted.on(0) >= 2 * MIB);
        assert_eq!(of(&[NodeVisit::Taken { card: 0, address: 0, bytes: u64::MAX }]).on(0), u64::MAX);
        assert_eq!(of(&[taken(0, 0, 2), taken(0, 0, 4), taken(0, 2, 2)]).on(0), 8 * MIB, "no addresses told");
    }
}
