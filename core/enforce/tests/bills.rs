//! Work that is hard to bill, on virtual time: without a marker beside work that has some, and launched so seldom that the card
//! rests between two launches; long and short in turns.

#![cfg(not(feature = "shuttle"))]
#![expect(clippy::cast_possible_truncation, reason = "a model's numbers are small")]

#[path = "pace/books.rs"]
mod books;
#[path = "pace/model.rs"]
#[expect(dead_code, reason = "other tests run more in it")]
mod model;

use aliquot_enforce::cost::Shape;
use aliquot_enforce::marks::{EVENTS, Event, Events, Marks, Passed, Recorded};
use aliquot_enforce::pace::{
    Admission, LaunchRequest, Pace, PaceTerms, UnmarkedWork, Verdict, WaitScope, World,
};
use aliquot_enforce::share::{BorrowPolicy, Tenant};
use aliquot_enforce::units::{Nanos, Ppm};
use books::{Books, UP};
use model::{Bench, Program};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;

/// A card that passes markers when it has done what was launched before them.
struct Card {
    now: u64,
    done_at: u64,
    events: [u64; EVENTS],
    recorded: u64,
    /// Streams with work of their own, and when it ends.
    others: Vec<(u64, u64)>,
    /// A stream that takes no marker.
    closed: Option<u64>,
}

impl Events for Card {
    fn may_record(&self, stream: u64) -> bool {
        self.closed != Some(stream)
    }

    fn record(&mut self, event: Event, stream: u64) -> Recorded {
        self.recorded += 1;
        let other = self.others.iter().find(|(other, _)| *other == stream);
        self.events[event.0] = other.map_or(self.done_at, |(_, done_at)| *done_at).max(self.now);
        Recorded::Yes
    }

    fn passed(&mut self, base: Event, event: Event) -> Passed {
        let (base, event) = (self.events[base.0], self.events[event.0]);
        if event > self.now {
            Passed::NotYet
        } else {
            Passed::After(event.cast_signed() - base.cast_signed())
        }
    }
}

impl World for Card {
    fn wake_agent(&mut self) {}
    fn wake_waiters(&mut self) {}
}

/// A process of the tenant.
struct Process<'a> {
    books: &'a Books,
    me: u32,
    terms: PaceTerms,
    pace: Box<Pace>,
    marks: Marks,
    card: Card,
    /// What the card did for it.
    ran: u64,
    /// Launches that were not let go at once.
    asked: u64,
    /// Of so many questions, one comes while another thread is at the markers; 0: none does.
    busy: u64,
}

impl<'a> Process<'a> {
    fn new(books: &'a Books, me: u32, own: u32) -> Self {
        let terms = PaceTerms { guaranteed: Ppm::ALL, granted: Ppm::ALL, own: Ppm::new(own * 10_000) };
        let card =
            Card { now: UP, done_at: UP, events: [0; EVENTS], recorded: 0, others: Vec::new(), closed: None };
        Self {
            books,
            me,
            terms,
            pace: Box::new(Pace::new()),
            marks: Marks::new(),
            card,
            ran: 0,
            asked: 0,
            busy: 0,
        }
    }

    /// A kernel of so many milliseconds with a marker behind it, `pause` after it ended.
    fn runs(&mut self, function: u64, millis: u64, pause: u64) {
        let shape = Shape::kernel(function, [64, 1, 1], [64, 1, 1]);
        let shared = self.books.shared(self.me);
        // Whatever it waited for: credit is not what this is about.
        let waited = Nanos::MAX;
        let ask =
            LaunchRequest { now: Nanos(self.card.now), shape: &shape, stream: 7, terms: self.terms, waited };
        let verdict = self.pace.ask(&ask, &shared, Some(&mut self.marks), &mut self.card);
        assert!(matches!(verdict, Verdict::Go(_)), "it has waited for long enough");
        self.card.done_at = self.card.now + millis * MILLI;
        if let Verdict::Go(ticket) = verdict {
            self.pace.launched(Nanos(self.card.now), &ticket, Some(&mut self.marks), &mut self.card);
        }
        self.card.now = self.card.done_at + pause * MILLI;
    }

    /// A kernel as a program launches it: it waits until it may, and for nothing else.
    fn launches(&mut self, function: u64, nanos: u64) {
        self.launches_on(7, function, nanos);
    }

    fn launches_on(&mut self, stream: u64, function: u64, nanos: u64) {
        let shape = Shape::kernel(function, [64, 1, 1], [64, 1, 1]);
        let (shared, begun) = (self.books.shared(self.me), self.card.now);
        let mut ticket = None;
        while ticket.is_none() && self.pace.pass(shape.key, stream) == Admission::Ask {
            self.asked += 1;
            let (now, waited) = (Nanos(self.card.now), Nanos(self.card.now - begun));
            let ask = LaunchRequest { now, shape: &shape, stream, terms: self.terms, waited };
            let marks =
                if self.asked.checked_rem(self.busy) == Some(0) { None } else { Some(&mut self.marks) };
            match self.pace.ask(&ask, &shared, marks, &mut self.card) {
                Verdict::Go(go) => ticket = Some(go),
                Verdict::Wait(until) => self.card.now = until.0 + 100 * MICRO,
            }
        }
        self.card.done_at = self.card.done_at.max(self.card.now) + nanos;
        self.ran += nanos;
        self.card.now += 3 * MICRO;
        if let Some(ticket) = ticket {
            self.pace.launched(Nanos(self.card.now), &ticket, Some(&mut self.marks), &mut self.card);
        }
    }

    fn looks(&mut self) {
        let shared = self.books.shared(self.me);
        self.pace.settle_all(Nanos(self.card.now), self.terms, &shared, &mut self.marks, &mut self.card);
    }

    fn waits(&mut self) {
        self.looks();
        let shared = self.books.shared(self.me);
        self.pace.waited(Nanos(self.card.now), WaitScope::OnAll, self.terms, &shared);
    }

    fn unmarked(&self) {
        self.pace.unmarked(Nanos(self.card.now), Nanos(self.card.now), UnmarkedWork::Elsewhere);
    }
}

#[test]
fn stretch_seen_by_clock_and_markers_is_billed_once() {
    for own in [25, 50, 100] {
        let books = Books::new();
        let mut process = Process::new(&books, 1, own);
        for function in 1..=50 {
            process.unmarked();
            // Nothing is known of it: its bill is the own part, too.
            process.runs(function, 3, 1);
        }
        process.waits();
        let (booked, claimed) = (books.booked(), 200 * u64::from(own) / 100);
        println!("own part {own} %: {booked} of {claimed} ms");
        assert!((claimed - 2..=claimed + 5).contains(&booked), "own part {own} %: {booked} of {claimed} ms");
    }
}

/// What markers show beyond the own part stays on the books, whichever came first.
#[test]
fn clock_and_markers_bill_no_less_beside_each_other() {
    for looks in [1, 3, 50] {
        let books = Books::new();
        let mut process = Process::new(&books, 1, 100);
        // It is known that the kernel takes two of four milliseconds; then others come, and a quarter is the tenant's in the mean.
        (0..20).for_each(|_| process.runs(1, 2, 2));
        process.waits();
        let before = books.booked();
        process.terms.own = Ppm::new(250_000);
        process.unmarked();
        for round in 1..=100 {
            process.runs(1, 2, 2);
            if round % looks == 0 {
                process.looks();
            }
        }
        process.waits();
        let shown = books.booked() - before;
        process.unmarked();
        process.card.now += 400 * MILLI;
        process.waits();
        let claimed = books.booked() - before - shown;
        assert!((199..=202).contains(&shown), "{shown} of 200 ms of markers, looked every {looks}");
        assert!((99..=101).contains(&claimed), "{claimed} of 100 ms by the clock alone");
    }
}

/// The own part is of each process's time: four that take turns with others have four times as much.
#[test]
fn a_siblings_time_is_not_taken_for_ones_own() {
    let books = Books::new();
    let mut processes: Vec<_> = (1..=4).map(|me| Process::new(&books, me, 20)).collect();
    for process in &mut processes {
        process.unmarked();
        for _ in 0..100 {
            process.card.now += 3_700_001;
            process.looks();
        }
        process.waits();
    }
    let (booked, claimed) = (books.booked(), 4 * 370 * 20 / 100);
    assert!((claimed - 2..=claimed).contains(&booked), "{booked} of {claimed} ms");
}

/// If every launch waits, no running launch can show that work without a marker is done: the waiting ones do.
#[test]
fn finished_work_without_a_marker_delays_no_launch() {
    for (granted, place) in [(1_000_000, 7), (250_000, 7), (250_000, 8), (100_000, 0)] {
        let books = Books::new();
        let mut process = Process::new(&books, 1, 100);
        process.terms.granted = Ppm::new(granted);
        (0..20).for_each(|_| process.launches(1, 100 * MICRO));
        let from = process.card.now;
        for function in 0..100 {
            // It was not known, and another thread was at the markers for too long.
            let now = Nanos(process.card.now);
            let place = match place {
                0 => UnmarkedWork::Elsewhere,
                stream => UnmarkedWork::Stream { context: 1, stream },
            };
            process.pace.unmarked(now, now, place);
            process.card.done_at = process.card.done_at.max(process.card.now) + 200 * MICRO;
            process.launches(100 + function, 200 * MICRO);
        }
        let (took, worth) = ((process.card.now - from) / MILLI, 40 * 1_000_000 / granted_of(&process));
        println!("granted {granted}: {took} ms, worth {worth}");
        assert!(took <= 2 * worth, "granted {granted}, on {place}: {took} ms for what is worth {worth}");
    }
}

/// Work without a marker is billed by the clock once the driver accepted it, whichever thread holds the markers. Refused work
/// never is.
#[test]
fn the_clock_bills_nothing_of_what_is_refused() {
    for is_lacking in [false, true] {
        let books = Books::new();
        let mut process = Process::new(&books, 1, 100);
        let (shape, shared) = (Shape::kernel(1, [64, 1, 1], [64, 1, 1]), books.shared(1));
        let now = Nanos(process.card.now);
        let ask = LaunchRequest { now, shape: &shape, stream: 7, terms: process.terms, waited: Nanos::MAX };
        let Verdict::Go(ticket) = process.pace.ask(&ask, &shared, None, &mut process.card) else {
            panic!("it has waited for long enough");
        };
        let ticket = if is_lacking { ticket.without_markers(now) } else { ticket };
        process.pace.refused(&ticket, &shared);
        assert!(!process.pace.has_unmarked(), "refused, lacking {is_lacking}");
        process.pace.launched(Nanos(process.card.now + MICRO), &ticket, None, &mut process.card);
        assert!(process.pace.has_unmarked(), "taken, lacking {is_lacking}");
        process.card.now += 5 * MILLI;
        process.waits();
        assert_eq!(books.booked(), 5, "from when it may have begun, lacking {is_lacking}");
    }
}

/// Two threads on one stream: what one is refused is told when the batch that it was in is over, and another thread's launch is
/// alone in the next one.
#[test]
fn launch_is_billed_despite_refusals_of_other_threads() {
    let books = Books::new();
    let mut process = Process::new(&books, 1, 100);
    (0..20).for_each(|_| process.launches(1, 20 * MICRO));
    let known = Shape::kernel(1, [64, 1, 1], [64, 1, 1]);
    let passed = (0..10).filter(|_| process.pace.pass(known.key, 7) != Admission::Ask).count();
    assert!(passed > 0, "on the lease of its stream");
    let (shape, shared) = (Shape::kernel(2, [64, 1, 1], [64, 1, 1]), books.shared(1));
    process.card.now = process.card.now.max(process.card.done_at) + 100 * MILLI;
    process.looks();
    let (before, now) = (books.booked(), Nanos(process.card.now));
    let ask = LaunchRequest { now, shape: &shape, stream: 7, terms: process.terms, waited: Nanos::MAX };
    let verdict = process.pace.ask(&ask, &shared, Some(&mut process.marks), &mut process.card);
    let Verdict::Go(ticket) = verdict else { panic!("it has waited for long enough") };
    (0..passed).for_each(|_| process.pace.failed(7));
    process.card.done_at = process.card.now + 200 * MILLI;
    process.card.now += MICRO;
    process.pace.launched(Nanos(process.card.now), &ticket, Some(&mut process.marks), &mut process.card);
    process.card.now = process.card.done_at;
    process.looks();
    let billed = books.booked() - before;
    assert!((200..=202).contains(&billed), "{billed} of 200 ms");
}

/// Nothing can be put behind work on the default stream while a capture is open.
#[test]
fn work_on_an_unmarkable_stream_delays_no_launch() {
    for granted in [1_000_000, 250_000, 100_000] {
        let books = Books::new();
        let mut process = Process::new(&books, 1, 100);
        process.terms.granted = Ppm::new(granted);
        (0..20).for_each(|_| process.launches(1, 100 * MICRO));
        process.card.closed = Some(1);
        let from = process.card.now;
        for function in 0..100 {
            let now = Nanos(process.card.now);
            process.pace.unmarked(now, now, UnmarkedWork::Stream { context: 1, stream: 1 });
            process.card.done_at = process.card.done_at.max(process.card.now) + 200 * MICRO;
            process.launches(100 + function, 200 * MICRO);
        }
        let (took, worth) = ((process.card.now - from) / MILLI, 40 * 1_000_000 / granted_of(&process));
        println!("granted {granted}: {took} ms, worth {worth}");
        assert!(took <= 2 * worth, "granted {granted}: {took} ms for what is worth {worth}");
    }
}

/// A stream that waits for what the launching thread does later holds it up once, not with each of its launches.
#[test]
fn a_stream_that_waits_for_its_own_program_holds_it_up_once() {
    for (granted, most) in [(1_000_000, 1_700), (500_000, 22_700), (100_000, 31_000)] {
        let books = Books::new();
        let mut process = Process::new(&books, 1, 100);
        process.terms.granted = Ppm::new(granted);
        (0..30).for_each(|_| process.launches(1, MILLI));
        process.card.now = process.card.now.max(process.card.done_at) + 1_000 * MILLI;
        process.waits();
        let from = process.card.now;
        process.card.others.push((7, u64::MAX / 4));
        (0..1_000).for_each(|_| process.launches(1, MILLI));
        let took = (process.card.now - from) / MILLI;
        println!("granted {granted}: {took} ms");
        assert!(took <= most, "granted {granted}: {took} ms, {most} at most");
    }
}

fn granted_of(process: &Process<'_>) -> u64 {
    u64::from(process.terms.granted.parts())
}

/// The end of one stream's launches says nothing about work on another stream.
#[test]
fn work_on_another_stream_is_billed_until_it_ends() {
    let books = Books::new();
    let mut process = Process::new(&books, 1, 100);
    (0..20).for_each(|_| process.launches(1, 20 * MICRO));
    process.waits();
    let (before, now) = (books.booked(), Nanos(process.card.now));
    process.pace.unmarked(now, now, UnmarkedWork::Stream { context: 1, stream: 8 });
    process.card.others.push((8, process.card.now + 300 * MILLI));
    while process.card.now < now.0 + 400 * MILLI {
        process.launches(1, 20 * MICRO);
        process.card.now += MILLI;
    }
    let booked = books.booked() - before;
    assert!((300..=330).contains(&booked), "{booked} of 300 ms");
}

/// Launches of a program that never waits, in bursts with rests between them; a burst is of one function.
#[derive(Clone, Copy, Debug)]
struct Seldom {
    name: &'static str,
    burst: u64,
    /// From which to which launch of a burst they take long; the others are as short as all were at first.
    long: (u64, u64),
    functions: u64,
    length: u64,
    rest: u64,
}

/// Thousandths of the card's time over six seconds under a cap of a tenth, once its functions were known to be short.
fn share_of(seldom: &Seldom) -> u64 {
    let books = Books::new();
    let mut process = Process::new(&books, 1, 100);
    process.terms.granted = Ppm::new(100_000);
    for function in 1..=seldom.functions {
        (0..400).for_each(|_| process.launches(function, 20 * MICRO));
    }
    let (from, before) = (process.card.now, process.ran);
    let mut burst = 0;
    while process.card.now < from + 6_000 * MILLI {
        for one in 0..seldom.burst {
            let nanos =
                if (seldom.long.0..seldom.long.1).contains(&one) { seldom.length } else { 20 * MICRO };
            process.launches(1 + burst % seldom.functions, nanos);
        }
        burst += 1;
        process.card.now = process.card.now.max(process.card.done_at) + seldom.rest;
    }
    (process.ran - before) * 1_000 / (process.card.now - from)
}

#[test]
fn growing_function_is_billed_its_time_with_few_launches() {
    let one = Seldom {
        name: "one at a time",
        burst: 1,
        long: (0, 1),
        functions: 1,
        length: 5 * MILLI,
        rest: 10 * MILLI,
    };
    let cases = [
        Seldom { name: "of 0.5 ms", length: 500 * MICRO, rest: MILLI, ..one },
        Seldom { name: "of 50 ms", length: 50 * MILLI, rest: 100 * MILLI, ..one },
        Seldom { name: "bursts", burst: 8, long: (0, 8), length: 2 * MILLI, rest: 20 * MILLI, ..one },
        Seldom { name: "the last of a burst", burst: 20, long: (19, 20), rest: 10 * MILLI, ..one },
        Seldom { name: "in the middle of a burst", burst: 20, long: (9, 10), rest: 10 * MILLI, ..one },
        Seldom { name: "two functions in turns", functions: 2, ..one },
        one,
    ];
    let mut wrong = Vec::new();
    for seldom in cases {
        let share = share_of(&seldom);
        println!("{}: {share} thousandths", seldom.name);
        // Ten launches may run before it is noticed.
        let once = 10 * seldom.length / (6 * MILLI);
        if share > 130 + once {
            wrong.push(format!("{seldom:?}: {share} thousandths"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A launch on each of many streams is let go at once as a rule, also where markers run short and other threads are at them.
#[test]
fn launches_on_many_streams_seldom_ask() {
    for (streams, busy, length) in [(2, 0, 2), (16, 0, 2), (16, 2, 2), (12, 3, 10)] {
        let books = Books::new();
        let mut process = Process::new(&books, 1, 100);
        process.busy = busy;
        let rounds = |process: &mut Process<'_>, rounds: u64| {
            for _ in 0..rounds {
                for stream in 0..streams {
                    (0..50).for_each(|_| process.launches_on(9 + stream, 1, length * MICRO));
                }
                process.card.now = process.card.now.max(process.card.done_at) + 250 * MICRO;
            }
        };
        rounds(&mut process, 20);
        let before = [process.asked, process.card.recorded];
        rounds(&mut process, 200);
        let launches = 200 * streams * 50;
        let [asked, recorded] = [process.asked - before[0], process.card.recorded - before[1]];
        println!("{streams} streams, {busy}: {asked} asked and {recorded} markers of {launches} launches");
        assert!(asked * 12 <= launches, "{asked} of {launches} launches on {streams} streams asked");
        assert!(recorded * 12 <= launches, "{recorded} markers of {launches} launches on {streams} streams");
    }
}

/// What a tenant saved for kernels of a second, while another had its turns, is not lost to those of a millisecond between them.
#[test]
fn borrower_of_mixed_kernels_keeps_its_guarantee() {
    let (seed, second) = (0x5eed, 1_000 * MILLI);
    let mut bench = Bench::new(seed);
    let kernels = vec![(1, 64, second), (2, 64, MILLI)];
    let programs = [Program { kernels, streams: 2, ..Program::of(0) }, Program::of(MILLI)];
    let percents = [60, 30];
    for (percent, program) in percents.into_iter().zip(programs) {
        bench.tenant(Some(Ppm::new(percent * 10_000)), &[program]);
    }
    let lending = BorrowPolicy::Burst;
    let terms = percents.map(|percent| aliquot_enforce::share::Terms {
        guaranteed: Ppm::new(percent * 10_000),
        lending,
        priority: 1,
    });
    bench.govern(terms.map(Tenant::new).to_vec());
    bench.run(65 * second);
    let shares = [0, 1].map(|tenant| bench.share(tenant, 5 * second, 65 * second));
    println!("seed {seed:#x}: {shares:?}");
    assert!(shares[0] >= 590_000 && shares[1] >= 290_000, "{shares:?}");
}
