//! The governor of one card shared by local runs: it reaps exited processes and lends idle compute time.
//!
//! ```text
//!   supervisors of a card ──lock──▶ one governor          usage files ──▶ aliquot_enforce::share ──▶ limits files
//!                                      │ every 50 ms: grants of the card, exited processes        │
//!                                      └ every tick, while any tenant is limited ◀────────────────┘
//! ```
//!
//! Every supervisor has a governor thread that tries for the card's leader lock. The leader serves all grants of the card; the
//! others sleep until the lock is released. A leader that is stopped (`SIGSTOP`) keeps its lock: then borrowed time expires by
//! itself, a waiting tenant notifies its own supervisor, and that one replaces the locked file with a new leader lock. A leader
//! that resigns withdraws borrowed time.
//!
//! The node agent owns all grants. Its governor of a card seizes the leader lock, even from the supervisor of an earlier local run, and
//! serves the shares that the agent registers, so it neither takes part in elections nor reads other cards' grants.
//!
//! | compute of the card's grants | the leader sleeps until |
//! |---|---|
//! | a tenant is limited | the next tick |
//! | no tenant is limited | a demand word changes; at most 50 ms, to find new grants and exited processes |
//! | no grant limits anything | claims come or go; at most a minute |
//! | the agent owns the grants, and no process uses them | a process touches one; at most a second (module `dormant`) |

mod dormant;
mod grant;
mod news;
mod owners;
mod register;
mod residue;
mod unshimmed;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;
use std::time::Duration;

use aliquot_enforce::rounding::Rounding;
use aliquot_enforce::share::{Next, Sample, Tenant, step};
use aliquot_enforce::term::LoanExpiry;
use aliquot_enforce::units::Nanos;

use super::cards::{CardProcesses, Meter, Window};
use crate::clock::monotonic;
use crate::disk::Disk;
use crate::region::{GrantPaths, Live, ReapOutcome, UsageFile, wait_any};
use dormant::{ArmedWatch, DormantCompute, DormantShares, LOCKS};
use grant::{GovernedGrant, terms};
use news::{Candidate, FileWatch, GovernorRequest, GovernorRequests, Heard};
pub use news::{leader_locks, remove_leader_locks};
use owners::{Owners, StartedGrants};
use register::Register;
use residue::{GrantLooks, MemoryLooks};
pub use unshimmed::UnshimmedProcess;
use unshimmed::UnshimmedProcesses;

/// Time between two scans for new grants and exited processes.
const LOOK: Duration = Duration::from_millis(50);
/// The same if no grant limits anything.
const CALM: Duration = Duration::from_millis(60_000);
/// How long after a claim came or went its grants may still be created.
const SETTLING: Duration = Duration::from_millis(5_000);

/// The card to govern, and its files.
#[derive(Debug)]
pub struct Scope {
    /// UUID of the card as its tenants read it.
    pub visible: String,
    /// Directory of all grants.
    pub grants: PathBuf,
    /// Locked while limits are written.
    pub writers: PathBuf,
    /// Directory of this run's own share: its tenant reports a missing governor there.
    pub share: PathBuf,
    /// Leader lock of the card.
    pub election: PathBuf,
    /// The source of each process's card time; `None`: the driver reports none.
    pub meter: Option<Box<dyn Meter>>,
    /// The source of each process's memory; `None`: the driver reports none.
    pub processes: Option<Arc<dyn CardProcesses>>,
}

/// A governor thread beside a command; dropping the value ends it.
#[derive(Debug)]
pub struct Governor {
    shared: Arc<GovernorRequests>,
    register: Option<Arc<Register>>,
    thread: Option<JoinHandle<()>>,
}

/// All grants of the card, while this process governs it.
struct Reign<'s> {
    scope: &'s mut Scope,
    /// The card's shares, if their owner is in this process.
    register: Option<&'s Register>,
    grants: BTreeMap<PathBuf, GovernedGrant>,
    /// Registered shares that no process uses; `None`: every share is served.
    dormant: Option<DormantShares>,
    rounding: Rounding,
    looked_at: Option<Nanos>,
    /// The watch on claims that come and go; `None`: no inotify instance is available.
    claims: Option<FileWatch>,
    /// When a claim last came or went.
    stirred_at: Nanos,
    /// Shares that could not be read.
    unread: usize,
    /// Processes of the card that belong to no grant with limited compute.
    strangers: Owners,
    memory: MemoryLooks,
}

/// The content of a share's directory.
enum ShareContent {
    /// A grant of the card.
    Ours(Box<GovernedGrant>),
    /// A grant of another card, or none with enforceable limits.
    Others,
    /// It cannot be read now.
    Unread,
}

// === impl Governor ===

impl Governor {
    /// Starts one; it governs as soon as it holds the leader lock.
    ///
    /// # Errors
    /// The system refuses a thread or an eventfd.
    pub fn start(scope: Scope) -> io::Result<Self> {
        Self::spawn(scope, None)
    }

    /// Starts the governor of a process that owns all grants. It seizes the leader lock, and serves these shares of the card.
    ///
    /// # Errors
    /// The system refuses a thread or an eventfd.
    pub fn start_of_owner(scope: Scope, shares: BTreeSet<PathBuf>) -> io::Result<Self> {
        Self::spawn(scope, Some(Arc::new(Register::new(shares))))
    }

    fn spawn(scope: Scope, register: Option<Arc<Register>>) -> io::Result<Self> {
        let shared = Arc::new(GovernorRequests::new()?);
        let (of_thread, shares) = (Arc::clone(&shared), register.clone());
        let thread = std::thread::Builder::new()
            .name("governor".to_owned())
            .spawn(move || serve(scope, shares.as_deref(), &of_thread))?;
        Ok(Self { shared, register, thread: Some(thread) })
    }

    /// Replaces the shares of a governor that was started with [`Self::start_of_owner`]; others find them by themselves.
    pub fn register(&self, shares: BTreeSet<PathBuf>) {
        if self.register.as_ref().is_some_and(|register| register.set(shares)) {
            self.shared.wake();
        }
    }

    /// By share, a live process of it that uses the card without the shim; of a governor that was started with
    /// [`Self::start_of_owner`].
    #[must_use]
    pub fn unshimmed(&self) -> BTreeMap<PathBuf, UnshimmedProcess> {
        self.register.as_ref().map(|register| register.unshimmed()).unwrap_or_default()
    }

    /// Shares that no process uses, each with a number that differs for each time that it became so; of a governor that was started
    /// with [`Self::start_of_owner`].
    #[must_use]
    pub fn dormant(&self) -> Arc<BTreeMap<PathBuf, u64>> {
        self.register.as_ref().map(|register| register.dormant()).unwrap_or_default()
    }

    /// Resigns before this process is stopped.
    pub fn pause(&self) {
        self.shared.ask(GovernorRequest::Pause);
        self.shared.wait_until_idle();
    }

    /// Tries for the leader lock again.
    pub fn go_on(&self) {
        self.shared.ask(GovernorRequest::Run);
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        self.shared.ask(GovernorRequest::Stop);
        if let Some(thread) = self.thread.take() {
            // A governor that panicked has stopped; its lock was released with its file.
            drop(thread.join());
        }
    }
}

/// The thread: tries for the leader lock, governs while it holds it.
fn serve(mut scope: Scope, register: Option<&Register>, shared: &GovernorRequests) {
    let own = GrantPaths { dir: scope.share.clone(), lock: scope.writers.clone() };
    let mut candidate = Candidate::new(&scope.election, own, Disk::default());
    loop {
        match shared.wish() {
            GovernorRequest::Stop => return,
            GovernorRequest::Pause => {
                shared.set_idle(true);
                shared.sleep(None, None);
                continue;
            }
            GovernorRequest::Run => shared.set_idle(false),
        }
        let leader_lock = if register.is_some() { candidate.seize() } else { candidate.elect() };
        match leader_lock {
            Some(leader_lock) => {
                let mut reign = Reign::new(&mut scope, register);
                while shared.wish() == GovernorRequest::Run && leader_lock.is_held() {
                    reign.look();
                    reign.look_at_memory();
                    let next = reign.step();
                    reign.wait(next, shared);
                }
                if leader_lock.is_held() {
                    reign.take_loans_back();
                }
                drop(reign);
                drop(leader_lock);
            }
            None => candidate.wait(shared),
        }
    }
}

// === impl Reign ===

impl<'s> Reign<'s> {
    fn new(scope: &'s mut Scope, register: Option<&'s Register>) -> Self {
        let claims = if register.is_some() { None } else { FileWatch::of_entries(&scope.grants) };
        Self {
            scope,
            register,
            grants: BTreeMap::new(),
            dormant: register.and_then(|_| DormantShares::new(monotonic())),
            rounding: Rounding::new(),
            looked_at: None,
            claims,
            stirred_at: monotonic(),
            unread: 0,
            strangers: Owners::default(),
            memory: MemoryLooks::default(),
        }
    }

    /// Finds grants that came or went, and reaps exited processes; every [`LOOK`].
    fn look(&mut self) {
        let now = monotonic();
        let woken = self.dormant.as_mut().map(|dormant| dormant.take_woken(now)).unwrap_or_default();
        woken.iter().for_each(|dir| self.serve(now, dir));
        let due = |at: Nanos| Duration::from_nanos(now.minus(at).0) >= LOOK;
        if !self.looked_at.is_none_or(due) {
            return;
        }
        self.looked_at = Some(now);
        let there = match self.register {
            Some(register) => register.shares(),
            None => Arc::new(shares_below(&self.scope.grants)),
        };
        self.grants.retain(|dir, _| there.contains(dir));
        if let Some(dormant) = &mut self.dormant {
            dormant.retain(|dir| there.contains(dir));
        }
        self.strangers.forget(now);
        self.unread = 0;
        for dir in &*there {
            if !self.grants.contains_key(dir)
                && !self.dormant.as_ref().is_some_and(|dormant| dormant.have(dir))
            {
                self.take_up(now, dir);
            }
        }
        let before = self.grants.len();
        self.grants.retain(|_, grant| {
            // Before the slots of exited processes are free.
            grant.note_owners(now);
            match grant.usage.reap(grant.own()) {
                // A grant with a truncated usage file is opened again.
                Ok(ReapOutcome::Torn) | Err(_) => false,
                Ok(ReapOutcome::NoneExited | ReapOutcome::Later | ReapOutcome::Dead { .. }) => true,
            }
        });
        self.unread += before - self.grants.len();
        self.grants.values_mut().for_each(|grant| grant.owners.forget(now));
        let Some(register) = self.register else { return };
        let found =
            |(dir, grant): (&PathBuf, &mut GovernedGrant)| Some((dir.clone(), grant.unshimmed.first()?));
        let unshimmed = self.grants.iter_mut().filter_map(found).collect();
        self.rest_quiet_grants(now);
        let dormant = self.dormant.as_ref().map(DormantShares::numbers);
        register.report(unshimmed, dormant.unwrap_or_default());
    }

    /// Begins with a share that has come. One that no process uses is dormant from the start.
    fn take_up(&mut self, now: Nanos, dir: &Path) {
        // Before the slots are read: a process that takes one from now on raises an event.
        let watch = self.dormant.as_ref().and_then(|dormant| dormant.arm(dir));
        match (self.grant_at(now, dir), watch) {
            (ShareContent::Ours(mut grant), Some(watch)) if !grant.usage.is_used() => {
                self.rest_grant(now, dir, &mut grant, watch);
            }
            (ShareContent::Ours(grant), _) => drop(self.grants.insert(dir.to_owned(), *grant)),
            (ShareContent::Others, _) => {}
            (ShareContent::Unread, _) => self.unread += 1,
        }
    }

    /// Serves a share that a process touched.
    fn serve(&mut self, now: Nanos, dir: &Path) {
        // One that cannot be read is taken up by the next look.
        if let ShareContent::Ours(grant) = self.grant_at(now, dir) {
            self.grants.insert(dir.to_owned(), *grant);
        }
    }

    /// Closes the files of grants that no process uses.
    fn rest_quiet_grants(&mut self, now: Nanos) {
        let Some(dormant) = &self.dormant else { return };
        let quiet = self.grants.iter().filter(|(_, grant)| grant.is_quiet(now));
        let armed: Vec<(PathBuf, ArmedWatch)> =
            quiet.filter_map(|(dir, _)| Some((dir.clone(), dormant.arm(dir)?))).collect();
        for (dir, watch) in armed {
            let Some(mut grant) = self.grants.remove(&dir) else { continue };
            match grant.is_quiet(now) {
                true => self.rest_grant(now, &dir, &mut grant, watch),
                false => drop(self.grants.insert(dir, grant)),
            }
        }
    }

    fn rest_grant(&mut self, now: Nanos, dir: &Path, grant: &mut GovernedGrant, watch: ArmedWatch) {
        grant.leave();
        let compute =
            if grant.tenant.is_some() { DormantCompute::Limited } else { DormantCompute::Unlimited };
        if let Some(dormant) = &mut self.dormant {
            dormant.insert(now, dir, watch, compute);
        }
    }

    /// The grant in a share's directory.
    fn grant_at(&self, now: Nanos, dir: &Path) -> ShareContent {
        let place = GrantPaths { dir: dir.to_owned(), lock: self.scope.writers.clone() };
        if !place.limits().exists() {
            return ShareContent::Others;
        }
        let opened = Live::open(&place).and_then(|limits| Ok((limits.read()?, limits)));
        let Ok((found, limits)) = opened else { return ShareContent::Unread };
        if found.card.as_str() != self.scope.visible {
            return ShareContent::Others;
        }
        match UsageFile::open(&place.usage()) {
            Ok(usage) => {
                let (tenant, owners) = (terms(&found).map(Tenant::new), Owners::default());
                let (unshimmed, looks) = (UnshimmedProcesses::default(), GrantLooks::default());
                let grant = GovernedGrant { limits, usage, tenant, owners, unshimmed, since: now, looks };
                ShareContent::Ours(Box::new(grant))
            }
            Err(_) => ShareContent::Unread,
        }
    }

    /// One step of all tenants.
    fn step(&mut self) -> StepResult {
        let now = monotonic();
        self.grants.values_mut().for_each(GovernedGrant::renew);
        let window = self.window(now);
        let mut governed: Vec<&mut GovernedGrant> =
            self.grants.values_mut().filter(|grant| grant.tenant.is_some()).collect();
        // Read before the samples: a later change wakes the next wait.
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
        let until = LoanExpiry::behind(monotonic());
        for (grant, tenant) in governed.iter_mut().zip(tenants) {
            grant.tenant = Some(tenant);
            grant.lend(until);
            grant.publish(tenant);
        }
        StepResult { next, demands }
    }

    /// The driver's last window, if any grant limits compute, after each of its processes is assigned to a grant or to none.
    fn window(&mut self, now: Nanos) -> Option<Window> {
        self.grants.values_mut().for_each(|grant| grant.note_owners(now));
        let is_limited = self.grants.values().any(|grant| grant.tenant.is_some())
            || self.dormant.as_ref().is_some_and(DormantShares::limit_compute);
        let window = self.scope.meter.as_mut().filter(|_| is_limited)?.window(now)?;
        for pid in window.processes.iter().filter(|spent| spent.percent > 0).map(|spent| spent.pid) {
            let mut governed = self.grants.values().filter(|grant| grant.tenant.is_some());
            if self.strangers.have(pid) || governed.any(|grant| grant.owners.have(pid)) {
                continue;
            }
            let started = StartedGrants::of(pid, &self.scope.grants);
            self.serve_started(now, &started);
            let mut limited = self.grants.iter_mut().filter(|(_, grant)| grant.tenant.is_some());
            match limited.find(|(dir, _)| started.is_under(dir)) {
                Some((_, grant)) => {
                    grant.owners.note(now, pid);
                    grant.unshimmed.note(pid);
                }
                None => self.strangers.note(now, pid),
            }
        }
        Some(window)
    }

    /// Serves the dormant share that a process was started under: it uses the card, and takes no slot.
    fn serve_started(&mut self, now: Nanos, started: &StartedGrants) {
        let Some(dormant) = &mut self.dormant else { return };
        let of_process = dormant.numbers().keys().find(|dir| started.is_under(dir)).cloned();
        if let Some(dir) = of_process.filter(|dir| dormant.remove(dir)) {
            self.serve(now, &dir);
        }
    }

    /// Sleeps until the next step or scan is due, a demand word changes, or the command's thread makes a request.
    fn wait(&mut self, step: StepResult, shared: &GovernorRequests) {
        match step.next {
            Next::Tick(at) => {
                shared.sleep(Some(Duration::from_nanos(at.minus(monotonic()).0).min(LOOK)), None);
            }
            Next::Demand if step.demands.is_empty() && !self.looks_at_memory() => self.rest(shared),
            Next::Demand => {
                let (looks, longest) = self.look_words();
                let words = self.words(step.demands).into_iter().chain(looks).chain([shared.word()]);
                wait_any(&words.collect::<Vec<_>>(), longest);
            }
        }
    }

    /// The tenants' demand words, with their values before the step.
    fn words(&self, demands: Vec<u32>) -> Vec<(&AtomicU32, u32)> {
        let governed = self.grants.values().filter(|grant| grant.tenant.is_some()).zip(demands);
        governed.filter_map(|(grant, seen)| Some((grant.usage.view().ok()?.demand(), seen))).collect()
    }

    /// Sleeps while no grant limits compute: until claims come or go, or for [`CALM`] if no grant limits anything.
    fn rest(&mut self, shared: &GovernorRequests) {
        let limited = self.grants.values().any(GovernedGrant::limits_memory);
        if self.register.is_some() {
            // A change of the register wakes the thread, and the shares are read at once.
            let calm = !limited && self.unread == 0;
            let dormant = self.dormant.as_ref().filter(|dormant| !dormant.numbers().is_empty());
            let longest = if dormant.is_some() { LOCKS } else { CALM };
            shared.sleep(Some(if calm { longest } else { LOOK }), dormant.map(DormantShares::as_fd));
            self.looked_at = self.looked_at.filter(|_| !calm);
            return;
        }
        let stirred = Duration::from_nanos(monotonic().minus(self.stirred_at).0) < SETTLING;
        let calm = !stirred && !limited && self.unread == 0 && self.claims.is_some();
        // A change without an event, such as a share added late to an existing claim, is found after the longest sleep.
        shared.sleep(Some(if calm { CALM } else { LOOK }), self.claims.as_ref().map(FileWatch::as_fd));
        if self.claims.as_ref().is_some_and(|claims| claims.take() != Heard::Nothing) {
            // The directory may have been replaced: it is watched again before the next scan.
            (self.stirred_at, self.looked_at, self.claims) = (monotonic(), None, None);
        }
        if self.claims.is_none() {
            self.claims = FileWatch::of_entries(&self.scope.grants);
        }
    }

    /// Resets every grant to its guarantee: no governor will withdraw borrowed time any more.
    fn take_loans_back(&mut self) {
        for grant in self.grants.values_mut() {
            let Ok(now) = grant.limits.read() else { continue };
            if let Some(terms) = terms(&now) {
                grant.publish(Tenant::new(terms));
                grant.lend(LoanExpiry::ENDLESS);
            }
        }
    }
}

/// The result of a step.
struct StepResult {
    next: Next,
    /// Values of the demand words before it.
    demands: Vec<u32>,
}

/// Directories of shares.
fn shares_below(grants: &Path) -> BTreeSet<PathBuf> {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(grants).flat_map(|claim| entries(&claim).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests;
