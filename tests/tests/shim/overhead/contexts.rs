//! Primary and green contexts are charged once and while they are there.

use super::*;

#[test]
fn a_primary_context_is_charged_once_while_it_is_there() {
    for size in [Size::Published, Size::Unknown] {
        let Some(scene) = Scene::new(LIMIT, size) else { return };
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        say(&mut program, "retain 0", "0");
        assert_eq!(scene.books(), CONTEXT, "{size:?}");
        say(&mut program, "alloc 1000000", "0");
        say(&mut program, "release 0", "0");
        assert!(scene.books() > CONTEXT, "{size:?}");
        say(&mut program, "release 0", "0");
        assert_eq!(scene.books(), 0, "its allocations go with it, {size:?}");
        say(&mut program, "retain 0", "0");
        say(&mut program, "alloc 1000000", "0");
        say(&mut program, "load 1 1", "0");
        say(&mut program, "function 1 1", "0");
        say(&mut program, "reset 0", "0");
        assert_eq!(scene.books(), 0, "{size:?}");
        program.end();
    }
}

#[test]
fn primary_context_past_the_hooks_is_charged_at_first_use() {
    for size in [Size::Published, Size::Unknown] {
        let Some(scene) = Scene::new(LIMIT, size) else { return };
        let mut program = scene.start();
        for end in ["release 0", "reset 0"] {
            say(&mut program, "inner 0", "0");
            assert_eq!(
                (scene.files.counter(usage::TOTAL), scene.card.in_use()),
                (0, CONTEXT),
                "not yet seen"
            );
            say(&mut program, &format!("alloc {MIB}"), "0");
            assert_eq!(scene.books(), CONTEXT + MIB, "{size:?}");
            say(&mut program, "load 1 1", "0");
            say(&mut program, "function 1 1", "0");
            assert_eq!(scene.books_beside(1), CONTEXT + MIB, "{size:?}");
            say(&mut program, end, "0");
            assert_eq!(scene.books(), 0, "everything in it goes with it: {end}, {size:?}");
        }
        say(&mut program, "inner 0", "0");
        say(&mut program, &format!("alloc {MIB}"), "0");
        say(&mut program, "retain 0", "0");
        say(&mut program, "create 1 0 2", "0");
        say(&mut program, &format!("alloc {MIB}"), "0");
        assert_eq!(scene.books(), 2 * CONTEXT + 2 * MIB, "{size:?}");
        say(&mut program, "destroy 1", "0");
        say(&mut program, "release 0", "0");
        assert_eq!(scene.books(), CONTEXT + MIB, "{size:?}");
        say(&mut program, "release 0", "0");
        assert_eq!(scene.books(), 0, "{size:?}");
        program.end();
    }
}

/// No notice of the end reaches the shim: it finds the end before it refuses memory.
#[test]
fn primary_context_ended_past_the_hooks_is_found_before_refusal() {
    const MOST: u64 = LIMIT - CONTEXT - 100 * MIB;
    let ended = |had: &str, end: &[&str]| {
        let scene = Scene::new(LIMIT, Size::Published)?;
        let mut program = scene.start();
        say(&mut program, had, "0");
        say(&mut program, &format!("alloc {MOST}"), "0");
        say(&mut program, "load 1 1", "0");
        say(&mut program, "function 1 1", "0");
        assert_eq!(scene.books_beside(1), CONTEXT + MOST);
        end.iter().for_each(|line| say(&mut program, line, "0"));
        Some((scene, program))
    };
    for had in ["inner 0", "retain 0"] {
        for end in [&["innerreset 0"][..], &["innerrelease 0"]] {
            // There is none now.
            let Some((scene, mut program)) = ended(had, end) else { return };
            say(&mut program, "create 1 0 2", "0");
            say(&mut program, &format!("alloc {MOST}"), "0");
            assert_eq!(scene.books(), CONTEXT + MOST, "{had}, {end:?}");
            say(&mut program, "destroy 1", "0");
            // Another one is there, got in either way, and has something in it.
            for again in ["inner 0", "retain 0"] {
                let Some((scene, mut program)) = ended(had, end) else { return };
                say(&mut program, again, "0");
                say(&mut program, "alloc 1000", "0");
                say(&mut program, &format!("alloc {MOST}"), "0");
                assert_eq!(scene.books(), CONTEXT + 1024 + MOST, "{had}, {end:?}, {again}");
                say(&mut program, &format!("alloc {}", 100 * MIB), "2");
                assert_eq!(scene.books(), CONTEXT + 1024 + MOST, "what is there stays");
                say(&mut program, "release 0", "0");
                assert_eq!(scene.books(), 0, "{had}, {end:?}, {again}");
            }
        }
    }
    // One of two holders releases it: all of it stays.
    let Some((scene, mut program)) = ended("inner 0", &["inner 0", "innerrelease 0"]) else { return };
    say(&mut program, &format!("alloc {MOST}"), "2");
    assert_eq!(scene.books_beside(1), CONTEXT + MOST);
    say(&mut program, "innerrelease 0", "0");
    assert_eq!(scene.card.in_use(), 0);
    say(&mut program, "inner 0", "0");
    say(&mut program, &format!("alloc {MOST}"), "0");
    assert_eq!(scene.books(), CONTEXT + MOST);
}

#[test]
fn oversized_primary_context_past_the_hooks_leaves_no_room() {
    for size in [Size::Published, Size::Unknown] {
        let Some(scene) = Scene::new(CONTEXT, size) else { return };
        let mut program = scene.start();
        say(&mut program, "inner 0", "0");
        say(&mut program, "alloc 1", "2");
        assert_eq!(scene.books(), CONTEXT, "{size:?}");
        program.end();
    }
}

#[test]
fn context_over_limit_is_out_of_memory_and_not_made() {
    for size in [Size::Published, Size::Unknown] {
        let Some(scene) = Scene::new(CONTEXT - 1, size) else { return };
        let mut program = scene.start();
        say(&mut program, "retain 0", "2");
        assert_eq!(scene.books(), 0, "{size:?}");
        for version in 1..=4 {
            say(&mut program, &format!("create 1 0 {version}"), "2");
        }
        assert_eq!(scene.books(), 0, "{size:?}");
        if matches!(size, Size::Published) {
            assert_eq!(scene.card.high_water(), 0, "never made");
        }
        program.end();
    }
}

#[test]
fn green_context_is_charged_as_its_primary_context() {
    for size in [Size::Published, Size::Unknown] {
        let Some(scene) = Scene::new(LIMIT, size) else { return };
        let mut program = scene.start();
        say(&mut program, "green 1 0", "0");
        assert_eq!(scene.books(), CONTEXT, "{size:?}");
        say(&mut program, &format!("alloc {MIB}"), "0");
        say(&mut program, "green 2 0", "0");
        say(&mut program, &format!("alloc {MIB}"), "0");
        assert_eq!(scene.books(), CONTEXT + 2 * MIB, "{size:?}");
        say(&mut program, "wither 1", "0");
        assert_eq!(scene.books(), CONTEXT + 2 * MIB, "its memory is the primary context's, {size:?}");
        say(&mut program, "wither 2", "0");
        assert_eq!(scene.books(), 0, "{size:?}");
        // The same beside the program's own hold.
        for end in ["release 0", "reset 0"] {
            say(&mut program, "retain 0", "0");
            say(&mut program, "green 1 0", "0");
            say(&mut program, &format!("alloc {MIB}"), "0");
            say(&mut program, "load 1 1", "0");
            say(&mut program, "function 1 1", "0");
            say(&mut program, "wither 1", "0");
            assert_eq!(scene.books_beside(1), CONTEXT + MIB, "{size:?}");
            say(&mut program, end, "0");
            assert_eq!(scene.books(), 0, "{end}, {size:?}");
        }
        say(&mut program, "wither 1", "201");
        program.end();
    }
}

#[test]
fn green_context_memory_ends_with_the_last_of_them() {
    // The second one is made while the first one is being destroyed, or the other way round.
    for (slow, call) in [("cuGreenCtxDestroy", 1), ("cuGreenCtxCreate", 2)] {
        for size in [Size::Published, Size::Unknown] {
            let Some(scene) = Scene::new(LIMIT, size) else { return };
            let fault =
                format!("symbol = \"{slow}\"\ncall = {call}\naction = {{ slow_nanos = 700000000 }}\n");
            scene.bench.write("faults.toml", &format!("[[fault]]\n{fault}"));
            let mut program = scene.start();
            say(&mut program, "green 1 0", "0");
            say(&mut program, &format!("alloc {MIB}"), "0");
            say(&mut program, &format!("cross 1 2 {}", 2 * MIB), "0");
            say(&mut program, "wither 2", "0");
            assert_eq!(scene.books(), 0, "{slow}, {size:?}");
            say(&mut program, "green 3 0", "0");
            assert_eq!(scene.books(), CONTEXT, "{slow}, {size:?}");
            program.end();
        }
    }
}

/// A thread before a refusal queries the primary context, and so retains it for a moment; the last holder
/// releases it in that moment.
#[test]
fn primary_context_released_during_a_query_leaves_no_charge() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let slow = |symbol: &str, millis: u64| {
        format!("[[fault]]\nsymbol = \"{symbol}\"\naction = {{ slow_nanos = {millis}000000 }}\n")
    };
    let faults = [slow("cuDevicePrimaryCtxRelease", 900), slow("cuDevicePrimaryCtxRelease_v2", 1_500)];
    scene.bench.write("faults.toml", &faults.concat());
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    say(&mut program, "current 0", "0");
    say(&mut program, &format!("alloc {MIB}"), "0");
    say(&mut program, "create 1 0 2", "0");
    assert_eq!(scene.books(), 2 * CONTEXT + MIB);
    say(&mut program, &format!("beside {LIMIT}"), "2");
    assert_eq!(scene.books(), CONTEXT);
    say(&mut program, "destroy 1", "0");
    assert_eq!(scene.books(), 0);
    program.end();
}

/// Retaining a live primary context reserves nothing, and makes none if another thread releases it meanwhile.
#[test]
fn concurrent_retains_at_a_full_grant_never_pass_the_limit() {
    for size in [Size::Published, Size::Unknown] {
        let limit = 1_500 * MIB;
        let Some(scene) = Scene::new(limit, size) else { return };
        let mut program = scene.start();
        say(&mut program, "create 1 0 2", "0");
        say(&mut program, "press 1 2000", "0");
        assert!(scene.card.high_water() <= limit, "{} of {limit}, {size:?}", scene.card.high_water());
        assert_eq!(scene.books(), CONTEXT, "{size:?}");
        program.end();
    }
}

#[test]
fn green_contexts_of_many_threads_leave_no_charge() {
    for held in [false, true] {
        let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
        // So that others come in between.
        let fault = "symbol = \"cuGreenCtxDestroy\"\naction = { slow_nanos = 500000 }\n";
        scene.bench.write("faults.toml", &format!("[[fault]]\n{fault}"));
        let mut program = scene.start();
        if held {
            say(&mut program, "green 1 0", "0");
            say(&mut program, &format!("alloc {MIB}"), "0");
        }
        say(&mut program, "churn 4 100", "0");
        if held {
            say(&mut program, "wither 1", "0");
        }
        assert_eq!(scene.books(), 0, "held: {held}");
        program.end();
    }
}

#[test]
fn green_context_over_limit_is_out_of_memory_and_not_made() {
    for size in [Size::Published, Size::Unknown] {
        let Some(scene) = Scene::new(CONTEXT - 1, size) else { return };
        let mut program = scene.start();
        say(&mut program, "green 1 0", "2");
        assert_eq!(scene.books(), 0, "{size:?}");
        if matches!(size, Size::Published) {
            assert_eq!(scene.card.high_water(), 0, "never made");
        }
        program.end();
    }
}

#[test]
fn contexts_of_a_program_are_charged_each_with_their_content() {
    for size in [Size::Published, Size::Unknown] {
        let Some(scene) = Scene::new(LIMIT, size) else { return };
        let mut program = scene.start();
        for version in 1..=4 {
            say(&mut program, &format!("create {version} 0 {version}"), "0");
            say(&mut program, &format!("alloc {}", version * MIB), "0");
            assert_eq!(scene.books(), version * CONTEXT + (1..=version).sum::<u64>() * MIB, "{size:?}");
        }
        for version in 1..=4 {
            say(&mut program, &format!("destroy {version}"), "0");
        }
        assert_eq!(scene.books(), 0, "{size:?}");
        say(&mut program, "destroy 1", "201");
        assert_eq!(scene.bench.misuses(), ["cuCtxDestroy_v2: Context after its end"], "the program's own");
        program.end();
    }
}
