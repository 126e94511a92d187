use std::fs::{File, OpenOptions};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, ManagedPolicy, MemoryLimit, Pages, Text};
use aliquot_enforce::share::Terms;
use aliquot_enforce::units::Ppm;
use nix::fcntl::{Flock, FlockArg};

use super::news::{Candidate, LeaderLock};
use super::*;
use crate::disk::Seam;
use crate::region::{read, wake};
use crate::run::cards::ProcessTime;

mod dormant;
mod residue;

const CARD: &str = "GPU-00000000-0000-0000-0000-000000000001";

fn limits(policy: ComputePolicy, share_ppm: u32, card: &str) -> Limits {
    Limits {
        generation: 1,
        memory: MemoryLimit::Bytes(1 << 30),
        share_ppm,
        granted_ppm: share_ppm,
        own_ppm: 1_000_000,
        context_bytes: 0,
        pages: Pages::ASSUMED,
        policy,
        priority: 1,
        fail_mode: FailMode::Closed,
        managed: ManagedPolicy::Charge,
        card: Text::new(card).unwrap(),
        claim: Text::new("c").unwrap(),
    }
}

fn grant(dir: &Path, name: &str, limits: &Limits) -> GrantPaths {
    let place = GrantPaths { dir: dir.join("grants").join(name).join("0"), lock: dir.join("limits.lock") };
    fs::create_dir_all(&place.dir).unwrap();
    place.ensure(&Disk::default(), limits).unwrap();
    place
}

fn scope(dir: &Path) -> Scope {
    Scope {
        visible: CARD.to_owned(),
        grants: dir.join("grants"),
        writers: dir.join("limits.lock"),
        share: dir.join("grants").join("burst").join("0"),
        election: dir.join("governors").join(CARD),
        meter: None,
        processes: None,
    }
}

fn wait_for(what: &str, mut there: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

/// What the shim does before the first reservation of a process.
fn has_a_slot(usage: &UsageFile) {
    let view = usage.view().unwrap();
    let (slot, own) = (view.slot(0).unwrap(), std::process::id());
    slot.start_time().store(crate::region::start_time(own).unwrap(), Ordering::SeqCst);
    slot.owner().store(u64::from(own), Ordering::SeqCst);
}

/// What the shim does when a launch has to wait.
fn is_limited(usage: &UsageFile) {
    let view = usage.view().unwrap();
    view.active_until().store(u64::MAX, Ordering::SeqCst);
    view.limited_until().store(u64::MAX, Ordering::SeqCst);
    view.demand().fetch_add(1, Ordering::SeqCst);
    wake(view.demand());
}

#[test]
fn idle_time_is_borrowed_and_reclaimed_at_governor_exit() {
    let dir = tempfile::tempdir().unwrap();
    let burst = grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD));
    let cap = grant(dir.path(), "cap", &limits(ComputePolicy::Cap, 500_000, CARD));
    let other = grant(dir.path(), "other", &limits(ComputePolicy::Burst, 250_000, "GPU-another"));
    let granted = |place: &GrantPaths| read(&place.limits()).unwrap().granted_ppm;
    let first = Governor::start(scope(dir.path())).unwrap();
    let usages = [&burst, &cap, &other].map(|place| UsageFile::open(&place.usage()).unwrap());
    usages.iter().for_each(is_limited);
    wait_for("a loan", || granted(&burst) == 500_000);
    assert_eq!((granted(&cap), granted(&other)), (500_000, 250_000), "caps and other cards are left alone");
    let woken = usages[0].view().unwrap().wake().load(Ordering::SeqCst);
    assert!(woken > 0, "waiters on the limits are woken");

    // The second one takes over as soon as the first is gone; while the first is paused, too.
    let second = Governor::start(scope(dir.path())).unwrap();
    drop(first);
    wait_for("the next governor", || granted(&burst) == 500_000);
    second.pause();
    assert_eq!(granted(&burst), 250_000, "no governor withdraws borrowed time");
    second.go_on();
    wait_for("the same governor again", || granted(&burst) == 500_000);
    drop(second);
    assert_eq!(granted(&burst), 250_000);
}

/// As `aliquot prepare` changes them, while it governs.
#[test]
fn a_governor_lends_by_the_shares_that_are_in_force_now() {
    let dir = tempfile::tempdir().unwrap();
    let burst = grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD));
    let cap = grant(dir.path(), "cap", &limits(ComputePolicy::Cap, 500_000, CARD));
    let granted = |place: &GrantPaths| read(&place.limits()).unwrap().granted_ppm;
    let _governor = Governor::start(scope(dir.path())).unwrap();
    let usages = [&burst, &cap].map(|place| UsageFile::open(&place.usage()).unwrap());
    usages.iter().for_each(is_limited);
    wait_for("a loan", || granted(&burst) == 500_000);
    let change = |place: &GrantPaths, policy, share_ppm| {
        let change = |now: &Limits| Limits { policy, share_ppm, granted_ppm: share_ppm, ..*now };
        place.change(|now| now.map(change)).unwrap();
    };
    change(&cap, ComputePolicy::Cap, 100_000);
    wait_for("what the other one gave up", || granted(&burst) == 900_000);
    assert_eq!(granted(&cap), 100_000);
    change(&cap, ComputePolicy::Cap, 600_000);
    wait_for("the end of that loan", || granted(&burst) == 400_000);
    change(&burst, ComputePolicy::Cap, 250_000);
    wait_for("the end of every loan", || granted(&burst) == 250_000);
}

/// Whenever it happens: between two steps, or while one is about to say what it decided.
#[test]
fn a_share_that_is_changed_is_never_what_an_earlier_one_lent() {
    let dir = tempfile::tempdir().unwrap();
    let burst = grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD));
    let in_force = || {
        let now = read(&burst.limits()).unwrap();
        (now.policy, now.share_ppm, now.granted_ppm)
    };
    let change = |policy, share_ppm| {
        let change = |now: &Limits| Limits { policy, share_ppm, granted_ppm: share_ppm, ..*now };
        burst.change(|now| now.map(change)).unwrap();
    };
    is_limited(&UsageFile::open(&burst.usage()).unwrap());
    let mut scope = scope(dir.path());
    let mut reign = Reign::new(&mut scope, None);
    reign.look();
    reign.step();
    assert_eq!(in_force(), (ComputePolicy::Burst, 250_000, 1_000_000), "it borrows");
    change(ComputePolicy::Cap, 100_000);
    reign.step();
    assert_eq!(in_force(), (ComputePolicy::Cap, 100_000, 100_000), "the next step goes by it");
    change(ComputePolicy::Burst, 300_000);
    reign.step();
    assert_eq!(in_force(), (ComputePolicy::Burst, 300_000, 1_000_000), "and by this");
    let grant = reign.grants.values_mut().next().unwrap();
    let decided = grant.tenant.unwrap();
    for (policy, share_ppm) in [(ComputePolicy::Cap, 300_000), (ComputePolicy::Unlimited, 1_000_000)] {
        change(policy, share_ppm);
        grant.publish(Tenant::new(Terms { guaranteed: Ppm::new(999_999), ..decided.terms }));
        grant.publish(decided);
        assert_eq!(in_force(), (policy, share_ppm, share_ppm), "what was decided before is no more");
    }
    change(ComputePolicy::Burst, 300_000);
    grant.publish(decided);
    assert_eq!(in_force(), (ComputePolicy::Burst, 300_000, 1_000_000));
}

/// Another process holds the leader lock without governing; a waiting tenant then reports a missing governor.
#[test]
fn stopped_leader_is_replaced_on_a_tenant_call_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let burst = grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD));
    let granted = || read(&burst.limits()).unwrap().granted_ppm;
    let leader_lock = scope(dir.path()).election;
    fs::create_dir_all(leader_lock.parent().unwrap()).unwrap();
    let open = || OpenOptions::new().write(true).create(true).truncate(false).open(&leader_lock).unwrap();
    let lock = || Flock::lock(open(), FlockArg::LockExclusiveNonblock);
    let stopped = lock().unwrap();
    let mut said = Live::open(&burst).unwrap();
    // Longer than a governor does, so that a machine that stands still for a moment is no reason.
    let mut say = || said.lend(LoanExpiry(monotonic().plus(Nanos::from_millis(900)).0)).unwrap();
    say();
    let usage = UsageFile::open(&burst.usage()).unwrap();
    is_limited(&usage);
    let governor = Governor::start(scope(dir.path())).unwrap();
    let call = || {
        let file = OpenOptions::new().write(true).open(burst.usage()).unwrap();
        let now = std::time::SystemTime::now();
        file.set_times(fs::FileTimes::new().set_accessed(now).set_modified(now)).unwrap();
    };
    // A governor that stepped a moment ago keeps the leader lock.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        call();
        say();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(granted(), 250_000);
    wait_for("a loan of another governor", || {
        call();
        granted() == 1_000_000
    });
    wait_for("the end of its loans, said again and again", || said.lent_until().unwrap().0 > monotonic().0);
    assert!(
        !LeaderLock::is_held(&LeaderLock { path: leader_lock.clone(), file: stopped }),
        "a governor that continues has lost it"
    );
    assert!(lock().is_err(), "the next one waits for the present leader");

    // The present leader loses it in the same way.
    let other = leader_lock.with_extension("other");
    // Locked before it has the name: a leader that loses its lock tries for the next one at once.
    let next = Flock::lock(File::create(&other).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    fs::rename(&other, &leader_lock).unwrap();
    wait_for("its end", || said.lent_until().unwrap().is_missed(monotonic()));
    assert_eq!(granted(), 1_000_000, "time lent by the next leader is not withdrawn");
    drop(next);
    wait_for("its return", || !said.lent_until().unwrap().is_missed(monotonic()));
    drop(governor);
    assert_eq!((granted(), said.lent_until().unwrap()), (250_000, LoanExpiry::ENDLESS));
}

#[test]
fn stopped_leader_is_replaced_even_if_no_call_is_heard() {
    let dir = tempfile::tempdir().unwrap();
    let burst = grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD));
    let leader_lock = scope(dir.path()).election;
    fs::create_dir_all(leader_lock.parent().unwrap()).unwrap();
    let stopped = Flock::lock(File::create(&leader_lock).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let mut said = Live::open(&burst).unwrap();
    // As where the kernel has no watch left for this user.
    fs::remove_file(burst.usage()).unwrap();
    let mut candidate = Candidate::new(&leader_lock, burst, Disk::default());
    assert!(candidate.elect().is_none(), "no report of a missing governor");
    said.lend(LoanExpiry(1)).unwrap();
    assert!(candidate.elect().is_some_and(|taken| taken.is_held()));
    assert!(!LeaderLock::is_held(&LeaderLock { path: leader_lock, file: stopped }));
}

/// The world stops before the effect that is so far away.
struct StopsAfter(AtomicUsize);

impl Seam for StopsAfter {
    fn before(&self, effect: &str) -> io::Result<()> {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| io::Error::other(effect.to_owned()))
    }

    fn bytes(&self, _effect: &str, length: usize) -> usize {
        length
    }
}

/// A takeover is killed at each step, by a process with another id. The next one finds the leader lock free, or takes it over.
#[test]
fn files_of_a_killed_takeover_go_with_the_next_leader() {
    let mut left_behind = 0;
    for (places, is_free) in [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false)] {
        let dir = tempfile::tempdir().unwrap();
        let burst = grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD));
        let leader_lock = scope(dir.path()).election;
        let leader_locks = leader_lock.parent().unwrap();
        fs::create_dir_all(leader_locks).unwrap();
        let stopped =
            Flock::lock(File::create(&leader_lock).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        // As if the user's inotify limit were reached; the governor has been missing for long.
        fs::remove_file(burst.usage()).unwrap();
        Live::open(&burst).unwrap().lend(LoanExpiry(1)).unwrap();
        let disk = Disk::new(Arc::new(StopsAfter(AtomicUsize::new(places))));
        let killed = Candidate::new(&leader_lock, burst.clone(), disk).elect();
        assert_eq!(killed.is_some(), places == 2);
        drop(killed);
        let of = |number: u32| leader_locks.join(format!("{CARD}.{number}"));
        if fs::rename(of(std::process::id()), of(1)).is_ok() {
            left_behind += 1;
        }
        // Another candidate is taking over, and files of another card and foreign files must stay.
        let at_it = Flock::lock(File::create(of(2)).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        let others = ["GPU-another.3", "notes"].map(|name| leader_locks.join(name));
        others.iter().for_each(|other| fs::write(other, "").unwrap());
        if is_free {
            drop(stopped);
        }
        let mut expected = vec![leader_lock.clone(), of(2)];
        expected.extend(others);
        expected.sort();
        let there = || {
            let mut there: Vec<_> =
                fs::read_dir(leader_locks).unwrap().map(|found| found.unwrap().path()).collect();
            there.sort();
            there
        };
        let mut next = Candidate::new(&leader_lock, burst, Disk::default());
        // Locks that were let go may be there for a moment yet.
        wait_for("the next governor, and nothing of the one before", || {
            next.elect().is_some_and(|held| held.is_held()) && there() == expected
        });
        drop(at_it);
    }
    assert_eq!(left_behind, 2, "killed between the two effects");
}

/// Meanwhile a launch went by its guarantee, and sleeps for as long as that takes.
#[test]
fn wait_for_a_late_step_ends_with_the_step() {
    let dir = tempfile::tempdir().unwrap();
    let burst = grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD));
    let granted = || read(&burst.limits()).unwrap().granted_ppm;
    let usage = UsageFile::open(&burst.usage()).unwrap();
    is_limited(&usage);
    let _governor = Governor::start(scope(dir.path())).unwrap();
    wait_for("a loan", || granted() == 1_000_000);
    let mut said = Live::open(&burst).unwrap();
    let wake = usage.view().unwrap().wake();
    let woken = wake.load(Ordering::SeqCst);
    // Again and again: it may be said anew in that very moment.
    wait_for("a look at the limits", || {
        said.lend(LoanExpiry(1)).unwrap();
        wake.load(Ordering::SeqCst) != woken
    });
    assert_eq!(granted(), 1_000_000, "which are what they were");
}

#[test]
fn grants_that_come_and_spoilt_ones_are_no_trouble() {
    let dir = tempfile::tempdir().unwrap();
    let governor = Governor::start(scope(dir.path())).unwrap();
    let spoilt = grant(dir.path(), "spoilt", &limits(ComputePolicy::Burst, 250_000, CARD));
    let late = grant(dir.path(), "late", &limits(ComputePolicy::BestEffort, 0, CARD));
    let usage = UsageFile::open(&late.usage()).unwrap();
    for _ in 0..20 {
        OpenOptions::new().write(true).open(spoilt.usage()).unwrap().set_len(0).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(spoilt.limits(), "nonsense").unwrap();
    is_limited(&usage);
    wait_for("a loan for the late one", || read(&late.limits()).unwrap().granted_ppm >= 700_000);
    drop(governor);
    assert_eq!(read(&late.limits()).unwrap().granted_ppm, 0);
}

/// A driver that reports one process, once it is enabled.
#[derive(Debug)]
struct Tells {
    pid: u32,
    begun: Arc<AtomicBool>,
    told: Nanos,
}

impl Meter for Tells {
    fn window(&mut self, now: Nanos) -> Option<Window> {
        let due = now.minus(self.told) >= Nanos::from_millis(20);
        if !due || !self.begun.load(Ordering::SeqCst) {
            return None;
        }
        self.told = now;
        let processes = vec![ProcessTime { pid: self.pid, percent: 100 }];
        Some(Window { length: Nanos::from_millis(20), busy_percent: Some(100), processes })
    }
}

/// The credit correction of a grant for a process that exited before the driver reports its time; `None`: none within a second.
fn paid_for_the_dead(policy: ComputePolicy, has_slot: bool) -> Option<i64> {
    let dir = tempfile::tempdir().unwrap();
    let place = grant(dir.path(), "one", &limits(policy, 300_000, CARD));
    let usage = UsageFile::open(&place.usage()).unwrap();
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let pid = ended.id();
    ended.wait().unwrap();
    let begun = Arc::new(AtomicBool::new(false));
    let meter = Tells { pid, begun: Arc::clone(&begun), told: Nanos::ZERO };
    let slot = usage.view().unwrap().slot(0).unwrap();
    let owner = || slot.owner().load(Ordering::SeqCst) & u64::from(u32::MAX);
    if has_slot {
        slot.start_time().store(1, Ordering::SeqCst);
        slot.owner().store(u64::from(pid), Ordering::SeqCst);
    }
    let governor = Governor::start(Scope { meter: Some(Box::new(meter)), ..scope(dir.path()) }).unwrap();
    wait_for("the slot of the dead", || owner() == 0);
    begun.store(true, Ordering::SeqCst);
    let credit = || usage.view().unwrap().credit_nanos().load(Ordering::SeqCst);
    let until = Instant::now() + Duration::from_secs(if has_slot { 20 } else { 1 });
    while credit() == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(governor);
    Some(credit()).filter(|credit| *credit != 0)
}

#[test]
fn lone_cap_pays_for_processes_that_ended_before_the_report() {
    let paid = paid_for_the_dead(ComputePolicy::Cap, true);
    assert!(paid.is_some_and(|paid| paid < 0), "{paid:?}");
    assert_eq!(paid_for_the_dead(ComputePolicy::Cap, false), None, "a stranger's time");
}

/// A driver with a window that ends at every call.
#[derive(Debug)]
struct Told(Option<u32>);

impl Meter for Told {
    fn window(&mut self, _: Nanos) -> Option<Window> {
        let processes = [(1, 3), (2, 30), (3, 67)].map(|(pid, percent)| ProcessTime { pid, percent });
        Some(Window { length: Nanos::from_millis(100), busy_percent: self.0, processes: processes.to_vec() })
    }
}

#[test]
fn process_percentages_are_scaled_to_the_card() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one", "other"] {
        grant(dir.path(), name, &limits(ComputePolicy::Cap, 250_000, CARD));
    }
    // Together they are the whole card: nothing was rounded. Without the card's percentage half a percent is deducted.
    for (busy, least, most) in [(Some(100), 2_990, 3_000), (None, 2_500, 2_500)] {
        let mut scope = scope(dir.path());
        scope.meter = Some(Box::new(Told(busy)));
        let mut reign = Reign::new(&mut scope, None);
        reign.look();
        for _ in 0..100 {
            reign.step();
        }
        let micros = reign.rounding.time(3, Nanos::from_millis(100)).0 / 1_000;
        assert!((least..=most).contains(&micros), "{busy:?}: {micros}");
    }
}

#[test]
fn cut_usage_file_leaves_the_waits_of_other_words_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let places: Vec<_> = ["a", "b", "c"]
        .map(|name| grant(dir.path(), name, &limits(ComputePolicy::Cap, 250_000, CARD)))
        .into_iter()
        .collect();
    for (place, asked) in places.iter().zip(1..) {
        UsageFile::open(&place.usage()).unwrap().view().unwrap().demand().store(asked, Ordering::SeqCst);
    }
    let mut scope = scope(dir.path());
    let mut reign = Reign::new(&mut scope, None);
    reign.look();
    OpenOptions::new().write(true).open(places[0].usage()).unwrap().set_len(0).unwrap();
    let step = reign.step();
    let words = reign.words(step.demands);
    let pairs: Vec<_> = words.iter().map(|(word, seen)| (word.load(Ordering::SeqCst), *seen)).collect();
    assert_eq!(pairs, [(2, 2), (3, 3)]);
}

#[test]
fn waiting_for_several_words_ends_when_one_moves() {
    let words = [AtomicU32::new(1), AtomicU32::new(2)];
    let seen = [(&words[0], 1), (&words[1], 2)];
    let begun = Instant::now();
    wait_any(&seen, Duration::from_millis(20));
    assert!(begun.elapsed() >= Duration::from_millis(19), "{:?}", begun.elapsed());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            words[1].store(3, Ordering::SeqCst);
            wake(&words[1]);
        });
        let begun = Instant::now();
        wait_any(&seen, Duration::from_secs(20));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
    let begun = Instant::now();
    wait_any(&seen, Duration::from_secs(20));
    assert!(begun.elapsed() < Duration::from_secs(10), "a word that moved before is no reason to sleep");
}

/// As the node agent starts it beside a local run that has governed until then.
#[test]
fn owners_governor_seizes_the_lead_and_serves_its_register() {
    let dir = tempfile::tempdir().unwrap();
    let burst = grant(dir.path(), "burst", &limits(ComputePolicy::Burst, 250_000, CARD));
    let cap = grant(dir.path(), "cap", &limits(ComputePolicy::Cap, 500_000, CARD));
    let granted = || read(&burst.limits()).unwrap().granted_ppm;
    let usages = [&burst, &cap].map(|place| UsageFile::open(&place.usage()).unwrap());
    usages.iter().for_each(has_a_slot);
    usages.iter().for_each(is_limited);
    let of_a_run = Governor::start(scope(dir.path())).unwrap();
    wait_for("a loan of the run's governor", || granted() == 500_000);

    // An unregistered share counts for nothing, so all of the card but the registered share's part is idle.
    let owner = Governor::start_of_owner(scope(dir.path()), BTreeSet::from([burst.dir.clone()])).unwrap();
    wait_for("a loan that only the owner gives", || granted() == 1_000_000);
    owner.register(BTreeSet::from([burst.dir.clone(), cap.dir.clone()]));
    wait_for("both shares", || granted() == 500_000);
    owner.register(BTreeSet::from([burst.dir.clone()]));
    wait_for("one share again", || granted() == 1_000_000);
    drop(owner);
    wait_for("the lead to go back to the run", || granted() == 500_000);
    drop(of_a_run);
    assert_eq!(granted(), 250_000);
}

#[test]
fn process_on_the_card_without_a_slot_is_reported_alive() {
    let dir = tempfile::tempdir().unwrap();
    let place = grant(dir.path(), "one", &limits(ComputePolicy::Cap, 500_000, CARD));
    let usage = UsageFile::open(&place.usage()).unwrap();
    let start = |grants: &str| {
        let mut command = std::process::Command::new("sleep");
        command.arg("60").env("ALIQUOT_GRANTS", dir.path().join("grants").join(grants)).spawn().unwrap()
    };
    let found = |pid: u32, with: &dyn Fn(&Governor)| {
        let meter = Tells { pid, begun: Arc::new(AtomicBool::new(true)), told: Nanos::ZERO };
        let scope = Scope { meter: Some(Box::new(meter)), ..scope(dir.path()) };
        let governor = Governor::start_of_owner(scope, BTreeSet::from([place.dir.clone()])).unwrap();
        with(&governor);
    };
    let mut bypasses = start("one");
    let pid = bypasses.id();
    found(pid, &|governor| {
        let expected = UnshimmedProcess { pid, command: "sleep".to_owned() };
        wait_for("the process", || governor.unshimmed().get(&place.dir) == Some(&expected));
        let slot = usage.view().unwrap();
        let slot = slot.slot(0).unwrap();
        slot.start_time().store(crate::region::start_time(pid).unwrap(), Ordering::SeqCst);
        slot.owner().store(u64::from(pid), Ordering::SeqCst);
        wait_for("its slot", || governor.unshimmed().is_empty());
        slot.owner().store(0, Ordering::SeqCst);
    });
    found(pid, &|governor| {
        wait_for("the process again", || !governor.unshimmed().is_empty());
        assert!(
            nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()),
                nix::sys::signal::Signal::SIGKILL
            )
            .is_ok()
        );
        wait_for("its end", || governor.unshimmed().is_empty());
    });
    bypasses.wait().unwrap();
}
