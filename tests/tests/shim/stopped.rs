//! Processes stopped at any instruction, in the shim or in the driver. Every other process still gives the
//! same answer: that of the accounting, at most the limit and at least what is on the card.
//!
//! `ALIQUOT_SEED` names the run; it is printed.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
use aliquot_abi::limits::{Limits, MemoryLimit};
use aliquot_sim_device::Card;
use aliquot_tests::local::wait_for;
use aliquot_tests::shown::{PIECE, PLAIN, Scene, USERS, lists, numbers, shuffle};
use aliquot_tests::simulated::{Link, StoodAside};
use aliquot_tests::talk::Talk;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Processes of the container with threads that allocate and free memory of all families at random, as in
/// `tests/tests/shim/quota.rs`.
struct Workers(Vec<Talk>);

impl Workers {
    const COUNT: u64 = 3;

    /// At work.
    fn of(scene: &mut Scene, pace: Pace) -> Option<Self> {
        let program = match scene.site.bench.compile("shim_quota", Link::Direct) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        scene.site.bench.write("faults.toml", &pace.plan());
        let lent = scene.site.file("lent");
        let start = |_| {
            let words =
                ["4", "1000000000", &(32 * MIB).to_string(), &scene.random.bits().to_string(), "all", &lent];
            let mut talk = Talk::start(scene.site.tenant(scene.site.grants(), &program).args(words));
            assert_eq!(talk.hear(), "ready");
            talk
        };
        let mut workers = Self((0..Self::COUNT).map(start).collect());
        // Later processes are as quick as ever.
        scene.site.bench.write("faults.toml", "");
        workers.0.iter_mut().for_each(|worker| worker.tell("go"));
        Some(workers)
    }

    fn signal(&self, signal: Signal) {
        for worker in &self.0 {
            kill(worker.process(), signal).unwrap();
        }
    }

    /// Stops all threads of all of them, anywhere but inside the card's lock: a real driver stops no process
    /// there.
    fn stop(&self, card: &Card) {
        loop {
            self.signal(Signal::SIGSTOP);
            for worker in &self.0 {
                let told = waitpid(worker.process(), Some(WaitPidFlag::WUNTRACED)).unwrap();
                assert!(matches!(told, WaitStatus::Stopped(_, Signal::SIGSTOP)), "{told:?}");
            }
            if card.is_at_rest() {
                return;
            }
            self.signal(Signal::SIGCONT);
        }
    }
}

/// How fast the driver is for the workers.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Quick,
    /// So slow that most of them are stopped in a call of its.
    Slow,
}

impl Pace {
    fn plan(self) -> String {
        let symbols = "cuMemAlloc_v2 cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocPitch_v2 cuMemAllocManaged cuMemFree_v2 \
                       cuMemFreeAsync cuMemCreate cuMemRelease cuMemUnmap cuMemMapArrayAsync cuArray3DCreate_v2 cuArrayDestroy \
                       cuMipmappedArrayCreate cuMipmappedArrayDestroy cuMulticastBindMem cuMulticastUnbind cuCtxCreate_v2 \
                       cuCtxDestroy_v2 cuCtxSetLimit cuGreenCtxCreate cuGreenCtxDestroy cuGraphInstantiateWithFlags cuGraphLaunch \
                       cuGraphExecDestroy cuModuleLoadData cuModuleUnload cuMemPoolTrimTo cuMemPoolDestroy cuIpcGetMemHandle \
                       cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle";
        let slow = |symbol| format!("[[fault]]\nsymbol = \"{symbol}\"\naction = {{ slow_nanos = 300000 }}\n");
        match self {
            Self::Quick => String::new(),
            Self::Slow => symbols.split_whitespace().map(slow).collect(),
        }
    }
}

/// While others are at work: a process's figures add up, and are within the limit.
fn each_adds_up(scene: &mut Scene) {
    let user = scene.random.below(USERS + 1);
    let (limit, told) = (scene.limit(0), scene.raw(user, "nvml 0"));
    let told = numbers(&told);
    assert!(
        told[0] == limit && told[1] + told[2] == limit && told[4] + told[5] == limit && told[8] <= limit,
        "{told:?}"
    );
    if user < USERS {
        let told = scene.raw(user, "cuda");
        assert!(matches!(numbers(&told)[..2], [free, total] if total == limit && free <= limit), "{told}");
    }
    let told = lists(&scene.raw(user, "processes 0"));
    assert!(told.iter().flatten().all(|(_, bytes)| *bytes <= limit), "{told:?}");
}

/// While the workers are stopped anywhere, nothing moves. False: a query found memory that others had
/// released.
fn still_agree(scene: &mut Scene) -> bool {
    let (booked, limit) = (scene.booked(0), scene.limit(0));
    assert!(booked <= limit, "{booked} booked of {limit}");
    let mut order: Vec<usize> = (0..=USERS).collect();
    shuffle(&mut scene.random, &mut order);
    let mut told = Vec::new();
    for user in order {
        for which in 0..2 {
            scene.question(user, 0, which);
        }
        told.push(lists(&scene.raw(user, "processes 0")));
    }
    if scene.booked(0) != booked {
        return false;
    }
    let holders = &told[0][0];
    assert!(told.iter().all(|lists| lists == &told[0]), "{told:?}");
    assert!(told[0][1..3].iter().chain([&told[0][9]]).all(|list| list == holders), "{told:?}");
    // What is under way is in the total first and in the process's part then, and off them the other way round.
    let sum = holders.iter().map(|(_, bytes)| bytes).sum::<u64>() + scene.without_holder(0);
    assert!(sum <= booked, "{sum} of processes, {booked} in all");
    let on_card = scene.site.bench.card().in_use() - u64::try_from(USERS).unwrap() * PIECE;
    assert!(on_card <= booked, "{on_card} on the card, {booked} booked");
    let shown = scene.site.top("0");
    let memory = &shown["cards"][0]["shares"][0]["memory"];
    assert_eq!((memory["usedBytes"].as_u64(), memory["limitBytes"].as_u64()), (Some(booked), Some(limit)));
    true
}
fn stopped_anywhere(pace: Pace) {
    let Some(mut scene) = Scene::new() else { return };
    let limits = scene.files[0].limits();
    // Five contexts, and room for some of what the workers want.
    let memory = MemoryLimit::Bytes(6 * limits.context_bytes + 200 * MIB);
    scene.files[0].change(&Limits { generation: limits.generation + 1, memory, ..limits });
    (0..USERS).for_each(|user| assert_eq!(scene.say(user, "on 0"), "0"));
    let Some(workers) = Workers::of(&mut scene, pace) else { return };
    let card = scene.site.bench.card();
    for _ in 0..60 {
        for _ in 0..4 {
            each_adds_up(&mut scene);
        }
        std::thread::sleep(Duration::from_micros(scene.random.bits() % 2000));
        workers.stop(&card);
        assert!((0..4).any(|_| still_agree(&mut scene)), "what is asked changes again and again");
        workers.signal(Signal::SIGCONT);
    }
    drop(workers);
    // The next query but a moment later reaps the exited workers; the card reaps by itself.
    wait_for("what the workers had", || {
        scene.site.bench.card().reap();
        drop(scene.raw(0, "nvml 0"));
        scene.booked(0) == u64::try_from(USERS).unwrap() * limits.context_bytes
    });
    drop(scene.all_agree(0));
}

#[test]
fn process_stopped_anywhere_leaves_accounting_consistent() {
    stopped_anywhere(Pace::Quick);
    stopped_anywhere(Pace::Slow);
}

#[test]
fn ipc_memory_exported_during_a_look_is_shown_once() {
    let Some(mut scene) = Scene::new() else { return };
    let context = scene.files[0].limits().context_bytes;
    let block = 6 << 30;
    let pid = u64::from(scene.users[0].talk.pid());
    let card = scene.site.bench.card();
    for _ in 0..2_500 {
        assert_eq!(scene.say(0, "on 0"), "0");
        assert_eq!(scene.say(0, &format!("have 1 {PLAIN} {block}")), "0");
        // The monitor is stopped within its query, and continues after the slot has another owner.
        scene.monitor.tell("processes 0");
        let (begun, wait) = (Instant::now(), scene.random.bits() % 500_000);
        while begun.elapsed() < Duration::from_nanos(wait) {
            std::hint::spin_loop();
        }
        kill(scene.monitor.process(), Signal::SIGSTOP).unwrap();
        waitpid(scene.monitor.process(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        if !card.is_at_rest() {
            kill(scene.monitor.process(), Signal::SIGCONT).unwrap();
        }
        assert!(scene.say(0, "lend 1").starts_with("0 "));
        kill(scene.monitor.process(), Signal::SIGCONT).unwrap();
        let told = lists(&scene.monitor.hear());
        let shown = told[..3].iter().flatten().filter(|(shown, _)| *shown == pid);
        shown.for_each(|(_, bytes)| assert!(*bytes <= context + block, "{bytes} of {}", context + block));
        assert_eq!(scene.say(0, "lose 1"), "0");
    }
    drop(scene.all_agree(0));
}
