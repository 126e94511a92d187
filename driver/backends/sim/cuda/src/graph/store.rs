//! What graphs have of a card: the memory behind the addresses of their nodes.
//!
//! ```text
//!   enter: what the room lacks is taken from the card ─▶ the work is handed in ─▶ leave: it is in use until that is done
//! ```
//!
//! A room is what one stream keeps for graphs. Graphs launched in a stream run one after the other and so have the same memory,
//! but for allocations that outlive their launch: these are pinned. What is neither pinned nor in use goes with a trim.

use crate::code::Answer;
use crate::line::Point;
use crate::process::{OurCard, lock};
use aliquot_sim_device::{GraphMemory, MemoryKind};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The owner of graph memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GraphMemoryOwner {
    /// What a stream keeps, by its number.
    Stream(u64),
    /// What an executable graph has to itself.
    Own(u64),
}

/// What an executable graph needs of a card, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    /// Behind all its addresses.
    pub(crate) whole: u64,
    /// Of these, what its launch leaves allocated.
    pub(crate) left: u64,
}

#[derive(Default)]
struct GraphAccounting {
    /// Taken from the card: whole units.
    size: u64,
    /// Allocations that outlive their launch, from before it is handed in.
    pinned: u64,
    /// Executable graphs that are mapped here, and what they need.
    mapped: BTreeMap<u64, u64>,
    /// What launches that are being handed in need beside what they leave.
    scheduled: Vec<u64>,
    /// The same of those handed in, or in line, until they are done.
    running: Vec<(Point, u64)>,
}

/// All rooms of a card.
#[derive(Default)]
pub(crate) struct Store(Mutex<BTreeMap<GraphMemoryOwner, GraphAccounting>>);

impl GraphAccounting {
    /// What must stay, in whole units.
    fn kept(&self, room: GraphMemoryOwner, unit: u64) -> u64 {
        let running = self.running.iter().map(|(_, bytes)| *bytes);
        let busy = self.scheduled.iter().copied().chain(running).max().unwrap_or(0);
        let own = match room {
            GraphMemoryOwner::Own(_) => self.most_mapped(),
            GraphMemoryOwner::Stream(_) => 0,
        };
        (self.pinned + busy).max(own).next_multiple_of(unit).min(self.size)
    }

    fn most_mapped(&self) -> u64 {
        self.mapped.values().copied().max().unwrap_or(0)
    }
}

impl Store {
    /// The rooms, with what is done by now.
    fn rooms(&self, ours: &OurCard) -> Answer<MutexGuard<'_, BTreeMap<GraphMemoryOwner, GraphAccounting>>> {
        let seat = ours.seat()?;
        let mut rooms = lock(&self.0);
        rooms.values_mut().for_each(|books| books.running.retain(|(point, _)| !point.is_done(seat)));
        Ok(rooms)
    }

    /// An executable graph is about to be launched or uploaded: its memory is there from now on. Where the card has not as much
    /// nothing has changed.
    pub(crate) fn enter(&self, ours: &OurCard, room: GraphMemoryOwner, exec: u64, need: Need) -> Answer {
        let node = ours.card.node();
        let mut rooms = self.rooms(ours)?;
        let books = rooms.entry(room).or_default();
        let lacks = need.whole.saturating_sub(books.size.saturating_sub(books.pinned));
        let lacks = lacks.next_multiple_of(node.pool_bytes);
        let idle = match node.graph_memory {
            GraphMemory::Launch | GraphMemory::Mixed => 0,
            GraphMemory::Idle | GraphMemory::Instantiation => idle(&rooms, room, node.pool_bytes).min(lacks),
        };
        if lacks > idle {
            ours.take(MemoryKind::Graph, lacks - idle)?;
        }
        pull(&mut rooms, room, idle, node.pool_bytes);
        rooms.values_mut().for_each(|books| {
            books.mapped.remove(&exec);
        });
        let books = rooms.entry(room).or_default();
        books.size += lacks;
        books.mapped.insert(exec, need.whole);
        // A trim meanwhile takes neither.
        books.scheduled.push(need.whole - need.left);
        books.pinned += need.left;
        Ok(())
    }

    /// It was handed in, and runs until `point`; without one it was not, or there was nothing to run.
    pub(crate) fn leave(&self, room: GraphMemoryOwner, need: Need, point: Option<Point>) {
        let mut rooms = lock(&self.0);
        let books = rooms.entry(room).or_default();
        let transient = need.whole - need.left;
        if let Some(at) = books.scheduled.iter().position(|bytes| *bytes == transient) {
            books.scheduled.swap_remove(at);
        }
        match point {
            Some(point) => books.running.push((point, transient)),
            None => books.pinned = books.pinned.saturating_sub(need.left),
        }
    }

    /// An allocation that outlived its launch is freed.
    pub(crate) fn unpin(&self, room: GraphMemoryOwner, bytes: u64) {
        if let Some(books) = lock(&self.0).get_mut(&room) {
            books.pinned = books.pinned.saturating_sub(bytes);
        }
    }

    /// An executable graph goes. What it had stays here until a trim.
    pub(crate) fn unmap(&self, exec: u64) {
        for books in lock(&self.0).values_mut() {
            books.mapped.remove(&exec);
        }
    }

    /// cuDeviceGraphMemTrim.
    pub(crate) fn trim(&self, ours: &OurCard) -> Answer {
        let unit = ours.card.node().pool_bytes;
        let mut rooms = self.rooms(ours)?;
        for (room, books) in rooms.iter_mut() {
            let kept = books.kept(*room, unit);
            ours.give(MemoryKind::Graph, books.size - kept);
            books.size = kept;
        }
        rooms.retain(|_, books| books.size > 0 || !books.mapped.is_empty() || !books.scheduled.is_empty());
        Ok(())
    }

    /// Mapped by graphs or pinned, and taken from the card, in bytes.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let rooms = lock(&self.0);
        let used = rooms.values().map(|books| books.pinned.max(books.most_mapped()).min(books.size)).sum();
        (used, rooms.values().map(|books| books.size).sum())
    }
}

/// What other rooms keep and do not use.
fn idle(rooms: &BTreeMap<GraphMemoryOwner, GraphAccounting>, wanted_by: GraphMemoryOwner, unit: u64) -> u64 {
    let others = rooms.iter().filter(|(room, _)| **room != wanted_by);
    others.map(|(room, books)| books.size - books.kept(*room, unit)).sum()
}

/// Takes so much of that away from them.
fn pull(
    rooms: &mut BTreeMap<GraphMemoryOwner, GraphAccounting>,
    wanted_by: GraphMemoryOwner,
    mut bytes: u64,
    unit: u64,
) {
    for (room, books) in rooms.iter_mut().filter(|(room, _)| **room != wanted_by) {
        let pulled = (books.size - books.kept(*room, unit)).min(bytes);
        books.size -= pulled;
        bytes -= pulled;
    }
}
