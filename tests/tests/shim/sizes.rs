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
fn context_is_presumed_as_large_as_the_first_was_found() {
    let Some(scene) = Scene::new(4 << 30) else { return };
    let mut first = scene.start();
    say(&mut first, "create 1 0 4", "0");
    assert_eq!(scene.learnt(), Some(CONTEXT));
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
fn context_beside_other_tenants_is_presumed_512_mib() {
    let limit = PRESUMED + CONTEXT - 1;
    let Some(scene) = Scene::new(limit) else { return };
    let stranger = scene.stranger(2 << 30);
    let strangers = scene.card.in_use();
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
fn context_takes_no_more_than_is_in_use_on_the_card() {
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
    assert_eq!((scene.learnt(), scene.card.high_water()), (Some(CONTEXT), CONTEXT), "never two");
}

#[test]
fn a_size_that_no_context_has_is_not_believed() {
    let Some(scene) = Scene::new(4 << 30) else { return };
    scene.files.set_counter(usage::CONTEXT_BYTES, u64::MAX);
    let mut program = scene.start();
    say(&mut program, "retain 0", "0");
    assert_eq!((scene.total(), scene.card.in_use(), scene.learnt()), (CONTEXT, CONTEXT, Some(CONTEXT)));
    program.end();
}
