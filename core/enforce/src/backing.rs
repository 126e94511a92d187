//! Tracks which executable graphs still have their memory from an earlier launch, so that the next launch reserves none.
//!
//! A driver backs a graph's memory nodes at launch or upload, with memory that the stream keeps mapped. Graphs of one stream share
//! that memory, as they never run at once. The driver reports no graph's memory. So a launch that is not certain to be backed
//! reserves all its memory again, as if it came from the card:
//!
//! ```text
//!   begin: is it backed? ─yes─▶ reserve nothing ───────────────────▶ vendor call ─▶ end
//!              └─no─▶ reserve its memory, and that of backed launches in flight, which may lose theirs
//!                                                               ─▶ vendor call ─▶ end: a seat, if nothing else was in flight
//! ```
//!
//! A graph may lose its memory to a trim; to a launch in another stream, which may reuse memory of idle streams; and to
//! allocations that outlive a launch in the same stream. A launch with all its memory from the card took none from other graphs.
//!
//! Glossary: a lane is a stream, by a number that is never reused; a seat is the known state of a graph's memory.

use core::num::NonZeroU64;

/// A stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLane(pub NonZeroU64);

/// The stream for which a graph has memory, and since when. Zeros: it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingSeat {
    lane: Option<StreamLane>,
    since: u64,
}

/// Whether allocations of a launch outlive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AllocationLifetime {
    /// None does.
    Nothing = 0,
    /// Some do, or may.
    Something = 1,
    /// It makes none, but needs memory beside those that an earlier launch may have left.
    Earlier = 2,
}

/// The source of a launch's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// All of it from the card.
    Card,
    /// Some of it from the card, or unknown.
    Anywhere,
    /// Nothing from the card.
    Kept,
}

/// What a launch reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchNeed {
    /// Nothing: it has its memory.
    Backed,
    /// All it wants.
    Unbacked,
}

/// An in-flight operation that changes the driver's graph memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphOperation {
    /// What it reserves.
    pub way: LaunchNeed,
    lane: Option<StreamLane>,
    leaves: AllocationLifetime,
    /// No other one has it; from 1 on.
    pub number: u64,
    /// Whether nothing else was under way.
    alone: bool,
}

/// A trim in flight.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    number: u64,
    alone: bool,
    before: u64,
}

/// When the driver takes memory for graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum AllocationTime {
    /// That has not been seen.
    #[default]
    Unknown = 0,
    /// At uploads and launches.
    AtLaunch = 1,
    /// At instantiation, for good.
    AtInstantiation = 2,
    /// Observations differ: both an instantiation and a launch may allocate. This state is final.
    AtEither = 3,
}

/// A moment, to tell whether anything was under way since.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    begun: u64,
    is_idle: bool,
}

/// Events that affect the memory of a process's graphs. Zeros: none yet.
///
/// Moments are counted. A seat is valid unless a later event could have taken its memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    now: u64,
    /// Seats from before are gone.
    all: u64,
    /// A lane, when it last may have taken from others, and when another lane last may have.
    taker: Option<StreamLane>,
    by_taker: u64,
    by_others: u64,
    /// Seats from then and before may have their memory together with others of their lane.
    shared: u64,
    /// Of these, those from then and before are gone.
    unshared: u64,
    backed: u32,
    unbacked: u32,
    begun: u64,
    ended: u64,
    taken: AllocationTime,
    /// The first lane, and whether there were others.
    first: Option<StreamLane>,
    others: u32,
    /// Since a graph was seen to get the memory of another one of its lane.
    shares: u32,
    /// Since a launch took memory although it was certain that it would not.
    doubted: u32,
}

impl History {
    /// Whether a launch in this lane finds its memory there.
    fn serves(&self, seat: BackingSeat, lane: Option<StreamLane>) -> bool {
        let others = if lane == self.taker { self.by_others } else { self.by_taker };
        lane.is_some()
            && seat.lane == lane
            && seat.since >= self.all.max(others)
            && seat.since > self.unshared
            && self.doubted == 0
    }

    fn is_shared(&self, seat: BackingSeat) -> bool {
        seat.since <= self.shared
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A number, and whether nothing else is under way.
    fn enter(&mut self) -> (u64, bool) {
        let alone = self.begun == self.ended;
        self.begun += 1;
        (self.begun, alone)
    }

    /// Whether nothing else was under way all the time.
    fn leave(&mut self, number: u64, alone: bool) -> bool {
        self.ended += 1;
        alone && self.begun == number
    }

    /// A launch or an upload is about to begin. An unbacked one may take the memory of backed ones in flight. So the memory of
    /// those is reserved until they end, before the unbacked one calls the driver.
    pub fn begin(
        &mut self,
        seat: &mut BackingSeat,
        lane: Option<StreamLane>,
        leaves: AllocationLifetime,
    ) -> GraphOperation {
        // Its lasting allocations lie in memory that other graphs count on.
        let disturbs = leaves == AllocationLifetime::Something && self.is_shared(*seat);
        let has_own = self.taken == AllocationTime::AtInstantiation;
        let has_seat = self.serves(*seat, lane) && self.unbacked == 0 && !(disturbs && self.backed > 0);
        let is_backed = leaves != AllocationLifetime::Earlier && (has_own || has_seat);
        let (number, alone) = self.enter();
        if is_backed {
            self.backed += 1;
            if disturbs {
                self.unshared = self.shared;
                seat.since = self.tick();
            }
        } else {
            self.unbacked += 1;
        }
        let way = if is_backed { LaunchNeed::Backed } else { LaunchNeed::Unbacked };
        GraphOperation { way, lane, leaves, number, alone }
    }

    /// The same for a launch without lasting allocations, which gets the memory of seat `other`. The graph of `other` also leaves
    /// none and needs no less on any card. `None`: that is not certain.
    pub fn begin_beside(
        &mut self,
        seat: &mut BackingSeat,
        lane: Option<StreamLane>,
        other: BackingSeat,
    ) -> Option<GraphOperation> {
        if self.shares == 0 || self.unbacked > 0 || !self.serves(other, lane) {
            return None;
        }
        let (number, alone) = self.enter();
        self.backed += 1;
        self.shared = self.tick();
        *seat = BackingSeat { lane, since: self.shared };
        Some(GraphOperation {
            way: LaunchNeed::Backed,
            lane,
            leaves: AllocationLifetime::Nothing,
            number,
            alone,
        })
    }

    /// An instantiation is about to begin, with an upload in this lane.
    pub fn begin_new(&mut self, lane: Option<StreamLane>) -> GraphOperation {
        let (number, alone) = self.enter();
        self.unbacked += 1;
        GraphOperation { way: LaunchNeed::Unbacked, lane, leaves: AllocationLifetime::Nothing, number, alone }
    }

    /// Something was launched in this lane. If there never was another one, what the driver keeps is this one's.
    fn see(&mut self, lane: StreamLane) {
        self.first = self.first.or(Some(lane));
        if self.first != Some(lane) {
            self.others = 1;
        }
    }

    /// It has ended; `from` is `None` if the driver refused it. Returns whether it was the only operation in flight.
    pub fn end(&mut self, begun: GraphOperation, seat: &mut BackingSeat, from: Option<Source>) -> bool {
        let was_alone = self.leave(begun.number, begun.alone);
        if begun.way == LaunchNeed::Backed {
            self.backed = self.backed.saturating_sub(1);
            return was_alone;
        }
        self.unbacked = self.unbacked.saturating_sub(1);
        let now = self.tick();
        begun.lane.into_iter().for_each(|lane| self.see(lane));
        let lane = begun.lane.filter(|_| was_alone);
        let is_new = *seat == BackingSeat::default();
        if is_new && lane.is_some() && from == Some(Source::Kept) && self.others == 0 {
            self.shares = 1;
        }
        *seat = BackingSeat { lane: lane.filter(|_| from.is_some()), since: now };
        match (from, lane) {
            (Some(Source::Card), Some(_)) => {}
            (Some(_), Some(lane)) if begun.leaves != AllocationLifetime::Something => {
                if self.taker != Some(lane) {
                    (self.taker, self.by_others) = (Some(lane), self.by_taker);
                }
                (self.by_taker, self.shared) = (now, now);
            }
            _ => self.all = now,
        }
        was_alone
    }

    /// An operation that was about to begin was refused.
    pub fn cancel(&mut self, begun: GraphOperation) {
        self.ended += 1;
        match begun.way {
            LaunchNeed::Backed => self.backed = self.backed.saturating_sub(1),
            LaunchNeed::Unbacked => self.unbacked = self.unbacked.saturating_sub(1),
        }
    }

    /// A trim is about to begin. `None`: not now, as launches in flight count on the memory.
    pub fn begin_trim(&mut self) -> Option<Trim> {
        if self.backed > 0 {
            return None;
        }
        let (number, alone) = self.enter();
        let before = self.all;
        self.all = self.tick();
        Some(Trim { number, alone, before })
    }

    /// It has ended; `kept`: the driver keeps as much as before.
    pub fn end_trim(&mut self, trim: Trim, kept: bool) {
        if self.leave(trim.number, trim.alone) && kept {
            self.all = trim.before;
        }
    }

    /// When the driver takes memory.
    #[must_use]
    pub fn taken(&self) -> AllocationTime {
        self.taken
    }

    /// When the driver takes memory was seen.
    pub fn learn(&mut self, taken: AllocationTime) {
        if self.taken != AllocationTime::AtEither {
            self.taken = taken;
        }
    }

    /// A backed launch allocated memory: this driver contradicts the model.
    pub fn doubt(&mut self) {
        self.doubted = 1;
        if self.taken == AllocationTime::AtInstantiation {
            self.taken = AllocationTime::AtEither;
        }
    }

    /// Now.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment { begun: self.begun, is_idle: self.begun == self.ended }
    }

    /// Whether nothing that is known here was under way since.
    #[must_use]
    pub fn was_quiet(&self, since: Moment) -> bool {
        since.is_idle && self.begun == since.begun
    }
}
