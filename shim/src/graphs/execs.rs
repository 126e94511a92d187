//! Executable graphs with memory nodes: what they want, and what is known of what they have. See [`aliquot_enforce::backing`].

use core::num::NonZeroU64;

use aliquot_enforce::backing::{Begun, History, Lane, Leaves, Moment, Seat, Source, Taken, Trim, Way};

use super::wanted::{CARDS_MAX, Wanted};
use crate::account::Bytes;
use crate::kept::{Empty, Kept, Table};
use crate::meter;
use crate::pacing::Target;
use crate::vendor;

/// Executable graphs with memory nodes in one process, a quarter of them left empty.
const EXECS_MAX: usize = 4096;
/// Launches that reserve nothing at a time; further ones reserve.
const BACKED_MAX: usize = 64;

#[derive(Clone, Copy)]
pub(super) struct Exec {
    wanted: Wanted,
    seat: Seat,
}

struct Execs {
    table: Table<Exec, EXECS_MAX>,
    history: History,
    /// Launches under way that have reserved nothing.
    backed: [Backed; BACKED_MAX],
}

/// A launch under way that has reserved nothing. Zeros: none.
#[derive(Clone, Copy)]
struct Backed {
    number: u64,
    /// By how much stores would grow if somebody took its memory.
    worst: Amounts,
    /// For which of these cards somebody has reserved that for it, a bit each.
    covered: u32,
}

// SAFETY: cards and bytes, no allocation that is left, and no seat.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for Exec {}
// SAFETY: a table, a history of nothing, and integers.
#[expect(unsafe_code, reason = "zeros are promised to be a value")]
unsafe impl Empty for Execs {}

static EXECS: Kept<Execs> = Kept::new();

/// Before the driver has given it a handle.
const NONE_YET: u64 = 0;

/// A launch, an upload or an instantiation on its way.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    exec: u64,
    begun: Begun,
    pub(super) wanted: Wanted,
    /// By how much the driver's stores may grow for that.
    worst: Amounts,
    /// What others under way count on that have reserved nothing.
    beside: Amounts,
}

/// Bytes by card; 0: none.
pub(super) type Amounts = [(i32, u64); CARDS_MAX];

const NOTHING: Amounts = [(0, 0); CARDS_MAX];

/// By how much stores may grow for what is wanted.
fn worst_of(wanted: &Wanted) -> Amounts {
    let mut worst = NOTHING;
    for (place, (card, bytes)) in worst.iter_mut().zip(wanted.each()) {
        *place = (card, meter::growth_of(Bytes(bytes)).map_or(u64::MAX, |worst| worst.0));
    }
    worst
}

/// What a flight does with allocations that nobody frees in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// A launch leaves them.
    Launch,
    /// An upload makes none.
    Upload,
}

impl Does {
    fn leaves(self, wanted: &Wanted) -> Leaves {
        match self {
            Self::Launch => wanted.leaves,
            Self::Upload if wanted.leaves == Leaves::Nothing => Leaves::Nothing,
            Self::Upload => Leaves::Earlier,
        }
    }
}

impl Flight {
    /// An instantiation made this.
    pub(super) fn made(&mut self, exec: u64) {
        self.exec = exec;
    }

    /// Whether it reserves nothing.
    pub(super) fn is_backed(&self) -> bool {
        self.begun.way == Way::Backed
    }

    /// Each card, and what is to be reserved of it: by how much its store may grow, for this flight, and for those under way
    /// that count on what it may take.
    pub(super) fn each(&self) -> impl Iterator<Item = (i32, Bytes)> + '_ {
        let cards = self.worst.iter().filter(|(_, worst)| *worst > 0);
        cards.map(|(card, worst)| (*card, Bytes(worst.saturating_add(of_card(&self.beside, *card)))))
    }
}

fn of_card(amounts: &Amounts, card: i32) -> u64 {
    amounts.iter().filter(|(other, _)| *other == card).fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}

impl Execs {
    fn begin(&mut self, exec: u64, lane: Option<Lane>, does: Does) -> Option<Flight> {
        let known = self.table.get(exec)?;
        let wanted = known.wanted;
        let has_place = self.backed.iter().any(|backed| backed.number == 0);
        let lane = lane.filter(|_| has_place);
        let begun = self.history.begin(&mut known.seat, lane, does.leaves(&wanted));
        Some(self.flight(exec, begun, wanted))
    }

    fn flight(&mut self, exec: u64, begun: Begun, wanted: Wanted) -> Flight {
        let worst = worst_of(&wanted);
        let beside = match begun.way {
            Way::Backed => {
                let place = self.backed.iter_mut().find(|backed| backed.number == 0);
                place
                    .into_iter()
                    .for_each(|place| *place = Backed { number: begun.number, worst, covered: 0 });
                NOTHING
            }
            Way::Unbacked => self.uncovered(&worst),
        };
        Flight { exec, begun, wanted, worst, beside }
    }

    /// What those count on that have reserved nothing, of the cards that `worst` names.
    fn uncovered(&self, worst: &Amounts) -> Amounts {
        // Where memory is there from the instantiation on, nobody takes another one's.
        if self.history.taken() == Taken::AtInstantiation {
            return NOTHING;
        }
        let mut beside = *worst;
        for (card, bytes) in beside.iter_mut().filter(|(_, bytes)| *bytes > 0) {
            let open = self.backed.iter().filter(|backed| backed.number != 0);
            *bytes = open.fold(0, |sum, backed| sum.saturating_add(backed.uncovered(*card)));
        }
        beside
    }

    #[cold]
    fn begin_beside(&mut self, exec: u64, lane: Option<Lane>) -> Option<Flight> {
        let known = *self.table.get(exec)?;
        self.backed.iter().find(|backed| backed.number == 0)?;
        let mut end = usize::MAX;
        while let Some((at, key, other)) = self.table.before(end) {
            end = at;
            if key == exec || !other.wanted.serves(&known.wanted) {
                continue;
            }
            let seat = &mut self.table.get(exec)?.seat;
            if let Some(begun) = self.history.begin_beside(seat, lane, other.seat) {
                return Some(self.flight(exec, begun, known.wanted));
            }
        }
        None
    }

    /// What `flight` reserved for others becomes theirs.
    fn cover(&mut self, flight: &Flight) -> Amounts {
        let mut handed = flight.worst;
        for (card, bytes) in handed.iter_mut().filter(|(_, bytes)| *bytes > 0) {
            let open = self.backed.iter_mut().filter(|backed| backed.number != 0);
            *bytes = open.fold(0, |sum, backed| sum.saturating_add(backed.cover(*card)));
        }
        handed
    }

    /// The driver's call is over: what others have reserved for it.
    fn land(&mut self, flight: &Flight) -> Amounts {
        if !flight.is_backed() {
            return NOTHING;
        }
        let place = self.backed.iter_mut().find(|backed| backed.number == flight.begun.number);
        place.map_or(NOTHING, |place| core::mem::replace(place, Backed::NONE).covered())
    }
}

impl Backed {
    const NONE: Self = Self { number: 0, worst: NOTHING, covered: 0 };

    fn place(&self, card: i32) -> Option<(u32, u64)> {
        let mut places = (0..).zip(&self.worst);
        places
            .find(|(_, (other, bytes))| *bytes > 0 && *other == card)
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

    fn covered(&self) -> Amounts {
        let mut covered = self.worst;
        for (at, (_, bytes)) in (0..).zip(&mut covered) {
            if self.covered & (1_u32 << at) == 0 {
                *bytes = 0;
            }
        }
        covered
    }
}

const _: () = assert!(CARDS_MAX <= 32, "a bit each in `covered`");

/// The stream, where the driver tells it apart from all others.
pub(super) fn lane(target: Target) -> Option<Lane> {
    NonZeroU64::new(vendor::stream_id(target.stream, target.mode)?).map(Lane)
}

/// A launch or an upload begins. `None`: nothing is known of it.
pub(super) fn begin(exec: u64, lane: Option<Lane>, does: Does) -> Option<Flight> {
    EXECS.with(|execs| execs.begin(exec, lane, does)).flatten()
}

/// A launch or an upload for which nothing can be reserved begins, where another graph has memory in that lane that it will get.
pub(super) fn begin_beside(exec: u64, lane: Option<Lane>) -> Option<Flight> {
    EXECS.with(|execs| execs.begin_beside(exec, lane)).flatten()
}

/// An instantiation begins, with an upload in this lane.
pub(super) fn begin_new(wanted: Wanted, lane: Option<Lane>) -> Option<Flight> {
    EXECS.with(|execs| {
        let begun = execs.history.begin_new(lane);
        execs.flight(NONE_YET, begun, wanted)
    })
}

/// Whether an executable graph has memory nodes.
pub(super) fn knows(exec: u64) -> bool {
    EXECS.with(|execs| execs.table.get(exec).is_some()) == Some(true)
}

/// It was refused by us. What others have reserved for it meanwhile.
pub(super) fn cancel(flight: &Flight) -> Amounts {
    let cancelled = |execs: &mut Execs| {
        execs.history.cancel(flight.begun);
        execs.land(flight)
    };
    EXECS.with(cancelled).unwrap_or(NOTHING)
}

/// What it wants is in the books, and what others under way count on; that becomes theirs, and is no part of its own any more.
pub(super) fn cover(flight: &Flight) -> Amounts {
    if flight.beside.iter().all(|(_, bytes)| *bytes == 0) {
        return NOTHING;
    }
    EXECS.with(|execs| execs.cover(flight)).unwrap_or(NOTHING)
}

/// The driver's call is over. What others have reserved for it.
pub(super) fn land(flight: &Flight) -> Amounts {
    EXECS.with(|execs| execs.land(flight)).unwrap_or(NOTHING)
}

/// It is over; `source` is `None` where the driver refused it. Whether nothing else was under way.
pub(super) fn end(flight: &Flight, source: Option<Source>) -> bool {
    let ended = |execs: &mut Execs| {
        let mut nobodys = Seat::default();
        let seat = execs.table.get(flight.exec).map_or(&mut nobodys, |known| &mut known.seat);
        execs.history.end(flight.begun, seat, source)
    };
    EXECS.with(ended) == Some(true)
}

/// An instantiation is over, and there is an executable graph. False: there is no place to note it.
pub(super) fn add(exec: u64, wanted: Wanted) -> bool {
    EXECS.with(|execs| execs.table.set(exec, Exec { wanted, seat: Seat::default() })) == Some(true)
}

/// It got the nodes of another graph.
pub(super) fn change(exec: u64, wanted: &Wanted) {
    EXECS.with(|execs| {
        if let Some(known) = execs.table.get(exec) {
            *known = Exec { wanted: known.wanted.or(wanted), seat: Seat::default() };
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
pub(super) fn taken() -> Taken {
    EXECS.with(|execs| execs.history.taken()).unwrap_or_default()
}

/// That was seen.
pub(super) fn learn(taken: Taken) {
    EXECS.with(|execs| execs.history.learn(taken));
}

/// Now; `None`: nobody can tell.
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
