//! The governor: grants each tenant its share of one card, tick by tick. Runs on the host, one for each card.
//!
//! # Glossary
//!
//! | word | meaning | unit |
//! |---|---|---|
//! | tenant | the processes of one grant | |
//! | guaranteed | share of the card's time that the tenant gets on demand | ppm |
//! | granted | share that it may use now; its launches are metered by it | ppm |
//! | borrowed | granted beyond guaranteed, from others' idle time | ppm |
//! | active | has work on the card, or is about to | |
//! | limited | active, and a launch waits because the granted share is used up | |
//! | reserve | share that others may not borrow while the tenant is active | ppm |
//! | own part | of the time in which the tenant had work on the card, the part in which the card worked for it | ppm |
//! | unbilled | card time in the vendor's windows but not in the tenant's bills: corrected through its credit | ns |
//! | alone | no other tenant was active for two of the vendor's windows | |
//! | owed | card time below the guarantee that went to others' long work, repaid from idle time (module `owed`) | ns |
//! | tick | [`TICK`], while any tenant is limited or borrows; otherwise no step until a demand word changes | ns |
//!
//! ```text
//!   usage files ──Sample──▶ ┌──────────────────────────────────────┐ ──granted, own──▶ limits files
//!   vendor      ─Measured─▶ │ reserve → idle → borrow by priority  │
//!                           └──────────────────────────────────────┘ ──Next──▶ wait for the tick, or for a demand word
//! ```
//!
//! The reserve of a limited tenant is its whole guarantee; of another active tenant its recent use and a quarter more. The rest is
//! divided among tenants that may borrow, best priority first, in proportion to their guarantees.
//!
//! Beside other tenants a program cannot tell its own turns from theirs, but the vendor can. So the governor compares the vendor's
//! time with the bills, window by window, and corrects the difference through the tenant's credit. Over seconds a tenant gets its
//! grant by the vendor's measurement, whatever its bills say. A bill comes when work is done, windows after the vendor first counts
//! it; until then no difference is known.
//!
//! Alone, a tenant's bills are exact, but work may bypass the shim. So a cap is corrected there as well, only downwards: it pays
//! for vendor time beyond its bills and beyond all rounding. It gets back at most that payment, so bills of work that the vendor
//! does not count, such as copies, stand. A tenant that may borrow is not corrected while it is alone.
//!
//! When borrowed time is withdrawn, so is the lead that it gave (module `loan`).
//!
//! Credit also repays the time that a tenant lost to others' long work, if the card idles afterwards.
//!
//! Invariants after each step, if the sum of guarantees is at most the card: a cap is granted exactly its guarantee; burst is
//! granted at least its guarantee; reserves and borrowed time together are at most the card; an idle tenant borrows nothing.

use crate::ablation::Heuristic;
use crate::borrowed_time::BorrowedTime;
use crate::owed::{OwedTime, VendorWindow};
use crate::units::{Nanos, Ppm};

/// Time between two steps while any tenant is limited or borrows. Withdrawing borrowed time takes at most two steps; 500 steps a
/// second of a few microseconds each are a negligible load for the host.
pub const TICK: Nanos = Nanos::from_millis(2);

/// How long a tenant still counts as limited: borrowed time makes it unlimited, and would otherwise be withdrawn at once.
const LIMITED_FOR: Nanos = Nanos::from_millis(16);
/// How long a tenant counts as active after its last signal: programs pause between two launches.
const ACTIVE_FOR: Nanos = Nanos::from_millis(2);
/// How long a tenant that was limited is presumed to want more: others' kernels of seconds may be in between.
const WANTS_FOR: Nanos = Nanos::from_millis(4_000);
/// Without other tenants for this long, a tenant is alone on the card. Two of the vendor's utilisation windows.
const ALONE_AFTER: Nanos = Nanos::from_millis(334);
/// Kept free above what an active tenant uses.
const HEADROOM: Ppm = Ppm::new(20_000);
/// Weight of a tenant without guarantee when idle time is divided.
const BEST_EFFORT_WEIGHT: u64 = 10_000;
/// Borrowed time is granted in whole percents, so that small changes of use do not rewrite the limits.
const GRAIN: u32 = 10_000;
/// Shorter intervals do not determine the own part: the vendor measures in whole percents of its window.
const INTERVAL_MIN: Nanos = Nanos::from_millis(40);
/// Intervals of rare work determine it together, once their sum is this long.
const INTERVALS_MIN: Nanos = Nanos::from_millis(160);

/// The vendor's utilisation window: a sixth of a second.
const WINDOW: Nanos = Nanos(166_666_667);
/// Divisor of the billing error that is corrected in one window.
const CORRECT_IN: i64 = 2;
/// The same for a tenant alone: no other tenant waits for its excess, and normal work often looks like an excess for a moment.
const CORRECT_ALONE_IN: i64 = 8;
/// Lasting error of the vendor's whole percents in a window: a quarter of one.
const ROUNDING: i64 = 400_000;
/// Most that is kept for correction: some kernels of seconds.
const UNBILLED_MAX: Nanos = Nanos::from_millis(10_000);
/// Greatest lead of the bills of a tenant alone over the vendor's time: the vendor reports at least once a second.
const AHEAD_MAX: Nanos = Nanos::from_millis(1_000);
/// Windows with work and without a bill, beyond twice the usual gap between bills, after which the work counts as bypassing the
/// shim.
const QUIET: u32 = 3;
/// Most windows between bills that count: kernels of ten seconds.
const GAP_MAX: u32 = 60;
/// Greatest work interval in one window: sixteen processes that end kernels of twenty seconds.
const INTERVAL_MAX: Nanos = Nanos::from_millis(320_000);

/// Whether a tenant may use others' idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BorrowPolicy {
    /// Never more than the guarantee.
    Cap,
    /// The guarantee, and more while others are idle.
    Burst,
    /// No guarantee: idle time alone.
    BestEffort,
}

/// A tenant's guarantee and its borrowing rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Guaranteed share; without meaning under [`BorrowPolicy::BestEffort`].
    pub guaranteed: Ppm,
    /// Whether it may borrow.
    pub lending: BorrowPolicy,
    /// Smaller borrows first.
    pub priority: u32,
}

/// A tenant's usage file, read at the step. Any value is accepted: the tenant writes them, and they affect only how idle time
/// is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// `device_nanos`: card time used since the file was made.
    pub device: Nanos,
    /// `interval_nanos`: time in which it had work on the card.
    pub interval: Nanos,
    /// `active_until`, on the monotonic clock.
    pub active_until: Nanos,
    /// `limited_until`, on the monotonic clock.
    pub limited_until: Nanos,
    /// `credit_nanos`: device time that it may use at once; negative is debt.
    pub credit: i64,
}

/// Card time in one of the vendor's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredWindow {
    /// How long the window was.
    pub length: Nanos,
    /// Idle time of the card; zero if the vendor does not report it.
    pub idle: Nanos,
    /// Card time of this tenant's processes.
    pub own: Nanos,
    /// Greatest error of `own`, as the vendor reports each process's time in whole percents.
    pub doubt: Nanos,
}

/// When the next step is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At this time.
    Tick(Nanos),
    /// Once the demand word of any tenant changes: no tenant is limited or borrows.
    Demand,
}

/// One tenant of the card, as the governor knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Guarantee and borrowing rules. They may be changed between two steps.
    pub terms: Terms,
    granted: Ppm,
    own: Ppm,
    /// Share used lately.
    used: Ppm,
    /// Of the last step.
    seen: Option<UsageReading>,
    active_at: Option<Nanos>,
    limited_at: Option<Nanos>,
    /// When another tenant was last active.
    company_at: Option<Nanos>,
    /// `device` and `interval` at the last of the vendor's windows.
    measured: Option<(Nanos, Nanos)>,
    worked: WorkHistory,
    /// The own part by the vendor's windows.
    part: Option<Ppm>,
    /// Vendor time beyond the bills, in nanoseconds, without corrections already made.
    unbilled: i64,
    /// Correction that is to come within the present window, in nanoseconds.
    due: i64,
    /// Net downward correction since it is alone, in nanoseconds.
    taken: i64,
    owed: OwedTime,
    loan: BorrowedTime,
    /// Windows with work since the last bill.
    quiet: u32,
    /// Greatest recent number of windows between bills.
    gap: u32,
    correction: i64,
}

/// Recent time with work, and card time in it; both decay. Intervals come with bills, some windows after the card time; the sums
/// even out that delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkHistory {
    own: Nanos,
    interval: Nanos,
    /// The part of `interval` since the own part was last computed.
    since: Nanos,
}

impl WorkHistory {
    const NOTHING: Self = Self { own: Nanos::ZERO, interval: Nanos::ZERO, since: Nanos::ZERO };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UsageReading {
    at: Nanos,
    device: Nanos,
}

/// One step: reads the tenants' samples and decides each grant. `samples` are in the order of `tenants`.
///
/// Afterwards the caller writes [`Tenant::granted`] and [`Tenant::own`] where they changed into the tenant's limits, then moves
/// and wakes the tenant's wake word; and adds [`Tenant::correction`] to its credit.
pub fn step(now: Nanos, tenants: &mut [Tenant], samples: &[Sample]) -> Next {
    for (tenant, sample) in tenants.iter_mut().zip(samples) {
        tenant.see(now, *sample);
    }
    let active = tenants.iter().filter(|tenant| tenant.is_active(now)).count();
    for tenant in tenants.iter_mut() {
        tenant.keep_company(now, active);
    }
    let reserved = tenants.iter().map(|tenant| u64::from(tenant.reserve(now).parts())).sum::<u64>();
    for tenant in tenants.iter_mut() {
        tenant.granted = tenant.guaranteed();
    }
    lend(now, tenants, u64::from(Ppm::ALL.parts()).saturating_sub(reserved));
    tenants.iter_mut().for_each(|tenant| tenant.keep_loan(now));
    let busy = tenants.iter().any(|tenant| tenant.is_limited(now) || tenant.granted > tenant.guaranteed());
    if busy { Next::Tick(now.plus(TICK)) } else { Next::Demand }
}

/// Divides `idle` parts: best priority first, in proportion to weight, no tenant more than it wants.
fn lend(now: Nanos, tenants: &mut [Tenant], mut idle: u64) {
    let mut served: Option<u32> = None;
    loop {
        let later = |tenant: &&Tenant| served.is_none_or(|done| tenant.terms.priority > done);
        let wanting = tenants.iter().filter(|tenant| tenant.wants(now) > 0);
        let Some(priority) = wanting.filter(later).map(|tenant| tenant.terms.priority).min() else { return };
        // Each round satisfies at least one tenant, or uses up `idle`.
        for _ in 0..=tenants.len() {
            let of_group = |tenant: &&mut Tenant| tenant.terms.priority == priority && tenant.wants(now) > 0;
            let weights = tenants.iter_mut().filter(of_group).map(|tenant| tenant.weight()).sum::<u64>();
            let round = idle;
            for tenant in tenants.iter_mut().filter(of_group) {
                let part = (round * tenant.weight()).checked_div(weights).unwrap_or(0);
                let loan = part.min(tenant.wants(now)) / u64::from(GRAIN) * u64::from(GRAIN);
                tenant.granted = tenant.granted.plus(parts(loan));
                idle = idle.saturating_sub(loan);
            }
            if idle == round {
                break;
            }
        }
        served = Some(priority);
    }
}

fn parts(number: u64) -> Ppm {
    u32::try_from(number).map_or(Ppm::ALL, Ppm::new)
}

/// `used` and a quarter more.
fn with_headroom(used: Ppm) -> Ppm {
    used.plus(Ppm::new(used.parts() / 4)).plus(HEADROOM)
}

fn within(now: Nanos, at: Option<Nanos>, time: Nanos) -> bool {
    at.is_some_and(|at| now.minus(at) <= time)
}

impl Tenant {
    /// A new tenant: granted its guarantee, presumed alone.
    #[must_use]
    pub const fn new(terms: Terms) -> Self {
        Self {
            terms,
            granted: match terms.lending {
                BorrowPolicy::BestEffort => Ppm::ZERO,
                BorrowPolicy::Cap | BorrowPolicy::Burst => terms.guaranteed,
            },
            own: Ppm::ALL,
            used: Ppm::ZERO,
            seen: None,
            active_at: None,
            limited_at: None,
            company_at: None,
            measured: None,
            worked: WorkHistory::NOTHING,
            part: None,
            unbilled: 0,
            due: 0,
            taken: 0,
            owed: OwedTime::nothing(),
            loan: BorrowedTime::none(),
            quiet: 0,
            gap: 0,
            correction: 0,
        }
    }

    /// What it may use now: `granted_ppm` of its limits.
    #[must_use]
    pub const fn granted(&self) -> Ppm {
        self.granted
    }

    /// The own part: `own_ppm` of its limits, at least one part.
    #[must_use]
    pub const fn own(&self) -> Ppm {
        if self.own.parts() == 0 { Ppm::new(1) } else { self.own }
    }

    /// Share of the card it used lately, by its own report.
    #[must_use]
    pub const fn used(&self) -> Ppm {
        self.used
    }

    /// Processes one of the vendor's utilisation windows and the tenant's sample at its end. Call it once a window, between steps.
    ///
    /// The error of the tenant's bills, by the vendor's measurement, becomes the [`Tenant::correction`] of the next steps.
    pub fn measure(&mut self, window: MeasuredWindow, sample: Sample) {
        let before = self.measured.replace((sample.device, sample.interval));
        let Some((device, interval)) = before else { return };
        self.divide(window, sample.interval.minus(interval));
        self.keep_owed(window, sample.interval.minus(interval));
        let alone = self.company_at.is_none();
        if alone && self.terms.lending != BorrowPolicy::Cap {
            (self.unbilled, self.due, self.quiet) = (0, 0, 0);
            return;
        }
        let billed = sample.device.minus(device).min(UNBILLED_MAX);
        let behind = self.unbilled + window.own.min(UNBILLED_MAX).signed() - billed.signed();
        // The vendor's rounding is no debt.
        let rounding = if alone { window.doubt.min(UNBILLED_MAX).signed() } else { ROUNDING };
        let behind = if behind > 0 { (behind - rounding).max(0) } else { (behind + ROUNDING).min(0) };
        let ahead_max = if alone { AHEAD_MAX.signed() + self.taken } else { UNBILLED_MAX.signed() };
        self.unbilled = behind.clamp(-ahead_max, UNBILLED_MAX.signed());
        if billed > Nanos::ZERO {
            self.gap = self.quiet.max(self.gap - self.gap.div_ceil(8)).min(GAP_MAX);
            self.quiet = 0;
        } else if window.own > Nanos::ZERO {
            self.quiet = self.quiet.saturating_add(1);
        }
        let corrects = if alone { Heuristic::CorrectionAlone.is_on() } else { Heuristic::Correction.is_on() };
        let is_told =
            !Heuristic::QuietWindows.is_on() || self.quiet == 0 || self.quiet > QUIET + 2 * self.gap;
        let part = if alone { CORRECT_ALONE_IN } else { CORRECT_IN };
        self.due = if is_told && corrects { -self.unbilled / part } else { 0 };
        if alone {
            // A tenant with that much debt cannot pay now: the rest is not lost, it is corrected later.
            let least = if sample.credit > -UNBILLED_MAX.signed() { i64::MIN } else { 0 };
            self.due = self.due.min(self.taken).max(least);
        }
    }

    /// Updates what it is owed, after `interval` more time with work.
    fn keep_owed(&mut self, window: MeasuredWindow, interval: Nanos) {
        let wants = self.seen.is_some_and(|seen| within(seen.at, self.limited_at, WANTS_FOR));
        let waited = if wants { interval.minus(window.own) } else { Nanos::ZERO };
        let MeasuredWindow { length, own, idle, .. } = window;
        let length = length.min(UNBILLED_MAX);
        let had = VendorWindow { length, promised: self.guaranteed().times(length), own, waited, idle };
        match self.company_at {
            Some(_) => self.owed.window(&had),
            None => self.owed = OwedTime::nothing(),
        }
    }

    /// Updates the own part, after `interval` more time with work.
    fn divide(&mut self, window: MeasuredWindow, interval: Nanos) {
        self.worked.own = self.worked.own.plus(window.own.min(UNBILLED_MAX));
        self.worked.interval = self.worked.interval.plus(interval.min(INTERVAL_MAX));
        self.worked.since = self.worked.since.plus(interval.min(INTERVAL_MAX));
        if self.worked.own == Nanos::ZERO {
            // The card time came before the first window and its bill comes now: the quotient has no meaning.
            self.worked = WorkHistory::NOTHING;
        } else if interval >= INTERVAL_MIN || (interval > Nanos::ZERO && self.worked.since >= INTERVALS_MIN) {
            let WorkHistory { own, interval, .. } = self.worked;
            self.part = Heuristic::MeasuredPart.is_on().then(|| Ppm::of(own, interval));
            self.worked =
                WorkHistory { own: Nanos(own.0 / 2), interval: Nanos(interval.0 / 2), since: Nanos::ZERO };
        }
    }

    /// Device time in nanoseconds to add to the tenant's `credit_nanos` after this step; may be negative. It comes in small
    /// parts, since credit has little room above zero.
    #[must_use]
    pub const fn correction(&self) -> i64 {
        self.correction
    }

    fn guaranteed(&self) -> Ppm {
        match self.terms.lending {
            BorrowPolicy::BestEffort => Ppm::ZERO,
            BorrowPolicy::Cap | BorrowPolicy::Burst => self.terms.guaranteed,
        }
    }

    fn weight(&self) -> u64 {
        u64::from(self.guaranteed().parts()).max(BEST_EFFORT_WEIGHT)
    }

    fn see(&mut self, now: Nanos, sample: Sample) {
        if sample.limited_until > now {
            self.limited_at = Some(now);
        }
        if sample.active_until > now || sample.limited_until > now {
            if !self.is_active(now) {
                // It becomes active again: its whole guarantee is reserved until its use is known.
                self.used = self.guaranteed();
            }
            self.active_at = Some(now);
        }
        self.correction = 0;
        if let Some(seen) = self.seen
            && now > seen.at
        {
            let part = now.minus(seen.at).min(WINDOW).signed();
            // All of `due` within one window: each step takes its part of the remainder.
            self.correction = (i128::from(self.due) * i128::from(part) * 2 / i128::from(WINDOW.signed()))
                .clamp(-i128::from(self.due.unsigned_abs()), i128::from(self.due.unsigned_abs()))
                .try_into()
                .unwrap_or(0);
            self.due -= self.correction;
            self.unbilled += self.correction;
            self.taken = (self.taken - self.correction).clamp(0, UNBILLED_MAX.signed());
            // A tenant with credit waits for its turn: more credit would stay unused.
            if self.is_limited(now) && sample.credit <= 0 {
                self.correction += self.owed.give(now.minus(seen.at).min(WINDOW));
            }
            let lately = Ppm::of(sample.device.minus(seen.device), now.minus(seen.at));
            // A quarter of each step's news: half is known after five milliseconds.
            self.used = Ppm::new(self.used.parts() - self.used.parts() / 4 + lately.parts() / 4);
        }
        self.seen = Some(UsageReading { at: now, device: sample.device });
    }

    fn keep_company(&mut self, now: Nanos, active: usize) {
        let others = active.saturating_sub(usize::from(self.is_active(now)));
        if others > 0 {
            if self.company_at.replace(now).is_none() {
                // Corrections of the time alone do not carry over to the time beside others.
                (self.unbilled, self.due, self.taken) = (self.unbilled.max(-self.taken), self.due.min(0), 0);
            }
        } else if !within(now, self.company_at, ALONE_AFTER) {
            if self.company_at.is_some() {
                (self.due, self.taken) = (self.due.min(0), 0);
            }
            (self.own, self.part, self.company_at) = (Ppm::ALL, None, None);
            self.worked = WorkHistory::NOTHING;
            return;
        }
        self.own = self.part.unwrap_or_else(|| {
            let parts = u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1);
            // Another tenant that paused a moment ago still counts.
            Ppm::new(Ppm::ALL.parts() / parts.max(2))
        });
    }

    fn keep_loan(&mut self, now: Nanos) {
        if self.is_active(now) {
            self.correction += self.loan.follow(now, self.guaranteed(), self.granted);
        } else {
            self.loan = BorrowedTime::none();
        }
    }

    fn is_active(&self, now: Nanos) -> bool {
        within(now, self.active_at, ACTIVE_FOR)
    }

    fn is_limited(&self, now: Nanos) -> bool {
        self.is_active(now) && within(now, self.limited_at, LIMITED_FOR)
    }

    fn reserve(&self, now: Nanos) -> Ppm {
        if !self.is_active(now) {
            Ppm::ZERO
        } else if self.is_limited(now) || !Heuristic::Headroom.is_on() {
            self.guaranteed()
        } else {
            with_headroom(self.used).min(self.guaranteed())
        }
    }

    /// Parts that it would still borrow.
    fn wants(&self, now: Nanos) -> u64 {
        if self.terms.lending == BorrowPolicy::Cap || !self.is_active(now) {
            return 0;
        }
        let most = if self.is_limited(now) { Ppm::ALL } else { with_headroom(self.used) };
        let more = most.minus(self.granted).parts();
        u64::from(more / GRAIN * GRAIN)
    }
}
