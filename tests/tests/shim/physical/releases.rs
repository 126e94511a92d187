//! Memory on its way back: nothing is credited before the card has it again.

use super::*;

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

/// No call shows that the stream has reached the removal, so neither process is credited.
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
    assert_eq!(other.say("info"), format!("0 {}", LIMIT - 2 * SIZE));
    assert_eq!(scene.books_and_card(), (2 * SIZE, SIZE));
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
