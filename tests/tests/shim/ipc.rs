//! IPC-shared memory: on the card until its exporter has freed it and no importer has it open, or all of them
//! exited, and accounted as long as on the card.

use aliquot_abi::layout::{slot, usage};
use aliquot_sim_device::Card;
use aliquot_tests::local::wait_for;
use aliquot_tests::preload::{GrantFiles, Tenant, UNPAGED, memory_limit, unpaged};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use std::path::PathBuf;

const SIZE: u64 = 8 << 20;
const LIMIT: u64 = 4 * SIZE;
const REFUSED: &str = "2";

struct Scene {
    bench: Bench,
    card: Card,
    tenant: Tenant,
    files: GrantFiles,
    path: PathBuf,
    /// Held by one process all the time.
    base: u64,
}

/// A process that executes commands, which succeed.
struct Process(Talk);

impl Scene {
    /// `None`: no C compiler here.
    fn new() -> Option<Self> {
        let bench = Bench::new();
        bench.write("node.toml", &format!("context_bytes = 0\nmodule_bytes = 0\n{UNPAGED}"));
        let path = match bench.compile("shim_ipc", Link::Direct) {
            Ok(path) => path,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let (tenant, files) = Tenant::with(&unpaged(memory_limit(&card.facts().uuid, LIMIT)));
        Some(Self { bench, card, tenant, files, path, base: 0 })
    }

    fn start(&self) -> Process {
        Process(Talk::start(&mut self.tenant.command(&self.bench, &self.path)))
    }

    /// Without the shim.
    fn bare(&self) -> Process {
        Process(Talk::start(&mut self.bench.command(&self.path)))
    }

    /// Accounting and card have so many of `SIZE`, and so does the report of free memory.
    #[track_caller]
    fn both(&self, looker: &mut Process, count: u64) {
        let held = self.base + count * SIZE;
        assert_eq!(looker.0.say("info"), format!("0 {}", LIMIT - held));
        let found = (self.files.counter(usage::TOTAL), self.card.in_use());
        assert_eq!(found, (held, held));
    }

    /// The same after the exited processes have been reaped.
    #[track_caller]
    fn soon(&self, looker: &mut Process, count: u64) {
        let free = format!("0 {}", LIMIT - self.base - count * SIZE);
        wait_for("exited processes to be found", || looker.0.say("info") == free);
        self.card.reap();
        self.both(looker, count);
    }

    /// Never more than the limit was on the card.
    #[track_caller]
    fn held(&self) {
        let marks = (self.card.high_water(), self.files.counter(usage::HIGH_WATER));
        assert!(marks.0 <= marks.1 && marks.1 <= LIMIT, "{marks:?}");
    }
}

/// What a slot is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Process,
    Lent,
}

impl Scene {
    /// Offsets of the slots of a process, its own or those of its exports.
    fn slots_of(&self, process: &Process, of: Of) -> Vec<usize> {
        let word = |at: usize| self.files.counter(at);
        let kind = |at: usize| if word(at + slot::INSIDE) >> 32 == 0 { Of::Process } else { Of::Lent };
        let its = |at: &usize| slot::pid_in(word(*at)) == process.0.pid() && kind(*at) == of;
        let slots = (0..usage::SLOT_COUNT).map(|number| usage::SLOTS + number * usage::SLOT_BYTES);
        slots.filter(its).collect()
    }

    /// Where the slot of a process itself is.
    fn slot_of(&self, process: &Process) -> usize {
        let slots = self.slots_of(process, Of::Process);
        assert_eq!(slots.len(), 1);
        slots[0]
    }

    /// Takes slots of a process away, as if it had exited: their bytes leave the accounting.
    fn take_away(&self, process: &Process, of: Of) {
        let word = |at: usize| self.files.counter(at);
        for at in self.slots_of(process, of) {
            let total = word(usage::TOTAL) - word(at + slot::USED);
            self.files.set_counter(usage::TOTAL, total);
            for word in [slot::START_TIME, slot::PID_NAMESPACE, slot::USED] {
                self.files.set_counter(at + word, 0);
            }
            self.files.set_counter(at + slot::OWNER, word(at) & !0xffff_ffff);
        }
    }
}

impl Process {
    #[track_caller]
    fn say(&mut self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.0.say(line), "0", "{line}");
        }
    }

    /// An allocation, and the handle by which it is opened.
    #[track_caller]
    fn lend(&mut self, made: u32) -> String {
        self.say(&[&format!("alloc {made} {SIZE}")]);
        self.export(made)
    }

    #[track_caller]
    fn export(&mut self, made: u32) -> String {
        let told = self.0.say(&format!("export {made}"));
        let handle = told.strip_prefix("0 ").unwrap_or_default();
        assert!(!handle.is_empty(), "{told}");
        handle.to_owned()
    }

    #[track_caller]
    fn open(&mut self, opened: u32, handle: &str) {
        self.say(&[&format!("open {opened} {handle}")]);
    }

    fn refused(&mut self, bytes: u64) -> bool {
        self.0.say(&format!("alloc 15 {bytes}")) == REFUSED
    }
}

/// The card's own part: nothing of this is the shim's.
#[test]
fn the_card_keeps_what_is_open_until_the_last_lets_go_of_it() {
    let Some(scene) = Scene::new() else { return };
    let (mut maker, mut one, mut other) = (scene.bare(), scene.bare(), scene.bare());
    let handle = maker.lend(0);
    maker.say(&["write 0 4711"]);
    one.open(0, &handle);
    one.open(1, &handle);
    other.open(0, &handle);
    one.say(&["same 0 1", "read 0 4711"]);
    maker.say(&["free 0"]);
    assert_eq!(scene.card.in_use(), SIZE);
    // What is made now is not what the others have open.
    maker.say(&[&format!("alloc 1 {SIZE}"), "write 1 12", "free 1"]);
    one.say(&["close 0", "read 1 4711"]);
    assert_eq!(scene.start().0.say(&format!("open 0 {handle}")), "1", "its maker does not have it any more");
    one.say(&["close 1"]);
    assert_eq!(one.0.say("close 1"), "1");
    assert_eq!(scene.card.in_use(), SIZE);
    drop(other);
    scene.card.reap();
    assert_eq!(scene.card.in_use(), 0);
    // And without its maker.
    let handle = maker.lend(0);
    one.open(0, &handle);
    drop(maker);
    scene.card.reap();
    assert_eq!(scene.card.in_use(), SIZE);
    one.say(&["reset"]);
    assert_eq!(scene.card.in_use(), 0);
}

#[test]
fn memory_freed_while_imported_is_charged_until_closed() {
    let Some(scene) = Scene::new() else { return };
    let (mut maker, mut one, mut other) = (scene.start(), scene.start(), scene.start());
    for free in ["free 0", "order 0", "reset"] {
        let handle = maker.lend(0);
        assert_eq!(handle, maker.export(0));
        one.open(0, &handle);
        one.open(1, &handle);
        other.open(0, &handle);
        scene.both(&mut maker, 1);
        maker.say(&[free]);
        scene.both(&mut maker, 1);
        assert!(maker.refused(LIMIT - SIZE + 1) && one.refused(LIMIT - SIZE + 1), "{free}");
        assert_eq!(scene.start().0.say(&format!("open 0 {handle}")), "1");
        // An importer may open it again.
        one.open(2, &handle);
        one.say(&["same 0 2", "close 0", "close 2"]);
        other.say(&["close 0"]);
        scene.both(&mut other, 1);
        one.say(&["close 1"]);
        scene.both(&mut maker, 0);
    }
    // Closed before it is freed; and never opened.
    let handle = maker.lend(0);
    one.open(0, &handle);
    one.say(&["close 0"]);
    scene.both(&mut one, 1);
    maker.lend(1);
    maker.say(&["free 0", "free 1"]);
    scene.both(&mut maker, 0);
    scene.held();
}

/// A process that only imports has no slot, and takes its first one with the lock of its imports.
#[test]
fn importer_with_its_first_allocation_keeps_its_import() {
    let Some(scene) = Scene::new() else { return };
    let mut maker = scene.start();
    let mut opener =
        Process(Talk::start(scene.tenant.command(&scene.bench, &scene.path).arg("as a runtime library")));
    let handle = maker.lend(0);
    opener.open(0, &handle);
    maker.say(&["free 0"]);
    opener.say(&["alloc 0 512", "free 0"]);
    assert!(maker.refused(LIMIT - SIZE + 1) && opener.refused(LIMIT - SIZE + 1));
    scene.both(&mut maker, 1);
    opener.say(&["close 0"]);
    scene.both(&mut maker, 0);
    scene.held();
}

/// What ends with a context is credited once, whatever the process holds elsewhere.
#[test]
fn ipc_memory_ending_with_its_context_leaves_other_charges() {
    let Some(scene) = Scene::new() else { return };
    let (mut maker, mut other) = (scene.start(), scene.start());
    maker.say(&[&format!("alloc 0 {SIZE}")]);
    for _ in 0..3 {
        maker.say(&["context"]);
        maker.lend(1);
        scene.both(&mut maker, 2);
        maker.say(&["leave"]);
        scene.both(&mut maker, 1);
        // And where an importer has it open.
        maker.say(&["context"]);
        let handle = maker.lend(1);
        other.open(0, &handle);
        maker.say(&["leave"]);
        scene.both(&mut maker, 2);
        other.say(&["close 0"]);
        scene.both(&mut maker, 1);
    }
    assert!(maker.refused(LIMIT - SIZE + 1));
    maker.say(&["free 0"]);
    scene.both(&mut maker, 0);
    scene.held();
}

#[test]
fn memory_of_an_exited_exporter_is_charged_while_imported() {
    let Some(scene) = Scene::new() else { return };
    let (mut maker, mut one, mut other) = (scene.start(), scene.start(), scene.start());
    let handle = maker.lend(0);
    maker.say(&[&format!("alloc 1 {SIZE}")]);
    one.open(0, &handle);
    other.open(0, &handle);
    drop(maker);
    scene.soon(&mut one, 1);
    assert!(one.refused(LIMIT - SIZE + 1));
    let mut next = scene.start();
    next.say(&[&format!("alloc 0 {}", LIMIT - SIZE)]);
    assert!(next.refused(1));
    next.say(&["free 0"]);
    drop(other);
    scene.soon(&mut one, 1);
    one.say(&["close 0"]);
    scene.soon(&mut one, 0);
    // An importer that exits releases it.
    let handle = one.lend(0);
    next.open(0, &handle);
    drop(next);
    one.say(&["free 0"]);
    scene.soon(&mut one, 0);
    one.say(&[&format!("alloc 0 {LIMIT}"), "free 0"]);
    scene.held();
}

/// A live exporter is taken for an exited one: each byte is accounted once again, and no other one leaves the
/// accounting.
#[test]
fn ipc_memory_is_counted_once_after_a_slot_was_reclaimed() {
    let Some(scene) = Scene::new() else { return };
    let mut maker = scene.start();
    for (taken, left) in [(&[Of::Process][..], 1), (&[Of::Lent], 1), (&[Of::Process, Of::Lent], 0)] {
        let handle = maker.lend(0);
        maker.say(&[&format!("alloc 1 {SIZE}")]);
        taken.iter().for_each(|of| scene.take_away(&maker, *of));
        assert_eq!(scene.files.counter(usage::TOTAL), left * SIZE, "{taken:?}");
        maker.say(&[&format!("alloc 2 {SIZE}")]);
        let lost = u64::from(taken == [Of::Lent]) * SIZE;
        assert_eq!(scene.files.counter(usage::TOTAL), 3 * SIZE - lost, "{taken:?}");
        let mut other = scene.start();
        other.open(0, &handle);
        maker.say(&["free 0"]);
        // If its slot is gone, no process pays for the open memory.
        let open = u64::from(taken == [Of::Process]) * SIZE;
        assert_eq!(scene.files.counter(usage::TOTAL), 2 * SIZE + open, "{taken:?}");
        other.say(&["close 0"]);
        scene.both(&mut maker, 2);
        maker.say(&["free 1", "free 2"]);
        scene.both(&mut maker, 0);
    }
    assert!(scene.files.counter(usage::HIGH_WATER) <= LIMIT);
}

/// A process with the lock for changes of exports takes no slot under it: it would wait for itself, thousands
/// of times.
#[test]
fn close_during_slot_reclaim_does_not_deadlock() {
    let Some(scene) = Scene::new() else { return };
    let (mut other, mut maker) = (scene.start(), scene.start());
    let handle = maker.lend(0);
    other.open(0, &handle);
    maker.say(&["free 0"]);
    let owner = scene.slot_of(&other) + slot::OWNER;
    let before = sleeps(other.0.pid());
    other.say(&[&format!("lose {owner}"), "close 0"]);
    let slept = sleeps(other.0.pid()) - before;
    assert_eq!(scene.files.counter(owner), 0, "it was taken away");
    assert!(slept < 1_000, "{slept}");
    other.say(&["lose 0"]);
    scene.soon(&mut maker, 0);
}

/// Publishing the liveness byte drops all record locks: a process that may have some publishes none any more.
#[test]
fn import_survives_slot_reclaim_of_a_process_without_liveness() {
    let Some(scene) = Scene::new() else { return };
    let mut maker = scene.start();
    let handle = maker.lend(0);
    let mut command = scene.tenant.command(&scene.bench, &scene.path);
    let mut other = Process(Talk::start(command.arg("stalled")));
    other.open(0, &handle);
    let sign = scene.slot_of(&other) + slot::SIGN;
    assert_eq!(scene.files.counter(sign), 0, "none could be shown");
    scene.take_away(&other, Of::Process);
    other.say(&["alloc 1 512", "free 1"]);
    maker.say(&["free 0"]);
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(60));
        scene.both(&mut maker, 1);
    }
    other.say(&["close 0"]);
    scene.soon(&mut maker, 0);
}

/// How often a process has gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

/// Each of them has to close it, whichever of them wrote it down first.
#[test]
fn concurrent_opens_count_until_the_last_close() {
    const COUNT: u64 = 200;
    const BYTES: u64 = 4096;
    let Some(scene) = Scene::new() else { return };
    let found = || (scene.files.counter(usage::TOTAL), scene.card.in_use());
    let (mut maker, mut opener) = (scene.start(), scene.start());
    maker.say(&[&format!("crowd {COUNT} {BYTES}")]);
    for number in 0..COUNT {
        let told = maker.0.say(&format!("member {number}"));
        opener.say(&[&format!("together 0 {}", told.strip_prefix("0 ").unwrap_or_default())]);
        maker.say(&[&format!("part {number}")]);
        let left = (COUNT - number) * BYTES;
        assert_eq!(found(), (left, left), "one thread has number {number} open");
        opener.say(&["close 0"]);
        assert_eq!(found(), (left - BYTES, left - BYTES));
    }
    scene.held();
}

/// There are more exports than slots: what finds none is not exported, and processes still find some.
#[test]
fn ipc_sharing_beyond_the_slots_is_refused_and_charged_exactly() {
    const COUNT: u64 = 1_100;
    const BYTES: u64 = 4096;
    let Some(scene) = Scene::new() else { return };
    let found = || (scene.files.counter(usage::TOTAL), scene.card.in_use());
    let member = |maker: &mut Process, number: u64| {
        let told = maker.0.say(&format!("member {number}"));
        told.strip_prefix("0 ").unwrap_or_default().to_owned()
    };
    let (mut maker, mut one) = (scene.start(), scene.start());
    assert_eq!(maker.0.say(&format!("crowd {COUNT} {BYTES}")), REFUSED);
    let made = scene.card.in_use() / BYTES;
    assert!((800..900).contains(&made), "{made} with that which was not exported");
    assert_eq!(found(), (made * BYTES, made * BYTES));
    let mut later: Vec<Process> = (0..4).map(|_| scene.start()).collect();
    later.iter_mut().for_each(|process| process.say(&["alloc 0 512", "free 0"]));
    // What was freed and is not open leaves its slot to another one.
    one.open(0, &member(&mut maker, 0));
    maker.say(&["part 0", &format!("part {}", made - 1)]);
    assert_eq!(found(), ((made - 1) * BYTES, (made - 1) * BYTES));
    maker.say(&[&format!("alloc 0 {BYTES}")]);
    assert_eq!(maker.0.say("export 0"), REFUSED);
    one.say(&["close 0"]);
    (1..=20).for_each(|number| maker.say(&[&format!("part {number}")]));
    assert!(maker.0.say("export 0").starts_with("0 "));
    assert_eq!(found(), ((made - 21) * BYTES, (made - 21) * BYTES));
    // Its exit leaves the memory that others have open.
    one.open(1, &member(&mut maker, 50));
    drop(maker);
    wait_for("exited processes to be found", || one.0.say("info") == format!("0 {}", LIMIT - BYTES));
    scene.card.reap();
    assert_eq!(found(), (BYTES, BYTES));
    one.say(&["close 1"]);
    scene.soon(&mut one, 0);
    scene.held();
}

/// Makers and openers come, let go in any order, and are killed wherever they are.
#[test]
fn accounting_equals_the_card_after_any_kill_within_limit() {
    let Some(scene) = Scene::new() else { return };
    killed_at_random(&scene, 12);
}

#[test]
fn limit_holds_after_any_kill_if_slots_are_short() {
    const COUNT: u64 = 900;
    let Some(mut scene) = Scene::new() else { return };
    let mut filler = scene.start();
    assert_eq!(filler.0.say(&format!("crowd {COUNT} 512")), REFUSED);
    // The others' exports find some slots, or none.
    (0..8).for_each(|number| filler.say(&[&format!("part {number}")]));
    scene.base = scene.card.in_use();
    killed_at_random(&scene, 4);
    filler.say(&["part 8"]);
    scene.base -= 512;
    scene.both(&mut filler, 0);
}

fn killed_at_random(scene: &Scene, rounds: u32) {
    let seed = aliquot_tests::seed::seed();
    let mut random = seed;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut looker = scene.start();
    for round in 0..rounds {
        let mut processes: Vec<Process> = (0..4).map(|_| scene.start()).collect();
        let mut handles: Vec<String> = Vec::new();
        for _ in 0..40 {
            let at = usize::try_from(next(4)).unwrap_or(0);
            let process = &mut processes[at];
            let place = next(3);
            let line = match next(6) {
                0 | 1 => format!("alloc {place} {SIZE}"),
                2 => format!("export {place}"),
                3 if !handles.is_empty() => {
                    let which = usize::try_from(next(64)).unwrap_or(0) % handles.len();
                    format!("open {place} {}", handles[which])
                }
                4 => format!("close {place}"),
                _ => format!("free {place}"),
            };
            let told = process.0.say(&line);
            if let Some(handle) = told.strip_prefix("0 ") {
                handles.push(handle.to_owned());
            }
        }
        // A kill in the middle of a call.
        for mut process in processes {
            process
                .0
                .tell(["free 0", "close 0", "export 0", "free 1"][usize::try_from(next(4)).unwrap_or(0)]);
            drop(process);
            scene.held();
        }
        println!("round {round}");
        scene.soon(&mut looker, 0);
    }
    looker.say(&[&format!("alloc 0 {}", LIMIT - scene.base), "free 0"]);
    scene.held();
}
