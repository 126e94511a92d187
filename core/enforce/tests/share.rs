//! The governor on virtual time: each tenant's grant, and its delay.

#![cfg(not(feature = "shuttle"))]

use aliquot_enforce::share::{BorrowPolicy, MeasuredWindow, Next, Sample, TICK, Tenant, Terms, step};
use aliquot_enforce::units::{Nanos, Ppm};
use proptest::prelude::*;

const MILLI: u64 = 1_000_000;
/// A window of which a tenant had nothing, and the others everything.
const NOTHING: MeasuredWindow = MeasuredWindow {
    length: Nanos::from_millis(166),
    idle: Nanos::ZERO,
    own: Nanos::ZERO,
    doubt: Nanos::ZERO,
};
/// Half a hundredth of the vendor's window.
const HALF: Nanos = Nanos(833_333);

fn tenant(percent: u32, lending: BorrowPolicy, priority: u32) -> Tenant {
    Tenant::new(Terms { guaranteed: Ppm::new(percent * 10_000), lending, priority })
}

/// What a tenant does, from which its usage file follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// Uses so many hundredths of the card and never waits.
    Using(u64),
    /// Uses all it may, and waits for more.
    Waiting,
}

/// Tenants and a clock, stepped as a host would.
struct Card {
    now: u64,
    tenants: Vec<Tenant>,
    samples: Vec<Sample>,
    next: Next,
}

impl Card {
    fn new(tenants: Vec<Tenant>) -> Self {
        let samples = vec![Sample::default(); tenants.len()];
        Self { now: 1_000 * MILLI, tenants, samples, next: Next::Demand }
    }

    /// One tick of all tenants doing so.
    fn tick(&mut self, doing: &[Doing]) {
        self.now += TICK.0;
        for ((sample, tenant), doing) in self.samples.iter_mut().zip(&self.tenants).zip(doing) {
            let until = Nanos(self.now + 1);
            match doing {
                Doing::Nothing => {}
                Doing::Using(percent) => {
                    sample.active_until = until;
                    sample.device = sample.device.plus(Nanos(TICK.0 * percent / 100));
                }
                Doing::Waiting => {
                    (sample.active_until, sample.limited_until) = (until, until);
                    sample.device = sample.device.plus(tenant.granted().times(TICK));
                }
            }
        }
        self.next = step(Nanos(self.now), &mut self.tenants, &self.samples);
    }

    fn run(&mut self, ticks: usize, doing: &[Doing]) {
        for _ in 0..ticks {
            self.tick(doing);
        }
    }

    fn percents(&self) -> Vec<u32> {
        self.tenants.iter().map(|tenant| tenant.granted().parts() / 10_000).collect()
    }
}

use BorrowPolicy::{BestEffort, Burst, Cap};
use Doing::{Nothing, Using, Waiting};

#[test]
fn idle_time_is_borrowed_and_reclaimed_at_the_first_step() {
    let mut card = Card::new(vec![tenant(30, Burst, 1), tenant(60, Burst, 1)]);
    card.tick(&[Waiting, Nothing]);
    assert_eq!(card.percents(), [100, 60]);
    card.run(100, &[Waiting, Nothing]);
    assert_eq!(card.percents(), [100, 60]);
    card.tick(&[Waiting, Waiting]);
    assert_eq!(card.percents(), [33, 66], "the free tenth is borrowed in proportion");
    // It stops: within the time that a tenant counts as active, and a tick, its share is borrowed.
    card.run(2, &[Waiting, Nothing]);
    assert_eq!(card.percents(), [100, 60]);
}

#[test]
fn a_cap_is_granted_its_guarantee_whatever_others_do() {
    let mut card = Card::new(vec![tenant(30, Cap, 0), tenant(20, Burst, 1)]);
    for doing in [[Waiting, Nothing], [Waiting, Waiting], [Using(1), Waiting], [Nothing, Waiting]] {
        card.run(20, &doing);
        assert_eq!(card.percents()[0], 30, "{doing:?}");
    }
}

#[test]
fn unused_time_of_an_active_tenant_is_borrowed_but_a_margin() {
    let mut card = Card::new(vec![tenant(30, Burst, 1), tenant(60, Cap, 1)]);
    card.run(50, &[Waiting, Using(20)]);
    assert_eq!(
        card.percents(),
        [72, 60],
        "20 used, a quarter more and two points stay free, and loans are whole hundredths"
    );
    card.tick(&[Waiting, Waiting]);
    assert_eq!(card.percents(), [40, 60]);
}

#[test]
fn higher_priority_borrows_first_best_effort_only_idle_time() {
    let mut card = Card::new(vec![tenant(20, Burst, 2), tenant(20, Burst, 0), tenant(0, BestEffort, 1)]);
    card.run(3, &[Waiting, Waiting, Waiting]);
    assert_eq!(card.percents(), [20, 80, 0]);
    card.run(50, &[Waiting, Using(30), Waiting]);
    assert_eq!(card.percents(), [20, 39, 41], "what the first does not use goes to the next priority");
    card.run(50, &[Nothing, Nothing, Waiting]);
    assert_eq!(card.percents(), [20, 20, 100]);
}

/// What came to the borrower's credit in so many ticks of this, in microseconds.
fn came(card: &mut Card, ticks: usize, doing: &[Doing]) -> i64 {
    let tick = |_| {
        card.tick(doing);
        card.tenants[0].correction()
    };
    (0..ticks).map(tick).sum::<i64>() / 1_000
}

#[test]
fn borrower_advance_ends_and_returns_with_its_loan() {
    let mut card = Card::new(vec![tenant(30, Burst, 1), tenant(60, Cap, 1)]);
    assert_eq!(came(&mut card, 50, &[Waiting, Nothing]), 0);
    // From all of the card to 40 % of it, where 30 are guaranteed: six sevenths of ten milliseconds.
    assert_eq!(came(&mut card, 1, &[Waiting, Waiting]), -8_571);
    assert_eq!(came(&mut card, 50, &[Waiting, Waiting]), 0);
    assert_eq!(came(&mut card, 50, &[Waiting, Nothing]), 8_571);
    // A loan that rises and falls with what its owner uses costs nothing.
    let used = [20, 25, 15, 30].map(|part| came(&mut card, 60, &[Waiting, Using(part)]));
    assert!(used.iter().all(|came| *came != 0), "{used:?}");
    let back = came(&mut card, 50, &[Waiting, Nothing]);
    assert!((used.iter().sum::<i64>() + back).abs() <= 4, "{used:?} {back}");
    assert_eq!(card.percents(), [100, 60]);
}

#[test]
fn no_more_is_given_up_than_loans_gave() {
    let mut card = Card::new(vec![tenant(30, Burst, 1), tenant(60, Cap, 1)]);
    came(&mut card, 2, &[Waiting, Waiting]);
    for _ in 0..3 {
        // Borrowing starts at the first tick.
        let given = came(&mut card, 3, &[Waiting, Nothing]);
        let back = came(&mut card, 1, &[Waiting, Waiting]);
        assert!(given >= 0 && given + back <= 0 && given + back >= -4_200, "{given} {back} us of 4.2 ms");
    }
    let mut alone = Card::new(vec![tenant(30, Cap, 1), tenant(60, Cap, 1)]);
    assert_eq!(came(&mut alone, 50, &[Waiting, Nothing]) + came(&mut alone, 50, &[Waiting, Waiting]), 0);
    // A tenant that was idle since has earned it again.
    came(&mut card, 20, &[Waiting, Nothing]);
    came(&mut card, 1, &[Waiting, Waiting]);
    assert_eq!(came(&mut card, 20, &[Nothing, Waiting]), 0);
    assert_eq!(came(&mut card, 1, &[Waiting, Nothing]), 0);
}

#[test]
fn governor_rests_while_no_tenant_is_limited() {
    let mut card = Card::new(vec![tenant(30, Burst, 1), tenant(60, Cap, 1)]);
    card.run(100, &[Using(10), Using(30)]);
    assert_eq!(card.next, Next::Demand);
    card.tick(&[Using(10), Waiting]);
    assert_eq!(card.next, Next::Tick(Nanos(card.now + TICK.0)));
    card.run(20, &[Using(10), Using(30)]);
    assert_eq!(card.next, Next::Demand);
    card.run(20, &[Nothing, Nothing]);
    assert_eq!(card.next, Next::Demand);
}

#[test]
fn own_part_is_one_alone_guessed_in_company_else_measured() {
    let mut card = Card::new(vec![tenant(30, Cap, 1), tenant(60, Cap, 1)]);
    card.run(5, &[Waiting, Nothing]);
    assert_eq!(card.tenants[0].own(), Ppm::ALL);
    card.run(5, &[Waiting, Waiting]);
    assert_eq!(card.tenants[0].own(), Ppm::new(500_000));
    let window = MeasuredWindow { own: Nanos(50 * MILLI), doubt: HALF, ..NOTHING };
    for interval in [1_000, 1_150] {
        let sample = Sample { interval: Nanos(interval * MILLI), ..card.samples[0] };
        card.tenants[0].measure(window, sample);
    }
    card.run(1, &[Waiting, Waiting]);
    assert_eq!(card.tenants[0].own(), Ppm::new(333_333));
    card.run(200, &[Waiting, Nothing]);
    assert_eq!(card.tenants[0].own(), Ppm::ALL);
}

/// The first bill may be of time before the vendor's first window: the part is no smaller for it.
#[test]
fn unseen_work_says_nothing_of_the_own_part() {
    let mut card = Card::new(vec![tenant(30, Cap, 1), tenant(60, Cap, 1)]);
    card.run(5, &[Waiting, Waiting]);
    for interval in [0, 0, 300] {
        card.samples[0].interval = card.samples[0].interval.plus(Nanos(interval * MILLI));
        let window = NOTHING;
        card.tenants[0].measure(window, card.samples[0]);
        card.tick(&[Waiting, Waiting]);
        assert_eq!(card.tenants[0].own(), Ppm::new(500_000));
    }
    // Work measured and billed from then on does.
    let window = MeasuredWindow { own: Nanos(60 * MILLI), ..NOTHING };
    card.samples[0].interval = card.samples[0].interval.plus(Nanos(200 * MILLI));
    card.tenants[0].measure(window, card.samples[0]);
    card.tick(&[Waiting, Waiting]);
    assert_eq!(card.tenants[0].own(), Ppm::new(300_000));
}

/// Tenants that wait for credit, and the vendor's windows of the first: `own` of its card time, `billed` and `interval` in its
/// usage file. What came to its credit in each window.
struct Windows {
    card: Card,
    came: Vec<i64>,
    /// The activity of the first tenant, and the idle time of a window, in milliseconds.
    doing: Doing,
    idle: u64,
}

impl Windows {
    fn new() -> Self {
        Self::of(vec![tenant(30, Cap, 1), tenant(60, Cap, 1)])
    }

    fn of(tenants: Vec<Tenant>) -> Self {
        let mut windows = Self { card: Card::new(tenants), came: Vec::new(), doing: Waiting, idle: 0 };
        windows.window(0, 0, 0);
        windows
    }

    /// One window, in milliseconds of each. What comes to its credit is used as far as the card rests, and seen as well.
    fn window(&mut self, own: u64, billed: u64, interval: u64) {
        let (mut came, mut used) = (0, 0);
        for tick in 1..=83 {
            let before = self.card.samples[0].device;
            self.card.tick(&[self.doing, Waiting]);
            let sample = &mut self.card.samples[0];
            sample.device = before;
            let correction = self.card.tenants[0].correction();
            came += correction;
            sample.credit += correction;
            let rests = (self.idle * MILLI * tick / 83).cast_signed() - used;
            let uses = sample.credit.clamp(0, rests);
            sample.credit -= uses;
            used += uses;
        }
        self.came.push(came);
        let (used, sample) = (used.unsigned_abs(), &mut self.card.samples[0]);
        sample.device = sample.device.plus(Nanos(billed * MILLI + used));
        sample.interval = sample.interval.plus(Nanos(interval * MILLI));
        // The vendor reports no time of a tenant that did not run, so there is no rounding error.
        let doubt = if own > 0 { HALF } else { Nanos::ZERO };
        let (own, idle) = (Nanos(own * MILLI + used), Nanos(self.idle * MILLI - used));
        let window = MeasuredWindow { own, doubt, idle, ..NOTHING };
        self.card.tenants[0].measure(window, self.card.samples[0]);
    }

    fn came(&self) -> i64 {
        self.came.iter().sum::<i64>() / MILLI.cast_signed()
    }
}

#[test]
fn vendor_time_beyond_bills_is_reclaimed_whole() {
    for (own, billed) in [(60, 50), (50, 60), (60, 20), (20, 60)] {
        let mut windows = Windows::new();
        (0..20).for_each(|_| windows.window(own, billed, 100));
        (0..20).for_each(|_| windows.window(50, 50, 100));
        let wanted = 20 * (billed.cast_signed() - own.cast_signed());
        // A quarter of a hundredth of each window is left out as the vendor's rounding.
        let left = (windows.came() - wanted).abs();
        assert!(
            left <= 12,
            "{own} seen, {billed} billed: {} of {wanted} ms, {:?}",
            windows.came(),
            windows.came
        );
    }
}

/// Ten windows in which a tenant of 30 % had 20 ms of 166, then as many in which 60 ms rest beside its 50: what it got in either.
fn made_up_for(doing: Doing, interval: u64, idle: u64) -> [i64; 2] {
    let mut windows = Windows { doing, idle, ..Windows::new() };
    // Longer than one that waited before is taken to want more.
    (0..30).for_each(|_| windows.window(50, 50, 50));
    let first = windows.came();
    (0..10).for_each(|_| windows.window(20, 20, interval));
    let before = windows.came();
    (windows.doing, windows.idle) = (Waiting, 60);
    (0..10).for_each(|_| windows.window(50, 50, 100));
    [before - first, windows.came() - before]
}

#[test]
fn time_taken_by_long_work_is_compensated_from_idle_time() {
    let [before, after] = made_up_for(Waiting, 160, 0);
    assert_eq!(before, 0, "nothing rested");
    assert!((230..=350).contains(&after), "{after} of 298 ms");
    let none = [
        ("the card rested meanwhile", made_up_for(Waiting, 160, 40)),
        ("no other tenant used the card", made_up_for(Waiting, 160, 146)),
        ("nothing of it was on the card", made_up_for(Waiting, 20, 0)),
        ("it never waited for more", made_up_for(Using(12), 160, 0)),
    ];
    for (why, [before, after]) in none {
        assert!(before.abs() + after.abs() <= 10, "{why}: {before} and {after} ms");
    }
}

/// The debt to a tenant is bounded, however long it grows.
#[test]
fn no_more_than_a_second_is_owed() {
    let mut windows = Windows::new();
    (0..1_000).for_each(|_| windows.window(20, 20, 160));
    windows.idle = 100;
    (0..30).for_each(|_| windows.window(50, 50, 100));
    let came = windows.came();
    assert!((700..=1_200).contains(&came), "{came} ms of a second");
    (0..20).for_each(|_| windows.window(150, 150, 160));
    let before = windows.came();
    (0..5).for_each(|_| windows.window(50, 50, 100));
    assert_eq!(windows.came(), before, "what it had beyond its guarantee is taken off");
}

#[test]
fn work_in_flight_is_no_debt_and_never_billed_work_is() {
    let mut windows = Windows::new();
    for round in 0..6 {
        let before = windows.came.len();
        (0..9).for_each(|_| windows.window(100, 0, 0));
        windows.window(100, 1_000, 1_600);
        (0..8).for_each(|_| windows.window(0, 0, 0));
        let came = &windows.came[before..];
        // At first nothing says how long its work takes.
        assert!(round == 0 || came.iter().all(|came| came.abs() <= 10 * MILLI.cast_signed()), "{came:?}");
    }
    let mut never = Windows::new();
    (0..30).for_each(|_| never.window(100, 0, 0));
    assert!(never.came() <= -2_500, "{} ms of 3000, {:?}", never.came(), never.came);
}

#[test]
fn lone_cap_pays_for_unbilled_work_and_gains_nothing() {
    // Own, billed, and what comes to its credit in twenty windows: half a hundredth of each is the vendor's rounding.
    for (own, billed, wanted) in [(60, 20, -784), (20, 20, 0), (17, 16, -3), (20, 60, 0), (0, 20, 0)] {
        let mut windows = Windows::of(vec![tenant(30, Cap, 1)]);
        (0..20).for_each(|_| windows.window(own, billed, 100));
        (0..60).for_each(|_| windows.window(0, 0, 0));
        let off = (windows.came() - wanted).abs();
        assert!(
            off <= 2,
            "{own} seen, {billed} billed: {} of {wanted} ms, {:?}",
            windows.came(),
            windows.came
        );
        assert!(windows.came.iter().all(|came| *came <= 0), "{:?}", windows.came);
    }
}

#[test]
fn lone_advance_for_work_in_flight_returns_with_its_bill() {
    let mut windows = Windows::of(vec![tenant(30, Cap, 1)]);
    // Nothing says yet how long its work takes.
    (0..9).for_each(|_| windows.window(100, 0, 0));
    assert!(windows.came() <= -200, "{} ms", windows.came());
    windows.window(100, 1_000, 1_000);
    (0..60).for_each(|_| windows.window(0, 0, 0));
    assert!((-10..=0).contains(&windows.came()), "{} ms, {:?}", windows.came(), windows.came);
}

#[test]
fn lone_debt_is_bounded_and_a_borrower_owes_nothing() {
    let mut never = Windows::of(vec![tenant(30, Cap, 1)]);
    (0..600).for_each(|_| never.window(160, 0, 0));
    assert!((-10_200..=-9_800).contains(&never.came()), "{} ms", never.came());
    // As its credit comes back, the rest of what it owes follows.
    never.card.samples[0].credit = 0;
    (0..40).for_each(|_| never.window(0, 0, 0));
    assert!((-20_200..=-19_000).contains(&never.came()), "{} ms", never.came());
    for lending in [Burst, BestEffort] {
        let mut windows = Windows::of(vec![tenant(30, lending, 1)]);
        (0..40).for_each(|_| windows.window(160, 0, 0));
        assert_eq!(windows.came(), 0, "{lending:?}");
    }
}

/// Kernels that leave the card rest tell their part as well, after some windows.
#[test]
fn the_own_part_of_seldom_kernels_is_measured() {
    let mut windows = Windows::new();
    (0..30).for_each(|_| windows.window(10, 10, 13));
    let own = windows.card.tenants[0].own().parts();
    assert!(own.abs_diff(769_230) <= 1_000, "{own} ppm");
}

#[test]
fn own_part_of_kernels_beyond_the_window_covers_their_length() {
    let mut windows = Windows::new();
    for _ in 0..8 {
        (0..17).for_each(|_| windows.window(55, 0, 0));
        windows.window(65, 1_000, 3_000);
    }
    let own = windows.card.tenants[0].own().parts();
    assert!(own.abs_diff(333_333) <= 10_000, "{own} ppm");
}

fn any_terms() -> impl Strategy<Value = (u32, BorrowPolicy, u32)> {
    (0_u32..=100, prop_oneof![Just(Cap), Just(Burst), Just(BestEffort)], 0_u32..4)
}

fn any_doing() -> impl Strategy<Value = Doing> {
    prop_oneof![Just(Nothing), (0_u64..=100).prop_map(Using), Just(Waiting)]
}

fn check(card: &Card, terms: &[(u32, BorrowPolicy, u32)]) -> Result<(), TestCaseError> {
    for (tenant, (percent, lending, _)) in card.tenants.iter().zip(terms) {
        let guaranteed = if *lending == BestEffort { 0 } else { percent * 10_000 };
        match lending {
            Cap => prop_assert_eq!(tenant.granted(), Ppm::new(guaranteed)),
            Burst | BestEffort => prop_assert!(tenant.granted() >= Ppm::new(guaranteed)),
        }
        prop_assert!(tenant.own() > Ppm::ZERO);
        prop_assert!(tenant.correction().abs() <= 5_000 * 1_000_000);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn guarantees_hold_and_loans_fit(
        terms in proptest::collection::vec(any_terms(), 1..8),
        rounds in proptest::collection::vec((proptest::collection::vec(any_doing(), 8), 1_usize..20), 1..12),
    ) {
        let mut free = 100;
        let terms: Vec<_> = terms.into_iter().map(|(percent, lending, priority)| {
            let percent = percent.min(free);
            free -= if lending == BestEffort { 0 } else { percent };
            (percent, lending, priority)
        }).collect();
        let tenants = terms.iter().map(|(percent, lending, priority)| tenant(*percent, *lending, *priority));
        let mut card = Card::new(tenants.collect());
        for (doing, ticks) in rounds {
            for _ in 0..ticks {
                card.tick(&doing);
                check(&card, &terms)?;
                let waiting = card.tenants.iter().zip(&doing).filter(|(_, doing)| **doing == Waiting);
                let granted: u32 = waiting.map(|(tenant, _)| tenant.granted().parts()).sum();
                prop_assert!(granted <= 1_000_000, "{granted} granted to waiting tenants");
            }
        }
    }

    /// A tenant writes its usage file itself: nothing there may break the governor or another tenant's guarantee.
    #[test]
    fn hostile_samples_move_no_guarantee(
        terms in proptest::collection::vec(any_terms(), 1..8),
        rounds in proptest::collection::vec(proptest::collection::vec(any::<[u64; 4]>(), 8), 1..20),
        start: u64,
    ) {
        let tenants = terms.iter().map(|(percent, lending, priority)| tenant(*percent, *lending, *priority));
        let mut card = Card::new(tenants.collect());
        card.now = start;
        for words in rounds {
            for (sample, [device, interval, active, limited]) in card.samples.iter_mut().zip(words) {
                *sample = Sample {
                    device: Nanos(device), interval: Nanos(interval),
                    active_until: Nanos(active), limited_until: Nanos(limited), credit: device.cast_signed(),
                };
                let (length, idle) = (Nanos(interval), Nanos(active));
                let window = MeasuredWindow { length, idle, own: Nanos(device), doubt: Nanos(limited) };
                let sample = *sample;
                card.tenants[0].measure(window, sample);
            }
            card.now = card.now.saturating_add(TICK.0);
            card.next = step(Nanos(card.now), &mut card.tenants, &card.samples);
            check(&card, &terms)?;
        }
    }
}
