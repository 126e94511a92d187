//! Selects launches that are measured by themselves, with a marker before and one behind.
//!
//! | launches of a stream | measured |
//! |---|---|
//! | differ, or come between those of other streams | one of [`PROBE_EVERY`], in the mean |
//! | come so seldom that the card may rest between them | one in [`PROBE_TIME`], and in a burst after a rest as many as were left out |
//! | leave the card no rest | none: their batches tell what they take |
//!
//! A marker right behind a launch shows its length. A marker behind several launches with gaps between them shows a stretch with
//! an unknown part of idle time, and would hide that a function suddenly takes longer.

use super::*;

/// Where launches differ, one in so many is measured by itself, in the mean: what it costs the device's time and ours is noticed
/// less than a cost that was never measured.
const PROBE_EVERY: u32 = 16;
/// Where they do not, one in so long: some microseconds of the host's time.
const PROBE_TIME: Nanos = Nanos::from_millis(2);
/// A process measures one in so long, however many streams it has: with a thread for each, one waits for another at the markers.
const TURN_EVERY: Nanos = Nanos::from_micros(500);
/// Most that it makes up for after a rest.
const TURNS_SAVED: u64 = 64;
/// Most times that one of [`PROBE_EVERY`] becomes more seldom by that.
const SPREAD_MAX: u32 = 16;
/// Most that are made up for after a rest.
const SAVED: u64 = 16;
/// As many must be due where one in [`PROBE_EVERY`] is measured already.
const SAVED_DIFFERS: u64 = 4;
/// Most launches between two looks at the clock: it must be noticed soon that they come more seldom.
const LOOK_EVERY: u32 = 512;
/// The same before anything is known of them.
const LOOK_FIRST: u32 = 8;
/// Launches are counted for so long, or up to [`LOOK_EVERY`] of them.
const WINDOW: Nanos = Nanos::from_millis(40);

/// What decides whether a launch is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeInput {
    /// Whether launches differ, or come between those of other streams.
    pub(super) differs: bool,
    /// Own part.
    pub(super) own: Ppm,
}

/// Of one lane, which is one thread's as a rule: in a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Probe {
    /// Up to when all that is due was measured.
    at: AtomicU64,
    /// Since when launches are counted, and how many there were by then.
    from: AtomicU64,
    seen: AtomicU32,
    /// Launches between two looks, in the mean.
    every: AtomicU32,
}

/// Of all lanes.
#[derive(Debug)]
pub(super) struct Probes {
    asked: AtomicU32,
    /// Up to when the turns of all lanes are taken.
    at: AtomicU64,
    /// So many times more seldom than one of [`PROBE_EVERY`] they come for a turn.
    spread: AtomicU32,
    lanes: [Probe; LANES],
}

impl Probes {
    pub(super) const fn new() -> Self {
        Self {
            asked: AtomicU32::new(0),
            at: AtomicU64::new(0),
            spread: AtomicU32::new(1),
            lanes: [const {
                Probe {
                    at: AtomicU64::new(0),
                    from: AtomicU64::new(0),
                    seen: AtomicU32::new(0),
                    every: AtomicU32::new(0),
                }
            }; LANES],
        }
    }

    /// Whether this launch is measured by itself; says when the next one is looked at.
    pub(super) fn due(&self, at: usize, lane: &Lane, now: Nanos, which: ProbeInput) -> bool {
        let Some(probe) = self.lanes.get(at) else { return false };
        let random = self.random();
        let due = if !Heuristic::Probes.is_on() {
            lane.set_probe_in(lane::PROBE_NEVER);
            false
        } else if which.differs {
            self.is_turn(lane, random) | (which.own == Ppm::ALL && probe.saved(now) >= SAVED_DIFFERS)
        } else if which.own == Ppm::ALL {
            probe.look(lane, now, random)
        } else {
            // The vendor's account tells what bills are off by.
            lane.set_probe_in(lane::PROBE_NEVER);
            return false;
        };
        let due = due && self.has_turn(now);
        if due {
            probe.measured(now);
        }
        due
    }

    /// Whether the process may measure one already; the turn is taken. Where others had them, lanes come for theirs more seldom.
    fn has_turn(&self, now: Nanos) -> bool {
        let earliest = now.minus(Nanos(TURNS_SAVED * TURN_EVERY.0));
        let at = Nanos(self.at.load(Ordering::Relaxed)).min(now).max(earliest);
        let (turns, spread) = (now.minus(at).0 / TURN_EVERY.0, self.spread());
        if turns == 0 {
            self.spread.store((spread * 2).min(SPREAD_MAX), Ordering::Relaxed);
            return false;
        }
        if turns > TURNS_SAVED / 2 {
            self.spread.store(spread / 2, Ordering::Relaxed);
        }
        self.at.store(at.plus(TURN_EVERY).0, Ordering::Relaxed);
        true
    }

    fn is_turn(&self, lane: &Lane, random: u32) -> bool {
        let next = 1 + random % (2 * PROBE_EVERY * self.spread());
        let due = lane.probe_in() == 0;
        lane.set_probe_in(if due { next } else { next.min(lane.probe_in()) });
        due
    }

    fn spread(&self) -> u32 {
        self.spread.load(Ordering::Relaxed).clamp(1, SPREAD_MAX)
    }

    /// Another thread is at the markers: a later launch is looked at.
    pub(super) fn put_off(&self, lane: &Lane) {
        self.put_off_by(lane, self.spread());
    }

    /// Markers run short, and will for a while.
    pub(super) fn put_far_off(&self, lane: &Lane) {
        self.put_off_by(lane, SPREAD_MAX);
    }

    fn put_off_by(&self, lane: &Lane, spread: u32) {
        if lane.probe_in() == 0 {
            lane.set_probe_in(1 + self.random() % (2 * PROBE_EVERY * spread));
        }
    }

    /// Spread: launches that come in a round must not meet it at the same of them each time.
    fn random(&self) -> u32 {
        self.asked.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9) >> 16
    }

    /// A batch of a lane showed what its launches take: nothing is due up to then.
    pub(super) fn confirmed(&self, at: usize, until: Nanos) {
        if let Some(probe) = self.lanes.get(at) {
            probe.at.fetch_max(until.0, Ordering::Relaxed);
        }
    }
}

impl Probe {
    /// Measurements that are due by now.
    fn saved(&self, now: Nanos) -> u64 {
        // For a program that begins to launch there are none.
        let _first = self.at.compare_exchange(0, now.0, Ordering::Relaxed, Ordering::Relaxed);
        (now.minus(Nanos(self.at.load(Ordering::Relaxed))).0 / PROBE_TIME.0).min(SAVED)
    }

    /// Whether one is due: as many as come in twice [`PROBE_TIME`] lie between two in the mean, but anywhere in a burst.
    fn look(&self, lane: &Lane, now: Nanos, random: u32) -> bool {
        let (due, every) = (lane.probe_in() == 0, self.every(lane, now));
        let next = 1 + random % (2 * every.unwrap_or_else(|known| known) - 1);
        match (due, every) {
            (true, _) => lane.set_probe_in(next),
            (false, Ok(_)) => lane.set_probe_in(next.min(lane.probe_in())),
            (false, Err(_)) => {}
        }
        due && self.saved(now) > 0
    }

    /// Launches between two looks; an error is what was known before.
    fn every(&self, lane: &Lane, now: Nanos) -> Result<u32, u32> {
        let (from, seen) = (self.from.load(Ordering::Relaxed), lane.seen());
        let launches = seen.wrapping_sub(self.seen.load(Ordering::Relaxed));
        let passed = now.minus(Nanos(from));
        let known = self.every.load(Ordering::Relaxed).clamp(1, LOOK_EVERY);
        if from != 0 && launches < LOOK_EVERY && passed < WINDOW {
            return Err(known);
        }
        // Half as many as may be: where the account is always empty, the ends of bursts would go without.
        let each = (2 * u64::from(launches) * PROBE_TIME.0).checked_div(passed.0).unwrap_or(u64::MAX);
        let every = if from == 0 { LOOK_FIRST } else { u32::try_from(each).unwrap_or(LOOK_EVERY) };
        let every = every.clamp(1, LOOK_EVERY);
        self.every.store(every, Ordering::Relaxed);
        self.from.store(now.0, Ordering::Relaxed);
        self.seen.store(seen, Ordering::Relaxed);
        Ok(every)
    }

    fn measured(&self, now: Nanos) {
        let earliest = now.minus(Nanos(SAVED * PROBE_TIME.0));
        let at = Nanos(self.at.load(Ordering::Relaxed)).max(earliest).plus(PROBE_TIME);
        self.at.store(at.0, Ordering::Relaxed);
    }
}
