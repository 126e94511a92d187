//! The compute side of a region with words that a hostile tenant writes: two processes that launch, a driver
//! that answers anything, and the host's governor that reads those words.
//!
//! Nothing crashes or hangs; no wait is without a near end; credit stays in its bounds. Whatever tenants
//! publish, the governor grants a cap its guarantee and nothing else, burst at least its guarantee, and no
//! tenant more than the card.

#![no_main]

mod feed;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aliquot_abi::layout::usage;
use aliquot_abi::view::UsageView;
use aliquot_enforce::bucket::{Bucket, CreditBound, DEBT_MAX, SAVED_MAX};
use aliquot_enforce::busy_floor::BusyFloor;
use aliquot_enforce::cells::Cells;
use aliquot_enforce::cost::Shape;
use aliquot_enforce::marks::{Event, Events, Marks, Passed, Recorded};
use aliquot_enforce::pace::{
    Admission, LaunchRequest, Pace, PaceTerms, SharedWords, Verdict, WAIT_MAX, WAIT_STEP, World,
};
use aliquot_enforce::share::{self, BorrowPolicy, MeasuredWindow, Sample, Tenant, step};
use aliquot_enforce::units::{Nanos, Ppm};

use feed::Feed;
use libfuzzer_sys::fuzz_target;

/// Processes of the tenant.
const PROCESSES: usize = 2;
/// Most steps of one run.
const STEPS_MAX: usize = 64;
/// First and last byte of the words of compute.
const WORDS: (usize, usize) = (usage::CREDIT_NANOS, usage::SLOTS);

fuzz_target!(|data: &[u8]| {
    let memory: Vec<AtomicU64> = (0..usage::BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    let base = NonNull::from(memory.as_slice()).cast();
    // SAFETY: the buffer is as long as that and outlives the view.
    let view = unsafe { UsageView::create(base, usage::BYTES) }.expect("aligned and long enough");
    let mut feed = Feed(data);
    let mut run = Run {
        memory: &memory,
        view,
        now: Nanos(1 << 40),
        processes: [const { (Pace::new(), Marks::new()) }; PROCESSES],
        tenants: terms(&mut feed).map(|terms| (terms, Tenant::new(terms))),
    };
    for _ in 0..STEPS_MAX {
        if feed.0.is_empty() {
            break;
        }
        run.step(&mut feed);
    }
});

impl Feed<'_> {
    /// A number: small, a power of two or beside one, or any.
    fn number(&mut self) -> u64 {
        let kind = self.byte();
        match kind % 4 {
            0 => u64::from(kind / 4),
            1 => 1 << (kind / 4),
            2 => (1_u64 << (kind / 4)).wrapping_neg(),
            _ => self.word(),
        }
    }

    fn ppm(&mut self) -> Ppm {
        Ppm::new(u32::from(self.byte()) * 4_000)
    }

    fn terms(&mut self) -> PaceTerms {
        PaceTerms { granted: self.ppm(), own: self.ppm(), guaranteed: self.ppm() }
    }
}

fn terms(feed: &mut Feed<'_>) -> [share::Terms; 3] {
    // Guarantees together are at most the card, as the allocator ensures.
    let mut left = 1_000_000;
    std::array::from_fn(|_| {
        let guaranteed = Ppm::new(feed.ppm().parts().min(left));
        left -= guaranteed.parts();
        let (lending, priority) = (feed.byte(), u32::from(feed.byte() % 3));
        let lending =
            [BorrowPolicy::Cap, BorrowPolicy::Burst, BorrowPolicy::BestEffort][usize::from(lending % 3)];
        share::Terms { guaranteed, lending, priority }
    })
}

/// A driver that answers what the input says.
struct Driver<'a, 'b>(&'a mut Feed<'b>);

impl Events for Driver<'_, '_> {
    fn record(&mut self, _event: Event, _stream: u64) -> Recorded {
        if self.0.byte() % 8 == 0 { Recorded::No } else { Recorded::Yes }
    }

    fn passed(&mut self, _base: Event, _event: Event) -> Passed {
        match self.0.byte() % 8 {
            0 => Passed::Lost,
            1..4 => Passed::NotYet,
            // A float of milliseconds, which is what the driver gives, holds no more than this.
            _ => Passed::After((self.0.number() as i64).clamp(-(1 << 53), 1 << 53)),
        }
    }
}

impl World for Driver<'_, '_> {
    fn wake_agent(&mut self) {}
    fn wake_waiters(&mut self) {}
}

struct Run<'a> {
    memory: &'a [AtomicU64],
    view: UsageView<'a>,
    now: Nanos,
    processes: [(Pace, Marks); PROCESSES],
    tenants: [(share::Terms, Tenant); 3],
}

impl Run<'_> {
    fn step(&mut self, feed: &mut Feed<'_>) {
        match feed.byte() % 8 {
            0 => self.poke(feed),
            1 => self.now = Nanos(self.now.0 + feed.number() % (1 << 44)),
            2..=4 => self.launch(feed),
            5 => self.settle(feed),
            _ => self.govern(feed),
        }
        let credit = self.shared(0).bucket.credit();
        assert!((-DEBT_MAX.signed()..=SAVED_MAX.signed()).contains(&credit), "credit {credit}");
    }

    fn poke(&mut self, feed: &mut Feed<'_>) {
        let place = usize::from(u16::from_le_bytes(feed.bytes()));
        // Half of the pokes go to the first words, the others also into the rings.
        let words = if place & 1 == 0 { 12 } else { (WORDS.1 - WORDS.0) / 8 };
        let at = WORDS.0 / 8 + place / 2 % words;
        let value = match feed.byte() % 3 {
            0 => self.now.0.wrapping_add(feed.number()),
            _ => feed.number(),
        };
        self.memory[at].store(value, Relaxed);
    }

    fn shared(&self, number: usize) -> SharedWords<'_> {
        let view = self.view;
        let slot = view.slot(number).expect("there are more slots");
        SharedWords {
            bucket: Bucket { credit: view.credit_nanos(), refilled_at: view.refilled_at() },
            cells: Cells::new(view.cells()),
            device_nanos: view.device_nanos(),
            process_nanos: slot.device_nanos(),
            interval_nanos: view.interval_nanos(),
            counted_until: view.counted_until(),
            sure: BusyFloor::new(view.sure()),
            sure_nanos: view.sure_nanos(),
            reporter: view.reporter(),
            active_until: view.active_until(),
            limited_until: view.limited_until(),
            demand: view.demand(),
            wake: view.wake(),
            me: u32::try_from(number).unwrap_or(0) + 1,
        }
    }

    fn with<T>(
        &mut self,
        number: usize,
        act: impl FnOnce(&Pace, &mut Marks, &SharedWords<'_>, Nanos) -> T,
    ) -> T {
        let mut marks = std::mem::replace(&mut self.processes[number].1, Marks::new());
        let answer = act(&self.processes[number].0, &mut marks, &self.shared(number), self.now);
        self.processes[number].1 = marks;
        answer
    }

    fn launch(&mut self, feed: &mut Feed<'_>) {
        let (number, what) = (usize::from(feed.byte()) % PROCESSES, feed.byte());
        let blocks = if what & 3 == 3 { u32::MAX } else { u32::from(what) + 1 };
        let shape = Shape::kernel(u64::from(what >> 6) + 1, [blocks, 1, 1], [32, 1, 1]);
        let (stream, terms) = (u64::from(what % 3), feed.terms());
        let (waited, refused) = (feed.byte(), feed.byte() % 16 == 0);
        let waited = if waited > 250 { WAIT_MAX } else { Nanos::from_millis(u64::from(waited)) };
        self.with(number, |pace, marks, shared, now| {
            if let Admission::Go(_) = pace.pass(shape.key, stream) {
                if refused {
                    pace.failed(stream);
                }
                return;
            }
            let ask = LaunchRequest { now, shape: &shape, stream, terms, waited };
            let mut driver = Driver(feed);
            // One time in eight another thread is at the markers.
            let mut marks = Some(marks).filter(|_| what & 0x38 != 0);
            match pace.ask(&ask, shared, marks.as_deref_mut(), &mut driver) {
                Verdict::Go(ticket) if refused => pace.refused(&ticket, shared),
                Verdict::Go(ticket) => pace.launched(now, &ticket, marks, &mut driver),
                Verdict::Wait(until) => {
                    assert!(until > now && until.minus(now) <= WAIT_STEP, "waits {:?}", until.minus(now));
                    assert!(waited < WAIT_MAX, "a launch waits for ever");
                }
            }
        });
    }

    fn settle(&mut self, feed: &mut Feed<'_>) {
        let number = usize::from(feed.byte()) % PROCESSES;
        let terms = feed.terms();
        self.with(number, |pace, marks, shared, now| {
            pace.settle(now, terms, shared, marks, &mut Driver(feed))
        });
    }

    fn govern(&mut self, feed: &mut Feed<'_>) {
        let view = self.view;
        let real = Sample {
            device: Nanos(view.device_nanos().load(Relaxed)),
            interval: Nanos(view.interval_nanos().load(Relaxed)),
            active_until: Nanos(view.active_until().load(Relaxed)),
            limited_until: Nanos(view.limited_until().load(Relaxed)),
            credit: view.credit_nanos().load(Relaxed),
        };
        // The others lie as they like.
        let mut any = || feed.number();
        let lie = Sample {
            device: Nanos(any()),
            interval: Nanos(any()),
            active_until: Nanos(any()),
            limited_until: Nanos(any()),
            credit: any().cast_signed(),
        };
        let samples = [real, lie, Sample { device: lie.interval, ..real }];
        let now = self.now;
        let mut tenants = self.tenants.each_ref().map(|(_, tenant)| tenant.clone());
        step(now, &mut tenants, &samples);
        if feed.byte() % 4 == 0 {
            let mut any = || Nanos(feed.number());
            let window = MeasuredWindow { length: any(), idle: any(), own: any(), doubt: any() };
            tenants[0].measure(window, real);
        }
        let correction = tenants[0].correction();
        for ((terms, held), tenant) in self.tenants.iter_mut().zip(tenants) {
            let (granted, own) = (tenant.granted(), tenant.own().parts());
            match terms.lending {
                BorrowPolicy::Cap => assert_eq!(granted, terms.guaranteed),
                BorrowPolicy::Burst => assert!(granted >= terms.guaranteed),
                BorrowPolicy::BestEffort => {}
            }
            assert!((1..=Ppm::ALL.parts()).contains(&own), "own part {own}");
            *held = tenant;
        }
        self.shared(0).bucket.add(correction, CreditBound::MOST);
    }
}
