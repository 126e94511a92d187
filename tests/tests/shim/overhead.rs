//! Memory of contexts and modules is accounted as the driver reports it, until they end.

use aliquot_abi::layout::usage;
use aliquot_abi::limits::Limits;
use aliquot_sim_device::Card;
use aliquot_tests::preload::{GrantFiles, Tenant, UNPAGED, memory_limit, unpaged};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
/// Of the simulated cards, as `driver/backends/sim/README.md` says.
const CONTEXT: u64 = 480 * MIB;
const MODULE: u64 = 2 * MIB;
const LIMIT: u64 = 4 << 30;

struct Scene {
    bench: Bench,
    tenant: Tenant,
    program: PathBuf,
    files: GrantFiles,
    card: Card,
}

/// Whether the host published how large a context is.
#[derive(Clone, Copy, Debug)]
enum Size {
    Published,
    Unknown,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new(limit: u64, size: Size) -> Option<Self> {
        Self::on("", limit, size)
    }

    /// On such a node.
    fn on(node: &str, limit: u64, size: Size) -> Option<Self> {
        let bench = Bench::new();
        bench.write("node.toml", &format!("{UNPAGED}{node}"));
        let program = match bench.compile("shim_overhead", Link::Opened) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let context_bytes = if matches!(size, Size::Published) { CONTEXT } else { 0 };
        let limits = Limits { context_bytes, ..unpaged(memory_limit(&card.facts().uuid, limit)) };
        let (tenant, files) = Tenant::with(&limits);
        Some(Self { bench, tenant, program, files, card })
    }

    fn start(&self) -> Talk {
        Talk::start(&mut self.tenant.command(&self.bench, &self.program))
    }

    /// The accounting, which agrees with the driver.
    #[track_caller]
    fn books(&self) -> u64 {
        let books = self.files.counter(usage::TOTAL);
        assert_eq!(books, self.card.in_use(), "accounting and card");
        books
    }
}

#[track_caller]
fn say(program: &mut Talk, line: &str, expected: &str) {
    assert_eq!(program.say(line), expected, "{line}");
}

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
            assert_eq!(scene.books(), CONTEXT + MIB + MODULE, "{size:?}");
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
        assert_eq!(scene.books(), CONTEXT + MOST + MODULE);
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
    assert_eq!(scene.books(), CONTEXT + MOST + MODULE);
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
            assert_eq!(scene.books(), CONTEXT + MIB + MODULE, "{size:?}");
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
    let seed = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| u64::from(time.subsec_nanos()));
    println!("seed {seed}");
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

/// A free-memory delta beside other processes at work belongs to none of them for sure.
#[test]
fn limits_changed_beside_others_are_charged_their_memory() {
    let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
    let threads = 2048 * u64::from(scene.card.facts().sms);
    let (mut program, mut other) = (scene.start(), scene.start());
    say(&mut program, "retain 0", "0");
    say(&mut other, "retain 0", "0");
    say(&mut program, "limit 0 1536", "0");
    say(&mut program, "limit 0 1024", "0");
    assert_eq!(scene.books(), 2 * CONTEXT, "seen to come back, beside a process that does nothing");
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
        // Seen or not: never less than there is, and never more than there was.
        let held = scene.files.counter(usage::TOTAL);
        assert_eq!(scene.card.in_use(), most(0), "round {round}");
        assert!(held == most(0) || held == most(2), "round {round}: {held}");
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
        let local = |bytes: u64| CONTEXT + MODULE + (bytes - 1024) * threads;
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        say(&mut program, &format!("locals 1 {way} 1024"), "0");
        for number in [0, 1] {
            // As much as the context has of its own.
            say(&mut program, &format!("function 1 {number}"), "0");
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books(), local(1024), "way {way}");
        }
        say(&mut program, "function 1 2", "0");
        assert_eq!(scene.files.counter(usage::TOTAL), local(2048), "way {way}, before the driver has it");
        for _ in 0..2 {
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books(), local(2048), "way {way}");
        }
        say(&mut program, "unload 1", "0");
        say(&mut program, &format!("locals 1 {way} 2000"), "0");
        say(&mut program, "function 1 1", "0");
        say(&mut program, "launch 1", "0");
        assert_eq!(scene.books(), local(2048), "kept for all kernels of the context, way {way}");
        // It would pass the limit.
        for _ in 0..2 {
            say(&mut program, "function 1 2", "2");
            assert_eq!(scene.books(), local(2048), "way {way}");
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
        assert_eq!(scene.books(), 2 * (CONTEXT + MODULE) + local(2048) + local(3072));
        // A library's kernels are of each context on their own.
        say(&mut program, "locals 3 4 4096", "0");
        say(&mut program, "function 3 1", "0");
        say(&mut program, "launch 3", "0");
        assert_eq!(scene.books(), 2 * CONTEXT + 3 * MODULE + local(2048) + local(4096));
        say(&mut program, "current 1", "0");
        say(&mut program, "ready 3", "0");
        say(&mut program, "launch 3", "0");
        assert_eq!(scene.books(), 2 * CONTEXT + 4 * MODULE + 2 * local(4096));
        say(&mut program, "destroy 2", "0");
        assert_eq!(scene.books(), CONTEXT + 2 * MODULE + local(4096));
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
        assert_eq!(scene.books(), CONTEXT + MODULE + 1024 * threads);
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
    let local = |bytes: u64| CONTEXT + MODULE + (bytes - 1024) * threads;
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    say(&mut program, "locals 1 1 2048", "0");
    say(&mut program, "limit 0 3072", "0");
    assert_eq!(scene.books(), local(3072) - MODULE);
    say(&mut program, "function 1 1", "0");
    say(&mut program, "launch 1", "0");
    assert_eq!(scene.books(), local(3072), "there is room");
    say(&mut program, "limit 0 1024", "0");
    assert_eq!(scene.books(), local(2048), "the kernel's stays");
    say(&mut program, "function 1 2", "0");
    assert_eq!(scene.files.counter(usage::TOTAL), local(4096));
    // The limit has what the kernel is charged for.
    say(&mut program, "limit 0 3072", "0");
    assert_eq!(
        (scene.files.counter(usage::TOTAL), scene.card.in_use()),
        (local(4096), local(3072)),
        "not launched yet"
    );
    say(&mut program, "limit 0 5120", "0");
    assert_eq!(scene.books(), local(5120));
    say(&mut program, "limit 0 4096", "0");
    say(&mut program, "launch 1", "0");
    assert_eq!(scene.books(), local(4096));
    say(&mut program, "reset 0", "0");
    assert_eq!(scene.books(), 0);
    program.end();
}

#[test]
fn local_memory_of_listed_kernels_is_charged_or_out_of_memory() {
    for way in [1, 4] {
        for (bytes, code) in [(1024, "0 3"), (40_000, "2 0")] {
            let Some(scene) = Scene::new(LIMIT, Size::Published) else { return };
            let threads = 2048 * u64::from(scene.card.facts().sms);
            let mut program = scene.start();
            say(&mut program, "retain 0", "0");
            say(&mut program, &format!("locals 1 {way} {bytes}"), "0");
            say(&mut program, "list 1 64", code);
            if code.starts_with('0') {
                assert_eq!(scene.files.counter(usage::TOTAL), CONTEXT + MODULE + 1024 * threads, "way {way}");
            }
            assert!(scene.card.high_water() <= LIMIT);
            say(&mut program, "release 0", "0");
            assert_eq!(scene.books(), 0, "way {way}");
            program.end();
        }
    }
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
        assert_eq!(scene.books(), CONTEXT + MODULE, "way {way}");
        for (number, more) in [(1, 0), (2, 1024)] {
            say(&mut program, &format!("function 1 {number}"), "0");
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books(), CONTEXT + MODULE + more * threads, "way {way}");
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
        // What the modules take may be measured one for the other; nothing of this size is.
        let (held, local) = (scene.files.counter(usage::TOTAL), CONTEXT + 1024 * threads);
        assert!((local..local + 100 * MIB).contains(&held), "{held}, not {local} and some");
        say(&mut program, "release 0", "0");
        assert_eq!(scene.books(), 0);
        program.end();
    }
}

#[test]
fn threads_and_processes_leave_exact_context_accounting() {
    let seed = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.subsec_nanos());
    println!("seed {seed}");
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
