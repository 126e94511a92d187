//! Stacks and local memory are charged to the context that has them.

use super::*;

#[test]
fn stacks_are_charged_beside_other_processes_too() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let threads = 2048 * u64::from(scene.card.facts().sms);
    let (mut program, mut other) = (scene.start(), scene.start());
    say(&mut other, "retain 0", "0");
    say(&mut program, "retain 0", "0");
    say(&mut program, "limit 0 2048", "0");
    assert_eq!(scene.books(), 2 * CONTEXT + 1024 * threads);
    program.end();
    other.end();
}

#[test]
fn stacks_that_a_limit_asks_for_are_charged_to_their_context() {
    let limit = CONTEXT + 600 * MIB;
    let Some(scene) = Scene::new(limit, Size::Published) else { return };
    let threads = 2048 * u64::from(scene.card.facts().sms);
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    say(&mut program, "limit 0 2048", "0");
    assert_eq!(scene.books(), CONTEXT + 1024 * threads);
    say(&mut program, "limit 0 65536", "2");
    assert!(scene.card.high_water() <= limit, "refused before the driver made them");
    say(&mut program, "limitis 0", "0 2048");
    assert_eq!(scene.books(), CONTEXT + 1024 * threads);
    say(&mut program, "limit 0 1024", "0");
    assert_eq!(scene.books(), CONTEXT);
    // What the context has of its own is in its size.
    say(&mut program, "limit 0 512", "0");
    say(&mut program, "limit 0 1024", "0");
    assert_eq!(scene.books(), CONTEXT);
    say(&mut program, "limit 0 2048", "0");
    say(&mut program, "release 0", "0");
    assert_eq!(scene.books(), 0);
    program.end();
}

/// A driver may round a requested limit, and reports the result.
#[test]
fn rounded_and_clamped_limits_are_charged_as_applied() {
    let Some(scene) = Scene::on("stack_limits = \"rounded\"\n", LIMIT, Size::Published) else { return };
    let threads = 2048 * u64::from(scene.card.facts().sms);
    let (mut program, mut other) = (scene.start(), scene.start());
    say(&mut program, "retain 0", "0");
    say(&mut other, "retain 0", "0");
    let most = |stacks: u64| 2 * CONTEXT + (stacks - 1024) * threads;
    for round in 0..4 {
        // What never became smaller leaves nothing to spare, seen or not.
        other.tell(&format!("storm {round} 8 300"));
        for _ in 0..20 {
            say(&mut program, "limit 0 256", "0");
        }
        say(&mut program, "limit 0 1025", "0");
        say(&mut program, "limitis 0", "0 1536");
        assert_eq!(other.hear(), "0");
        assert_eq!(scene.books(), most(1536), "round {round}");
        // As much as there is already.
        say(&mut program, "limit 0 1537", "0");
        say(&mut program, "limit 0 2000", "0");
        assert_eq!(scene.books(), most(2048), "round {round}");
        say(&mut program, "limit 0 1", "0");
        assert_eq!(scene.books(), most(1024), "round {round}");
    }
    // As a driver that clamps requests would take it.
    say(&mut program, "limit 0 10000000", "2");
    assert_eq!(scene.books(), most(1024));
    program.end();
    other.end();
}

/// What a neighbour gives back meanwhile was not had here.
#[test]
fn stacks_are_charged_fully_while_another_tenant_frees() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let slow = "[[fault]]\nsymbol = \"cuCtxSetLimit\"\naction = { slow_nanos = 600000000 }\n";
    scene.bench.write("faults.toml", slow);
    let threads = 2048 * u64::from(scene.card.facts().sms);
    let neighbours =
        Limits { context_bytes: CONTEXT, ..unpaged(memory_limit(&scene.card.facts().uuid, LIMIT)) };
    let (tenant, _files) = Tenant::with(&neighbours);
    let mut neighbour = Talk::start(&mut tenant.command(&scene.bench, &scene.program));
    let mut program = scene.start();
    say(&mut neighbour, "retain 0", "0");
    say(&mut program, "retain 0", "0");
    for stacks in [3072, 3056] {
        program.tell(&format!("limit 0 {stacks}"));
        std::thread::sleep(std::time::Duration::from_millis(200));
        say(&mut neighbour, "release 0", "0");
        assert_eq!(program.hear(), "0");
        assert_eq!(scene.books(), CONTEXT + (stacks - 1024) * threads);
        say(&mut neighbour, "retain 0", "0");
    }
    neighbour.end();
    program.end();
}

#[test]
fn limits_changed_beside_others_are_charged_their_memory() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let threads = 2048 * u64::from(scene.card.facts().sms);
    let (mut program, mut other) = (scene.start(), scene.start());
    say(&mut program, "retain 0", "0");
    say(&mut other, "retain 0", "0");
    say(&mut program, "limit 0 1536", "0");
    say(&mut program, "limit 0 1024", "0");
    assert_eq!(scene.books(), 2 * CONTEXT);
    let most = |steps: u64| 2 * CONTEXT + steps * 256 * threads;
    for round in 0..4 {
        other.tell(&format!("storm {round} 8 2000"));
        // A heap is made with the first module that needs it.
        say(&mut program, "limit 2 1000000000", "0");
        say(&mut program, "limit 0 1280", "0");
        say(&mut program, "limit 0 1536", "0");
        say(&mut program, "limit 0 1280", "0");
        say(&mut program, "limit 0 1536", "0");
        assert_eq!(other.hear(), "0");
        assert_eq!(scene.books(), most(2), "round {round}");
        other.tell(&format!("storm {round} 8 2000"));
        say(&mut program, "limit 0 1024", "0");
        assert_eq!(other.hear(), "0");
        assert_eq!(scene.books(), most(0), "round {round}");
    }
    say(&mut program, "release 0", "0");
    assert_eq!(scene.books(), CONTEXT);
    program.end();
    other.end();
}

/// Memory that the driver takes at a launch for all threads of the card is accounted before the launch.
#[test]
fn local_memory_is_charged_before_launch_once_a_context() {
    let limit = CONTEXT + MODULE + 600 * MIB;
    for way in [1, 3, 4, 6] {
        let Some(scene) = Scene::new(limit, Size::Published) else { return };
        let threads = 2048 * u64::from(scene.card.facts().sms);
        let local = |bytes: u64| CONTEXT + (bytes - 1024) * threads;
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        say(&mut program, &format!("locals 1 {way} 1024"), "0");
        for number in [0, 1] {
            // As much as the context has of its own.
            say(&mut program, &format!("function 1 {number}"), "0");
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books_beside(1), local(1024), "way {way}");
        }
        say(&mut program, "function 1 2", "0");
        assert_eq!(scene.files.counter(usage::TOTAL), local(2048), "way {way}, before the driver has it");
        for _ in 0..2 {
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books_beside(1), local(2048), "way {way}");
        }
        say(&mut program, "unload 1", "0");
        say(&mut program, &format!("locals 1 {way} 2000"), "0");
        say(&mut program, "function 1 1", "0");
        say(&mut program, "launch 1", "0");
        assert_eq!(scene.books_beside(1), local(2048), "kept for all kernels of the context, way {way}");
        // It would pass the limit.
        for _ in 0..2 {
            say(&mut program, "function 1 2", "2");
            assert_eq!(scene.books_beside(1), local(2048), "way {way}");
        }
        say(&mut program, "launch 1", "0");
        assert!(scene.card.high_water() <= limit, "way {way}");
        say(&mut program, "release 0", "0");
        assert_eq!(scene.books(), 0, "way {way}");
        program.end();
    }
}

#[test]
fn local_memory_is_charged_to_each_context_with_its_kernels() {
    for version in [1, 4] {
        let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
        let threads = 2048 * u64::from(scene.card.facts().sms);
        let local = |bytes: u64| (bytes - 1024) * threads;
        let mut program = scene.start();
        for (slot, bytes) in [(1, 2048), (2, 3072)] {
            say(&mut program, &format!("create {slot} 0 {version}"), "0");
            say(&mut program, &format!("locals {slot} 1 {bytes}"), "0");
            say(&mut program, &format!("function {slot} 1"), "0");
            say(&mut program, &format!("launch {slot}"), "0");
        }
        assert_eq!(scene.books_beside(2), 2 * CONTEXT + local(2048) + local(3072));
        // A library's kernels are of each context on their own.
        say(&mut program, "locals 3 4 4096", "0");
        say(&mut program, "function 3 1", "0");
        say(&mut program, "launch 3", "0");
        assert_eq!(scene.books_beside(3), 2 * CONTEXT + local(2048) + local(4096));
        say(&mut program, "current 1", "0");
        say(&mut program, "ready 3", "0");
        say(&mut program, "launch 3", "0");
        assert_eq!(scene.books_beside(4), 2 * CONTEXT + 2 * local(4096));
        say(&mut program, "destroy 2", "0");
        assert_eq!(scene.books_beside(2), CONTEXT + local(4096));
        say(&mut program, "destroy 1", "0");
        assert_eq!(scene.books(), 0);
        program.end();
    }
}

#[test]
fn local_memory_of_a_green_context_is_the_primary_ones() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let threads = 2048 * u64::from(scene.card.facts().sms);
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    for green in [1, 2, 1] {
        say(&mut program, &format!("green {green} 0"), "0");
        say(&mut program, "locals 1 1 1024", "0");
        say(&mut program, "function 1 2", "0");
        say(&mut program, "launch 1", "0");
        assert_eq!(scene.books_beside(1), CONTEXT + 1024 * threads);
        say(&mut program, "current 0", "0");
        say(&mut program, "launch 1", "0");
        say(&mut program, "unload 1", "0");
        say(&mut program, &format!("wither {green}"), "0");
        assert_eq!(scene.books(), CONTEXT + 1024 * threads);
    }
    say(&mut program, "release 0", "0");
    assert_eq!(scene.books(), 0);
    program.end();
}

/// The card has room for whichever of them is more.
#[test]
fn local_memory_of_kernels_and_of_the_limit_is_the_same_memory() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let threads = 2048 * u64::from(scene.card.facts().sms);
    let local = |bytes: u64| CONTEXT + (bytes - 1024) * threads;
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    say(&mut program, "locals 1 1 2048", "0");
    say(&mut program, "limit 0 3072", "0");
    assert_eq!(scene.books(), local(3072));
    say(&mut program, "function 1 1", "0");
    say(&mut program, "launch 1", "0");
    assert_eq!(scene.books_beside(1), local(3072), "there is room");
    say(&mut program, "limit 0 1024", "0");
    assert_eq!(scene.books_beside(1), local(2048), "the kernel's stays");
    say(&mut program, "function 1 2", "0");
    assert_eq!(scene.files.counter(usage::TOTAL), local(4096));
    // The limit has what the kernel is charged for.
    say(&mut program, "limit 0 3072", "0");
    assert_eq!(
        (scene.files.counter(usage::TOTAL), scene.card.in_use()),
        (local(4096), local(3072) + MODULE),
        "not launched yet"
    );
    say(&mut program, "limit 0 5120", "0");
    assert_eq!(scene.books_beside(1), local(5120));
    say(&mut program, "limit 0 4096", "0");
    say(&mut program, "launch 1", "0");
    assert_eq!(scene.books_beside(1), local(4096));
    say(&mut program, "reset 0", "0");
    assert_eq!(scene.books(), 0);
    program.end();
}

/// An eager driver has loaded the module, and makes its kernels' local memory at their launch all the same.
#[test]
fn local_memory_is_charged_where_the_driver_loads_modules_whole() {
    for way in [1, 4] {
        let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
        let threads = 2048 * u64::from(scene.card.facts().sms);
        let mut command = scene.tenant.command(&scene.bench, &scene.program);
        let mut program = Talk::start(command.env("CUDA_MODULE_LOADING", "EAGER"));
        say(&mut program, "retain 0", "0");
        say(&mut program, &format!("locals 1 {way} 1024"), "0");
        assert_eq!(scene.books_beside(1), CONTEXT, "way {way}");
        for (number, more) in [(1, 0), (2, 1024)] {
            say(&mut program, &format!("function 1 {number}"), "0");
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books_beside(1), CONTEXT + more * threads, "way {way}");
        }
        program.end();
    }
}

#[test]
fn local_memory_that_threads_need_at_once_is_charged_once() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let threads = 2048 * u64::from(scene.card.facts().sms);
    for _ in 0..4 {
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        say(&mut program, "atonce 12", "0");
        say(&mut program, "locals 1 1 2048", "0");
        say(&mut program, "function 1 1", "0");
        say(&mut program, "launch 1", "0");
        assert_eq!(scene.files.counter(usage::TOTAL), CONTEXT + 1024 * threads);
        say(&mut program, "release 0", "0");
        assert_eq!(scene.books(), 0);
        program.end();
    }
}

#[test]
fn threads_and_processes_leave_exact_context_accounting() {
    let seed = aliquot_tests::seed::seed();
    for size in [Size::Published, Size::Unknown] {
        let Some(scene) = Scene::new(LIMIT, size) else { return };
        let mut programs: Vec<Talk> = (0..3).map(|_| scene.start()).collect();
        programs.iter_mut().for_each(|program| say(program, "retain 0", "0"));
        assert_eq!(scene.books(), 3 * CONTEXT, "{size:?}");
        for round in 0..3 {
            for (program, number) in programs.iter_mut().zip(0..) {
                program.tell(&format!("storm {} 4 200", seed.wrapping_add(number * 64 + round)));
            }
            for program in &mut programs {
                assert_eq!(program.hear(), "0", "{size:?}");
            }
            assert_eq!(scene.books(), 3 * CONTEXT, "{size:?}, round {round}");
        }
        programs.into_iter().for_each(Talk::end);
    }
}
