//! Pending markers and events in use agree after any sequence of program and driver actions.

use std::collections::VecDeque;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// More than are remembered.
const HANDLES: u64 = STREAMS as u64 + 4;

/// What a program, its card or its driver does.
#[derive(Clone, Debug)]
enum Action {
    Open(u64, BatchStart),
    Close(u64, u64, ChargeBasis),
    Put(u64),
    Probe(u64),
    Settle,
    StreamEnds(u64),
    /// The card gets on with a stream by so many markers.
    Pass(u64, usize),
    /// The driver refuses so many markers.
    Refuse(u32),
    /// The driver loses its events.
    Lose,
    /// Nothing can be put into a stream for a while.
    Capture(u64),
}

/// A driver with its card: markers of each stream that are not passed, and when the others were.
struct Driver {
    now: u64,
    waiting: Vec<VecDeque<usize>>,
    passed: [Option<u64>; EVENTS],
    refuses: u32,
    is_lost: bool,
    captured: Option<u64>,
}

impl Driver {
    fn new() -> Self {
        let waiting = (0..=HANDLES).map(|_| VecDeque::new()).collect();
        Self { now: 1_000, waiting, passed: [None; EVENTS], refuses: 0, is_lost: false, captured: None }
    }

    fn pass(&mut self, stream: u64, markers: usize) {
        for _ in 0..markers {
            let Some(event) = self.waiting[usize::try_from(stream).unwrap()].pop_front() else { break };
            self.passed[event] = Some(self.now);
        }
    }
}

impl Events for Driver {
    fn record(&mut self, event: Event, stream: u64) -> Recorded {
        if self.refuses > 0 {
            self.refuses -= 1;
            return Recorded::No;
        }
        // An event is in one place: where it was put last.
        self.waiting.iter_mut().for_each(|stream| stream.retain(|waiting| *waiting != event.0));
        self.passed[event.0] = None;
        // An ended stream's batches have a name of their own; its handle belongs to no stream any more.
        if let Some(stream) = self.waiting.get_mut(usize::try_from(stream).unwrap_or(usize::MAX)) {
            stream.push_back(event.0);
        }
        Recorded::Yes
    }

    fn passed(&mut self, base: Event, event: Event) -> Passed {
        if core::mem::take(&mut self.is_lost) {
            return Passed::Lost;
        }
        match (self.passed[base.0], self.passed[event.0]) {
            (Some(base), Some(event)) => Passed::After(event.cast_signed() - base.cast_signed()),
            _ => Passed::NotYet,
        }
    }

    fn may_record(&self, stream: u64) -> bool {
        self.captured != Some(stream)
    }
}

impl Marks {
    /// What holds between any two calls; the error says what does not.
    fn invariants(&self) -> Result<(), &'static str> {
        let (there, beyond) = self.pending.split_at_checked(self.count).ok_or("more pending than places")?;
        if !there.iter().all(Option::is_some) || !beyond.iter().all(Option::is_none) {
            return Err("the first `count` places are not those that are taken");
        }
        let base = self.base.iter().map(|base| base.event);
        let batches = self.pending().flat_map(|it| [Some(it.event), it.begin]).flatten();
        let open = self.streams.iter().flatten().filter_map(|it| it.begin);
        let mut used = 0_u64;
        for Event(event) in base.chain(batches).chain(open) {
            if used & 1 << event != 0 {
                return Err("an event is in use twice");
            }
            used |= 1 << event;
        }
        if used != self.used {
            return Err("the events marked as used differ from those of the base, batches and streams");
        }
        let mut handles: Vec<u64> = self.streams.iter().flatten().map(|it| it.handle).collect();
        handles.sort_unstable();
        if handles.windows(2).any(|two| two[0] == two[1]) {
            return Err("a stream is remembered twice");
        }
        Ok(())
    }

    fn charged(&self) -> u64 {
        self.pending().map(|it| it.batch.charged.0).sum()
    }
}

fn action() -> impl Strategy<Value = Action> {
    let stream = || prop_oneof![4 => 1..4_u64, 1 => 1..=HANDLES];
    let begin =
        prop_oneof![4 => Just(BatchStart::Last), 2 => Just(BatchStart::Own), 1 => Just(BatchStart::Hold)];
    let known = prop_oneof![Just(ChargeBasis::Not), Just(ChargeBasis::AtMost), Just(ChargeBasis::Exactly)];
    prop_oneof![
        6 => (stream(), begin).prop_map(|(stream, begin)| Action::Open(stream, begin)),
        8 => (stream(), 1..2_000_000_u64, known).prop_map(|(stream, charged, known)| Action::Close(stream, charged, known)),
        1 => stream().prop_map(Action::Put),
        1 => stream().prop_map(Action::Probe),
        4 => Just(Action::Settle),
        1 => stream().prop_map(Action::StreamEnds),
        6 => (stream(), 1..6_usize).prop_map(|(stream, markers)| Action::Pass(stream, markers)),
        1 => (1..4_u32).prop_map(Action::Refuse),
        1 => prop_oneof![9 => Just(Action::Settle), 1 => Just(Action::Lose)],
        1 => stream().prop_map(Action::Capture),
    ]
}

/// Nanoseconds to the next: also so long that times are told from another event.
fn later() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1..200_000_u64, 1 => 1..700_000_000_u64]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn pending_markers_and_markers_in_use_agree(
        actions in proptest::collection::vec((action(), later()), 1..300),
    ) {
        let (mut marks, mut driver, mut open) = (Marks::new(), Driver::new(), 0_u64);
        for (action, later) in actions {
            driver.now += later;
            let now = Nanos(driver.now);
            match action {
                Action::Open(stream, begin) => marks.open(now, stream, begin, &mut driver),
                Action::Close(stream, charged, known) => {
                    let batch = Batch { charged: Nanos(charged), launches: 1, known, ..Batch::none(stream) };
                    let there = marks.close(now, batch, &mut driver) == Recorded::Yes;
                    open += if there { charged } else { 0 };
                }
                Action::Put(stream) => marks.put(now, stream, Nanos::ZERO, &mut driver),
                Action::Probe(stream) => {
                    marks.probe(now, stream, &mut driver);
                }
                Action::Settle => {
                    marks.settle(now, &mut driver, |done| open -= done.batch.charged.0);
                    // Where events are lost, all that was pending stays charged as it was.
                    open = if marks.is_empty() { 0 } else { open };
                }
                Action::StreamEnds(stream) => {
                    // The card gets on with what is there.
                    driver.pass(stream, EVENTS);
                    marks.stream_ends(stream);
                }
                Action::Pass(stream, markers) => driver.pass(stream, markers),
                Action::Refuse(markers) => driver.refuses = markers,
                Action::Lose => driver.is_lost = true,
                Action::Capture(stream) => {
                    driver.captured = if driver.captured == Some(stream) { None } else { Some(stream) };
                }
            }
            marks.invariants().expect("after each action");
            prop_assert_eq!(marks.charged(), open, "each batch is handed out once");
        }
    }
}
