//! Modules and libraries are charged with what they take of the card.

use super::*;

#[test]
fn a_module_is_charged_with_its_first_function_and_once() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    for way in 1..=4 {
        say(&mut program, &format!("load {way} {way}"), "0");
        assert_eq!(scene.books(), CONTEXT + (way - 1) * MODULE, "loaded is not used");
        for name in 1..=3 {
            say(&mut program, &format!("function {way} {name}"), "0");
            assert_eq!(scene.books(), CONTEXT + way * MODULE);
        }
    }
    // A library is in every context that uses it.
    say(&mut program, "create 1 0 2", "0");
    say(&mut program, "function 4 1", "0");
    assert_eq!(scene.books(), 2 * CONTEXT + 5 * MODULE);
    say(&mut program, "destroy 1", "0");
    assert_eq!(scene.books(), CONTEXT + 4 * MODULE);
    for way in 1..=4 {
        say(&mut program, &format!("unload {way}"), "0");
        assert_eq!(scene.books(), CONTEXT + (4 - way) * MODULE);
    }
    say(&mut program, "unload 1", "400");
    program.end();
}

/// Without the shim the driver loads it at the launch.
#[test]
fn library_kernel_is_charged_at_load_and_not_at_launch() {
    let Some(scene) = Scene::new(CONTEXT + MODULE, Size::Published) else { return };
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    for way in [4, 6] {
        say(&mut program, &format!("load 1 {way}"), "0");
        assert_eq!(scene.books(), CONTEXT, "loaded is not used");
        for number in 1..=2 {
            say(&mut program, &format!("function 1 {number}"), "0");
            assert_eq!(scene.books(), CONTEXT + MODULE);
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books(), CONTEXT + MODULE);
        }
        say(&mut program, "unload 1", "0");
    }
    // What does not fit is not had, so that it cannot be launched.
    say(&mut program, &format!("load 1 4 {}", 2 * MODULE), "0");
    say(&mut program, "function 1 1", "2");
    assert_eq!(scene.card.high_water(), CONTEXT + MODULE);
    program.end();
}

#[test]
fn a_module_of_an_eager_driver_is_charged_when_it_is_loaded() {
    let Some(scene) = Scene::new(CONTEXT + MODULE, Size::Published) else { return };
    let mut command = scene.tenant.command(&scene.bench, &scene.program);
    let mut program = Talk::start(command.env("CUDA_MODULE_LOADING", "EAGER"));
    say(&mut program, "retain 0", "0");
    say(&mut program, "load 1 1", "0");
    assert_eq!(scene.books(), CONTEXT + MODULE);
    say(&mut program, "load 2 1", "2");
    assert_eq!(scene.books(), CONTEXT + MODULE);
    say(&mut program, "unload 1", "0");
    assert_eq!(scene.books(), CONTEXT);
    program.end();
}

/// Counted by a process that the driver kills at one query too many.
#[test]
fn first_use_of_a_function_reads_free_memory_twice_later_never() {
    // The loading of two modules; of each two functions, lazily.
    for (mode, questions) in [("LAZY", 4 + 8), ("EAGER", 4)] {
        for (killed_at, survives) in [(questions + 1, true), (questions, false)] {
            let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
            let fault = format!("symbol = \"cuMemGetInfo_v2\"\ncall = {killed_at}\naction = \"kill\"\n");
            scene.bench.write("faults.toml", &format!("[[fault]]\n{fault}"));
            let lines = ["retain 0", "load 1 1", "load 2 4"].into_iter();
            let uses = ["function 1 1", "function 1 2", "function 2 1", "function 2 2"].repeat(3);
            let input = scene.bench.cards().with_file_name("lines");
            std::fs::write(&input, lines.chain(uses).collect::<Vec<_>>().join("\n")).unwrap();
            let mut command = scene.tenant.command(&scene.bench, &scene.program);
            command.env("CUDA_MODULE_LOADING", mode).stdin(std::fs::File::open(&input).unwrap());
            let output = command.output().unwrap();
            let answers = String::from_utf8_lossy(&output.stdout);
            assert_eq!(
                output.status.success(),
                survives,
                "{mode}, killed at question {killed_at}: {answers}"
            );
            assert!(
                !survives || answers.lines().filter(|line| *line == "0").count() == 15,
                "{mode}: {answers}"
            );
        }
    }
}

/// Made ready with the list, as a launch is not looked at for memory.
#[test]
fn launch_from_a_function_list_is_charged_or_out_of_memory() {
    for way in [1, 4] {
        let Some(scene) = Scene::new(CONTEXT + MODULE, Size::Published) else { return };
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        say(&mut program, &format!("kernels 1 {way} 3"), "0");
        assert_eq!(scene.books(), CONTEXT);
        say(&mut program, "list 1 2", "0 2");
        assert_eq!(scene.books(), CONTEXT + MODULE, "way {way}");
        say(&mut program, "launch 1", "0");
        say(&mut program, "list 1 8", "0 3");
        assert_eq!(scene.books(), CONTEXT + MODULE, "way {way}");
        // Nothing is left of a list that does not fit but what the driver has loaded, which is charged.
        say(&mut program, &format!("kernels 2 {way} 3"), "0");
        say(&mut program, "list 2 3", "2 0");
        assert_eq!(scene.books(), CONTEXT + 2 * MODULE, "way {way}");
        say(&mut program, "unload 2", "0");
        assert_eq!(scene.books(), CONTEXT + MODULE, "way {way}");
        // Which kernels of a long list will be launched is unknown.
        say(&mut program, &format!("kernels 3 {way} 65"), "0");
        say(&mut program, "list 3 128", "0 65");
        assert_eq!(scene.books(), CONTEXT + MODULE, "way {way}");
        program.end();
    }
}

/// They load what they are of, as functions and variables do.
#[test]
fn references_and_unified_functions_are_charged_at_load() {
    for (way, kind) in [(1, 1), (1, 2), (4, 3)] {
        let Some(scene) = Scene::new(CONTEXT + MODULE, Size::Published) else { return };
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        // What does not fit is not had, and is charged until it is unloaded, as the driver has loaded it.
        for (slot, code) in [(1, "0"), (2, "2")] {
            say(&mut program, &format!("others {slot} {way}"), "0");
            assert_eq!(scene.books(), CONTEXT + (slot - 1) * MODULE, "kind {kind}");
            say(&mut program, &format!("other {slot} {kind}"), code);
            assert_eq!(scene.books(), CONTEXT + slot * MODULE, "kind {kind}");
        }
        program.end();
    }
}

#[test]
fn module_over_limit_is_out_of_memory_and_others_stay_charged() {
    let Some(scene) = Scene::new(CONTEXT + MODULE, Size::Published) else { return };
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    say(&mut program, &format!("alloc {MIB}"), "0");
    say(&mut program, "load 1 1", "0");
    // Its size is unknown yet: it is loaded, found too large, and stays until it is unloaded.
    say(&mut program, "function 1 1", "2");
    assert_eq!(scene.books(), CONTEXT + MODULE + MIB);
    say(&mut program, "alloc 1", "2");
    say(&mut program, "unload 1", "0");
    assert_eq!(scene.books(), CONTEXT + MIB);
    // An image that says that it does not fit is not loaded.
    say(&mut program, &format!("load 2 1 {}", 2 * MODULE), "0");
    say(&mut program, "function 2 1", "2");
    assert_eq!(scene.books(), CONTEXT + MIB);
    program.end();
}

/// Where a container may not ask the kernel for its own memory, images say the same.
#[test]
fn images_are_read_where_a_filter_forbids_the_call_for_it() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let mut program = scene.start();
    if program.say("forbid") != "0" {
        println!("stood aside: no filters of system calls here");
        return;
    }
    say(&mut program, "retain 0", "0");
    let fds = format!("/proc/{}/fd", program.pid());
    let files = || std::fs::read_dir(&fds).map(Iterator::count).ok();
    let open = files();
    for way in 1..=4 {
        say(&mut program, &format!("load 1 {way} {}", LIMIT * 2), "0");
        say(&mut program, "function 1 1", "2");
        assert_eq!(scene.books(), CONTEXT, "the driver was not called, way {way}");
        say(&mut program, "unload 1", "0");
    }
    assert_eq!(files(), open);
    program.end();
}

#[test]
fn a_module_that_was_refused_once_is_charged_when_it_is_had() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    let mut other = scene.start();
    say(&mut other, "retain 0", "0");
    for (way, generation) in [(1, 2), (4, 4)] {
        let limits = |generation, bytes| Limits {
            generation,
            context_bytes: CONTEXT,
            ..unpaged(memory_limit(&scene.card.facts().uuid, bytes))
        };
        scene.files.change(&limits(generation, 2 * CONTEXT + MODULE - 1));
        say(&mut program, &format!("load 2 {way} {MODULE}"), "0");
        for _ in 0..2 {
            say(&mut program, "function 2 1", "2");
            assert_eq!(scene.books(), 2 * CONTEXT);
        }
        scene.files.change(&limits(generation + 1, LIMIT));
        for _ in 0..2 {
            say(&mut program, "function 2 1", "0");
            assert_eq!(scene.books(), 2 * CONTEXT + 2 * MODULE);
        }
        say(&mut program, "unload 2", "0");
        assert_eq!(scene.books(), 2 * CONTEXT);
    }
    assert_eq!(scene.files.counter(usage::DENIED), 4);
    program.end();
    other.end();
}

#[test]
fn modules_of_different_sizes_are_charged_each_with_its_own() {
    // In an image, which says how large its variables are, and in a file, which the shim does not read.
    for way in [1, 5] {
        for others in [0, 1] {
            let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
            let others: Vec<Talk> = (0..others)
                .map(|_| {
                    let mut other = scene.start();
                    say(&mut other, "retain 0", "0");
                    say(&mut other, "alloc 4096", "0");
                    other
                })
                .collect();
            let mut program = scene.start();
            say(&mut program, "retain 0", "0");
            let empty = scene.books();
            for sizes in [&[3000, 2][..], &[1000, 2, 2, 2, 2, 2], &[2, 2000], &[1, 1500, 3, 700, 1]] {
                let mut sum = empty;
                for (size, slot) in sizes.iter().zip(1..) {
                    say(&mut program, &format!("load {slot} {way} {}", size * MIB), "0");
                    say(&mut program, &format!("function {slot} 1"), "0");
                    sum += size * MIB + MODULE;
                    assert_eq!(scene.books(), sum, "way {way}, {sizes:?} beside {} others", others.len());
                }
                // A module that does not fit is refused, and is accounted if the driver has loaded it.
                say(&mut program, &format!("load 60 {way} {}", 9000 * MIB), "0");
                say(&mut program, "function 60 1", "2");
                assert_eq!(scene.books() > LIMIT, way == 5);
                for slot in (1..=sizes.len()).chain([60]) {
                    say(&mut program, &format!("unload {slot}"), "0");
                }
                assert_eq!(scene.books(), empty);
            }
            program.end();
            others.into_iter().for_each(Talk::end);
        }
    }
}

#[test]
fn concurrent_module_loads_are_measured_one_after_the_other() {
    const ROUNDS: u64 = 10;
    let seed = aliquot_tests::seed::seed();
    let Some(scene) = Scene::new(16 << 30, Size::Published) else { return };
    let mut programs: Vec<Talk> = (0..3).map(|_| scene.start()).collect();
    programs.iter_mut().for_each(|program| say(program, "retain 0", "0"));
    // A process without a processor for a second does not delay the others.
    let is_exact = |round: u64, programs: &mut [Talk]| {
        for (program, number) in programs.iter_mut().zip(0..) {
            program.tell(&format!("hold {} 4 8", seed.wrapping_add(number * 64 + round * 1024)));
        }
        programs.iter_mut().for_each(|program| assert_eq!(program.hear(), "0"));
        let found = (scene.files.counter(usage::TOTAL), scene.card.in_use());
        programs.iter_mut().for_each(|program| say(program, "let", "0"));
        assert_eq!(scene.books(), 3 * CONTEXT, "round {round}");
        println!("round {round}: {found:?}");
        found.0 == found.1
    };
    assert!((0..ROUNDS).any(|round| is_exact(round, &mut programs)));
    programs.into_iter().for_each(Talk::end);
}

#[test]
fn a_module_that_cannot_be_noted_is_not_had() {
    for way in 1..=6 {
        let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        say(&mut program, "narrow", "0");
        for size in [0, 100 * MIB] {
            say(&mut program, &format!("load 1 {way} {size}"), "2");
            assert_eq!(scene.books(), CONTEXT, "way {way}");
        }
        program.end();
    }
}
