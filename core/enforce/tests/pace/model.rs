//! A card on virtual time, and programs that launch on it through the controller as the shim does.
//!
//! ```text
//!   program ─launch─▶ Pace ──Go──▶ submit ─▶ schedule (turns among processes) ─▶ run times ─▶ shares in windows
//!                      ▲ Wait: virtual clock moves on, late by a jitter
//!                      └── events: reached when the card's done work passes them, told as 32-bit floats of milliseconds
//! ```
//!
//! The controller sees what the shim sees: a clock, events, shared words. Lengths of kernels are known to the card alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use aliquot_enforce::bucket::Bucket;
use aliquot_enforce::busy_floor::BusyFloor;
use aliquot_enforce::cells::Cells;
use aliquot_enforce::cost::Shape;
use aliquot_enforce::marks::{EVENTS, Event, Events, Marks, Passed, Recorded};
use aliquot_enforce::pace::{Admission, LaunchRequest, Pace, PaceTerms, SharedWords, Verdict, World};
use aliquot_enforce::rounding::Rounding;
use aliquot_enforce::share::{MeasuredWindow, Next, Sample, Tenant, step};
use aliquot_enforce::units::{Nanos, Ppm};
use aliquot_sim_device::schedule::{self, Turn, Work};

pub(crate) const MICRO: u64 = 1_000;
pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// A turn of a process, as the simulated card has it.
const SLICE: u64 = 2 * MILLI;
/// What a launch costs its program.
const LAUNCH: u64 = 3 * MICRO;
/// What a marker costs.
const RECORD: u64 = MICRO;
/// The vendor's utilisation window.
const WINDOW: u64 = 166_666_667;

/// A small generator with a printed seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// What a program launches, over and over.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Function, blocks, length; launched in turn. What has no blocks is a graph.
    pub(crate) kernels: Vec<(u64, u32, u64)>,
    /// Streams used in turn.
    pub(crate) streams: u64,
    /// Launches outstanding before it waits for the oldest.
    pub(crate) depth: usize,
    /// Host time between two launches, at most; random.
    pub(crate) pause: u64,
    /// When it begins, and when it ends.
    pub(crate) from: u64,
    pub(crate) till: u64,
    /// How long it works and rests in turns; `None`: it never rests.
    pub(crate) turns: Option<(u64, u64)>,
    /// The driver refuses the last of so many launches; 0: none.
    pub(crate) refused: u64,
}

impl Program {
    pub(crate) fn of(length: u64) -> Self {
        let kernels = vec![(1, 64, length)];
        Self { kernels, streams: 1, depth: 1024, pause: 0, from: 0, till: u64::MAX, turns: None, refused: 0 }
    }

    fn launch(&self, number: u64) -> (Shape, u64) {
        match self.kernels[number as usize % self.kernels.len()] {
            (graph, 0, length) => (Shape::graph(graph), length),
            (function, blocks, length) => (Shape::kernel(function, [blocks, 1, 1], [256, 1, 1]), length),
        }
    }

    /// When it works again, where it rests now.
    fn rests_until(&self, now: u64) -> Option<u64> {
        let (works, rests) = self.turns?;
        let begun = now - now.saturating_sub(self.from) % (works + rests);
        (now >= begun + works).then_some(begun + works + rests)
    }
}

/// The words of one tenant's region.
pub(crate) struct Region {
    pub(crate) credit: AtomicI64,
    pub(crate) refilled_at: AtomicU64,
    pub(crate) words: [AtomicU64; 6],
    pub(crate) steps: Vec<AtomicU64>,
    pub(crate) sure: AtomicI64,
    pub(crate) demand: AtomicU32,
    pub(crate) wake: AtomicU32,
    pub(crate) cells: Vec<AtomicU32>,
    pub(crate) guaranteed: Ppm,
    pub(crate) granted: u32,
    pub(crate) own: u32,
}

impl Region {
    fn new(granted: Ppm) -> Self {
        Self {
            credit: AtomicI64::new(0),
            refilled_at: AtomicU64::new(0),
            words: Default::default(),
            sure: AtomicI64::new(0),
            steps: (0..128).map(|_| AtomicU64::new(0)).collect(),
            demand: AtomicU32::new(0),
            wake: AtomicU32::new(0),
            cells: (0..512).map(|_| AtomicU32::new(0)).collect(),
            guaranteed: granted,
            granted: granted.parts(),
            own: 1_000_000,
        }
    }

    fn shared<'a>(&'a self, process_nanos: &'a AtomicU64, me: u32) -> SharedWords<'a> {
        let [device, interval, counted, reporter, active, limited] = &self.words;
        SharedWords {
            bucket: Bucket { credit: &self.credit, refilled_at: &self.refilled_at },
            cells: Cells::new(&self.cells),
            device_nanos: device,
            process_nanos,
            interval_nanos: interval,
            counted_until: counted,
            sure: BusyFloor::new(&self.steps),
            sure_nanos: &self.sure,
            reporter,
            active_until: active,
            limited_until: limited,
            demand: &self.demand,
            wake: &self.wake,
            me,
        }
    }

    fn sample(&self) -> Sample {
        let word = |at: usize| Nanos(self.words[at].load(Ordering::Relaxed));
        Sample {
            device: word(0),
            interval: word(1),
            active_until: word(4),
            limited_until: word(5),
            credit: self.credit.load(Ordering::Relaxed),
        }
    }
}

/// A stretch that a seat ran.
#[derive(Clone, Copy)]
pub(crate) struct Ran {
    pub(crate) start: u64,
    pub(crate) end: u64,
    done_before: u64,
}

pub(crate) struct Device {
    turn: Turn,
    works: Vec<Work>,
    pub(crate) ran: Vec<Vec<Ran>>,
}

impl Device {
    fn play(&mut self, until: u64) {
        while let Some(run) = schedule::step(&mut self.turn, &mut self.works, SLICE, until) {
            let ran = &mut self.ran[run.seat];
            match ran.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => ran.push(Ran { start: run.start, end: run.end, done_before: run.done_before }),
            }
        }
    }

    fn reached(&self, seat: usize, mark: u64) -> Option<u64> {
        if self.works[seat].done < mark {
            return None;
        }
        let ran = &self.ran[seat];
        let at = ran.partition_point(|ran| ran.done_before < mark);
        Some(at.checked_sub(1).map_or(0, |at| ran[at].start + (mark - ran[at].done_before)))
    }
}

struct Process {
    tenant: usize,
    program: Program,
    limited: bool,
    pace: Box<Pace>,
    marks: Marks,
    events: [(u64, u64); EVENTS],
    nanos: AtomicU64,
    ready_at: u64,
    waiting_since: Option<u64>,
    launched: u64,
    outstanding: VecDeque<u64>,
}

struct Driver<'a> {
    now: u64,
    seat: usize,
    device: &'a mut Device,
    events: &'a mut [(u64, u64); EVENTS],
    agent: bool,
    waiters: bool,
}

impl Events for Driver<'_> {
    fn record(&mut self, event: Event, _stream: u64) -> Recorded {
        self.device.play(self.now);
        self.events[event.0] = (self.device.works[self.seat].submitted, self.now);
        self.now += RECORD;
        Recorded::Yes
    }

    fn passed(&mut self, base: Event, event: Event) -> Passed {
        self.device.play(self.now);
        let at =
            |(mark, recorded): (u64, u64)| self.device.reached(self.seat, mark).map(|at| at.max(recorded));
        match (at(self.events[base.0]), at(self.events[event.0])) {
            (Some(base), Some(event)) => {
                // As the driver tells it: milliseconds in a 32-bit float.
                let millis = (event as f64 - base as f64) as f32 / 1e6;
                Passed::After((f64::from(millis) * 1e6) as i64)
            }
            _ => Passed::NotYet,
        }
    }
}

impl World for Driver<'_> {
    fn wake_agent(&mut self) {
        self.agent = true;
    }

    fn wake_waiters(&mut self) {
        self.waiters = true;
    }
}

/// Tenants, their processes, one card, and perhaps a governor.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) regions: Vec<Region>,
    governed: Vec<Tenant>,
    rounding: Rounding,
    governor_at: u64,
    measured_at: u64,
    processes: Vec<Process>,
    random: Random,
    pub(crate) now: u64,
    /// Largest lateness of a wake-up.
    pub(crate) jitter: u64,
    pub(crate) waits: u64,
    pub(crate) steps: u64,
    pub(crate) granted_log: Vec<(u64, Vec<u32>)>,
}

impl Bench {
    pub(crate) fn new(seed: u64) -> Self {
        let turn = Turn { at: 0, slice_end: 0, current: 0 };
        Self {
            device: Device { turn, works: Vec::new(), ran: Vec::new() },
            regions: Vec::new(),
            governed: Vec::new(),
            rounding: Rounding::new(),
            governor_at: u64::MAX,
            measured_at: WINDOW,
            processes: Vec::new(),
            random: Random(seed),
            // A machine that has been up for a while.
            now: 0,
            jitter: 200 * MICRO,
            waits: 0,
            steps: 0,
            granted_log: Vec::new(),
        }
    }

    /// A tenant with its programs; `None` runs them without the controller.
    pub(crate) fn tenant(&mut self, granted: Option<Ppm>, programs: &[Program]) -> usize {
        let tenant = self.regions.len();
        self.regions.push(Region::new(granted.unwrap_or(Ppm::ALL)));
        self.begin(tenant, granted.is_some(), programs);
        tenant
    }

    /// Programs of a tenant that run without the controller.
    pub(crate) fn outside(&mut self, tenant: usize, programs: &[Program]) {
        self.begin(tenant, false, programs);
    }

    fn begin(&mut self, tenant: usize, limited: bool, programs: &[Program]) {
        for program in programs {
            self.device.works.push(Work::default());
            self.device.ran.push(Vec::new());
            self.processes.push(Process {
                tenant,
                program: program.clone(),
                limited,
                pace: Box::new(Pace::new()),
                marks: Marks::new(),
                events: [(0, 0); EVENTS],
                nanos: AtomicU64::new(0),
                ready_at: program.from + self.random.below(50 * MICRO),
                waiting_since: None,
                launched: 0,
                outstanding: VecDeque::new(),
            });
        }
    }

    pub(crate) fn govern(&mut self, tenants: Vec<Tenant>) {
        self.governed = tenants;
        self.governor_at = 0;
    }

    /// Runs everything up to a moment.
    pub(crate) fn run(&mut self, until: u64) {
        loop {
            let next = (0..self.processes.len()).min_by_key(|at| self.processes[*at].ready_at);
            let process_at = next.map_or(u64::MAX, |at| self.processes[at].ready_at);
            let at = process_at.min(self.governor_at).min(self.measured_at);
            if at >= until {
                break;
            }
            self.now = self.now.max(at);
            self.steps += 1;
            if at == self.measured_at {
                self.measure();
            } else if at == self.governor_at {
                self.govern_step();
            } else if let Some(next) = next {
                self.step(next);
            }
        }
        self.now = until;
        self.device.play(until);
    }

    fn govern_step(&mut self) {
        let samples: Vec<_> = self.regions.iter().map(Region::sample).collect();
        let next = step(Nanos(self.now), &mut self.governed, &samples);
        self.governor_at = match next {
            Next::Tick(at) => at.0 + self.random.below(self.jitter),
            Next::Demand => u64::MAX,
        };
        for at in 0..self.governed.len() {
            let tenant = self.governed[at];
            let region = &mut self.regions[at];
            region.credit.fetch_add(tenant.correction(), Ordering::Relaxed);
            if (region.granted, region.own) != (tenant.granted().parts(), tenant.own().parts()) {
                (region.granted, region.own) = (tenant.granted().parts(), tenant.own().parts());
                self.wake(at);
            }
        }
        self.granted_log.push((self.now, self.regions.iter().map(|region| region.granted).collect()));
    }

    /// The vendor's window: whole hundredths for the card and for each process, rounded up.
    fn measure(&mut self) {
        self.measured_at += WINDOW;
        self.device.play(self.now);
        if self.governed.is_empty() {
            return;
        }
        let hundredths = |busy: u64| u32::try_from((busy * 100).div_ceil(WINDOW)).unwrap_or(u32::MAX);
        let busy: Vec<u64> =
            self.device.ran.iter().map(|ran| busy(ran, self.now - WINDOW, self.now)).collect();
        let told: Vec<u32> = busy.iter().map(|busy| hundredths(*busy)).collect();
        let card = hundredths(busy.iter().sum());
        self.rounding.learn(card, told.iter().copied());
        let (length, idle) = (Nanos(WINDOW), Rounding::idle(card, Nanos(WINDOW)));
        for at in 0..self.governed.len() {
            let mut window = MeasuredWindow { length, idle, own: Nanos::ZERO, doubt: Nanos::ZERO };
            for (_, percent) in self.processes.iter().zip(&told).filter(|(process, _)| process.tenant == at) {
                window.own = window.own.plus(self.rounding.time(*percent, length));
                window.doubt = window.doubt.plus(self.rounding.doubt(*percent, length));
            }
            self.governed[at].measure(window, self.regions[at].sample());
        }
    }

    fn wake(&mut self, tenant: usize) {
        for process in &mut self.processes {
            if process.tenant == tenant && process.waiting_since.is_some() {
                let woken = self.now + 30 * MICRO + self.random.below(self.jitter / 2);
                process.ready_at = process.ready_at.min(woken);
            }
        }
    }

    fn step(&mut self, seat: usize) {
        let now = self.now;
        self.device.play(now);
        let process = &mut self.processes[seat];
        if now >= process.program.till {
            process.ready_at = u64::MAX;
            return;
        }
        if let Some(again) = process.program.rests_until(now) {
            (process.ready_at, process.waiting_since) = (again, None);
            return;
        }
        while process.outstanding.front().is_some_and(|mark| self.device.works[seat].done >= *mark) {
            process.outstanding.pop_front();
        }
        if process.outstanding.len() >= process.program.depth {
            let mark = process.outstanding[0];
            let at = schedule::finish(self.device.turn, &self.device.works, SLICE, seat, mark, u64::MAX);
            process.ready_at = at.max(now + MICRO) + self.random.below(10 * MICRO);
            return;
        }
        let (shape, length) = process.program.launch(process.launched);
        let stream = process.launched % process.program.streams;
        let region = &self.regions[process.tenant];
        let shared = region.shared(&process.nanos, seat as u32 + 1);
        let (guaranteed, granted) = (region.guaranteed, Ppm::new(region.granted));
        let terms = PaceTerms { guaranteed, granted, own: Ppm::new(region.own) };
        let events = &mut process.events;
        let mut driver = Driver { now, seat, device: &mut self.device, events, agent: false, waiters: false };
        let mut ticket = None;
        if process.limited && process.pace.pass(shape.key, stream) == Admission::Ask {
            let waited = Nanos(process.waiting_since.map_or(0, |since| now - since));
            let ask = LaunchRequest { now: Nanos(now), shape: &shape, stream, terms, waited };
            match process.pace.ask(&ask, &shared, Some(&mut process.marks), &mut driver) {
                Verdict::Go(go) => ticket = Some(go),
                Verdict::Wait(until) => {
                    assert!(until.0 > now && until.0 <= now + 2 * SECOND, "waits from {now} to {until:?}");
                    process.waiting_since.get_or_insert(now);
                    // Timers fire late: by 50 µs as a rule, by more now and then.
                    let late = if self.random.below(100) == 0 { self.jitter * 10 } else { self.jitter };
                    process.ready_at = until.0 + 50 * MICRO + self.random.below(late);
                    self.waits += 1;
                }
            }
        }
        if process.ready_at <= now {
            process.waiting_since = None;
            driver.device.play(driver.now);
            process.launched += 1;
            driver.now += LAUNCH;
            let is_refused = process.launched.checked_rem(process.program.refused) == Some(0);
            let work = &mut driver.device.works[seat];
            work.submitted += if is_refused { 0 } else { length };
            process.outstanding.push_back(work.submitted);
            match ticket {
                Some(ticket) if is_refused => process.pace.refused(&ticket, &shared),
                None if is_refused => process.pace.failed(stream),
                Some(ticket) => {
                    process.pace.launched(Nanos(driver.now), &ticket, Some(&mut process.marks), &mut driver);
                }
                None => {}
            }
            process.ready_at = driver.now + self.random.below(process.program.pause);
        }
        let (tenant, agent, waiters) = (process.tenant, driver.agent, driver.waiters);
        if agent && !self.governed.is_empty() {
            self.governor_at = self.governor_at.min(now + 60 * MICRO);
        }
        if waiters {
            self.wake(tenant);
        }
    }

    /// Work of a process that waits on the card.
    pub(crate) fn queue(&self, seat: usize) -> u64 {
        self.device.works[seat].submitted - self.device.works[seat].done
    }

    /// Share of a tenant between two moments, in parts per million.
    pub(crate) fn share(&self, tenant: usize, from: u64, till: u64) -> u64 {
        let seats = self.processes.iter().enumerate().filter(|(_, process)| process.tenant == tenant);
        let sum: u64 = seats.map(|(seat, _)| busy(&self.device.ran[seat], from, till)).sum();
        sum * 1_000_000 / (till - from)
    }
}

/// By how much a tenant with these stretches of the card was behind its rate at worst, in parts per million of the card, from
/// one moment to another.
pub(crate) fn behind(ran: &[Ran], from: u64, till: u64, rate: u64) -> u64 {
    let ends = ran.iter().filter(|ran| ran.end > from && ran.start < till).map(|ran| ran.start.max(from));
    let late = |at: u64| (at - from).saturating_sub(busy(ran, from, at) * 1_000_000 / rate);
    ends.chain([till]).map(late).max().unwrap_or(0)
}

fn busy(ran: &[Ran], from: u64, till: u64) -> u64 {
    let first = ran.partition_point(|ran| ran.end <= from);
    let inside = ran[first..].iter().take_while(|ran| ran.start < till);
    inside.map(|ran| ran.end.min(till) - ran.start.max(from)).sum()
}
