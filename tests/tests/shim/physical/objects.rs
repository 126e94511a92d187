//! Memory behind other objects: sparse arrays, streams, external memory, multicast, logical endpoints.

use super::*;

#[test]
fn sparse_array_memory_is_charged_until_seen_released() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say(&["array 1"]);
    scene.create(1);
    scene.create(2);
    scene.say(&["put 1 0 1", "put 1 64 2"]);
    scene.both(2);
    // Taken away before it is released: the release shows that the card has it back.
    scene.say(&["take 1 0 64", "release 1"]);
    scene.both(1);
    // A call that the driver refuses changes nothing.
    assert_eq!(scene.program.say("take 1 64 32"), "1", "a part that is cut");
    scene.both(1);
    // Released before: it is the array's, and no call shows when it goes.
    scene.say(&["release 2"]);
    scene.both(1);
    scene.say(&["take 1 64 64"]);
    assert_eq!(scene.books_and_card(), (SIZE, 0));
    scene.create(3);
    scene.say(&["put 1 0 3", "release 3", "destroy 1"]);
    assert_eq!(scene.books_and_card(), (2 * SIZE, 0));
    scene.program.end();
}

/// The bench fails on queries of an event after its end. After the release itself the shim queries the
/// context, and is delayed there, while the other thread continues.
#[test]
fn pending_stream_frees_end_with_their_context() {
    let faults = "[[fault]]\nsymbol = \"cuDevicePrimaryCtxGetState\"\naction = { slow_nanos = 100000000 }\n";
    let Some(mut scene) = Scene::with_faults(faults) else { return };
    scene.say(&[&format!("plain 1 {SIZE}"), "work 20000000000", "later 1"]);
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
        scene.say(&[&unbind]);
        scene.both(1);
        scene.say(&[&bind, "release 1", "unmap 1"]);
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
    // The object is there as long as it is mapped.
    scene.say(&["bind 9 1 0", "release 1", &format!("map 3 9 {}", 4 * SIZE), "release 9"]);
    scene.both(1);
    scene.say(&["unmap 3"]);
    scene.both(0);
    // One that ends at once, with memory that is still held.
    scene.say(&[&object]);
    scene.create(1);
    scene.say(&["bind 9 1 0", "release 9"]);
    scene.both(1);
    scene.say(&["release 1"]);
    scene.both(0);
    // Of several that go at once no call shows which they are.
    scene.say(&[&object]);
    scene.create(1);
    scene.create(2);
    scene.say(&["bind 9 1 0", "bind 9 2 1", "release 1", "release 2"]);
    scene.both(2);
    scene.say(&["release 9"]);
    assert_eq!(scene.books_and_card(), (2 * SIZE, 0));
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
        scene.say(&["tie 1 1 0", "release 1"]);
        scene.both(1);
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
    // What is unbound is free again, in the process that bound it.
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
    scene.say(&["release 9"]);
    scene.both(1);
    other.end();
    wait_for("memory of the exited process", || scene.books_and_card().0 == 0);
    scene.both(0);
    scene.program.end();
}

/// Its maker pays while it lives; afterwards the importer, as long as the object may hold the memory.
#[test]
fn imported_memory_bound_to_an_object_outlives_its_import() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say(&[&format!("team 9 {}", 4 * SIZE)]);
    let mut maker = scene.sibling();
    assert_eq!(maker.say(&format!("create 1 {SIZE} 1")), "0");
    Scene::post(&mut maker, 1, &scene.program);
    scene.say(&["fetch 2", "import 1 2", "close 2", "bind 9 1 0", "release 1"]);
    maker.end();
    for _ in 0..3 {
        scene.card.reap();
        scene.both(1);
    }
    scene.program.end();
}
