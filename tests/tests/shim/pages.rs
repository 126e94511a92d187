//! Drivers hand out device memory in pages: accounting counts the pages that the card loses, and no request is refused while
//! enough whole pages are free.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{Limits, Pages};
use aliquot_tests::local::wait_for;
use aliquot_tests::machine::Machine;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit};
use aliquot_tests::seed::seed;
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use std::fs;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;
const PROCESSES: u64 = 16;
/// Whole pages that one process holds at most.
const KEEP: u64 = 256 * MIB;

/// Requests of a process in a round.
fn operations() -> u64 {
    if std::env::var_os("ALIQUOT_SOAK").is_some() { 2_000 } else { 500 }
}
/// A card on which nothing but allocations takes memory.
const BARE: &str = "context_bytes = 0\nmodule_bytes = 0\n";

struct Scene {
    bench: Bench,
    tenant: Tenant,
    files: GrantFiles,
    program: PathBuf,
    limit: u64,
    page: u64,
}

/// `None`: no C compiler here.
fn compiled(bench: &Bench) -> Option<PathBuf> {
    match bench.compile("shim_pages", Link::Direct) {
        Ok(program) => Some(program),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

/// A grant without measured pages.
fn scene(limit: u64) -> Option<Scene> {
    scene_of((PAGE, Pages::ASSUMED), limit)
}

/// A driver with pages of so many bytes, and the pages in the limits.
fn scene_of((page, pages): (u64, Pages), limit: u64) -> Option<Scene> {
    let bench = Bench::new();
    bench.write("node.toml", &format!("{BARE}page_bytes = {page}\n"));
    let program = compiled(&bench)?;
    let (tenant, files) = Tenant::with(&Limits { pages, ..memory_limit(&bench.card().facts().uuid, limit) });
    Some(Scene { bench, tenant, files, program, limit, page })
}

impl Scene {
    fn start(&self, seed: u64) -> Talk {
        let mut command = self.tenant.command(&self.bench, &self.program);
        let mut process = Talk::start(command.args([KEEP, seed, self.page].map(|number| number.to_string())));
        assert_eq!(process.hear(), "ready");
        process
    }

    /// Accounting and the card, with no call under way.
    fn assert_equal(&self, seed: u64) {
        let (booked, held) = (self.files.counter(usage::TOTAL), self.bench.card().in_use());
        assert_eq!(booked, held, "seed {seed}: accounting and card");
        assert!(held.is_multiple_of(self.page), "seed {seed}: {held} bytes are no whole pages");
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
            // A process that begins late may find everything taken.
            let mut granted_to_all = 0;
            processes.iter_mut().for_each(|process| process.tell(&format!("go {}", operations())));
            for process in &mut processes {
                let told = process.hear();
                let [granted, not] =
                    told.split(' ').map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>()[..]
                else {
                    panic!("seed {seed}: {told}")
                };
                granted_to_all += granted;
                refused += not;
            }
            assert!(granted_to_all > 0, "seed {seed}");
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

#[test]
fn measured_pages_of_other_sizes_hold_for_16_processes() {
    for bits in [16, 22] {
        let pages = Pages::measured(bits, bits).unwrap();
        let Some(scene) = scene_of((1 << bits, pages), PROCESSES * KEEP / 4) else { return };
        assert!(scene.random() > 100, "pages of {} bytes", scene.page);
    }
}

/// A driver under `aliquot run`: its node file, its unit, and how many blocks of so many bytes fill the limit.
struct Measured {
    node: &'static str,
    unit: u64,
    fill: (u64, u64),
    /// Accounting counts what the card loses, and no more.
    is_exact: bool,
}

const MEASURED: [Measured; 3] = [
    Measured { node: "page_bytes = 65536", unit: 1 << 16, fill: ((1 << 16) + 1, 8_064), is_exact: true },
    Measured { node: "page_bytes = 4194304", unit: 4 * MIB, fill: (4 * MIB + 1, 126), is_exact: true },
    // Three blocks to a slab, although they would take less in pages; the last slab is refused to a second block.
    Measured {
        node: "page_bytes = 65536\nslab_bytes = 2097152",
        unit: 2 * MIB,
        fill: (600 << 10, 1_510),
        is_exact: false,
    },
];

#[test]
fn run_takes_the_measured_pages_over_and_keeps_its_limit() {
    let (limit, context) = (1_024 * MIB, 16 * MIB);
    for Measured { node, unit, fill: (bytes, blocks), is_exact } in MEASURED {
        let machine =
            Machine::of(&format!("context_bytes = {context}\nmodule_bytes = 0\n{node}\n[[card]]\n"));
        let Some(program) = compiled(&machine.bench) else { return };
        let (seed, keep) = (seed(), limit / 2);
        let mut run = machine.aliquot("run", &["--memory", &limit.to_string(), "--"]);
        run.arg(program).args([keep, seed, unit].map(|number| number.to_string()));
        let mut process = Talk::start(&mut run);
        assert_eq!(process.hear(), "ready");
        let assert_equal = |after: &str| {
            // The next look of the governor has what a call under way hid from the last one.
            wait_for(&format!("{node}, seed {seed}: after {after}: accounting has what is held"), || {
                let (booked, held) = (booked(&machine), machine.bench.card().in_use());
                held <= booked && booked <= limit && (booked == held || !is_exact)
            });
        };
        assert_eq!(process.say(&format!("fill {bytes}")), blocks.to_string(), "{node}");
        assert_equal("fill");
        assert_eq!(process.say("give"), "0");
        let told = process.say(&format!("go {}", operations()));
        assert!(told.ends_with(" 0"), "{node}, seed {seed}: granted and refused: {told}");
        assert_equal("go");
        // A block of less than a slab may lie across two of them, so the last free one is refused to it: a few a run at most.
        let refused: u32 = process.say("rest").parse().unwrap();
        let most = if is_exact { 0 } else { 2 };
        assert!(refused <= most, "{node}, seed {seed}: refused {refused} times with enough whole pages free");
        assert_equal("rest");
        let highest = machine.bench.card().high_water();
        assert!(highest <= limit, "{node}, seed {seed}: {highest} bytes on the card");
        process.end();
    }
}

/// What the accounting of the only grant counts, and the host beyond it.
fn booked(machine: &Machine) -> u64 {
    let mut dirs = vec![machine.state().join("grants")];
    for _ in 0..2 {
        let below = dirs.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
        dirs = below.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    }
    let [share] = &dirs[..] else { panic!("not one grant: {dirs:?}") };
    let bytes = fs::read(share.join("usage")).unwrap();
    u64::from_le_bytes(bytes[usage::TOTAL..][..8].try_into().unwrap())
        + aliquot_driver::region::residue(&share.join("limits")).0
}
