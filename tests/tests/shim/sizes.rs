//! Contexts of unpublished size: as on a real card, and in containers of `prepare`. Never a byte above the
//! limit.

use aliquot_abi::layout::usage;
use aliquot_sim_device::Card;
use aliquot_tests::preload::{GrantFiles, Tenant, UNPAGED, memory_limit, unpaged};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
/// Of the simulated cards, as `driver/backends/sim/README.md` says.
const CONTEXT: u64 = 480 * MIB;
/// What a context is presumed to take.
const PRESUMED: u64 = 512 * MIB;

struct Scene {
    bench: Bench,
    tenant: Tenant,
    program: PathBuf,
    files: GrantFiles,
    card: Card,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new(limit: u64) -> Option<Self> {
        let bench = Bench::new();
        bench.write("node.toml", UNPAGED);
        let program = match bench.compile("shim_overhead", Link::Opened) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let (tenant, files) = Tenant::with(&unpaged(memory_limit(&card.facts().uuid, limit)));
        Some(Self { bench, tenant, program, files, card })
    }

    fn start(&self) -> Talk {
        Talk::start(&mut self.tenant.command(&self.bench, &self.program))
    }

    /// A process of another tenant, with so much of the card beside a context of its own.
    fn stranger(&self, bytes: u64) -> Talk {
        let mut stranger = Talk::start(&mut self.bench.command(&self.program));
        say(&mut stranger, "retain 0", "0");
        say(&mut stranger, &format!("alloc {bytes}"), "0");
        stranger
    }

    fn total(&self) -> u64 {
        self.files.counter(usage::TOTAL)
    }

    /// The size of a context as the container's processes know it.
    fn learnt(&self) -> Option<u64> {
        self.files.counter(usage::CONTEXT_BYTES).checked_sub(1)
    }

    /// From now on a process that makes a context beside a present one is killed in that call.
    fn kill_measurers(&self) {
        self.bench.write("faults.toml", "[[fault]]\nsymbol = \"cuCtxCreate_v2\"\naction = \"kill\"\n");
    }
}

#[track_caller]
fn say(program: &mut Talk, line: &str, expected: &str) {
    assert_eq!(program.say(line), expected, "{line}");
}

/// Allocates until it is refused; how much there was.
fn fill(program: &mut Talk, piece: u64) -> u64 {
    let line = format!("alloc {piece}");
    let mut held = 0;
    while program.say(&line) == "0" {
        held += piece;
    }
    held
}

#[test]
fn beside_a_full_grant_no_context_is_made() {
    let limit = 3 << 30;
    let Some(scene) = Scene::new(limit) else { return };
    let mut first = scene.start();
    say(&mut first, "retain 0", "0");
    assert_eq!((scene.total(), scene.card.in_use(), scene.learnt()), (CONTEXT, CONTEXT, Some(CONTEXT)));
    let held = CONTEXT + fill(&mut first, 16 * MIB);
    let highest = scene.card.high_water();
    assert!(held <= limit && limit - held < 16 * MIB && highest == held, "{held}, {highest} of {limit}");
    for _ in 0..3 {
        let mut late = scene.start();
        say(&mut late, "retain 0", "2");
        for version in 1..=4 {
            say(&mut late, &format!("create 1 0 {version}"), "2");
        }
        late.end();
    }
    assert_eq!((scene.card.high_water(), scene.total(), scene.card.in_use()), (highest, held, held));
    first.end();
    let mut next = scene.start();
    say(&mut next, "retain 0", "0");
    next.end();
}

#[test]
fn measurement_failed_in_one_process_succeeds_in_the_next() {
    let Some(scene) = Scene::new(4 << 30) else { return };
    scene.start().end();
    let mut first = scene.start();
    say(&mut first, "create 1 0 4", "0");
    assert_eq!(scene.learnt(), Some(CONTEXT));
    scene.kill_measurers();
    let mut second = scene.start();
    say(&mut second, "retain 0", "0");
    say(&mut second, "create 1 0 4", "0");
    let mut third = scene.start();
    say(&mut third, "inner 0", "0");
    say(&mut third, "alloc 512", "0");
    assert_eq!((scene.total(), scene.card.in_use()), (4 * CONTEXT + 512, 4 * CONTEXT + 512));
    for program in [first, second, third] {
        program.end();
    }
}

#[test]
fn of_processes_that_begin_at_once_as_many_have_contexts_as_fit() {
    // Room for what is presumed, and for as much as that turns out to be again; so two of them fit.
    let limit = 2 * CONTEXT;
    let Some(scene) = Scene::new(limit) else { return };
    let mut programs: Vec<Talk> = (0..6).map(|_| scene.start()).collect();
    programs.iter_mut().for_each(|program| program.tell("retain 0"));
    let answers: Vec<String> = programs.iter_mut().map(Talk::hear).collect();
    assert_eq!(answers.iter().filter(|answer| *answer == "0").count(), 2, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| *answer == "2").count(), 4, "{answers:?}");
    assert_eq!((scene.total(), scene.card.in_use(), scene.learnt()), (limit, limit, Some(CONTEXT)));
    assert_eq!(scene.card.high_water(), limit);
    programs.into_iter().for_each(Talk::end);
}

#[test]
fn context_without_room_to_measure_is_charged_the_assumed_size() {
    let limit = PRESUMED + CONTEXT - 1;
    let Some(scene) = Scene::new(limit) else { return };
    let stranger = scene.stranger(2 << 30);
    let strangers = scene.card.in_use();
    scene.kill_measurers();
    for make in ["retain 0", "create 1 0 4"] {
        let mut first = scene.start();
        say(&mut first, make, "0");
        assert_eq!((scene.total(), scene.card.in_use()), (PRESUMED, strangers + CONTEXT), "{make}");
        assert_eq!(scene.learnt(), None);
        say(&mut first, &format!("alloc {}", limit - PRESUMED - MIB), "0");
        let highest = scene.card.high_water();
        let mut second = scene.start();
        say(&mut second, "retain 0", "2");
        say(&mut second, "create 1 0 2", "2");
        assert_eq!(scene.card.high_water(), highest, "never made");
        assert!(highest - strangers <= limit, "{highest}");
        second.end();
        first.end();
        assert_eq!(scene.start().say("retain 0"), "0", "all of it is there again");
    }
    stranger.end();
}

#[test]
fn context_smaller_than_assumed_is_kept_if_it_is_seen_to_fit() {
    let limit = PRESUMED - MIB;
    let Some(scene) = Scene::new(limit) else { return };
    for make in ["retain 0", "create 1 0 4"] {
        let mut alone = scene.start();
        say(&mut alone, make, "0");
        assert_eq!((scene.total(), scene.card.in_use()), (CONTEXT, CONTEXT), "{make}");
        let mut second = scene.start();
        say(&mut second, make, "2");
        second.end();
        alone.end();
    }
    assert_eq!((scene.learnt(), scene.card.high_water()), (None, CONTEXT), "never two");
    let stranger = scene.stranger(MIB);
    let strangers = scene.card.in_use();
    let mut beside = scene.start();
    for make in ["retain 0", "create 1 0 4"] {
        say(&mut beside, make, "2");
        assert_eq!((scene.total(), scene.card.in_use()), (0, strangers), "{make}");
    }
    beside.end();
    stranger.end();
}

#[test]
fn context_larger_than_assumed_is_destroyed_if_it_does_not_fit() {
    let size = 3 * PRESUMED;
    for (limit, code) in [(size - 1, "2"), (size, "0")] {
        let Some(scene) = Scene::new(limit) else { return };
        scene.bench.write("node.toml", &format!("context_bytes = {size}\n{UNPAGED}"));
        let card = scene.bench.card();
        let held = if code == "0" { size } else { 0 };
        let mut program = scene.start();
        for (make, undo) in [("retain 0", "release 0"), ("create 1 0 4", "destroy 1")] {
            say(&mut program, make, code);
            assert_eq!((scene.total(), card.in_use()), (held, held), "{make}");
            let _done = program.say(undo);
        }
        program.end();
    }
}

#[test]
fn exit_during_measurement_blocks_no_other_measurement() {
    let Some(scene) = Scene::new(4 << 30) else { return };
    scene.kill_measurers();
    let mut killed = scene.tenant.command(&scene.bench, &scene.program);
    let input = scene.files.dir().join("lines");
    std::fs::write(&input, "retain 0\n").unwrap();
    let killed = killed.stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    assert!(!killed.status.success() && killed.stdout.is_empty(), "{killed:?}");
    assert_ne!(scene.files.counter(usage::MAKING & !7) >> 32, 0, "it had the turn");
    std::fs::remove_file(scene.bench.cards().join("faults.toml")).unwrap();
    let mut next = scene.start();
    say(&mut next, "retain 0", "0");
    assert_eq!((scene.total(), scene.card.in_use(), scene.learnt()), (CONTEXT, CONTEXT, Some(CONTEXT)));
    assert_eq!(scene.files.counter(usage::MAKING & !7) >> 32, 0);
    next.end();
}

#[test]
fn a_size_that_no_context_has_is_not_believed() {
    let Some(scene) = Scene::new(4 << 30) else { return };
    scene.files.set_counter(usage::CONTEXT_BYTES, u64::MAX);
    // Another process's turn, with a start later than now.
    scene.files.set_counter(usage::MAKING & !7, u64::MAX << 32);
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    assert_eq!((scene.total(), scene.card.in_use(), scene.learnt()), (CONTEXT, CONTEXT, Some(CONTEXT)));
    program.end();
}
