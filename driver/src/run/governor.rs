//! The governor of one card, among the local runs that share it: the dead give back, idle compute is lent.
//!
//! ```text
//!   supervisors of a card ──lock──▶ one governor          usage files ──▶ aliquot_enforce::share ──▶ limits files
//!                                      │ every 50 ms: grants of the card, their dead              │
//!                                      └ every tick, while somebody is limited ◀──────────────────┘
//! ```
//!
//! Every supervisor has a governor that tries for the card's lock; the one that has it serves all grants of the card, and
//! when it lets go another takes over, which slept until then. One that is stopped lets go of nothing: what it lent ends by itself,
//! and a tenant that waits meanwhile tells its own supervisor, which puts an office of its own in the place of the locked one. While nobody is limited in time the governor sleeps until a tenant
//! says so, and looks for new grants and dead processes in between; where no grant limits anything, until claims come or go
//! or a minute is over.
//! A governor that leaves takes its loans back.

mod news;
mod owners;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use aliquot_abi::limits::{ComputePolicy, Limits, MemoryLimit};
use aliquot_abi::view::UsageView;
use aliquot_enforce::rounding::Rounding;
use aliquot_enforce::share::{Lending, Measured, Next, Sample, Tenant, Terms, step};
use aliquot_enforce::term::Until;
use aliquot_enforce::units::{Nanos, Ppm};

use super::cards::{Meter, Window};
use crate::clock::monotonic;
use crate::disk::Disk;
use crate::region::{Changed, Live, Place, Reaped, Watched, wait_any, wake};
use news::{Candidate, Heard, Shared, Watch, Wish};
pub use news::{offices, remove_offices};
use owners::{Owners, Started};

/// Time between two looks for new grants and dead processes.
const LOOK: Duration = Duration::from_millis(50);
/// The same where nothing is limited.
const CALM: Duration = Duration::from_millis(60_000);
/// How long after a claim came or went its grants may still be made.
const SETTLING: Duration = Duration::from_millis(5_000);

/// Which card, and where everything about it lies.
#[derive(Debug)]
pub struct Scope {
    /// How tenants see the card.
    pub visible: String,
    /// Directory of all grants.
    pub grants: PathBuf,
    /// Locked while limits are written.
    pub writers: PathBuf,
    /// Directory of this run's own share: its tenant says there that nobody governs.
    pub share: PathBuf,
    /// Locked by the governor of the card.
    pub election: PathBuf,
    /// Who says how much of the card's time each process had; `None`: nobody.
    pub meter: Option<Box<dyn Meter>>,
}

/// A governor that runs beside a command; it ends with the value.
#[derive(Debug)]
pub struct Governor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A grant of the card.
#[derive(Debug)]
struct Grant {
    limits: Live,
    usage: Watched,
    /// `None`: its compute is not limited.
    tenant: Option<Tenant>,
    /// Whose card time is its own, where its compute is limited.
    owners: Owners,
}

/// All grants of the card, while this process governs it.
struct Reign<'s> {
    scope: &'s mut Scope,
    grants: BTreeMap<PathBuf, Grant>,
    rounding: Rounding,
    looked_at: Option<Nanos>,
    /// Claims that come and go; `None`: nobody tells.
    claims: Option<Watch>,
    /// When one did last.
    stirred_at: Nanos,
    /// Shares of which nothing can be read.
    unread: usize,
    /// Processes of the card that belong to no grant whose compute is limited.
    strangers: Owners,
}

/// What lies in a share's directory.
enum Found {
    /// A grant of the card.
    Ours(Box<Grant>),
    /// One of another card, or none whose limits could be held.
    Others,
    /// It cannot be read now.
    Unread,
}

// === impl Governor ===

impl Governor {
    /// Starts one; it governs as soon as nobody else does.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(scope: Scope) -> io::Result<Self> {
        let shared = Arc::new(Shared::new()?);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("governor".to_owned())
            .spawn(move || serve(scope, &of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Leaves the card to others before this process is stopped.
    pub fn pause(&self) {
        self.shared.ask(Wish::Pause);
        self.shared.wait_until_idle();
    }

    /// Tries for the card again.
    pub fn go_on(&self) {
        self.shared.ask(Wish::Run);
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        self.shared.ask(Wish::Stop);
        if let Some(thread) = self.thread.take() {
            // A governor that panicked governs no more; its lock went with its file.
            drop(thread.join());
        }
    }
}

/// The thread: tries for the card, governs while it has it.
fn serve(mut scope: Scope, shared: &Shared) {
    let own = Place { dir: scope.share.clone(), lock: scope.writers.clone() };
    let mut candidate = Candidate::new(&scope.election, own, Disk::default());
    loop {
        match shared.wish() {
            Wish::Stop => return,
            Wish::Pause => {
                shared.set_idle(true);
                shared.sleep(None, None);
                continue;
            }
            Wish::Run => shared.set_idle(false),
        }
        match candidate.elect() {
            Some(office) => {
                let mut reign = Reign::new(&mut scope);
                while shared.wish() == Wish::Run && office.is_held() {
                    reign.look();
                    let next = reign.step();
                    reign.wait(next, shared);
                }
                if office.is_held() {
                    reign.take_loans_back();
                }
                drop(reign);
                drop(office);
            }
            None => candidate.wait(shared),
        }
    }
}

// === impl Reign ===

impl<'s> Reign<'s> {
    fn new(scope: &'s mut Scope) -> Self {
        let claims = Watch::of_entries(&scope.grants);
        Self {
            scope,
            grants: BTreeMap::new(),
            rounding: Rounding::new(),
            looked_at: None,
            claims,
            stirred_at: monotonic(),
            unread: 0,
            strangers: Owners::default(),
        }
    }

    /// Finds grants that came or went, and gives back what the dead held; every [`LOOK`].
    fn look(&mut self) {
        let now = monotonic();
        let due = |at: Nanos| Duration::from_nanos(now.minus(at).0) >= LOOK;
        if !self.looked_at.is_none_or(due) {
            return;
        }
        self.looked_at = Some(now);
        let there = shares_below(&self.scope.grants);
        self.grants.retain(|dir, _| there.contains(dir));
        self.strangers.forget(now);
        self.unread = 0;
        for dir in there {
            if self.grants.contains_key(&dir) {
                continue;
            }
            match self.grant_at(&dir) {
                Found::Ours(grant) => drop(self.grants.insert(dir, *grant)),
                Found::Others => {}
                Found::Unread => self.unread += 1,
            }
        }
        let before = self.grants.len();
        self.grants.retain(|_, grant| {
            // Before the slots of the dead are free.
            grant.note_owners(now);
            match grant.usage.reap(grant.own()) {
                // A tenant that cut its file is looked at anew, with what is left of it.
                Ok(Reaped::Torn) | Err(_) => false,
                Ok(Reaped::Nobody | Reaped::Later | Reaped::Dead { .. }) => true,
            }
        });
        self.unread += before - self.grants.len();
        self.grants.values_mut().for_each(|grant| grant.owners.forget(now));
    }

    /// What lies in a share's directory.
    fn grant_at(&self, dir: &Path) -> Found {
        let place = Place { dir: dir.to_owned(), lock: self.scope.writers.clone() };
        if !place.limits().exists() {
            return Found::Others;
        }
        let opened = Live::open(&place).and_then(|limits| Ok((limits.read()?, limits)));
        let Ok((now, limits)) = opened else { return Found::Unread };
        if now.card.as_str() != self.scope.visible {
            return Found::Others;
        }
        match Watched::open(&place.usage()) {
            Ok(usage) => {
                let (tenant, owners) = (terms(&now).map(Tenant::new), Owners::default());
                Found::Ours(Box::new(Grant { limits, usage, tenant, owners }))
            }
            Err(_) => Found::Unread,
        }
    }

    /// One step of all tenants.
    fn step(&mut self) -> Step {
        let now = monotonic();
        self.grants.values_mut().for_each(Grant::renew);
        let window = self.window(now);
        let mut governed: Vec<&mut Grant> =
            self.grants.values_mut().filter(|grant| grant.tenant.is_some()).collect();
        // Before the samples: what moves after this is news.
        let demands: Vec<u32> = governed.iter().map(|grant| grant.word()).collect();
        let samples: Vec<Sample> = governed.iter().map(|grant| grant.sample()).collect();
        let mut tenants: Vec<Tenant> = governed.iter().filter_map(|grant| grant.tenant).collect();
        if let Some(window) = window {
            let processes = window.processes.iter().map(|spent| spent.percent);
            window.busy_percent.into_iter().for_each(|card| self.rounding.learn(card, processes.clone()));
            for ((tenant, grant), sample) in tenants.iter_mut().zip(&governed).zip(&samples) {
                tenant.measure(grant.measured(&window, &self.rounding), *sample);
            }
        }
        let next = step(now, &mut tenants, &samples);
        let until = Until::behind(monotonic());
        for (grant, tenant) in governed.iter_mut().zip(tenants) {
            grant.tenant = Some(tenant);
            grant.lend(until);
            grant.publish(tenant);
        }
        Step { next, demands }
    }

    /// What the driver says of its last window, where anybody is limited, once it is known whose the processes are.
    fn window(&mut self, now: Nanos) -> Option<Window> {
        self.grants.values_mut().for_each(|grant| grant.note_owners(now));
        let anybody = self.grants.values().any(|grant| grant.tenant.is_some());
        let window = self.scope.meter.as_mut().filter(|_| anybody)?.window(now)?;
        for pid in window.processes.iter().filter(|spent| spent.percent > 0).map(|spent| spent.pid) {
            let mut governed = self.grants.values().filter(|grant| grant.tenant.is_some());
            if self.strangers.have(pid) || governed.any(|grant| grant.owners.have(pid)) {
                continue;
            }
            let started = Started::of(pid);
            let mut limited = self.grants.iter_mut().filter(|(_, grant)| grant.tenant.is_some());
            match limited.find(|(dir, _)| started.is_under(dir)) {
                Some((_, grant)) => grant.owners.note(now, pid),
                None => self.strangers.note(now, pid),
            }
        }
        Some(window)
    }

    /// Sleeps until the next step is due, a tenant asks, a look is due, or the command's side wants something.
    fn wait(&mut self, step: Step, shared: &Shared) {
        match step.next {
            Next::Tick(at) => {
                shared.sleep(Some(Duration::from_nanos(at.minus(monotonic()).0).min(LOOK)), None);
            }
            Next::Demand if step.demands.is_empty() => self.rest(shared),
            Next::Demand => wait_any(&self.words(step.demands), LOOK),
        }
    }

    /// The words by which tenants ask, as they were before the step.
    fn words(&self, demands: Vec<u32>) -> Vec<(&AtomicU32, u32)> {
        let governed = self.grants.values().filter(|grant| grant.tenant.is_some()).zip(demands);
        governed.filter_map(|(grant, seen)| Some((grant.usage.view().ok()?.demand(), seen))).collect()
    }

    /// Sleeps where nobody's compute is limited: until claims come or go, or [`CALM`] is over, where nothing is limited at all.
    fn rest(&mut self, shared: &Shared) {
        let stirred = Duration::from_nanos(monotonic().minus(self.stirred_at).0) < SETTLING;
        let limited = self.grants.values().any(Grant::limits_memory);
        let calm = !stirred && !limited && self.unread == 0 && self.claims.is_some();
        // What nobody tells, as a share that is made late in a claim that was there, is found within the longest sleep.
        shared.sleep(Some(if calm { CALM } else { LOOK }), self.claims.as_ref());
        if self.claims.as_ref().is_some_and(|claims| claims.take() != Heard::Nothing) {
            // The directory may be another one by now: it is watched anew, before it is looked at.
            (self.stirred_at, self.looked_at, self.claims) = (monotonic(), None, None);
        }
        if self.claims.is_none() {
            self.claims = Watch::of_entries(&self.scope.grants);
        }
    }

    /// Leaves everybody what was guaranteed: nobody watches the loans any more.
    fn take_loans_back(&mut self) {
        for grant in self.grants.values_mut() {
            let Ok(now) = grant.limits.read() else { continue };
            if let Some(terms) = terms(&now) {
                grant.publish(Tenant::new(terms));
                grant.lend(Until::ENDLESS);
            }
        }
    }
}

/// What came of a step.
struct Step {
    next: Next,
    /// Demand words as they were before it.
    demands: Vec<u32>,
}

// === impl Grant ===

impl Grant {
    /// The part of the card that is its own while others work, too.
    fn own(&self) -> Ppm {
        self.tenant.map_or(Ppm::ALL, |tenant| tenant.own())
    }

    /// Takes the terms that are in force now.
    fn renew(&mut self) {
        if let (Some(tenant), Ok(limits)) = (&mut self.tenant, self.limits.read()) {
            terms(&limits).into_iter().for_each(|terms| tenant.terms = terms);
        }
    }

    /// Whether the dead are to give back what they held. Limits that cannot be read may say anything.
    fn limits_memory(&self) -> bool {
        !self.limits.read().is_ok_and(|now| now.memory == MemoryLimit::Unlimited)
    }

    fn word(&self) -> u32 {
        self.usage.view().map_or(0, |view| view.demand().load(Ordering::SeqCst))
    }

    fn sample(&self) -> Sample {
        let Ok(view) = self.usage.view() else { return Sample::default() };
        Sample {
            device: Nanos(view.device_nanos().load(Ordering::Acquire)),
            interval: Nanos(view.interval_nanos().load(Ordering::Acquire)),
            active_until: Nanos(view.active_until().load(Ordering::Acquire)),
            limited_until: Nanos(view.limited_until().load(Ordering::Acquire)),
            credit: view.credit_nanos().load(Ordering::Acquire),
        }
    }

    /// Notes whose slots there are, where card time is measured.
    fn note_owners(&mut self, now: Nanos) {
        if self.tenant.is_some() {
            self.owners.see(now, self.usage.owners());
        }
    }

    /// Card time of this grant's processes in the driver's last window.
    fn measured(&self, window: &Window, rounding: &Rounding) -> Measured {
        let length = window.length;
        let idle = window.busy_percent.map_or(Nanos::ZERO, |card| Rounding::idle(card, length));
        let mut measured = Measured { length, idle, own: Nanos::ZERO, doubt: Nanos::ZERO };
        for spent in window.processes.iter().filter(|spent| self.owners.have(spent.pid)) {
            measured.own = measured.own.plus(rounding.time(spent.percent, length));
            measured.doubt = measured.doubt.plus(rounding.doubt(spent.percent, length));
        }
        measured
    }

    /// Says until when a loan lasts. Limits that cannot be written now keep what they said. Who waits by its guarantee, as the step
    /// before is over, is woken: at a hundredth of the card that may be for a second.
    fn lend(&mut self, until: Until) {
        let was_over = self.limits.lent_until().is_ok_and(|until| until.is_over(monotonic()));
        match self.limits.lend(until) {
            Ok(()) | Err(_) => {}
        }
        if let (true, Ok(view)) = (was_over, self.usage.view()) {
            wake_tenant(view);
        }
    }

    /// Writes what the tenant is granted where that changed, and wakes who waits for it. Limits whose terms changed since they were
    /// read say by themselves what is granted, until the next step.
    fn publish(&mut self, tenant: Tenant) {
        let (granted_ppm, own_ppm) = (tenant.granted().parts(), tenant.own().parts());
        let change = |now: &Limits| {
            let same = now.granted_ppm == granted_ppm && now.own_ppm == own_ppm;
            (!same && terms(now) == Some(tenant.terms)).then_some(Limits { granted_ppm, own_ppm, ..*now })
        };
        let same = self.limits.read().is_ok_and(|now| change(&now).is_none());
        // Limits that cannot be written now stay as they are, and the next step tries again.
        let changed = if same { Changed::No } else { self.limits.change(change).unwrap_or(Changed::No) };
        let Ok(view) = self.usage.view() else { return };
        if tenant.correction() != 0 {
            view.credit_nanos().fetch_add(tenant.correction(), Ordering::AcqRel);
        }
        if changed == Changed::Yes {
            wake_tenant(view);
        }
    }
}

/// Has launches that wait look at their limits again.
fn wake_tenant(view: UsageView<'_>) {
    view.wake().fetch_add(1, Ordering::AcqRel);
    wake(view.wake());
}

/// What a tenant was promised; `None`: all of the card.
fn terms(limits: &Limits) -> Option<Terms> {
    let lending = match limits.policy {
        ComputePolicy::Cap => Lending::Cap,
        ComputePolicy::Burst => Lending::Burst,
        ComputePolicy::BestEffort => Lending::BestEffort,
        ComputePolicy::Unlimited => return None,
    };
    Some(Terms { guaranteed: Ppm::new(limits.share_ppm), lending, priority: limits.priority })
}

/// Directories of shares.
fn shares_below(grants: &Path) -> Vec<PathBuf> {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(grants).flat_map(|claim| entries(&claim).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests;
