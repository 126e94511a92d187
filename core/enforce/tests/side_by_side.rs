//! Kernels of several streams that run at the same time on a card with room for all of them, as an H100 runs small ones: a tenant
//! gets its share of what it does without a limit, and no more of the card's time.

#![cfg(not(feature = "shuttle"))]
#![expect(clippy::cast_possible_truncation, reason = "a model's numbers are small")]

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use aliquot_enforce::bucket::Bucket;
use aliquot_enforce::busy_floor::BusyFloor;
use aliquot_enforce::cells::Cells;
use aliquot_enforce::cost::Shape;
use aliquot_enforce::marks::{EVENTS, Event, Events, Marks, Passed, Recorded};
use aliquot_enforce::pace::{Admission, LaunchRequest, Pace, PaceTerms, SharedWords, Verdict, World};
use aliquot_enforce::units::{Nanos, Ppm};

const MICRO: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
/// What a launch and a marker cost their program.
const LAUNCH: u64 = 2_500;
const RECORD: u64 = 1_500;
/// How late a wait ends.
const LATE: u64 = 60 * MICRO;

/// The card: each stream by itself.
struct Card {
    now: u64,
    streams: Vec<u64>,
    events: [u64; EVENTS],
    /// Time with work on any stream, so far.
    busy: u64,
    busy_until: u64,
}

impl Card {
    fn launch(&mut self, stream: u64, length: u64) {
        self.now += LAUNCH;
        let end = &mut self.streams[stream as usize];
        let start = (*end).max(self.now);
        *end = start + length;
        // Launches come in the order of time, and so do their starts but for what waits in its stream: that is busy anyway.
        self.busy += end.saturating_sub(self.busy_until.max(start));
        self.busy_until = self.busy_until.max(*end);
    }
}

impl Events for Card {
    fn record(&mut self, event: Event, stream: u64) -> Recorded {
        self.events[event.0] = self.streams[stream as usize].max(self.now);
        self.now += RECORD;
        Recorded::Yes
    }

    fn passed(&mut self, base: Event, event: Event) -> Passed {
        let [base, event] = [base, event].map(|event| self.events[event.0]);
        if event > self.now || base > self.now {
            return Passed::NotYet;
        }
        Passed::After(event.cast_signed() - base.cast_signed())
    }
}

impl World for Card {
    fn wake_agent(&mut self) {}
    fn wake_waiters(&mut self) {}
}

/// What a program does: so many launches, each on the next stream, then it waits for all of them.
#[derive(Clone, Copy)]
struct Program {
    length: u64,
    streams: u64,
    batch: u64,
    /// The length after a second, and how long it is measured from then on; `None`: it stays.
    then: Option<(u64, u64)>,
}

impl Program {
    fn length(&self, now: u64) -> u64 {
        self.then.filter(|_| now >= 2 * SECOND).map_or(self.length, |(length, _)| length)
    }
}

/// Kernels a second, and parts per million of the time in which the card worked.
fn run(program: Program, granted: Option<u32>) -> (u64, u64) {
    let own_words: [AtomicU64; 8] = Default::default();
    let [refilled, device, process, interval, counted, reporter, active, limited] = &own_words;
    let (credit, sure) = (AtomicI64::new(0), AtomicI64::new(0));
    let (demand, wake) = (AtomicU32::new(0), AtomicU32::new(0));
    let steps: Vec<_> = (0..128).map(|_| AtomicU64::new(0)).collect();
    let cells: Vec<_> = (0..512).map(|_| AtomicU32::new(0)).collect();
    let shared = SharedWords {
        bucket: Bucket { credit: &credit, refilled_at: refilled },
        cells: Cells::new(&cells),
        device_nanos: device,
        process_nanos: process,
        interval_nanos: interval,
        counted_until: counted,
        sure: BusyFloor::new(&steps),
        sure_nanos: &sure,
        reporter,
        active_until: active,
        limited_until: limited,
        demand: &demand,
        wake: &wake,
        me: 1,
    };
    let share = Ppm::new(granted.unwrap_or(100) * 10_000);
    let terms = PaceTerms { guaranteed: share, granted: share, own: Ppm::ALL };
    let (pace, mut marks) = (Pace::new(), Marks::new());
    let streams = vec![0; program.streams as usize + 1];
    let mut card = Card { now: SECOND, streams, events: [0; EVENTS], busy: 0, busy_until: 0 };
    let shape = Shape::kernel(1, [132, 1, 1], [32, 1, 1]);
    let warm = 2 * SECOND;
    let end = warm + program.then.map_or(4 * SECOND, |(_, measured)| measured);
    let (mut done, mut before) = (0, None);
    while card.now < end {
        for number in 0..program.batch {
            if card.now >= end {
                break;
            }
            let stream = 1 + number % program.streams;
            let mut ticket = None;
            let mut waiting = None;
            while granted.is_some() && pace.pass(shape.key, stream) == Admission::Ask {
                let now = Nanos(card.now);
                let waited = Nanos(card.now - *waiting.get_or_insert(card.now));
                let ask = LaunchRequest { now, shape: &shape, stream, terms, waited };
                match pace.ask(&ask, &shared, Some(&mut marks), &mut card) {
                    Verdict::Go(go) => {
                        ticket = Some(go);
                        break;
                    }
                    Verdict::Wait(until) => card.now = until.0.max(card.now) + LATE,
                }
            }
            let length = program.length(card.now);
            card.launch(stream, length);
            done += 1;
            if card.now >= warm && before.is_none() {
                before = Some((card.now, done, card.busy));
            }
            if let Some(ticket) = ticket {
                pace.launched(Nanos(card.now), &ticket, Some(&mut marks), &mut card);
            }
        }
        card.now = card.now.max(card.streams.iter().copied().max().unwrap_or(0)) + 5 * MICRO;
    }
    let (from, done_before, busy_before) = before.unwrap_or_default();
    let time = card.now - from;
    ((done - done_before) * SECOND / time, (card.busy - busy_before) * 1_000_000 / time)
}

/// An H100 gave four streams at once 2.8, 6.8 and 16.2 % of 10, 25 and 60 where launches are billed one by one (ablation
/// `side-by-side`), and so does this card.
#[test]
fn streams_side_by_side_get_most_of_their_share() {
    let mut wrong = Vec::new();
    // Launches one after the other, as they come, are not all side by side: least parts of the share in hundredths.
    for (length, streams, batch, least) in [
        (200, 4, 8, 80),
        (50, 4, 8, 70),
        (1_000, 4, 8, 70),
        (200, 2, 64, 90),
        (200, 8, 8, 60),
        (200, 1, 8, 97),
    ] {
        let program = Program { length: length * MICRO, streams, batch, then: None };
        let (whole, _) = run(program, None);
        for percent in [10, 25, 60] {
            let (rate, busy) = run(program, Some(percent));
            let (share, wanted) = (rate * 1_000_000 / whole, u64::from(percent) * 10_000);
            println!(
                "{length} µs on {streams} streams, {batch} at once, {percent} %: {share} ppm of the work, {busy} of the time"
            );
            if share < wanted * least / 100 || share > wanted + 30_000 || busy > wanted + 30_000 {
                wrong.push((length, streams, batch, percent, share, busy));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Short launches that ran side by side lead no long ones past their share of the time.
#[test]
fn long_launches_after_short_ones_get_no_more_than_their_share() {
    for (length, measured) in [(20 * 1_000 * MICRO, 10 * SECOND), (SECOND / 3, 60 * SECOND)] {
        let program =
            Program { length: 50 * MICRO, streams: 8, batch: 4_096, then: Some((length, measured)) };
        let (_, busy) = run(program, Some(25));
        println!("{} ms after 50 µs: {busy} ppm of the time", length / 1_000_000);
        assert!(busy <= 280_000, "{busy} ppm of the time for launches of {length} ns");
    }
}
