//! The host's word on memory beyond the shim: less of the limit is left, and what the driver's figure has is not presumed.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aliquot_abi::layout::{slot, usage};
use aliquot_tests::preload::{GrantFiles, Tenant, UNPAGED, memory_limit, unpaged};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 1 << 30;
const CONTEXT: u64 = 480 * MIB;

struct Scene {
    bench: Bench,
    tenant: Tenant,
    program: PathBuf,
    files: GrantFiles,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new() -> Option<Self> {
        let bench = Bench::new();
        bench.write("node.toml", UNPAGED);
        let program = match bench.compile("shim_overhead", Link::Opened) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let mut limits = unpaged(memory_limit(&bench.card().facts().uuid, LIMIT));
        limits.context_bytes = CONTEXT;
        let (tenant, files) = Tenant::with(&limits);
        Some(Self { bench, tenant, program, files })
    }

    /// A process with a context.
    fn start(&self) -> Talk {
        let mut program = Talk::start(&mut self.tenant.command(&self.bench, &self.program));
        assert_eq!(program.say("retain 0"), "0");
        program
    }

    /// As the governor does it after a look that shows nothing of it: the only process's presumption falls to nothing.
    fn lower_presumption(&self) {
        let (number, presumed) = self.presumed();
        assert!(presumed > 0);
        let at = |word| usage::SLOTS + number * usage::SLOT_BYTES + word;
        let used = self.files.counter(at(slot::USED));
        self.files.set_counter(at(slot::PRESUMED), 0);
        self.files.set_counter(at(slot::USED), used - presumed);
        self.files.set_counter(usage::TOTAL, self.total() - presumed);
    }

    /// The slot with a presumption, and its bytes.
    fn presumed(&self) -> (usize, u64) {
        let of =
            |number: usize| self.files.counter(usage::SLOTS + number * usage::SLOT_BYTES + slot::PRESUMED);
        (0..usage::FIRST_SLOTS).map(|number| (number, of(number))).max_by_key(|(_, bytes)| *bytes).unwrap()
    }

    fn total(&self) -> u64 {
        self.files.counter(usage::TOTAL)
    }
}

fn alloc(program: &mut Talk, bytes: u64) -> String {
    program.say(&format!("alloc {bytes}"))
}

fn now() -> u64 {
    u64::try_from(
        Duration::from(nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos(),
    )
    .unwrap()
}

#[test]
fn residue_is_no_part_of_what_can_be_allocated() {
    let Some(scene) = Scene::new() else { return };
    let mut program = scene.start();
    scene.files.publish_residue(200 * MIB, 0);
    let free = LIMIT - CONTEXT - 200 * MIB;
    assert_eq!(program.say("info"), format!("0 {free}"));
    assert_eq!(alloc(&mut program, free + 512), "2");
    assert_eq!(alloc(&mut program, free), "0");
    scene.files.publish_residue(u64::MAX, 0);
    assert_eq!((alloc(&mut program, 512), program.say("info")), ("2".to_owned(), "0 0".to_owned()));
    program.end();
}

#[test]
fn lowered_presumption_is_given_back_once() {
    let Some(scene) = Scene::new() else { return };
    let mut program = scene.start();
    assert_eq!((scene.presumed().1, scene.total()), (CONTEXT, CONTEXT));
    assert_eq!(alloc(&mut program, 100 * MIB), "0");
    scene.lower_presumption();
    scene.files.publish_residue(CONTEXT, 0);
    let free = LIMIT - CONTEXT - 100 * MIB;
    assert_eq!(program.say("info"), format!("0 {free}"));
    assert_eq!(alloc(&mut program, free), "0", "it counts once");
    // Its memory goes with the context; the driver's account has the context itself until the next look.
    assert_eq!((program.say("release 0").as_str(), scene.total()), ("0", 0));
    scene.files.publish_residue(0, 0);
    assert_eq!(program.say("retain 0"), "0");
    assert_eq!((scene.presumed().1, scene.total()), (CONTEXT, CONTEXT));
    assert_eq!(program.say("release 0"), "0");
    assert_eq!((scene.presumed().1, scene.total()), (0, 0));
    program.end();
}

#[test]
fn refusal_by_a_residue_waits_for_a_later_look() {
    let Some(scene) = Scene::new() else { return };
    let mut program = scene.start();
    scene.files.publish_residue(LIMIT, now());
    let is_over = AtomicBool::new(false);
    let wanted = || scene.files.counter(usage::LOOK_WANTED);
    let before = wanted();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                if wanted() != before {
                    // What bypassed the shim was freed: the next look has it.
                    scene.files.publish_residue(0, now());
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let answer = alloc(&mut program, 100 * MIB);
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(answer, "0");
    });
    program.end();
}

#[test]
fn look_that_never_comes_is_awaited_once() {
    let Some(scene) = Scene::new() else { return };
    let mut program = scene.start();
    scene.files.publish_residue(LIMIT, 1);
    let took = |program: &mut Talk, bytes: u64| {
        let begun = Instant::now();
        assert_eq!(alloc(program, bytes), "2");
        begun.elapsed()
    };
    assert!(took(&mut program, 512) >= Duration::from_millis(100));
    // The word behind it counts recorded refusals.
    let looks = |scene: &Scene| scene.files.counter(usage::LOOK_WANTED) & u64::from(u32::MAX);
    let wanted = looks(&scene);
    for _ in 0..10 {
        took(&mut program, 512);
    }
    assert_eq!(looks(&scene), wanted, "no other refusal waits");
    scene.files.publish_residue(LIMIT, 2);
    took(&mut program, 2 * LIMIT);
    assert_eq!(looks(&scene), wanted, "no look makes room for it");
    program.end();
}
