//! Drivers hand out device memory in pages: accounting counts the pages that the card loses, and no request is refused while
//! enough whole pages are free.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;
const PROCESSES: u64 = 16;
/// Whole pages that one process holds at most.
const KEEP: u64 = 256 * MIB;
const OPERATIONS: u64 = 2_000;
/// A card on which nothing but allocations takes memory.
const BARE: &str = "context_bytes = 0\nmodule_bytes = 0\n";

struct Scene {
    bench: Bench,
    tenant: Tenant,
    files: GrantFiles,
    program: PathBuf,
    limit: u64,
}

/// `None`: no C compiler here.
fn scene(limit: u64) -> Option<Scene> {
    let bench = Bench::new();
    bench.write("node.toml", BARE);
    let program = match bench.compile("shim_pages", Link::Direct) {
        Ok(program) => program,
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            return None;
        }
    };
    let (tenant, files) = Tenant::with(&memory_limit(&bench.card().facts().uuid, limit));
    Some(Scene { bench, tenant, files, program, limit })
}

fn seed() -> u64 {
    let now = u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    let seed = std::env::var("ALIQUOT_SEED").map_or(now, |text| text.parse().unwrap());
    println!("ALIQUOT_SEED={seed}");
    seed
}

impl Scene {
    fn start(&self, seed: u64) -> Talk {
        let mut command = self.tenant.command(&self.bench, &self.program);
        let mut process = Talk::start(command.args([KEEP, seed].map(|number| number.to_string())));
        assert_eq!(process.hear(), "ready");
        process
    }

    /// Accounting and the card, with no call under way.
    fn assert_equal(&self, seed: u64) {
        let (booked, held) = (self.files.counter(usage::TOTAL), self.bench.card().in_use());
        assert_eq!(booked, held, "seed {seed}: accounting and card");
        assert!(held.is_multiple_of(PAGE), "seed {seed}: {held} bytes are no whole pages");
    }

    fn assert_within_limit(&self, seed: u64) {
        let (card, booked) = (self.bench.card().high_water(), self.files.counter(usage::HIGH_WATER));
        println!("at most {} MiB of {} MiB on the card", card / MIB, self.limit / MIB);
        assert!(
            card <= self.limit && booked <= self.limit,
            "seed {seed}: {card} on the card, {booked} charged"
        );
    }

    /// 16 processes with requests of random sizes; how many were refused.
    fn random(&self) -> u64 {
        let seed = seed();
        let mut processes = (0..PROCESSES).map(|number| self.start(seed + number)).collect::<Vec<_>>();
        let mut refused = 0;
        for _ in 0..2 {
            processes.iter_mut().for_each(|process| process.tell(&format!("go {OPERATIONS}")));
            for process in &mut processes {
                let told = process.hear();
                let [granted, not] =
                    told.split(' ').map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>()[..]
                else {
                    panic!("seed {seed}: {told}")
                };
                assert!(granted > 0, "seed {seed}");
                refused += not;
            }
            self.assert_equal(seed);
        }
        assert_eq!(
            processes[0].say("rest"),
            "0",
            "seed {seed}: requests refused with enough whole pages free"
        );
        self.assert_equal(seed);
        for process in &mut processes {
            assert_eq!(process.say("give"), "0");
        }
        assert_eq!((self.files.counter(usage::TOTAL), self.bench.card().in_use()), (0, 0), "seed {seed}");
        self.assert_within_limit(seed);
        processes.into_iter().for_each(Talk::end);
        refused
    }
}

#[test]
fn blocks_of_2049_kib_hold_no_more_than_the_limit() {
    let Some(scene) = scene(8_192 * MIB) else { return };
    let mut process = scene.start(1);
    // Each takes two pages.
    assert_eq!(process.say(&format!("fill {}", 2_049 << 10)), "2048");
    scene.assert_equal(1);
    scene.assert_within_limit(1);
    assert_eq!(process.say("give"), "0");
    // As many pages as the limit has. A small request is refused without a whole free page: its driver may need one.
    for (bytes, blocks) in [(PAGE, 4_096), (MIB, 8_191), (PAGE - 1, 4_096), (MIB + 1, 4_096), (64 * MIB, 128)]
    {
        assert_eq!(process.say(&format!("fill {bytes}")), blocks.to_string(), "{bytes} bytes");
        assert_eq!(process.say("give"), "0");
        scene.assert_equal(1);
    }
    scene.assert_within_limit(1);
    process.end();
}

#[test]
fn random_sizes_at_the_limit_never_pass_it() {
    let Some(scene) = scene(PROCESSES * KEEP / 4) else { return };
    assert!(scene.random() > 100);
}

#[test]
fn processes_within_their_pages_are_never_refused() {
    let Some(scene) = scene(PROCESSES * KEEP) else { return };
    assert_eq!(scene.random(), 0);
}
