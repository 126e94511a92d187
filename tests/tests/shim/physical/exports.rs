//! Exported memory: which of exporters, importers and ended processes is charged.

use super::*;

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
    pub(super) fn post(maker: &mut Talk, handle: u32, to: &Talk) {
        assert!(maker.say(&format!("export 1 {handle}")).starts_with("0 "));
        // A process that has just started may not have its mailbox yet.
        wait_for("a box", || maker.say(&format!("post {} 1", to.pid())) == "0");
        assert_eq!(maker.say("close 1"), "0");
    }

    /// Both have so many times the size, after the exited processes have been reaped.
    #[track_caller]
    pub(super) fn soon(&mut self, times: u64) {
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
fn descriptor_of_an_exited_process_is_charged_to_its_importer() {
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
    let mut random = aliquot_tests::seed::seed();
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
