//! Memory nodes of graphs: an executable graph is charged its whole footprint from its instantiation until it is destroyed.
//!
//! ```text
//!   instantiate, update: reserve the footprint ─▶ does not fit: trim all pools, once more ─▶ the vendor's out-of-memory
//!   launch, upload: in the stream of the launch before ─▶ vendor call
//!                   in another stream ─▶ reserve the footprint once more ─▶ vendor call ─▶ settle
//!   destroy, end of the context: the footprint becomes residue ─▶ vendor call ─▶ settle
//! ```
//!
//! A node costs nothing while it is written down, captured or copied. The driver keeps one store of memory for all graphs of a
//! card; [`GraphStore`] is its accounting. What a stream keeps is no other stream's, so a graph that moves leaves residue. The
//! residue ends with a trim, also before any refusal; what existing graphs left allocated is none ([`left`]).

mod demand;
mod left;
mod stores;

use core::sync::atomic::{AtomicBool, Ordering};

use aliquot_abi::refusal::RefusedKind;
use aliquot_enforce::graph_store::GraphStore;

use crate::accounting::account::{Ledger, UnaccountedRelease};
use crate::accounting::alloc_map::Tie;
use crate::accounting::contexts;
use crate::accounting::listeners::OnContextEnd;
use crate::loader::vendor::{self, Device, OUT_OF_MEMORY, SUCCESS, StreamMode, Target};
use crate::memory::address_out::AddressOut;
use crate::memory::meter;
use crate::sys::KeepErrno;

use demand::{GraphDemand, MEMORY_NODE};
pub(crate) use left::freeing;
use stores::{EXECS, Exec, Execs, Flight, Lane, cards, ledger_of, moving, note, settle, settle_each};

/// The vendor's description of a memory node: the head of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryNode {
    allocation: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
}

/// The vendor's description of a node of any kind, as far as a memory node is told from others.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AnyNode {
    kind: u32,
    reserved: [u32; 3],
    memory: MemoryNode,
}

/// A description of a node.
pub(crate) trait Described: Copy {
    /// 64-bit words of the vendor's whole structure.
    const WORDS: usize;

    /// The card whose memory the node takes; `None`: it takes none.
    fn device(self) -> Option<Device>;
}

/// Words of the longest.
pub(crate) const WORDS_MAX: usize = 32;

impl Described for MemoryNode {
    const WORDS: usize = 15;

    fn device(self) -> Option<Device> {
        vendor::card_of(self.location_kind, self.location)
    }
}

impl Described for AnyNode {
    const WORDS: usize = WORDS_MAX;

    fn device(self) -> Option<Device> {
        if self.kind == MEMORY_NODE { self.memory.device() } else { None }
    }
}

/// Graphs may take memory of a card with a limit.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// What a call does with a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Launch,
    Upload,
}

/// Where a graph's memory is, as far as the next call is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// It has none yet.
    First,
    /// In the stream of the call.
    Same,
    /// It may be elsewhere, or in use.
    Moved,
}

/// From now on graphs may take memory of a card of this ledger.
pub(crate) fn watch(ledger: Ledger) {
    ledger.loosen(UnaccountedRelease::Memory);
    WATCHED.store(true, Ordering::Release);
}

fn is_watched() -> bool {
    WATCHED.load(Ordering::Acquire)
}

/// An executable graph is launched.
#[inline]
pub(crate) fn launch(exec: u64, target: Target, real: impl Fn() -> i32) -> i32 {
    if is_watched() { run(exec, target, Use::Launch, &real) } else { real() }
}

/// The same for an upload.
pub(crate) fn upload(exec: u64, target: Target, real: impl Fn() -> i32) -> i32 {
    if is_watched() { run(exec, target, Use::Upload, &real) } else { real() }
}

/// A graph that is to be launched for the first time is uploaded, into a stream at rest: what the driver takes for that is no
/// time of the card. One with memory of its own has that by its launch alone. What is wrong with it the launch says.
#[cold]
pub(crate) fn bring(exec: u64, target: Target) {
    let _errno = KeepErrno::new();
    if is_watched() && EXECS.with(|execs| execs.table.get(exec).is_some()) == Some(true) {
        return;
    }
    let Target { stream, mode } = target;
    if vendor::is_at_rest(stream, mode) {
        let _whatever = vendor::relaxed(|| match mode {
            StreamMode::Legacy => vendor::cuGraphUpload(exec, stream),
            StreamMode::PerThread => vendor::cuGraphUpload_ptsz(exec, stream),
        });
    }
}

#[inline(never)]
fn run(exec: u64, target: Target, does: Use, real: &dyn Fn() -> i32) -> i32 {
    let errno = KeepErrno::new();
    let lane = Lane::of(target);
    let Some((footprint, placement)) = place(exec, lane, does) else {
        drop(errno);
        return real();
    };
    if placement != Placement::Moved {
        let _moving = moving(&footprint);
        drop(errno);
        let answer = real();
        note_launch(exec, does, answer);
        if placement == Placement::First {
            let _errno = KeepErrno::new();
            // What is held is charged, whether it fits or not.
            let _over = settle_each(&footprint);
        }
        return answer;
    }
    drop(errno);
    let flight = match Flight::begin(&footprint, GraphStore::leave) {
        Ok(flight) => flight,
        Err(refusal) => return refusal.answer(),
    };
    EXECS.with(|execs| execs.table.get(exec).into_iter().for_each(|known| known.lane = lane));
    let answer = real();
    let _errno = KeepErrno::new();
    note_launch(exec, does, answer);
    let _over = flight.end();
    answer
}

fn note_launch(exec: u64, does: Use, answer: i32) {
    if does == Use::Launch && answer == SUCCESS {
        left::launched(exec);
    }
}

/// Where the memory of a graph is for a call in this stream. `None`: it has no memory nodes.
fn place(exec: u64, lane: Lane, does: Use) -> Option<(GraphDemand, Placement)> {
    let placed = EXECS.with(|execs| {
        // A launch may free what the one before left.
        execs.unpin(exec);
        let known = execs.table.get(exec)?;
        let placement = if known.lane == Lane::NONE {
            known.lane = lane;
            Placement::First
        } else if known.lane == lane && lane != Lane::UNKNOWN && does == Use::Launch {
            Placement::Same
        } else {
            // An upload may need memory beside that of a launch before.
            Placement::Moved
        };
        Some((known.footprint, placement))
    });
    placed.flatten()
}

/// A graph is instantiated, and uploaded where that says so; `destroy` is the vendor's way back.
pub(crate) fn instantiate(
    (exec, graph): (AddressOut, u64),
    upload: Option<Target>,
    real: &dyn Fn() -> i32,
    destroy: fn(u64) -> i32,
) -> i32 {
    if exec.is_null() || !is_watched() {
        return real();
    }
    let footprint = {
        let _errno = KeepErrno::new();
        GraphDemand::of(graph, meter::rounded)
    };
    let Ok((footprint, left)) = footprint else { return OUT_OF_MEMORY };
    left::read(left);
    if footprint.is_nothing() {
        return real();
    }
    let flight = match Flight::begin(&footprint, GraphStore::add) {
        Ok(flight) => flight,
        Err(refusal) => return refusal.answer(),
    };
    let before = exec.before();
    let answer = real();
    let _errno = KeepErrno::new();
    if answer != SUCCESS {
        EXECS.with(|execs| execs.each(&footprint, GraphStore::retire));
        let _over = flight.end();
        return answer;
    }
    let lane = upload.map_or(Lane::NONE, Lane::of);
    let tie = contexts::current().map_or(Tie(0), |current| current.tie);
    let left = left::note(exec.read(), graph, &footprint, left);
    let is_noted = note(exec.read(), Exec { footprint, lane, tie, left, pinned: 0, launches: 0 });
    let over = flight.end();
    if is_noted && over.is_none() {
        return SUCCESS;
    }
    EXECS.with(|execs| {
        if execs.take(exec.read()).is_none() {
            execs.each(&footprint, GraphStore::retire);
        }
    });
    let _destroyed = destroy(exec.read());
    exec.write(before);
    footprint.each().for_each(|(card, _)| trim(card));
    let wanted = footprint.each().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes));
    over.map_or(OUT_OF_MEMORY, |ledger| ledger.refuse(RefusedKind::Graph.over_limit(wanted)))
}

/// An executable graph is destroyed.
pub(crate) fn destroy(exec: u64, real: impl FnOnce() -> i32) -> i32 {
    // Before: the driver may give its handle to another at once.
    let taken = |execs: &mut Execs| {
        let known = execs.take(exec)?;
        execs.each(&known.footprint, GraphStore::begin);
        Some(known)
    };
    let Some(known) = (if is_watched() { EXECS.with(taken).flatten() } else { None }) else { return real() };
    left::ended(exec, &known);
    let answer = real();
    let _errno = KeepErrno::new();
    EXECS.with(|execs| {
        if answer != SUCCESS && execs.table.set(exec, Exec { left: 0, ..known }) {
            execs.each(&known.footprint, GraphStore::restore);
        }
        execs.each(&known.footprint, GraphStore::end);
    });
    let _over = settle_each(&known.footprint);
    answer
}

/// An executable graph gets the nodes of another graph.
pub(crate) fn update(exec: u64, graph: u64, real: impl FnOnce() -> i32) -> i32 {
    let known = || EXECS.with(|execs| execs.table.get(exec).copied()).flatten();
    let Some(known) = (if is_watched() { known() } else { None }) else { return real() };
    let wanted = {
        let _errno = KeepErrno::new();
        GraphDemand::of(graph, meter::rounded)
    };
    let Ok((wanted, left)) = wanted else { return OUT_OF_MEMORY };
    left::read(left);
    EXECS.with(|execs| execs.forget_left(exec));
    let more = wanted.beyond(&known.footprint);
    if more.is_nothing() {
        return real();
    }
    let Some(footprint) = known.footprint.with(&more) else { return OUT_OF_MEMORY };
    let flight = match Flight::begin(&more, GraphStore::add) {
        Ok(flight) => flight,
        Err(refusal) => return refusal.answer(),
    };
    let answer = real();
    let _errno = KeepErrno::new();
    EXECS.with(|execs| match execs.table.get(exec) {
        Some(known) if answer == SUCCESS => known.footprint = footprint,
        _ => execs.each(&more, GraphStore::retire),
    });
    let _over = flight.end();
    answer
}

/// A store gives back what no graph uses; in any capture that may go on, too.
fn trim(card: i32) {
    let _answer = vendor::relaxed(|| vendor::cuDeviceGraphMemTrim(card));
    let _over = settle(card);
}

/// Memory is short: the stores of graphs give back what a trim can free.
pub(crate) fn give_back(ledger: Ledger) {
    let is_its = |card: &i32| ledger_of(*card).is_some_and(|other| other.number() == ledger.number());
    if is_watched() {
        cards(|store| store.residue() > 0).filter(is_its).for_each(trim);
    }
}

/// The same, as the program asks for it.
pub(crate) fn trim_for_program(device: Device, real: impl FnOnce() -> i32) -> i32 {
    let answer = real();
    if is_watched() {
        let _errno = KeepErrno::new();
        let _over = settle(device.0);
    }
    answer
}

/// Brings accounting to what the driver says of all stores.
pub(crate) fn refresh() {
    if is_watched() {
        let _errno = KeepErrno::new();
        cards(|store| store.charged() > 0).for_each(|card| {
            let _over = settle(card);
        });
    }
}

/// Executable graphs of contexts that end.
pub(crate) struct InContexts;

impl OnContextEnd for InContexts {
    fn number_going(&self, tie: Tie) {
        if is_watched() {
            EXECS.with(|execs| execs.each_exec(|known| known.tie == tie, Execs::unpin));
        }
    }

    fn number_gone(&self, tie: Tie) {
        if is_watched() {
            let take = |execs: &mut Execs, exec| {
                let _ended = execs.take(exec);
            };
            EXECS.with(|execs| execs.each_exec(|known| known.tie == tie, take));
            refresh();
        }
    }
}
