//! Processes that fork, exec, close their descriptors, crash or lie: the accounting stays right, and no
//! process waits for one that will not answer.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::{slot, usage};
use aliquot_sim_device::processor::Lack;
use aliquot_tests::preload::{GrantFiles, Tenant, UNPAGED, memory_limit, unpaged};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: u64 = 1 << 30;
/// Too much for two.
const MOST: u64 = LIMIT / 4 * 3;
const FREEZE: u64 = 1 << 63;
const GRANTED: &str = "0";
const REFUSED: &str = "2";

struct Scene {
    bench: Bench,
    tenant: Tenant,
    files: GrantFiles,
    program: PathBuf,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new() -> Option<Self> {
        let bench = Bench::new();
        bench.write("node.toml", &format!("context_bytes = 0\nmodule_bytes = 0\n{UNPAGED}"));
        let program = match bench.compile("shim_life", Link::Direct) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let (tenant, files) = Tenant::with(&unpaged(memory_limit(&bench.card().facts().uuid, LIMIT)));
        // A context takes nothing, and its size is known.
        files.set_counter(usage::CONTEXT_BYTES, 1);
        Some(Self { bench, tenant, files, program })
    }

    fn start(&self) -> Talk {
        Talk::start(&mut self.tenant.command(&self.bench, &self.program))
    }

    /// A process that holds so much.
    fn holding(&self, bytes: u64) -> Talk {
        let mut process = self.start();
        assert_eq!(process.say(&format!("alloc {bytes}")), GRANTED);
        process
    }

    fn total(&self) -> u64 {
        self.files.counter(usage::TOTAL)
    }

    /// The slot of a process.
    fn slot_of(&self, pid: u32) -> usize {
        let owner = |at: usize| slot::pid_in(self.files.counter(at));
        let all = (0..usage::SLOT_COUNT).map(|number| usage::SLOTS + number * usage::SLOT_BYTES);
        all.into_iter().find(|at| owner(at + slot::OWNER) == pid).unwrap()
    }

    /// Writes a slot that no process took.
    fn forge(&self, number: usize, forged: Forged) {
        let at = usage::SLOTS + number * usage::SLOT_BYTES;
        self.files.set_counter(at + slot::START_TIME, forged.start);
        self.files.set_counter(at + slot::PID_NAMESPACE, forged.namespace);
        self.files.set_counter(at + slot::USED, forged.used);
        self.files.set_counter(at + slot::OWNER, 1 << 32 | u64::from(forged.pid));
    }

    /// The usage file, opened a second time by this process.
    fn usage(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.files.dir().join("usage")).unwrap()
    }
}

#[derive(Clone, Copy)]
struct Forged {
    pid: u32,
    start: u64,
    namespace: u64,
    used: u64,
}

fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").unwrap().ino()
}

fn start_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap()
}

/// A record lock on a range; held until the file is closed.
fn lock(file: &File, start: usize, length: usize) {
    let lock = libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).unwrap(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap(),
        l_start: i64::try_from(start).unwrap(),
        l_len: i64::try_from(length).unwrap(),
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_SETLK(&lock)).unwrap();
}

/// The longest time until memory of exited processes is available, but for the time in which the callers had
/// no processor.
const BACK_IN: Duration = Duration::from_millis(100);

/// Allocates memory of an exited process, repeatedly until granted: that takes no longer than promised.
fn granted(process: &mut Talk, bytes: u64) {
    let (lack, begun) = (Lack::of([process.pid(), std::process::id()]), Instant::now());
    while process.say(&format!("alloc {bytes}")) != GRANTED {
        let (elapsed, lacked) = (begun.elapsed(), lack.sum());
        assert!(
            elapsed < BACK_IN + lacked,
            "still refused after {elapsed:?}, {lacked:?} without a processor"
        );
    }
}

/// Within a bound that a test of a loaded machine keeps, and a hang does not.
fn soon<R>(what: impl FnOnce() -> R) -> R {
    let begun = Instant::now();
    let answer = what();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    answer
}

#[test]
fn a_chain_of_images_holds_only_what_the_last_one_does() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(MOST);
    for _ in 0..5 {
        process.tell("exec");
        assert_eq!(process.say(&format!("alloc {MOST}")), GRANTED);
        assert_eq!(scene.total(), MOST);
        // The high-water mark is set before exited processes on the card are reaped.
        assert_eq!(scene.bench.card().high_water(), MOST);
    }
    assert_eq!(process.say("free"), GRANTED);
    assert_eq!((scene.total(), scene.bench.card().in_use()), (0, 0));
}

#[test]
fn a_process_that_becomes_another_program_holds_nothing() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(MOST);
    let mut sibling = scene.start();
    assert_eq!(sibling.say(&format!("alloc {MOST}")), REFUSED);
    process.tell("become");
    assert_eq!(process.say("an echo"), "an echo");
    granted(&mut sibling, MOST);
    assert_eq!(scene.total(), MOST);
}

#[test]
fn a_process_that_closed_its_descriptors_keeps_what_it_holds() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(MOST);
    assert_eq!(process.say("close"), "0");
    let mut sibling = scene.start();
    assert_eq!(sibling.say(&format!("alloc {MOST}")), REFUSED);
    assert_eq!(process.say("alloc 512"), GRANTED);
    // The refusal made it reap, and so take its lock again.
    assert_eq!(process.say(&format!("alloc {MOST}")), REFUSED);
    assert_eq!(scene.total(), MOST + 512);
    drop(process);
    granted(&mut sibling, MOST);
    assert_eq!(scene.total(), MOST);
}

#[test]
fn threads_that_go_on_without_the_first_one_are_alive() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(MOST);
    assert_eq!(process.say("leader"), "0");
    assert_eq!(process.say("alloc 512"), GRANTED);
    assert_eq!(process.say("close"), "0");
    let mut sibling = scene.start();
    assert_eq!(sibling.say("alloc 512"), GRANTED);
    assert_eq!(scene.total(), MOST + 1024);
}

#[test]
fn forked_child_neither_owns_nor_releases_parent_memory() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(MOST);
    assert_eq!(process.say("fork"), "0");
    assert_eq!(process.say("vfork"), "0");
    assert_eq!(scene.total(), MOST);
    let orphan: i32 = process.say("orphan").parse().unwrap();
    drop(process);
    let mut sibling = scene.start();
    // It has the driver's files, and with them the card what its parent had.
    let answer = sibling.say(&format!("alloc {MOST}"));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(orphan), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(answer, REFUSED);
    granted(&mut sibling, MOST);
    assert_eq!(scene.total(), MOST);
}

#[test]
fn a_child_in_the_same_memory_has_the_same_books() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(MOST);
    assert_eq!(process.say("clone 4096"), GRANTED);
    assert_eq!(scene.total(), MOST + 4096);
    assert_eq!(process.say(&format!("clone {MOST}")), REFUSED);
    assert_eq!(process.say("free"), GRANTED);
    assert_eq!(process.say("free"), GRANTED);
    assert_eq!(scene.total(), 0);
}

#[test]
fn the_number_of_a_dead_process_is_not_the_process() {
    let Some(scene) = Scene::new() else { return };
    let me = std::process::id();
    let earlier = Forged { pid: me, start: start_of(me) - 1, namespace: namespace(), used: LIMIT };
    scene.forge(7, earlier);
    scene.files.set_counter(usage::TOTAL, LIMIT);
    let mut process = scene.holding(MOST);
    assert_eq!(scene.total(), MOST);
    assert_eq!(scene.files.counter(usage::REAPED), 1);
    assert_eq!(process.say("free"), GRANTED);
}

#[test]
fn a_process_of_another_pid_namespace_is_left_to_the_node() {
    let Some(scene) = Scene::new() else { return };
    let elsewhere = Forged { pid: 4_000_000, start: 1, namespace: namespace() + 1, used: MOST };
    scene.forge(7, elsewhere);
    scene.files.set_counter(usage::TOTAL, MOST);
    let mut process = scene.start();
    assert_eq!(process.say(&format!("alloc {MOST}")), REFUSED);
    assert_eq!(process.say("alloc 512"), GRANTED);
    assert_eq!(scene.total(), MOST + 512);
}

#[test]
fn memory_freed_while_accounting_is_closed_is_free_at_reopen() {
    let Some(scene) = Scene::new() else { return };
    let (mut first, mut second) = (scene.holding(MOST), scene.start());
    // A reaper that was stopped at its work, and does not go on.
    let file = scene.usage();
    lock(&file, 0, 1);
    scene.files.set_counter(usage::TOTAL, MOST | FREEZE);
    assert_eq!(soon(|| first.say("free")), GRANTED, "frees reach the driver");
    assert_eq!(scene.total(), 0);
    // The first never calls again.
    granted(&mut second, MOST);
    assert_eq!(scene.total(), MOST);
}

/// It has found an exited process, holds the lock of all reapers, and may have started a recount.
#[test]
fn process_stopped_while_reaping_blocks_no_sibling() {
    let Some(scene) = Scene::new() else { return };
    let (mut stopped, victim, mut sibling) = (scene.holding(512), scene.holding(MOST), scene.holding(512));
    assert_eq!(stopped.say("halt"), "0");
    drop(victim);
    stopped.tell(&format!("alloc {MOST}"));
    let told = waitpid(stopped.process(), Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert!(matches!(told, WaitStatus::Stopped(_, Signal::SIGSTOP)), "{told:?}");
    granted(&mut sibling, MOST);
    assert_eq!(scene.total(), MOST + 1024);
    scene.files.set_counter(usage::TOTAL, scene.total() | FREEZE);
    granted(&mut sibling, 512);
    assert_eq!(sibling.say("free"), GRANTED);
    assert_eq!(scene.total(), MOST + 1024);
    // Nor does it harm them when it goes on with what it was at.
    kill(stopped.process(), Signal::SIGCONT).unwrap();
    assert_eq!(stopped.hear(), REFUSED);
    assert_eq!(scene.total(), MOST + 1024);
    assert_eq!(sibling.say("free"), GRANTED);
    granted(&mut stopped, MOST);
    assert_eq!((scene.total(), scene.files.counter(usage::HIGH_WATER)), (MOST + 1024, MOST + 1536));
}

/// A process in a pid namespace of its own, which is killed with the value; `None`: none can be made here.
fn elsewhere(scene: &Scene) -> Option<Talk> {
    let unshare = ["--pid", "--fork", "--kill-child=KILL", "--mount-proc"];
    let can = Command::new("unshare").args(unshare).arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        println!("stood aside: no pid namespace can be made");
        return None;
    }
    let mut command = scene.tenant.command(&scene.bench, "unshare");
    Some(Talk::start(command.args(unshare).arg(&scene.program)))
}

/// Allocates most of the grant as soon as its holder has exited. The holder's processor time is not visible
/// from here.
fn in_the_end(process: &mut Talk) {
    let begun = Instant::now();
    while process.say(&format!("alloc {MOST}")) != GRANTED {
        assert!(begun.elapsed() < Duration::from_secs(10), "no live process holds it");
    }
}

#[test]
fn killed_and_restarted_container_has_all_of_its_grant() {
    let Some(scene) = Scene::new() else { return };
    for _ in 0..2 {
        let Some(mut first) = elsewhere(&scene) else { return };
        let Some(mut second) = elsewhere(&scene) else { return };
        assert_eq!(first.say(&format!("alloc {MOST}")), GRANTED);
        assert_eq!(second.say(&format!("alloc {MOST}")), REFUSED, "the first lives");
        drop(first);
        in_the_end(&mut second);
        assert_eq!(scene.total(), MOST);
        drop(second);
    }
    // From the node's own namespace, too.
    in_the_end(&mut scene.start());
    assert_eq!(scene.total(), MOST);
}

#[test]
fn process_of_another_pid_namespace_without_descriptors_lives() {
    let Some(scene) = Scene::new() else { return };
    let (Some(mut first), Some(mut second)) = (elsewhere(&scene), elsewhere(&scene)) else { return };
    assert_eq!(first.say(&format!("alloc {MOST}")), GRANTED);
    assert_eq!(first.say("close"), GRANTED);
    for _ in 0..3 {
        assert_eq!(second.say(&format!("alloc {MOST}")), REFUSED, "the first lives");
    }
    assert_eq!(first.say("free"), GRANTED);
    in_the_end(&mut second);
    assert_eq!(scene.total(), MOST);
}

#[test]
fn without_a_slot_nothing_is_had_and_with_one_again_everything() {
    let Some(scene) = Scene::new() else { return };
    let me = std::process::id();
    let living = Forged { pid: me, start: start_of(me), namespace: namespace(), used: 0 };
    (0..usage::SLOT_COUNT).for_each(|number| scene.forge(number, living));
    let file = scene.usage();
    lock(&file, usage::SLOTS, usage::SLOT_COUNT * usage::SLOT_BYTES);
    let mut process = scene.start();
    assert_eq!(soon(|| process.say("alloc 512")), REFUSED);
    assert_eq!(process.say("info"), format!("{LIMIT} {LIMIT}"));
    // This test runs, but does not map the file: without the lock it does not count as live.
    drop(file);
    granted(&mut process, 512);
    assert_eq!(scene.total(), 512);
}

#[test]
fn process_beyond_the_first_slots_has_its_slot_on_disk() {
    let Some(scene) = Scene::new() else { return };
    let file = scene.usage();
    file.set_len(u64::try_from(usage::FIRST_BYTES).unwrap()).unwrap();
    file.set_len(u64::try_from(usage::BYTES).unwrap()).unwrap();
    let on_disk = || file.metadata().unwrap().blocks() * 512;
    assert!(on_disk() < u64::try_from(usage::BYTES).unwrap(), "no hole: {} bytes", on_disk());
    let me = std::process::id();
    let living = Forged { pid: me, start: start_of(me), namespace: namespace(), used: 0 };
    (0..usage::FIRST_SLOTS).for_each(|number| scene.forge(number, living));
    lock(&file, usage::SLOTS, usage::FIRST_SLOTS * usage::SLOT_BYTES);
    let process = scene.holding(512);
    let slot = scene.slot_of(process.pid());
    assert!(slot >= usage::FIRST_BYTES, "{slot}");
    assert!(on_disk() >= u64::try_from(usage::BYTES).unwrap(), "{} bytes", on_disk());
}

/// All slots belong to exited processes, and the reaper is stopped while it reaps.
#[test]
fn process_stopped_while_reaping_blocks_no_new_slot() {
    let Some(scene) = Scene::new() else { return };
    // It runs, but neither maps the file nor has the lock of a slot. Its mappings are read for each slot, so they are few: those of
    // this process are hundreds while other tests run in it.
    let mut owner = Command::new("sleep").arg("60").spawn().unwrap();
    let dead = Forged { pid: owner.id(), start: start_of(owner.id()), namespace: namespace(), used: 0 };
    (0..usage::SLOT_COUNT).for_each(|number| scene.forge(number, dead));
    let file = scene.usage();
    lock(&file, 0, 1);
    let mut process = scene.start();
    assert_eq!(soon(|| process.say("alloc 512")), GRANTED);
    assert_eq!(scene.total(), 512);
    drop(file);
    owner.kill().unwrap();
    owner.wait().unwrap();
}

#[test]
fn stopped_process_does_not_delay_reaping_of_exited_ones() {
    let Some(scene) = Scene::new() else { return };
    let stopped = scene.holding(512);
    scene.files.set_counter(scene.slot_of(stopped.pid()) + slot::INSIDE, 1);
    let process = scene.holding(MOST);
    drop(process);
    let mut sibling = scene.start();
    assert_eq!(soon(|| sibling.say(&format!("alloc {MOST}"))), GRANTED);
    assert_eq!(scene.total(), MOST + 512);
}

/// One reaper is stopped with the lock of all reapers, and one on its way; all others still reap, at once.
#[test]
fn reaping_past_a_stopped_process_does_not_delay_others() {
    let Some(scene) = Scene::new() else { return };
    let stopped = scene.holding(512);
    scene.files.set_counter(scene.slot_of(stopped.pid()) + slot::INSIDE, 1);
    let mut siblings: Vec<_> = (0..6).map(|_| scene.holding(512)).collect();
    let victim = scene.holding(MOST);
    let file = scene.usage();
    lock(&file, 0, 1);
    drop(victim);
    let part = MOST / 6;
    siblings.iter_mut().for_each(|sibling| sibling.tell(&format!("alloc {part}")));
    let told: Vec<_> = siblings.iter_mut().map(Talk::hear).collect();
    assert_eq!(told, [GRANTED; 6]);
    assert_eq!(scene.total(), MOST + 7 * 512);
    drop(file);
}

#[test]
fn books_that_a_dead_reaper_left_closed_open_again() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(512);
    scene.files.set_counter(usage::TOTAL, FREEZE | 512);
    assert_eq!(soon(|| process.say("alloc 512")), GRANTED);
    assert_eq!(scene.total(), 1024);
    // One that is stopped with the lock is waited for, but not for ever.
    let file = scene.usage();
    lock(&file, 0, 1);
    scene.files.set_counter(usage::TOTAL, FREEZE | 1024);
    assert_eq!(soon(|| process.say("alloc 512")), GRANTED);
    scene.files.set_counter(usage::TOTAL, FREEZE | 1536);
    assert_eq!(soon(|| process.say("free")), GRANTED);
    assert_eq!(scene.total(), 1024);
    drop(file);
}

#[test]
fn a_slot_that_was_taken_away_is_taken_anew_with_what_is_held() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(MOST);
    let at = scene.slot_of(process.pid());
    for word in [slot::START_TIME, slot::PID_NAMESPACE, slot::USED, slot::OWNER] {
        scene.files.set_counter(at + word, 0);
    }
    scene.files.set_counter(usage::TOTAL, 0);
    assert_eq!(process.say(&format!("alloc {MOST}")), REFUSED);
    assert_eq!(scene.total(), MOST);
    assert_eq!(process.say("alloc 512"), GRANTED);
    assert_eq!(scene.total(), MOST + 512);
    assert_eq!(process.say("free"), GRANTED);
    assert_eq!(process.say("free"), GRANTED);
    assert_eq!(scene.total(), 0);
}

#[test]
fn nonsense_in_accounting_neither_hangs_nor_lifts_the_limit() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(512);
    scene.files.set_counter(usage::TOTAL, LIMIT);
    assert_eq!(
        soon(|| process.say(&format!("alloc {MOST}"))),
        GRANTED,
        "a total without a holder is recounted"
    );
    for nonsense in [0, 1, LIMIT, u64::MAX >> 1, u64::MAX, FREEZE, FREEZE | 77] {
        for at in [usage::TOTAL, usage::HIGH_WATER, scene.slot_of(process.pid()) + slot::USED] {
            scene.files.set_counter(at, nonsense);
            // Whatever stands there, one process never has more than the limit.
            assert_eq!(soon(|| process.say(&format!("alloc {MOST}"))), REFUSED);
            soon(|| process.say("info"));
        }
    }
    for number in 0..usage::SLOT_COUNT {
        let pid = u32::try_from(number).unwrap() + 1;
        scene.forge(number, Forged { pid, start: u64::MAX, namespace: namespace(), used: u64::MAX >> 4 });
    }
    assert_eq!(soon(|| process.say(&format!("alloc {MOST}"))), REFUSED);
    let mut sibling = scene.start();
    soon(|| sibling.say("alloc 512"));
    assert_eq!(soon(|| sibling.say(&format!("alloc {}", LIMIT + 1))), REFUSED);
}

#[test]
fn replaced_usage_file_counts_for_later_processes() {
    let Some(scene) = Scene::new() else { return };
    let mut process = scene.holding(MOST);
    let path = scene.files.dir().join("usage");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[64..].fill(0);
    std::fs::write(path.with_extension("new"), &bytes).unwrap();
    std::fs::rename(path.with_extension("new"), &path).unwrap();
    assert_eq!(process.say(&format!("alloc {MOST}")), REFUSED);
    assert_eq!(process.say("free"), GRANTED);
    assert_eq!(scene.total(), 0);
    let mut sibling = scene.start();
    assert_eq!(sibling.say(&format!("alloc {MOST}")), GRANTED);
    assert_eq!(process.say("info"), format!("{LIMIT} {LIMIT}"));
}
