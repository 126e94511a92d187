//! Executable graphs with memory nodes: what they want, and what is known of what they have. See [`aliquot_enforce::backing`].

use core::num::NonZeroU64;

use aliquot_enforce::backing::{
    AllocationLifetime, AllocationTime, BackingSeat, GraphOperation, History, LaunchNeed, Moment, Source,
    StreamLane, Trim,
};

use super::wanted::{Amounts, CARDS_MAX, GraphDemand, NONE};
use crate::accounting::account::Bytes;
use crate::loader::vendor;
use crate::loader::vendor::Target;
use crate::memory::meter;
use crate::sys::fork_private::{Empty, ForkPrivate, Table};

/// Executable graphs with memory nodes in one process, a quarter of them left empty.
const EXECS_MAX: usize = 4096;
/// Launches that reserve nothing at a time; further ones reserve.
const BACKED_MAX: usize = 64;

#[derive(Clone, Copy)]
pub(super) struct Exec {
    wanted: GraphDemand,
    seat: BackingSeat,
}

struct Execs {
    table: Table<Exec, EXECS_MAX>,
    history: History,
    /// Launches under way that have reserved nothing.
    backed: [UnreservedLaunch; BACKED_MAX],
}

/// A launch under way that has reserved nothing. Zeros: none.
#[derive(Clone, Copy)]
struct UnreservedLaunch {
    number: u64,
    /// Its cards.
    cards: [i32; CARDS_MAX],
    /// By how much their stores would grow if a thread took its memory.
    worst: Amounts,
    /// For which of these cards a thread has reserved that for it, a bit each.
    covered: u32,
}

// SAFETY: cards and bytes, no allocation that is left, and no seat.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for Exec {}
// SAFETY: a table, a history of nothing, and integers.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for Execs {}

static EXECS: ForkPrivate<Execs> = ForkPrivate::new();

/// Before the driver has given it a handle.
const NONE_YET: u64 = 0;

/// A launch, an upload or an instantiation on its way. Large, so it lies where its caller has a place for it.
pub(super) struct Flight {
    exec: u64,
    begun: Option<GraphOperation>,
    pub(super) wanted: GraphDemand,
    /// By how much the driver's stores may grow for that.
    worst: Amounts,
    /// What others under way count on that have reserved nothing.
    beside: Amounts,
}

/// What a flight does with allocations that no thread frees in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnfreedUse {
    /// A launch leaves them.
    Launch,
    /// An upload makes none.
    Upload,
}

impl UnfreedUse {
    fn leaves(self, wanted: &GraphDemand) -> AllocationLifetime {
        match self {
            Self::Launch => wanted.leaves,
            Self::Upload if wanted.leaves == AllocationLifetime::Nothing => AllocationLifetime::Nothing,
            Self::Upload => AllocationLifetime::Earlier,
        }
    }
}

impl Flight {
    /// None yet; for what nothing is known of.
    pub(super) const NONE: Self =
        Self { exec: NONE_YET, begun: None, wanted: GraphDemand::NOTHING, worst: NONE, beside: NONE };

    /// An instantiation made this.
    pub(super) fn made(&mut self, exec: u64) {
        self.exec = exec;
    }

    /// Whether it reserves nothing.
    pub(super) fn is_backed(&self) -> bool {
        self.begun.is_some_and(|begun| begun.way == LaunchNeed::Backed)
    }

    /// Each card, and what is to be reserved of it: by how much its store may grow, for this flight, and for those under way
    /// that count on what it may take.
    pub(super) fn each(&self) -> impl Iterator<Item = (i32, Bytes)> + '_ {
        let amounts =
            self.worst.iter().zip(&self.beside).map(|(worst, beside)| worst.saturating_add(*beside));
        self.wanted.each().zip(amounts).map(|((card, _), bytes)| (card, Bytes(bytes)))
    }
}

impl Execs {
    fn begin(&mut self, flight: &mut Flight, lane: Option<StreamLane>, does: UnfreedUse) -> bool {
        let has_place = self.backed.iter().any(|backed| backed.number == 0);
        let Some(known) = self.table.get(flight.exec) else { return false };
        flight.wanted = known.wanted;
        let lane = lane.filter(|_| has_place);
        let begun = self.history.begin(&mut known.seat, lane, does.leaves(&known.wanted));
        self.take_off(flight, begun);
        true
    }

    /// It has begun so.
    fn take_off(&mut self, flight: &mut Flight, begun: GraphOperation) {
        (flight.begun, flight.worst, flight.beside) = (Some(begun), NONE, NONE);
        for (place, (_, bytes)) in flight.worst.iter_mut().zip(flight.wanted.each()) {
            *place = meter::growth_of(Bytes(bytes)).map_or(u64::MAX, |worst| worst.0);
        }
        match begun.way {
            LaunchNeed::Backed => {
                let place = self.backed.iter_mut().find(|backed| backed.number == 0);
                place.into_iter().for_each(|place| place.set(begun.number, flight));
            }
            LaunchNeed::Unbacked => self.find_uncovered(flight),
        }
    }

    /// What those count on that have reserved nothing, of the cards of this flight.
    fn find_uncovered(&self, flight: &mut Flight) {
        // Where memory is there from the instantiation on, no thread takes another one's.
        if self.history.taken() == AllocationTime::AtInstantiation {
            return;
        }
        for (place, (card, _)) in flight.beside.iter_mut().zip(flight.wanted.each()) {
            let open = self.backed.iter().filter(|backed| backed.number != 0);
            *place = open.fold(0, |sum, backed| sum.saturating_add(backed.uncovered(card)));
        }
    }

    #[cold]
    fn begin_beside(&mut self, flight: &mut Flight, lane: Option<StreamLane>) -> bool {
        let Some(known) = self.table.get(flight.exec) else { return false };
        flight.wanted = known.wanted;
        if self.backed.iter().all(|backed| backed.number != 0) {
            return false;
        }
        let mut end = usize::MAX;
        while let Some((at, key, other)) = self.table.before(end) {
            end = at;
            if key == flight.exec || !other.wanted.serves(&flight.wanted) {
                continue;
            }
            let Some(known) = self.table.get(flight.exec) else { return false };
            if let Some(begun) = self.history.begin_beside(&mut known.seat, lane, other.seat) {
                self.take_off(flight, begun);
                return true;
            }
        }
        false
    }

    /// What `flight` reserved for others becomes theirs.
    fn cover(&mut self, flight: &Flight) -> Amounts {
        let mut handed = NONE;
        for (place, (card, _)) in handed.iter_mut().zip(flight.wanted.each()) {
            let open = self.backed.iter_mut().filter(|backed| backed.number != 0);
            *place = open.fold(0, |sum, backed| sum.saturating_add(backed.cover(card)));
        }
        handed
    }

    /// The driver's call is over: what others have reserved for it.
    fn land(&mut self, flight: &Flight) -> Amounts {
        let Some(begun) = flight.begun.filter(|begun| begun.way == LaunchNeed::Backed) else { return NONE };
        let place = self.backed.iter_mut().find(|backed| backed.number == begun.number);
        place.map_or(NONE, UnreservedLaunch::leave)
    }
}

impl UnreservedLaunch {
    fn set(&mut self, number: u64, flight: &Flight) {
        (self.number, self.worst, self.covered) = (number, flight.worst, 0);
        for (place, (card, _)) in self.cards.iter_mut().zip(flight.wanted.each()) {
            *place = card;
        }
    }

    fn place(&self, card: i32) -> Option<(u32, u64)> {
        let mut places = (0..).zip(self.cards.iter().zip(&self.worst));
        places
            .find(|(_, (other, bytes))| **bytes > 0 && **other == card)
            .map(|(at, (_, bytes))| (1_u32 << at, *bytes))
    }

    fn uncovered(&self, card: i32) -> u64 {
        self.place(card).filter(|(bit, _)| self.covered & bit == 0).map_or(0, |(_, bytes)| bytes)
    }

    fn cover(&mut self, card: i32) -> u64 {
        let bytes = self.uncovered(card);
        self.covered |= self.place(card).map_or(0, |(bit, _)| bit);
        bytes
    }

    /// Its place is free again; what of it was covered.
    fn leave(&mut self) -> Amounts {
        let mut covered = self.worst;
        for (at, bytes) in (0..).zip(&mut covered) {
            if self.covered & (1_u32 << at) == 0 {
                *bytes = 0;
            }
        }
        (self.number, self.worst) = (0, NONE);
        covered
    }
}

const _: () = assert!(CARDS_MAX <= 32, "a bit each in `covered`");

/// The stream, where the driver tells it apart from all others.
pub(super) fn lane(target: Target) -> Option<StreamLane> {
    NonZeroU64::new(vendor::stream_id(target.stream, target.mode)?).map(StreamLane)
}

/// A launch or an upload begins. False: nothing is known of it.
pub(super) fn begin(flight: &mut Flight, exec: u64, lane: Option<StreamLane>, does: UnfreedUse) -> bool {
    flight.exec = exec;
    EXECS.with(|execs| execs.begin(flight, lane, does)) == Some(true)
}

/// A launch or an upload for which nothing can be reserved begins, where another graph has memory in that lane that it will get.
pub(super) fn begin_beside(flight: &mut Flight, lane: Option<StreamLane>) -> bool {
    EXECS.with(|execs| execs.begin_beside(flight, lane)) == Some(true)
}

/// An instantiation begins, with an upload in this lane.
pub(super) fn begin_new(flight: &mut Flight, lane: Option<StreamLane>) -> bool {
    let begun = EXECS.with(|execs| {
        let begun = execs.history.begin_new(lane);
        execs.take_off(flight, begun);
    });
    begun.is_some()
}

/// Whether an executable graph has memory nodes.
pub(super) fn knows(exec: u64) -> bool {
    EXECS.with(|execs| execs.table.get(exec).is_some()) == Some(true)
}

/// It was refused by us. What others have reserved for it meanwhile, by the places of its cards.
pub(super) fn cancel(flight: &Flight) -> Amounts {
    let cancelled = |execs: &mut Execs| {
        flight.begun.into_iter().for_each(|begun| execs.history.cancel(begun));
        execs.land(flight)
    };
    EXECS.with(cancelled).unwrap_or(NONE)
}

/// What it wants is in accounting, and what others under way count on; that becomes theirs, and is no part of its own any more.
pub(super) fn cover(flight: &Flight) -> Amounts {
    if flight.beside.iter().all(|bytes| *bytes == 0) {
        return NONE;
    }
    EXECS.with(|execs| execs.cover(flight)).unwrap_or(NONE)
}

/// The driver's call is over. What others have reserved for it.
pub(super) fn land(flight: &Flight) -> Amounts {
    EXECS.with(|execs| execs.land(flight)).unwrap_or(NONE)
}

/// It is over; `source` is `None` where the driver refused it. Whether nothing else was under way.
pub(super) fn end(flight: &Flight, source: Option<Source>) -> bool {
    let Some(begun) = flight.begun else { return false };
    let ended = |execs: &mut Execs| {
        let mut nobodys = BackingSeat::default();
        let seat = execs.table.get(flight.exec).map_or(&mut nobodys, |known| &mut known.seat);
        execs.history.end(begun, seat, source)
    };
    EXECS.with(ended) == Some(true)
}

/// An instantiation is over, and there is an executable graph. False: there is no place to note it.
pub(super) fn add(exec: u64, wanted: &GraphDemand) -> bool {
    EXECS.with(|execs| execs.table.set(exec, Exec { wanted: *wanted, seat: BackingSeat::default() }))
        == Some(true)
}

/// It got the nodes of another graph.
pub(super) fn change(exec: u64, wanted: &GraphDemand) {
    EXECS.with(|execs| {
        if let Some(known) = execs.table.get(exec) {
            *known = Exec { wanted: known.wanted.or(wanted), seat: BackingSeat::default() };
        }
    });
}

/// It goes.
pub(super) fn take(exec: u64) -> Option<Exec> {
    EXECS.with(|execs| execs.table.take(exec)).flatten()
}

/// It did not go.
pub(super) fn put_back(exec: u64, known: Exec) {
    EXECS.with(|execs| execs.table.set(exec, known));
}

/// A trim begins. `None`: not now.
pub(super) fn begin_trim() -> Option<Trim> {
    EXECS.with(|execs| execs.history.begin_trim()).flatten()
}

/// It is over; `kept`: the driver keeps as much as before.
pub(super) fn end_trim(trim: Trim, kept: bool) {
    EXECS.with(|execs| execs.history.end_trim(trim, kept));
}

/// When the driver takes memory for graphs.
pub(super) fn taken() -> AllocationTime {
    EXECS.with(|execs| execs.history.taken()).unwrap_or_default()
}

/// That was seen.
pub(super) fn learn(taken: AllocationTime) {
    EXECS.with(|execs| execs.history.learn(taken));
}

/// Now; `None`: unknown.
pub(super) fn moment() -> Option<Moment> {
    EXECS.with(|execs| execs.history.moment())
}

/// Whether neither a launch, an upload, a trim nor an instantiation that reserves was under way since.
pub(super) fn was_quiet(since: Option<Moment>) -> bool {
    since.is_some_and(|since| EXECS.with(|execs| execs.history.was_quiet(since)) == Some(true))
}

/// A launch took memory though it had all it wants.
pub(super) fn doubt() {
    EXECS.with(|execs| execs.history.doubt());
}
