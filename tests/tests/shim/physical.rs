//! Physical memory stays accounted as long as it is on the card, whatever its handle names or imports it.

use aliquot_abi::layout::{slot, usage};
use aliquot_abi::limits::Limits;
use aliquot_driver::region::{ReapOutcome, USAGE, UsageFile};
use aliquot_enforce::units::Ppm;
use aliquot_sim_device::Card;
use aliquot_tests::local::wait_for;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SIZE: u64 = 8 << 20;
const LIMIT: u64 = 4 * SIZE;
/// What a small allocation takes of a card where nothing else is.
const PAGE: u64 = 2 << 20;

struct Scene {
    program: Talk,
    files: GrantFiles,
    card: Card,
    bench: Bench,
    tenant: Tenant,
    path: PathBuf,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new() -> Option<Self> {
        Self::with_faults("")
    }

    fn with_faults(faults: &str) -> Option<Self> {
        Self::with_contexts(faults, 0)
    }

    /// Where each context takes so much.
    fn with_contexts(faults: &str, context_bytes: u64) -> Option<Self> {
        let bench = Bench::new();
        bench.write("faults.toml", faults);
        bench.write("node.toml", &format!("context_bytes = {context_bytes}\nmodule_bytes = 0\n"));
        let path = match bench.compile("shim_physical", Link::Direct) {
            Ok(path) => path,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let limits = Limits { context_bytes, ..memory_limit(&card.facts().uuid, LIMIT) };
        let (tenant, files) = Tenant::with(&limits);
        let program = Talk::start(&mut tenant.command(&bench, &path));
        Some(Self { program, files, card, bench, tenant, path })
    }

    /// Says each line, which does well.
    #[track_caller]
    fn say(&mut self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.program.say(line), "0", "{line}");
        }
    }

    /// A handle of so many bytes that may be exported.
    #[track_caller]
    fn create(&mut self, handle: u32) {
        self.say(&[&format!("create {handle} {SIZE} 1")]);
    }

    #[track_caller]
    fn map(&mut self, range: u32, handle: u32) {
        self.say(&[&format!("map {range} {handle} {SIZE}")]);
    }

    /// Another process of the same container.
    fn sibling(&self) -> Talk {
        Talk::start(&mut self.tenant.command(&self.bench, &self.path))
    }

    /// Queries free memory, which updates the accounting; the bytes accounted, and those on the card.
    fn books_and_card(&mut self) -> (u64, u64) {
        let told = self.program.say("info");
        let books = self.files.counter(usage::TOTAL);
        assert_eq!(told, format!("0 {}", LIMIT - books));
        (books, self.card.in_use())
    }

    /// Both have so many times the size.
    #[track_caller]
    fn both(&mut self, times: u64) {
        assert_eq!(self.books_and_card(), (times * SIZE, times * SIZE));
    }
}

#[test]
fn reused_handle_names_its_present_object() {
    let Some(mut scene) = Scene::new() else { return };
    scene.create(1);
    scene.say(&["release 1"]);
    scene.create(2);
    scene.say(&["same 1 2"]);
    scene.map(1, 2);
    scene.both(1);
    scene.say(&["release 2"]);
    scene.both(1);
    // Still mapped: the value is not free.
    scene.create(3);
    assert_eq!(scene.program.say("same 2 3"), "1");
    scene.both(2);
    scene.say(&["unmap 1"]);
    scene.both(1);
    assert_eq!(scene.program.say("release 2"), "1");
    scene.create(4);
    scene.say(&["same 2 4", "release 3", "release 4"]);
    scene.both(0);
    scene.program.end();
}

#[test]
fn every_reference_to_a_handle_counts() {
    let Some(mut scene) = Scene::new() else { return };
    scene.create(1);
    scene.map(1, 1);
    scene.say(&["retain 2 1", "retain 3 1", "same 1 2", "same 1 3", "release 1", "release 2", "unmap 1"]);
    scene.both(1);
    scene.map(2, 3);
    scene.say(&["release 3"]);
    scene.both(1);
    assert_eq!(scene.program.say("release 3"), "1", "a reference that is not there");
    scene.both(1);
    scene.say(&["retain 4 2", "unmap 2"]);
    scene.both(1);
    scene.say(&["release 4"]);
    scene.both(0);
    scene.program.end();
}

#[test]
fn memory_released_while_mapped_and_reimported_is_charged_once() {
    let Some(mut scene) = Scene::new() else { return };
    scene.create(1);
    scene.map(1, 1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.say(&["release 1", "import 2 1", "same 1 2", "close 1", "unmap 1"]);
    scene.both(1);
    scene.map(2, 2);
    scene.say(&["release 2"]);
    scene.both(1);
    scene.say(&["unmap 2"]);
    scene.both(0);
    scene.program.end();
}

#[test]
fn exported_memory_is_charged_until_the_card_gives_it_back() {
    let Some(mut scene) = Scene::new() else { return };
    // No other process has it when it is released: the release detects that.
    scene.create(1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.say(&["close 1", "release 1"]);
    scene.both(0);
    // The descriptor keeps it, and is imported again.
    scene.create(1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.say(&["release 1"]);
    scene.both(1);
    scene.create(2);
    scene.say(&["release 2"]);
    scene.both(1);
    scene.say(&["import 3 1", "close 1", "release 3"]);
    scene.both(0);
    scene.program.end();
}

#[test]
fn exporter_is_charged_while_another_process_has_its_memory() {
    let Some(mut scene) = Scene::new() else { return };
    let mut other = scene.sibling();
    scene.create(1);
    let exported = scene.program.say("export 1 1");
    let descriptor = exported.strip_prefix("0 ").unwrap_or("none");
    assert_eq!(other.say(&format!("foreign 1 {} {descriptor}", scene.program.pid())), "0");
    scene.both(1);
    assert_eq!(other.say(&format!("map 1 1 {SIZE}")), "0");
    scene.say(&["close 1", "release 1"]);
    scene.both(1);
    // What the importer lets go of is not its own.
    assert_eq!((other.say("release 1"), other.say("unmap 1")), ("0".to_owned(), "0".to_owned()));
    assert_eq!(scene.books_and_card(), (SIZE, 0), "no notice reaches the exporter");
    // It leaves the accounting when its process exits.
    scene.program.end();
    wait_for("memory of the exited process", || other.say("info") == format!("0 {LIMIT}"));
    other.end();
}

impl Scene {
    /// What a process made under a handle goes to another one's, which may lie in its mailbox until it is fetched.
    #[track_caller]
    fn post(maker: &mut Talk, handle: u32, to: &Talk) {
        assert!(maker.say(&format!("export 1 {handle}")).starts_with("0 "));
        // A process that has just started may not have its mailbox yet.
        wait_for("a box", || maker.say(&format!("post {} 1", to.pid())) == "0");
        assert_eq!(maker.say("close 1"), "0");
    }

    /// Both have so many times the size, after the exited processes have been reaped.
    #[track_caller]
    fn soon(&mut self, times: u64) {
        let told = format!("0 {}", LIMIT - times * SIZE);
        wait_for("exited processes to be found", || self.program.say("info") == told);
        self.card.reap();
        self.both(times);
    }

    #[track_caller]
    fn held(&self) {
        let marks = (self.card.high_water(), self.files.counter(usage::HIGH_WATER));
        assert!(marks.0 <= marks.1 && marks.1 <= LIMIT, "{marks:?}");
    }
}

fn fetch(importer: &mut Talk, handle: u32) -> String {
    assert_eq!(importer.say("fetch 2"), "0");
    let answer = importer.say(&format!("import {handle} 2"));
    assert_eq!(importer.say("close 2"), "0");
    answer
}

#[test]
fn orphaned_export_stays_charged_while_held() {
    let Some(mut scene) = Scene::new() else { return };
    let create = format!("create 1 {SIZE} 1");
    for handle in 1..5 {
        let mut maker = scene.sibling();
        assert_eq!(maker.say(&create), "0");
        Scene::post(&mut maker, 1, &scene.program);
        assert_eq!(fetch(&mut scene.program, handle), "0");
        if handle % 2 == 0 {
            maker.end();
        } else {
            drop(maker);
        }
        scene.card.reap();
        scene.both(u64::from(handle));
    }
    let mut late = scene.sibling();
    assert_eq!(late.say(&create), "2", "all of the limit is had");
    // It goes when its last holder releases it or exits.
    scene.map(1, 1);
    scene.say(&["release 1"]);
    scene.both(4);
    scene.say(&["unmap 1"]);
    scene.soon(3);
    assert_eq!(late.say(&create), "0");
    Scene::post(&mut late, 1, &scene.program);
    assert_eq!(fetch(&mut scene.program, 1), "0");
    assert_eq!(late.say("release 1"), "0");
    scene.both(4);
    let mut other = scene.sibling();
    assert_eq!(late.say("info"), "0 0");
    // A second one from the same exporter.
    scene.say(&["release 2", "release 3", "release 4"]);
    scene.soon(1);
    assert_eq!(late.say(&create), "0");
    Scene::post(&mut late, 1, &scene.program);
    Scene::post(&mut late, 1, &other);
    assert_eq!((fetch(&mut scene.program, 2), fetch(&mut other, 2)), ("0".into(), "0".into()));
    drop(late);
    scene.soon(2);
    scene.say(&["release 1", "release 2"]);
    scene.soon(1);
    drop(other);
    scene.soon(0);
    scene.held();
    scene.program.end();
}

#[test]
fn a_descriptor_of_the_dead_is_paid_by_who_imports_it() {
    let Some(mut scene) = Scene::new() else { return };
    let post = |scene: &Scene| {
        let mut maker = scene.sibling();
        assert_eq!(maker.say(&format!("create 1 {SIZE} 1")), "0");
        Scene::post(&mut maker, 1, &scene.program);
    };
    post(&scene);
    wait_for("exited processes to be found", || scene.books_and_card().0 == 0);
    scene.card.reap();
    assert_eq!(scene.card.in_use(), SIZE, "on its way");
    assert_eq!(fetch(&mut scene.program, 1), "0");
    scene.both(1);
    scene.say(&["release 1"]);
    scene.both(0);
    // There is no room for it.
    post(&scene);
    wait_for("exited processes to be found", || scene.books_and_card().0 == 0);
    scene.say(&[&format!("plain 1 {}", 3 * SIZE + PAGE)]);
    scene.say(&["fetch 2"]);
    assert_eq!(scene.program.say("import 1 2"), "2");
    assert_eq!(scene.books_and_card(), (3 * SIZE + PAGE, 4 * SIZE + PAGE));
    scene.say(&["free 1", "import 1 2", "import 3 2", "close 2"]);
    scene.both(1);
    scene.say(&["release 1"]);
    scene.both(1);
    scene.say(&["release 3"]);
    scene.both(0);
    scene.program.end();
}

/// Forked without becoming another program, a child has the driver's files, and the card keeps what its parent had.
#[test]
fn memory_of_an_exited_process_is_charged_while_a_child_has_it() {
    let Some(mut scene) = Scene::new() else { return };
    for way in 0..3 {
        let mut maker = scene.sibling();
        assert_eq!(maker.say(&format!("plain 1 {SIZE}")), "0");
        assert_eq!(maker.say(&format!("create 1 {SIZE} 1")), "0");
        // One with a slot of its own, and no importer.
        assert!(maker.say("export 1 1").starts_with("0 "));
        assert_eq!(maker.say("close 1"), "0");
        let told = maker.say(&format!("worker {way}"));
        let worker = told.strip_prefix("0 ").and_then(|pid| pid.parse().ok()).unwrap_or_default();
        drop(maker);
        if way == 0 {
            for _ in 0..3 {
                scene.card.reap();
                scene.both(2);
                let more = format!("plain 2 {}", 2 * SIZE + 512);
                assert_eq!(scene.program.say(&more), "2", "it is had");
            }
            assert_eq!(scene.card.processes().len(), 1, "no process has a name for it");
            let host = UsageFile::open(&scene.files.dir().join(USAGE)).unwrap();
            assert_eq!(host.reap(Ppm::new(1_000_000)).unwrap(), ReapOutcome::NoneExited);
            kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
        }
        scene.soon(0);
        if way > 0 {
            kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
        }
    }
    scene.held();
    scene.program.end();
}

/// As a reader of `/proc/<pid>/environ` does, a process without descriptors keeps the address space of one that ended, and with it
/// the driver's mappings of its files.
#[test]
fn memory_is_charged_while_its_address_space_lasts() {
    let Some(mut scene) = Scene::new() else { return };
    let mut maker = scene.sibling();
    assert_eq!(maker.say(&format!("plain 1 {SIZE}")), "0");
    let keeper = Pid::from_raw(maker.say("keeper").parse().unwrap());
    drop(maker);
    let host = UsageFile::open(&scene.files.dir().join(USAGE)).unwrap();
    for _ in 0..3 {
        scene.card.reap();
        scene.both(1);
        assert_eq!(scene.program.say(&format!("plain 2 {}", 3 * SIZE + 512)), "2", "the card holds {SIZE}");
        assert_eq!(host.reap(Ppm::new(1_000_000)).unwrap(), ReapOutcome::NoneExited);
    }
    assert!(scene.card.high_water() <= LIMIT);
    kill(keeper, Signal::SIGKILL).unwrap();
    scene.soon(0);
    scene.program.end();
}

/// An exited exporter that sent its export to each of these processes, none of which has imported it.
fn left_behind(scene: &Scene, heirs: &[&Talk]) {
    let mut maker = scene.sibling();
    assert_eq!(maker.say(&format!("create 1 {} 1", 3 * SIZE)), "0");
    for heir in heirs {
        Scene::post(&mut maker, 1, heir);
    }
}

/// A reaper has queried the holders of an exited exporter's memory, or has marked it as well, when the memory
/// is imported; it waits until the import is done. It gains nothing by reaping: there is no room for both.
fn imported_while_reaped(asked: u32) -> Option<()> {
    let mut scene = Scene::new()?;
    let mut reaper = scene.sibling();
    left_behind(&scene, &[&scene.program]);
    scene.say(&["fetch 2", "watch"]);
    wait_for("exited processes to be found", || {
        assert_eq!(reaper.say(&format!("slow {asked}")), "0");
        reaper.say(&format!("create 1 {} 1", 2 * SIZE)) == "asked"
    });
    assert_eq!(scene.program.say("import 1 2"), "held");
    assert_eq!(scene.program.hear(), "0", "the stopped reaper does not matter");
    reaper.tell("on");
    assert_eq!(reaper.hear(), "2");
    scene.both(3);
    scene.say(&["release 1", "close 2"]);
    scene.soon(0);
    reaper.end();
    scene.program.end();
    Some(())
}

#[test]
fn orphaned_export_imported_during_reaping_stays_charged() {
    let Some(()) = imported_while_reaped(1) else { return };
    imported_while_reaped(2);
}

/// Both hold one slot, which one of them pays for; there is no room for it twice.
#[test]
fn concurrent_importers_of_orphaned_memory_pay_once() {
    let Some(mut scene) = Scene::new() else { return };
    let mut other = scene.sibling();
    assert_eq!(other.say("plain 1 512"), "0");
    scene.say(&["plain 1 512"]);
    left_behind(&scene, &[&scene.program, &other]);
    assert_eq!(other.say("fetch 2"), "0");
    scene.say(&["fetch 2"]);
    wait_for("exited processes to be found", || scene.books_and_card().0 == 2 * PAGE);
    scene.say(&["pause"]);
    assert_eq!(scene.program.say("import 1 2"), "paused");
    other.tell("import 1 2");
    // Time to pay for it, for one that does not know of the first.
    std::thread::sleep(Duration::from_millis(20));
    scene.program.tell("on");
    assert_eq!((scene.program.hear(), other.hear()), ("0".into(), "0".into()));
    assert_eq!(scene.books_and_card(), (3 * SIZE + 2 * PAGE, 3 * SIZE + 2 * PAGE));
    scene.say(&["release 1", "close 2"]);
    assert_eq!(scene.books_and_card(), (3 * SIZE + 2 * PAGE, 3 * SIZE + 2 * PAGE));
    assert_eq!((other.say("release 1"), other.say("close 2")), ("0".into(), "0".into()));
    wait_for("memory without a holder", || scene.books_and_card() == (2 * PAGE, 2 * PAGE));
    other.end();
    scene.program.end();
}

/// Whether its last holder was stopped while it queried the other holders.
fn is_imported_while_its_last_holder_lets_go() -> bool {
    let Some(mut scene) = Scene::new() else { return true };
    let mut last = scene.sibling();
    left_behind(&scene, &[&scene.program, &last]);
    assert_eq!(fetch(&mut last, 1), "0");
    scene.say(&["fetch 2", "watch"]);
    scene.both(3);
    assert_eq!(last.say("slow 1"), "0");
    // If other processes work on the card in that moment, released memory stays accounted, without a query.
    if last.say("release 1") != "asked" {
        last.end();
        scene.program.end();
        return false;
    }
    assert_eq!((scene.program.say("import 1 2"), scene.program.hear()), ("held".into(), "0".into()));
    last.tell("on");
    assert_eq!(last.hear(), "0");
    scene.both(3);
    scene.say(&["release 1", "close 2"]);
    scene.soon(0);
    last.end();
    scene.program.end();
    true
}

/// The last holder found no other hold, and removes the memory from the accounting next.
#[test]
fn memory_imported_during_its_last_release_stays_charged() {
    // One try in five queries where nothing else is to be done, one in twenty on a busy machine.
    assert!((0..1_000).any(|_| is_imported_while_its_last_holder_lets_go()), "it never asked");
}

/// Exporters and importers are killed at any instruction: all held memory stays accounted.
#[test]
fn accounting_equals_the_card_after_any_exporter_importer_kill() {
    let Some(mut scene) = Scene::new() else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.subsec_nanos());
    let mut random = u64::from(now) | 1;
    println!("seed {random}");
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for _ in 0..12 {
        let (mut maker, mut one, mut other) = (scene.sibling(), scene.sibling(), scene.sibling());
        for process in [&mut one, &mut other] {
            // Its sign is shown before it is killed.
            assert_eq!((process.say("plain 1 512"), process.say("free 1")), ("0".into(), "0".into()));
        }
        assert_eq!(maker.say(&format!("create 1 {SIZE} 1")), "0");
        Scene::post(&mut maker, 1, &one);
        Scene::post(&mut maker, 1, &other);
        for process in [&mut one, &mut other] {
            assert_eq!(process.say("fetch 2"), "0");
        }
        assert_eq!(one.say("import 1 2"), "0");
        let mut begin = |mut process: Talk, commands: &[&str]| {
            process.tell(commands[usize::try_from(next(3)).unwrap_or(0)]);
            std::thread::sleep(std::time::Duration::from_micros(next(400)));
            drop(process);
        };
        begin(maker, &["release 1", "export 2 1", "info"]);
        for _ in 0..3 {
            let (books, card) = scene.books_and_card();
            assert!(books >= SIZE && card == SIZE, "{books} {card}");
        }
        begin(other, &["import 1 2", "close 2", "info"]);
        scene.soon(1);
        begin(one, &["release 1", "import 3 2", "info"]);
        scene.soon(0);
    }
    scene.held();
    scene.program.end();
}

/// Once each: exported, and its descriptor closed, before it is released, unmapped and freed.
fn exported_once_each(scene: &mut Scene) {
    scene.create(1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.say(&["close 1", "release 1"]);
    scene.create(1);
    scene.map(1, 1);
    let (span, plain) = (format!("span 1 1 {SIZE}"), format!("plain 1 {SIZE}"));
    scene.say(&["release 1", &span, "close 1", "unmap 1", &plain, &span, "close 1", "free 1"]);
}

#[test]
fn unheld_exported_memory_is_free_beside_other_processes() {
    let Some(mut scene) = Scene::new() else { return };
    let mut others = [scene.sibling(), scene.sibling()];
    assert_eq!(others[0].say(&format!("create 1 {SIZE} 1")), "0");
    for _ in 0..8 {
        exported_once_each(&mut scene);
        scene.both(1);
    }
    // One that has its descriptor still.
    scene.create(1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.say(&["release 1"]);
    scene.both(2);
    for other in others {
        other.end();
    }
    // A process that exited is not taken for one that released it.
    scene.create(2);
    assert!(scene.program.say("export 2 2").starts_with("0 "));
    scene.say(&["close 2", "release 2"]);
    scene.both(1);
    scene.program.end();
}

/// A releasing thread needs no context of the card: proxy threads of communication libraries have none.
#[test]
fn unheld_exported_memory_is_free_in_any_current_context() {
    let Some(mut scene) = Scene::new() else { return };
    let uuid = scene.bench.device().card(1).unwrap().facts().uuid.clone();
    let _second = scene.tenant.grant("second", &memory_limit(&uuid, LIMIT));
    let program = scene.sibling();
    let mut other = std::mem::replace(&mut scene.program, program);
    assert_eq!(other.say(&format!("create 1 {SIZE} 1")), "0");
    for current in ["bare", "there"] {
        scene.say(&[current]);
        for _ in 0..8 {
            scene.create(1);
            assert!(scene.program.say("export 1 1").starts_with("0 "));
            scene.say(&["close 1", "release 1"]);
        }
        // One that has its descriptor still.
        scene.create(1);
        assert!(scene.program.say("export 1 1").starts_with("0 "));
        scene.say(&["release 1", "here"]);
        scene.both(2);
        // No other process has it any more.
        scene.say(&["import 1 1", "close 1", current, "release 1", "here"]);
        scene.both(1);
    }
    other.end();
    scene.program.end();
}

/// The other threads wait at the door, for a while: where the machine has them stand in a call for longer, some of it stays charged.
#[test]
fn unheld_exported_memory_is_free_beside_busy_threads() {
    let Some(mut scene) = Scene::new() else { return };
    let mut other = scene.sibling();
    assert_eq!(other.say("busy"), "0");
    scene.say(&["busy"]);
    for _ in 0..16 {
        exported_once_each(&mut scene);
    }
    scene.say(&["calm"]);
    assert_eq!(other.say("calm"), "0");
    let (books, card) = scene.books_and_card();
    assert!(card == 0 && books <= SIZE, "{books} bytes of 48 times {SIZE} stay charged");
    other.end();
    scene.program.end();
}

/// The driver takes long to release, and meanwhile a process ends that has as much.
#[test]
fn exit_credits_no_memory_still_in_use() {
    let slow = "[[fault]]\nsymbol = \"cuMemRelease\"\naction = { slow_nanos = 300000000 }\n";
    let Some(mut scene) = Scene::with_faults(slow) else { return };
    for (after_millis, mapped) in [(0, false), (60, false), (120, false), (60, true), (120, true)] {
        let mut other = scene.sibling();
        assert_eq!(other.say(&format!("create 1 {SIZE} 1")), "0");
        if mapped {
            // Its memory stays mapped when it has ended.
            assert_eq!(other.say("shadow"), "0");
        }
        scene.create(1);
        assert!(scene.program.say("export 1 1").starts_with("0 "));
        scene.program.tell("release 1");
        std::thread::sleep(std::time::Duration::from_millis(after_millis));
        drop(other);
        assert_eq!(scene.program.hear(), "0");
        scene.soon(1);
        scene.say(&["import 1 1", "close 1", "release 1"]);
        scene.both(0);
    }
    scene.program.end();
}

/// Takes long to release, so that others are in time for it.
const SLOW_RELEASE: &str = "[[fault]]\nsymbol = \"cuMemRelease\"\naction = { slow_nanos = 300000000 }\n";

/// Exported memory of which the program has the descriptor still is released, and another process does something meanwhile.
fn released_while(scene: &mut Scene, other: &mut Talk, does: &[&str]) {
    scene.create(1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.program.tell("release 1");
    std::thread::sleep(std::time::Duration::from_millis(100));
    for line in does {
        other.tell(line);
    }
    assert_eq!(scene.program.hear(), "0");
}

/// A context is made and ended past every function with a name, and the accounting follows when its process
/// reads it. A gain below the size of a context is no end of one.
#[test]
fn context_ended_past_the_hooks_credits_no_memory_still_in_use() {
    for (context, stays) in [(SIZE, true), (SIZE + (2 << 20), false)] {
        let Some(mut scene) = Scene::with_contexts(SLOW_RELEASE, context) else { return };
        let mut other = scene.sibling();
        assert_eq!(other.say("past"), "0");
        released_while(&mut scene, &mut other, if stays { &["reset"] } else { &[] });
        if stays {
            assert_eq!(other.hear(), "0");
            assert_eq!(other.say("bare"), "0");
            // It is about to be refused.
            assert_ne!(other.say(&format!("create 1 {} 1", 4 * SIZE)), "0");
            assert_eq!((scene.files.counter(usage::TOTAL), scene.card.in_use()), (2 * SIZE, 2 * SIZE));
        } else {
            // No other process has it any more.
            scene.say(&["import 1 1", "close 1", "release 1"]);
            assert_eq!(scene.files.counter(usage::TOTAL), 2 * context);
        }
    }
}

/// The bytes leave the accounting when their process finds that the stream has reached the release.
#[test]
fn sparse_array_removal_credits_no_memory_still_in_use() {
    let Some(mut scene) = Scene::with_faults(SLOW_RELEASE) else { return };
    let mut other = scene.sibling();
    for line in ["array 1", &format!("create 1 {SIZE} 1"), "put 1 0 1", "release 1", "work 1500000000"] {
        assert_eq!(other.say(line), "0", "{line}");
    }
    released_while(&mut scene, &mut other, &["take 1 0 64"]);
    assert_eq!(other.hear(), "0");
    wait_for("the stream", || other.say("query") == "0");
    assert_eq!(other.say("info"), format!("0 {}", LIMIT - SIZE));
    scene.both(1);
    other.end();
    scene.program.end();
}

/// The card has its memory back when its address space is gone, which a child shares for a while.
#[test]
fn exec_credits_no_memory_still_in_use() {
    let Some(mut scene) = Scene::with_faults(SLOW_RELEASE) else { return };
    let mut other = scene.sibling();
    for line in [&format!("create 1 {SIZE} 1"), "shadow"] {
        assert_eq!(other.say(line), "0", "{line}");
    }
    released_while(&mut scene, &mut other, &["become 60"]);
    scene.soon(1);
    scene.program.end();
}

/// Others see that memory is about to move, also where no context is current.
#[test]
fn memory_of_another_interface_is_let_go_of_in_everybodys_sight() {
    let slow = "[[fault]]\nsymbol = \"cuDestroyExternalMemory\"\naction = { slow_nanos = 60000000000 }\n";
    let Some(mut scene) = Scene::with_faults(slow) else { return };
    scene.say(&[&format!("elsewhere 1 {SIZE}"), &format!("adopt 1 1 {SIZE}"), "bare"]);
    let under_way = |scene: &Scene| {
        let halves = |slot: usize| scene.files.counter(usage::SLOTS + slot * usage::SLOT_BYTES + slot::BEGUN);
        (0..usage::SLOT_COUNT).map(halves).any(|word| word & 0xffff_ffff != word >> 32)
    };
    assert!(!under_way(&scene));
    scene.program.tell("drop 1");
    wait_for("the call to be seen", || under_way(&scene));
}

#[test]
fn exporter_of_long_freed_memory_or_its_exit_blocks_nothing() {
    let slow = "[[fault]]\nsymbol = \"cuMemRelease\"\naction = { slow_nanos = 60000000000 }\n";
    let Some(mut scene) = Scene::with_faults(slow) else { return };
    let mut other = scene.sibling();
    scene.create(1);
    assert!(scene.program.say("export 1 1").starts_with("0 "));
    scene.program.tell("release 1");
    let begun = std::time::Instant::now();
    for _ in 0..4 {
        assert_eq!(other.say(&format!("plain 1 {SIZE}")), "0");
        assert_eq!(other.say("free 1"), "0");
    }
    drop(scene.program);
    for _ in 0..4 {
        assert_eq!(other.say(&format!("plain 1 {SIZE}")), "0");
        assert_eq!(other.say("free 1"), "0");
    }
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    wait_for("memory of the exited process", || other.say("info") == format!("0 {LIMIT}"));
    other.end();
}

#[test]
fn sparse_array_memory_is_charged_until_removed() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say(&["array 1"]);
    scene.create(1);
    scene.create(2);
    scene.say(&["put 1 0 1", "put 1 64 2", "release 1", "release 2"]);
    scene.both(2);
    scene.say(&["take 1 0 64"]);
    scene.both(1);
    scene.create(3);
    // What it is put over is let go of.
    scene.say(&["put 1 64 3"]);
    scene.both(1);
    scene.say(&["put 1 256 3", "release 3", "take 1 0 128"]);
    scene.both(1);
    scene.say(&["destroy 1"]);
    scene.both(0);
    // A call that the driver refuses changes nothing.
    scene.say(&["array 1"]);
    scene.create(4);
    scene.say(&["put 1 0 4", "release 4"]);
    assert_eq!(scene.program.say("take 1 0 32"), "1", "a part that is cut");
    scene.both(1);
    // The stream has not come to it yet.
    scene.say(&["work 20000000000", "take 1 0 64"]);
    let (books, _) = scene.books_and_card();
    assert_eq!((books, scene.program.say("query")), (SIZE, "600".to_owned()));
}

/// The bench fails on queries of an event after its end. After the release itself the shim queries the
/// context, and is delayed there, while the other thread continues.
#[test]
fn pending_stream_frees_end_with_their_context() {
    let faults = "[[fault]]\nsymbol = \"cuDevicePrimaryCtxGetState\"\naction = { slow_nanos = 100000000 }\n";
    let Some(mut scene) = Scene::with_faults(faults) else { return };
    scene.say(&["array 1"]);
    scene.create(1);
    scene.say(&["put 1 0 1", "release 1", "work 20000000000", "take 1 0 64"]);
    assert_eq!(scene.files.counter(usage::TOTAL), SIZE, "the stream has not come to it yet");
    scene.say(&["leave"]);
    assert_eq!((scene.files.counter(usage::TOTAL), scene.card.in_use()), (0, 0));
    scene.program.end();
}

#[test]
fn external_memory_is_charged_to_its_importer_until_gone() {
    let Some(mut scene) = Scene::new() else { return };
    let elsewhere = format!("elsewhere 1 {SIZE}");
    let adopt = format!("adopt 1 1 {SIZE}");
    scene.say(&[&elsewhere]);
    assert_eq!(scene.books_and_card(), (0, SIZE), "no process has imported it");
    scene.say(&[&adopt]);
    assert_eq!(scene.program.say("open 1"), "1", "the descriptor is the driver's");
    scene.both(1);
    scene.say(&["drop 1"]);
    scene.both(0);
    // What is mapped of it has to be freed on its own.
    for last in ["drop 1", "free 1", "free 2", "burn 1"] {
        scene.say(&[&elsewhere, &adopt, &format!("buffer 1 1 {SIZE}"), "buffer 2 1 4096", "picture 1 1"]);
        scene.both(1);
        for other in ["drop 1", "free 1", "free 2", "burn 1"].iter().filter(|other| **other != last) {
            scene.say(&[other]);
            scene.both(1);
        }
        scene.say(&[last]);
        scene.both(0);
    }
    scene.program.end();
}

#[test]
fn external_memory_over_limit_is_not_imported() {
    let Some(mut scene) = Scene::new() else { return };
    scene.create(1);
    scene.create(2);
    scene.create(3);
    scene.say(&[&format!("elsewhere 1 {}", 2 * SIZE)]);
    let adopt = format!("adopt 1 1 {}", 2 * SIZE);
    assert_eq!(scene.program.say(&adopt), "2");
    assert_eq!(scene.program.say("open 1"), "0", "the descriptor is still the caller's");
    assert_eq!(scene.books_and_card().0, 3 * SIZE);
    scene.say(&["release 3"]);
    // What the driver refuses costs nothing.
    assert_eq!(scene.program.say(&format!("adopt 1 1 {SIZE}")), "1");
    assert_eq!(scene.books_and_card().0, 2 * SIZE);
    scene.say(&[&adopt]);
    scene.both(4);
    assert_eq!(scene.program.say(&format!("create 3 {SIZE} 1")), "2");
    assert_eq!(scene.program.say(&format!("buffer 1 1 {}", 3 * SIZE)), "1", "more than there is");
    scene.say(&["drop 1"]);
    scene.both(2);
    scene.program.end();
}

#[test]
fn external_memory_ends_with_its_importing_context() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say(&[&format!("elsewhere 1 {SIZE}"), &format!("adopt 1 1 {SIZE}"), &format!("buffer 1 1 {SIZE}")]);
    scene.both(1);
    scene.say(&["end"]);
    assert_eq!(scene.files.counter(usage::TOTAL), 0);
    scene.program.end();
}

#[test]
fn multicast_memory_is_charged_until_unbound_or_ended() {
    let Some(mut scene) = Scene::new() else { return };
    let object = format!("team 9 {}", 4 * SIZE);
    scene.say(&[&object]);
    scene.both(0);
    for way in 0..4 {
        scene.create(1);
        scene.map(1, 1);
        let (bind, unbind) = (format!("bind 9 1 {way}"), format!("unbind 9 {way}"));
        scene.say(&[&bind]);
        assert_eq!(scene.program.say(&bind), "1", "there is something already");
        scene.say(&["release 1", "unmap 1"]);
        scene.both(1);
        assert_eq!(scene.program.say(&format!("unbind 9 {}", (way + 1) % 4)), "1", "there is nothing");
        scene.both(1);
        scene.say(&[&unbind]);
        scene.both(0);
    }
    // The vendor binds one memory at once, and nothing of what is refused.
    scene.create(1);
    scene.create(2);
    scene.say(&["beside 1 1 2"]);
    assert_eq!(scene.program.say("bind 9 1 4"), "1", "two in a row");
    scene.say(&["release 1", "release 2"]);
    scene.both(2);
    scene.say(&["unmap 1"]);
    scene.both(0);
    // Still held elsewhere.
    scene.create(1);
    scene.say(&["bind 9 1 0", "unbind 9 0"]);
    scene.both(1);
    scene.create(2);
    scene.say(&["bind 9 1 0", "bind 9 2 1", "release 1", "release 2"]);
    scene.both(2);
    // The object is there as long as it is mapped.
    scene.say(&[&format!("map 3 9 {}", 4 * SIZE), "release 9"]);
    scene.both(2);
    scene.say(&["unmap 3"]);
    scene.both(0);
    // One that ends at once, with memory that is still held.
    scene.say(&[&object]);
    scene.create(1);
    scene.say(&["bind 9 1 0", "release 9"]);
    scene.both(1);
    scene.say(&["release 1"]);
    scene.both(0);
    scene.program.end();
}

#[test]
fn logical_endpoint_memory_is_charged_until_unbound_or_ended() {
    let Some(mut scene) = Scene::new() else { return };
    for cards in [1, 2] {
        scene.say(&[&format!("endpoint 1 {cards} {}", 2 * SIZE)]);
        scene.both(0);
        for way in 0..2 {
            scene.create(1);
            scene.map(1, 1);
            let (tie, untie) = (format!("tie 1 1 {way}"), format!("untie 1 {way}"));
            scene.say(&[&tie]);
            assert_eq!(scene.program.say(&tie), "1", "there is something already");
            scene.say(&["release 1", "unmap 1"]);
            scene.both(1);
            assert_eq!(scene.program.say(&format!("untie 1 {}", 1 - way)), "1", "there is nothing");
            scene.both(1);
            scene.say(&[&untie]);
            scene.both(0);
        }
        scene.create(1);
        scene.create(2);
        scene.map(2, 2);
        scene.say(&["tie 1 1 0", "tie 1 2 1", "release 1", "release 2", "unmap 2"]);
        scene.both(2);
        scene.say(&["dissolve 1"]);
        scene.both(0);
        assert_eq!(scene.program.say("dissolve 1"), "1", "it ended");
    }
    scene.program.end();
}

#[test]
fn memory_mapped_by_another_device_is_charged_after_its_free() {
    let Some(mut scene) = Scene::new() else { return };
    let (plain, span) = (format!("plain 1 {SIZE}"), format!("span 1 1 {SIZE}"));
    // No other process has it when it is freed: the free detects that.
    scene.say(&[&plain, &span, "close 1", "free 1"]);
    scene.both(0);
    scene.create(1);
    scene.map(1, 1);
    scene.say(&["release 1", &span, "close 1", "unmap 1"]);
    scene.both(0);
    // The descriptor keeps it.
    scene.create(1);
    scene.map(1, 1);
    scene.say(&["release 1", &span, "unmap 1"]);
    scene.both(1);
    scene.say(&[&plain, &format!("span 2 1 {SIZE}"), &format!("span 3 1 {SIZE}"), "close 3"]);
    scene.both(2);
    scene.say(&["free 1"]);
    scene.both(2);
    assert_eq!(scene.program.say("free 1"), "1", "freed already");
    scene.say(&["close 1", "close 2"]);
    assert_eq!(scene.books_and_card(), (2 * SIZE, 0), "no notice reaches the exporter");
    // What others have of a context's memory when it ends is not in it any more.
    scene.say(&[&plain, &span, "end"]);
    assert_eq!(scene.files.counter(usage::TOTAL), 3 * SIZE);
    scene.program.end();
}

/// Exports what a handle of the program names; how another process imports it under a handle of its own.
#[track_caller]
fn export_to(scene: &mut Scene, handle: u32, as_handle: u32) -> String {
    let exported = scene.program.say(&format!("export {handle} {handle}"));
    let descriptor = exported.strip_prefix("0 ").unwrap_or("none");
    format!("foreign {as_handle} {} {descriptor}", scene.program.pid())
}

#[test]
fn shared_multicast_memory_is_charged_until_unheld() {
    let Some(mut scene) = Scene::new() else { return };
    let mut other = scene.sibling();
    let mut says = |line: &str| assert_eq!(other.say(line), "0", "{line}");
    let object = format!("team 9 {}", 4 * SIZE);
    // What is unbound is free again, in whichever process.
    scene.say(&[&object]);
    says(&export_to(&mut scene, 9, 9));
    says(&format!("create 1 {SIZE} 1"));
    says("bind 9 1 0");
    says("release 1");
    scene.create(1);
    scene.say(&["close 9", "bind 9 1 1", "release 1"]);
    scene.both(2);
    says("unbind 9 0");
    scene.both(1);
    // A process that releases the object still has its memory bound.
    says(&format!("create 1 {SIZE} 1"));
    says("bind 9 1 0");
    says("release 1");
    says("release 9");
    scene.both(2);
    // The handle's value is another object's now, with something at the very place.
    scene.say(&[&format!("team 8 {}", 4 * SIZE)]);
    says(&export_to(&mut scene, 8, 8));
    says("same 8 9");
    says(&format!("create 2 {SIZE} 1"));
    says("bind 8 2 0");
    says("release 2");
    scene.both(3);
    says("unbind 8 0");
    scene.both(2);
    says("release 8");
    scene.both(2);
    // The last holder sees what the card gets back of its own memory.
    scene.say(&["close 8", "release 8", "unbind 9 1"]);
    scene.both(1);
    scene.create(1);
    scene.say(&["bind 9 1 1", "release 1", "release 9"]);
    other.end();
    wait_for("memory of the exited process", || scene.books_and_card().0 == 0);
    scene.both(0);
    scene.program.end();
}
