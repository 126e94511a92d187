//! Modules and libraries are charged with the variables that their image names; their code is residue.

use super::*;

/// Of variables.
const VARIABLES: u64 = 100 * MIB;

#[test]
fn variables_of_an_image_are_charged_until_it_is_unloaded() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    for way in 1..=4 {
        say(&mut program, &format!("load {way} {way} {VARIABLES}"), "0");
        assert_eq!(scene.files.counter(usage::TOTAL), CONTEXT + way * VARIABLES, "way {way}");
        for name in 1..=3 {
            say(&mut program, &format!("function {way} {name}"), "0");
            assert_eq!(scene.files.counter(usage::TOTAL), CONTEXT + way * VARIABLES, "way {way}");
        }
    }
    // Another context ends without them.
    say(&mut program, "create 1 0 2", "0");
    say(&mut program, &format!("load 5 1 {VARIABLES}"), "0");
    assert_eq!(scene.files.counter(usage::TOTAL), 2 * CONTEXT + 5 * VARIABLES);
    say(&mut program, "destroy 1", "0");
    assert_eq!(scene.files.counter(usage::TOTAL), CONTEXT + 4 * VARIABLES);
    for way in 1..=4 {
        say(&mut program, &format!("unload {way}"), "0");
        assert_eq!(scene.files.counter(usage::TOTAL), CONTEXT + (4 - way) * VARIABLES);
    }
    say(&mut program, "unload 1", "400");
    assert_eq!(scene.books(), CONTEXT);
    program.end();
}

#[test]
fn variables_are_charged_where_the_driver_loads_modules_whole() {
    let Some(scene) = Scene::new(CONTEXT + VARIABLES + MODULE, Size::Published) else { return };
    let mut command = scene.tenant.command(&scene.bench, &scene.program);
    let mut program = Talk::start(command.env("CUDA_MODULE_LOADING", "EAGER"));
    say(&mut program, "retain 0", "0");
    say(&mut program, &format!("load 1 1 {VARIABLES}"), "0");
    assert_eq!(scene.books_beside(1), CONTEXT + VARIABLES);
    say(&mut program, &format!("load 2 1 {VARIABLES}"), "2");
    assert_eq!(scene.books_beside(1), CONTEXT + VARIABLES);
    say(&mut program, "unload 1", "0");
    assert_eq!(scene.books(), CONTEXT);
    program.end();
}

/// Counted by a process that the driver kills at the first query.
#[test]
fn modules_and_functions_do_not_ask_for_free_memory() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let fault = "symbol = \"cuMemGetInfo_v2\"\ncall = 1\naction = \"kill\"\n";
    scene.bench.write("faults.toml", &format!("[[fault]]\n{fault}"));
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    for way in [1, 4] {
        say(&mut program, &format!("load 1 {way} {VARIABLES}"), "0");
        say(&mut program, "function 1 1", "0");
        say(&mut program, "launch 1", "0");
        say(&mut program, "unload 1", "0");
    }
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
        say(&mut program, &format!("load 1 {way} {}", LIMIT * 2), "2");
        assert_eq!(scene.books(), CONTEXT, "the driver was not called, way {way}");
    }
    assert_eq!(files(), open);
    program.end();
}

#[test]
fn an_image_that_was_refused_once_is_charged_when_it_is_loaded() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    for (way, generation) in [(1, 2), (4, 4)] {
        let limits = |generation, bytes| Limits {
            generation,
            context_bytes: CONTEXT,
            ..unpaged(memory_limit(&scene.card.facts().uuid, bytes))
        };
        scene.files.change(&limits(generation, CONTEXT + VARIABLES - 1));
        for _ in 0..2 {
            say(&mut program, &format!("load 2 {way} {VARIABLES}"), "2");
            assert_eq!(scene.books(), CONTEXT);
        }
        scene.files.change(&limits(generation + 1, LIMIT));
        say(&mut program, &format!("load 2 {way} {VARIABLES}"), "0");
        say(&mut program, "function 2 1", "0");
        say(&mut program, "launch 2", "0");
        assert_eq!(scene.books_beside(1), CONTEXT + VARIABLES);
        say(&mut program, "unload 2", "0");
        assert_eq!(scene.books(), CONTEXT);
    }
    assert_eq!(scene.files.counter(usage::DENIED), 4);
    program.end();
}
