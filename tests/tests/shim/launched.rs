//! What a driver loads at a launch is charged before it, where launches are looked at: kernels in another context than they were got
//! in, and what comes from a list that is too long to be made ready.

use aliquot_abi::layout::usage;
use aliquot_abi::limits::Limits;
use aliquot_sim_device::Card;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit, metered};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
/// Of the simulated cards, as `driver/backends/sim/README.md` says.
const CONTEXT: u64 = 480 * MIB;
const MODULE: u64 = 2 * MIB;
/// Threads of such a card that have local memory at once.
const THREADS: u64 = 132 * 2048;

struct Scene {
    bench: Bench,
    tenant: Tenant,
    program: PathBuf,
    files: GrantFiles,
    card: Card,
}

impl Scene {
    /// A grant of so much memory, and of a quarter of the card. `None`: no C compiler here.
    fn new(limit: u64) -> Option<Self> {
        let bench = Bench::new();
        let program = match bench.compile("shim_overhead", Link::Opened) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let limits = metered(Limits { context_bytes: CONTEXT, ..memory_limit(&card.facts().uuid, limit) });
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
        assert_eq!(books, self.card.in_use(), "the books and the card");
        books
    }
}

#[track_caller]
fn say(program: &mut Talk, line: &str, expected: &str) {
    assert_eq!(program.say(line), expected, "{line}");
}

#[test]
fn a_kernel_is_charged_in_each_context_that_it_is_launched_in() {
    for way in [4, 6] {
        let Some(scene) = Scene::new(4 << 30) else { return };
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        say(&mut program, "create 1 0 2", "0");
        say(&mut program, "stream 1", "0");
        say(&mut program, "create 2 0 2", "0");
        say(&mut program, "current 0", "0");
        say(&mut program, &format!("load 1 {way} {MIB}"), "0");
        say(&mut program, "function 1 1", "0");
        let each = MODULE + MIB;
        assert_eq!(scene.books(), 3 * CONTEXT + each);
        // A stream's context is meant, whichever is current.
        for _ in 0..3 {
            say(&mut program, "launch 1 1", "0");
            assert_eq!(scene.books(), 3 * CONTEXT + 2 * each);
        }
        say(&mut program, "current 2", "0");
        for _ in 0..3 {
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books(), 3 * CONTEXT + 3 * each);
        }
        // One more of the same library takes nothing.
        say(&mut program, "function 1 2", "0");
        say(&mut program, "launch 1 1", "0");
        assert_eq!(scene.books(), 3 * CONTEXT + 3 * each);
        say(&mut program, "destroy 1", "0");
        assert_eq!(scene.books(), 2 * CONTEXT + 2 * each);
        // A query from before that end is repeated, and not charged.
        say(&mut program, "launch 1", "0");
        assert_eq!(scene.books(), 2 * CONTEXT + 2 * each);
        say(&mut program, "unload 1", "0");
        assert_eq!(scene.books(), 2 * CONTEXT);
        program.end();
    }
}

#[test]
fn kernel_loaded_without_context_is_charged_at_its_launch() {
    let Some(scene) = Scene::new(4 << 30) else { return };
    let mut program = scene.start();
    say(&mut program, "load 1 4", "0");
    say(&mut program, "function 1 1", "0");
    assert_eq!(scene.books(), 0);
    say(&mut program, "retain 0", "0");
    say(&mut program, "launch 1", "0");
    assert_eq!(scene.books(), CONTEXT + MODULE);
    program.end();
}

#[test]
fn kernel_of_a_long_list_is_charged_at_its_launch() {
    for way in [1, 4] {
        let Some(scene) = Scene::new(4 << 30) else { return };
        let mut program = scene.start();
        say(&mut program, "retain 0", "0");
        say(&mut program, &format!("kernels 1 {way} 65"), "0");
        say(&mut program, "list 1 128", "0 65");
        assert_eq!(scene.books(), CONTEXT, "way {way}");
        for _ in 0..2 {
            say(&mut program, "launch 1", "0");
            assert_eq!(scene.books(), CONTEXT + MODULE, "way {way}");
        }
        // A handle that comes again is another one's.
        say(&mut program, "unload 1", "0");
        say(&mut program, &format!("kernels 1 {way} 2"), "0");
        say(&mut program, "list 1 2", "0 2");
        say(&mut program, "launch 1", "0");
        assert_eq!(scene.books(), CONTEXT + MODULE, "way {way}");
        program.end();
    }
}

#[test]
fn launch_needing_more_than_the_grant_is_out_of_memory() {
    let limit = 2 * CONTEXT + MODULE;
    let Some(scene) = Scene::new(limit) else { return };
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    // The image gives the size of such variables, so they are reserved before.
    say(&mut program, &format!("load 1 4 {MODULE}"), "0");
    say(&mut program, "load 2 4", "0");
    say(&mut program, "function 2 1", "0");
    say(&mut program, "create 1 0 2", "0");
    say(&mut program, "launch 2", "2");
    assert!(scene.books() <= limit + MODULE);
    say(&mut program, "current 0", "0");
    say(&mut program, "launch 2", "0");
    say(&mut program, "destroy 1", "0");
    say(&mut program, "launch 2", "0");
    assert_eq!(scene.books(), CONTEXT + MODULE);
    program.end();
}

#[test]
fn local_memory_of_a_kernel_is_charged_where_it_is_launched() {
    let Some(scene) = Scene::new(4 << 30) else { return };
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    say(&mut program, "locals 1 4 2048", "0");
    say(&mut program, "function 1 2", "0");
    say(&mut program, "create 1 0 2", "0");
    say(&mut program, "launch 1", "0");
    let stacks = scene.files.counter(usage::TOTAL) - 2 * CONTEXT - 2 * MODULE;
    assert_eq!(stacks, 2 * (4096 - 1024) * THREADS);
    say(&mut program, "current 0", "0");
    say(&mut program, "launch 1", "0");
    assert_eq!(scene.books(), 2 * CONTEXT + 2 * MODULE + stacks);
    program.end();
}

/// Counted by a process that the driver kills at one query too many.
#[test]
fn only_the_first_launch_in_a_context_asks_for_free_memory() {
    // The loading, the kernel, and its first launch in the other context.
    let questions = 2 + 2 + 2;
    for (killed_at, survives) in [(questions + 1, true), (questions, false)] {
        let Some(scene) = Scene::new(4 << 30) else { return };
        let fault = format!("symbol = \"cuMemGetInfo_v2\"\ncall = {killed_at}\naction = \"kill\"\n");
        scene.bench.write("faults.toml", &format!("[[fault]]\n{fault}"));
        let lines =
            ["retain 0", "create 1 0 2", "current 0", "load 1 4", "function 1 1", "launch 1", "current 1"];
        let lines: Vec<_> = lines.into_iter().chain(["launch 1"; 5]).collect();
        let input = scene.bench.cards().with_file_name("lines");
        std::fs::write(&input, lines.join("\n")).unwrap();
        let mut command = scene.tenant.command(&scene.bench, &scene.program);
        let output = command.stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
        let answers = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.success(), survives, "killed at question {killed_at}: {answers}");
        assert!(!survives || answers.lines().filter(|line| *line == "0").count() == lines.len(), "{answers}");
    }
}
