//! Stream-ordered pools under a limit: growth is charged, room is free, and the accounting agrees with the
//! driver.

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{Limits, ManagedPolicy};
use aliquot_abi::refusal::RefusedKind;
use aliquot_sim_device::{Card, MemoryKind};
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;

const MIB: u64 = 1 << 20;
/// What pools of the simulated driver grow by.
const UNIT: u64 = 32 * MIB;
const LIMIT: u64 = 4 * UNIT;
/// A driver that says of each pool where it is, and one from before that.
const DRIVER: u32 = 13_050;
const OLD_DRIVER: u32 = 12_090;

struct Scene {
    program: Talk,
    files: GrantFiles,
    /// The second card's.
    other: GrantFiles,
    card: Card,
    bench: Bench,
    tenant: Tenant,
}

/// What pools and graphs hold on a card, as the driver says.
fn of_pools(card: &Card) -> u64 {
    let held = |kind| {
        card.processes().iter().map(|process| process.held_by_kind[usize::from(kind as u8)]).sum::<u64>()
    };
    held(MemoryKind::Pool) + held(MemoryKind::Graph)
}

impl Scene {
    /// `None`: no C compiler here.
    fn new() -> Option<Self> {
        Self::on(DRIVER)
    }

    /// The same with a driver of this version.
    fn on(driver: u32) -> Option<Self> {
        println!("driver {driver}");
        let bench = Bench::new();
        bench.write("node.toml", &format!("cuda_version = {driver}\ncontext_bytes = 0\nmodule_bytes = 0\n"));
        let program = match bench.compile("shim_pools", Link::Opened) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let (tenant, files) = Tenant::with(&memory_limit(&card.facts().uuid, LIMIT));
        let other = tenant.grant("other", &memory_limit(&bench.device().card(1)?.facts().uuid, LIMIT));
        let program = Talk::start(&mut tenant.command(&bench, program));
        Some(Self { program, files, other, card, bench, tenant })
    }

    fn say(&mut self, line: &str, expected: &str) {
        assert_eq!(self.program.say(line), expected, "{line}");
    }

    /// The accounting of both cards after this line, in units; the driver has no more.
    fn charged(&mut self, line: &str, expected: &str, units: [u64; 2]) {
        self.say(line, expected);
        let told = self.program.say("info");
        let books = [&self.files, &self.other].map(|files| files.counter(usage::TOTAL));
        assert_eq!(books, units.map(|units| units * UNIT), "{line}: {told}");
        let held: Vec<u64> = self.bench.device().cards().iter().map(of_pools).collect();
        assert!(held.iter().zip(books).all(|(held, books)| *held <= books), "{line}: {held:?} {books:?}");
    }

    /// The same, where it agrees with the driver.
    fn both(&mut self, line: &str, expected: &str, units: [u64; 2]) {
        self.charged(line, expected, units);
        let books = units.map(|units| units * UNIT);
        let held: Vec<u64> = self.bench.device().cards().iter().map(of_pools).collect();
        assert_eq!(books.as_slice(), held, "{line}");
    }

    /// The accounting, which agrees with the driver; a request for memory updates it.
    fn settled(&mut self) -> u64 {
        let told = self.program.say("info");
        let books = self.files.counter(usage::TOTAL);
        assert_eq!(told, format!("0 {}", LIMIT - books));
        assert_eq!(books, of_pools(&self.card));
        books
    }
}

#[test]
fn growth_is_charged_and_room_is_free() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say("alloc 0 1000", "0");
    assert_eq!(scene.files.counter(usage::TOTAL), UNIT);
    scene.say(&format!("alloc 1 {}", UNIT - MIB), "0");
    assert_eq!(scene.settled(), UNIT);
    scene.say("alloc 2 2000000", "0");
    assert_eq!(scene.settled(), 2 * UNIT);
    scene.say("freeasync 1", "0");
    scene.say("free 2", "0");
    scene.say("sync", "0");
    assert_eq!(scene.settled(), UNIT, "what a synchronisation gave back is credited");
    scene.say("freeasync 0", "0");
    scene.say("sync", "0");
    assert_eq!(scene.settled(), 0);
    scene.program.end();
}

#[test]
fn pool_over_limit_is_out_of_memory_and_exact_fit_is_not() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say(&format!("alloc 0 {}", LIMIT + 1), "2");
    scene.say(&format!("alloc 0 {LIMIT}"), "0");
    scene.say("alloc 1 1", "2");
    assert_eq!(scene.settled(), LIMIT);
    scene.say("freeasync 0", "0");
    // The pool has room enough: nothing more can be reserved, and nothing need be.
    scene.say(&format!("alloc 0 {}", LIMIT - 512), "0");
    scene.say("alloc 1 512", "0");
    scene.say("alloc 2 1", "2");
    scene.say("free 0", "0");
    scene.say("free 1", "0");
    // Room in one pool is given back for another.
    scene.say("pool 1 0", "0");
    scene.say("from 3 1 1", "0");
    scene.say(&format!("from 4 {} 1", LIMIT - UNIT), "0");
    assert_eq!(scene.settled(), LIMIT);
    assert!(scene.card.high_water() <= LIMIT, "never more, not for a moment");
    scene.program.end();
}

/// A driver refusal for invalid arguments stays one under a limit, and does not count as denied.
#[test]
fn no_pool_at_all_is_the_drivers_to_refuse() {
    let Some(mut scene) = Scene::new() else { return };
    for bytes in [0, 1000, LIMIT + 1, u64::MAX] {
        scene.say(&format!("nonsense 0 {bytes}"), "1");
    }
    assert_eq!((scene.settled(), scene.files.counter(usage::DENIED)), (0, 0));
    scene.program.end();
}

#[test]
fn pool_is_charged_to_its_card_and_host_memory_to_none() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say("pool 1 1", "0");
    scene.say("from 0 1 1", "0");
    assert_eq!((scene.settled(), scene.files.counter(usage::DENIED)), (0, 0));
    scene.say(&format!("from 1 {LIMIT} 1"), "2");
    // A pool made before the shim: the driver reports its place.
    scene.say("current 3 1", "0");
    scene.say(&format!("from 3 {LIMIT} 3"), "2");
    scene.say("hostpool 2", "0");
    scene.say(&format!("from 2 {} 2", 2 * LIMIT), "0");
    assert_eq!((scene.settled(), scene.files.counter(usage::DENIED)), (0, 0));
    scene.program.end();
}

/// It was made before the shim, and any card's context is current, or none.
#[test]
fn the_pool_of_a_card_is_charged_to_it_wherever_it_is_named() {
    for driver in [OLD_DRIVER, DRIVER] {
        let Some(mut scene) = Scene::on(driver) else { return };
        let mut both = |line: &str, expected: &str, units: [u64; 2]| scene.both(line, expected, units);
        both("default 3 1", "0", [0, 0]);
        both(&format!("from 0 {} 3", 3 * UNIT), "0", [0, 3]);
        both(&format!("from 1 {} 3", 2 * UNIT), "2", [0, 3]);
        both(&format!("from 1 {UNIT} 3"), "0", [0, 4]);
        both("context 0", "0", [0, 4]);
        both("default 2 0", "0", [0, 4]);
        both(&format!("from 2 {} 2", 3 * UNIT), "0", [3, 4]);
        both(&format!("from 3 {} 2", 2 * UNIT), "2", [3, 4]);
        both("from 3 1 3", "2", [3, 4]);
        both("nonsense 4660 1", "1", [3, 4]);
        both("context 1", "0", [3, 4]);
        // Written down in a capture it takes nothing.
        for (capture, pool) in [("capture", "3"), ("capture", ""), ("captureown", "3"), ("captureown", "")] {
            both(&format!("{capture} {LIMIT} {pool}"), "0", [3, 4]);
        }
        both("freeasync 2", "0", [3, 4]);
        both("sync", "0", [0, 4]);
        let device = scene.bench.device();
        assert!(device.cards().iter().all(|card| card.high_water() <= LIMIT));
        scene.program.end();
    }
}

/// By pools and by memory nodes of graphs; the card's number is the first byte.
#[test]
fn memory_of_a_part_of_a_card_is_charged_to_the_card() {
    let Some(mut scene) = Scene::new() else { return };
    scene.charged(&format!("graph 1 {UNIT} 6 0"), "0", [1, 0]);
    let mut both = |line: &str, expected: &str, units: [u64; 2]| scene.both(line, expected, units);
    both("launch 1", "0", [1, 0]);
    both(&format!("graph 2 {LIMIT} 6 0"), "2", [1, 0]);
    both(&format!("alloc 0 {UNIT}"), "0", [2, 0]);
    scene.charged(&format!("graph 3 {UNIT} 6 1"), "0", [2, 1]);
    let mut both = |line: &str, expected: &str, units: [u64; 2]| scene.both(line, expected, units);
    both("launch 3", "0", [2, 1]);
    both("poolat 1 6 1 1", "0", [2, 1]);
    both(&format!("from 3 {} 1", 3 * UNIT), "0", [2, 4]);
    // Out of what the pool keeps.
    both("from 4 1 1", "2", [2, 4]);
    both(&format!("from 5 {UNIT} 1"), "2", [2, 4]);
    // No header names these, or they are no place of such memory.
    for kind in ["0 0", "2 0", "5 -1", "6 256", "7 0"] {
        both(&format!("graph 4 {UNIT} {kind}"), "1", [2, 4]);
    }
    scene.program.end();
}

/// It is on the card as soon as a kernel there uses it.
#[test]
fn managed_memory_of_pools_is_charged_whatever_it_prefers() {
    let Some(mut scene) = Scene::new() else { return };
    let mut both = |line: &str, expected: &str, units: [u64; 2]| scene.both(line, expected, units);
    for kind in [0, 2, 3] {
        both(&format!("poolat 1 {kind} 0 2"), "0", [0, 0]);
        both(&format!("from 0 {UNIT} 1"), "0", [1, 0]);
        both(&format!("from 1 {LIMIT} 1"), "2", [1, 0]);
        both("free 0", "0", [1, 0]);
        both("trim 1 0", "0", [0, 0]);
    }
    both("context 0", "0", [0, 0]);
    both("poolat 2 0 0 2", "0", [0, 0]);
    both(&format!("from 2 {} 2", 2 * UNIT), "0", [2, 0]);
    both("poolat 3 1 1 2", "0", [2, 0]);
    both(&format!("from 3 {UNIT} 3"), "0", [2, 1]);
    both("context 1", "0", [2, 1]);
    scene.program.end();
    // Unless the grant gives it away.
    let limits = memory_limit(&scene.card.facts().uuid, LIMIT);
    let (tenant, files) = Tenant::with(&Limits { managed: ManagedPolicy::Free, ..limits });
    let program = scene.bench.cards().parent().unwrap().join("shim_pools");
    let mut program = Talk::start(&mut tenant.command(&scene.bench, program));
    assert_eq!(program.say("poolat 1 2 0 2"), "0");
    assert_eq!(program.say(&format!("from 1 {} 1", 2 * LIMIT)), "0");
    assert_eq!(files.counter(usage::TOTAL), 0);
    program.end();
}

#[test]
fn destroyed_pool_is_charged_until_its_last_block_is_freed() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say("pool 1 0", "0");
    scene.say("set 1", "0");
    scene.say("keep 1 1000000000", "0");
    scene.say(&format!("alloc 0 {UNIT}"), "0");
    scene.say(&format!("alloc 1 {UNIT}"), "0");
    scene.say("freeasync 1", "0");
    scene.say("sync", "0");
    assert_eq!(scene.settled(), 2 * UNIT, "the threshold keeps it");
    scene.say("destroy 1", "0");
    assert_eq!(scene.settled(), UNIT);
    scene.say("from 2 1 1", "1");
    scene.say("destroy 1", "1");
    // The card's own pool is current again.
    scene.say("alloc 2 1", "0");
    assert_eq!(scene.settled(), 2 * UNIT);
    scene.say("freeasync 0", "0");
    assert_eq!(scene.settled(), UNIT);
    scene.say("default 3", "0");
    scene.say("destroy 3", "1");
    scene.say("freeasync 2", "0");
    scene.say("trim 3 0", "0");
    assert_eq!(scene.files.counter(usage::TOTAL), 0);
    scene.program.end();
}

#[test]
fn a_refused_call_is_counted_once_however_often_it_is_tried() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say("default 3", "0");
    scene.say("keep 3 1000000000", "0");
    scene.say(&format!("alloc 0 {UNIT}"), "0");
    scene.say("freeasync 0", "0");
    scene.say("sync", "0");
    scene.say("graph 0 1000", "0");
    scene.say("launch 0", "0");
    scene.say("undo 0", "0");
    // Both have something to give back, and it is tried again with that.
    assert_eq!((scene.settled(), scene.files.counter(usage::DENIED)), (2 * UNIT, 0));
    scene.say(&format!("alloc 1 {}", LIMIT + 1), "2");
    assert_eq!((scene.settled(), scene.files.counter(usage::DENIED)), (0, 1));
    scene.say(&format!("alloc 1 {LIMIT}"), "0");
    scene.say("alloc 2 1", "2");
    scene.say("free 1", "0");
    assert_eq!(scene.files.counter(usage::DENIED), 2);
    scene.say(&format!("graph 4 {}", LIMIT + 1), "2");
    assert_eq!(scene.files.counter(usage::DENIED), 3);
    let recorded: Vec<_> = scene.files.refusals().iter().map(|seen| seen.refusal.call).collect();
    // The newest first. A graph's allocations are whole pages of its store.
    let expected = [RefusedKind::Graph.over_limit(LIMIT + UNIT), RefusedKind::Pool.over_limit(1)];
    assert_eq!(recorded, [expected[0], expected[1], RefusedKind::Pool.over_limit(LIMIT + 1)]);
    // What a store of graphs holds under a limit that was lowered is there.
    scene.say(&format!("graph 4 {UNIT}"), "0");
    scene.say("launch 4", "0");
    scene.files.change(&Limits { generation: 2, ..memory_limit(&scene.card.facts().uuid, UNIT / 2) });
    scene.say("launch 4", "0");
    scene.say("info", "0 0");
    assert_eq!(scene.files.counter(usage::DENIED), 3);
    scene.program.end();
}

#[test]
fn invalid_pool_costs_nothing_however_often_named() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say(&format!("alloc 0 {MIB}"), "0");
    scene.say("pool 1 0", "0");
    scene.say("from 1 1 1", "0");
    scene.say("free 1", "0");
    scene.say("destroy 1", "0");
    assert_eq!(scene.settled(), UNIT);
    // More of them than are remembered, and so much that seven would be the limit.
    for n in 0..4_000_u64 {
        scene.say(&format!("from 1 {MIB} 1"), "1");
        scene.say(&format!("nonsense {} {}", 0x12_3456_7000 + (n << 12), UNIT * 2), "1");
        scene.say(&format!("nonsense {} 0", 0x12_3456_7001 + (n << 12)), "1");
        if n % 1_000 == 0 {
            assert_eq!(scene.settled(), UNIT);
        }
    }
    assert_eq!(scene.settled(), UNIT);
    // A new pool, maybe of an old handle, is as good as any.
    scene.say("pool 1 0", "0");
    scene.say(&format!("from 1 {} 1", LIMIT - UNIT), "0");
    scene.say("freeasync 0", "0");
    scene.say("sync", "0");
    assert_eq!((scene.settled(), scene.files.counter(usage::DENIED)), (LIMIT - UNIT, 0));
    scene.program.end();
}

#[test]
fn an_allocation_in_a_capture_takes_nothing() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say(&format!("capture {}", 2 * LIMIT), "0");
    assert_eq!((scene.settled(), scene.files.counter(usage::DENIED)), (0, 0));
    scene.program.end();
}

#[test]
fn pools_and_graphs_share_one_limit_and_credit_each_other() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say(&format!("alloc 3 {LIMIT}"), "0");
    assert_eq!(scene.settled(), LIMIT);
    scene.say(&format!("graph 1 {UNIT}"), "2");
    // What pools only keep, before a graph is refused.
    scene.say("freeasync 3", "0");
    scene.say(&format!("graph 1 {UNIT}"), "0");
    scene.say("launch 1", "0");
    assert_eq!(scene.settled(), UNIT);
    // What graphs left, before a pool is.
    scene.say("undo 1", "0");
    scene.say(&format!("alloc 3 {LIMIT}"), "0");
    assert_eq!(scene.settled(), LIMIT);
    assert!(scene.card.high_water() <= LIMIT, "never more, not for a moment");
    scene.program.end();
}

#[test]
fn nothing_waits_for_work_in_the_stream() {
    let Some(mut scene) = Scene::new() else { return };
    scene.say("alloc 0 1", "0");
    // Ten minutes of work: a shim that waited for it would find the stream done, if the test lasted so long.
    scene.say("work 600000000000", "0");
    scene.say(&format!("alloc 1 {UNIT}"), "0");
    scene.say("freeasync 1", "0");
    scene.say(&format!("alloc 2 {LIMIT}"), "2");
    scene.say("freeasync 0", "0");
    assert_eq!(scene.program.say("query"), "600", "still at work");
}

#[test]
fn threads_and_processes_on_one_limit_leave_exact_books() {
    let seed = aliquot_tests::seed::seed();
    let Some(mut scene) = Scene::new() else { return };
    let program = scene.bench.cards().parent().unwrap().join("shim_pools");
    let mut others: Vec<Talk> =
        (0..2).map(|_| Talk::start(&mut scene.tenant.command(&scene.bench, &program))).collect();
    for round in 0..5 {
        let storm =
            |number: u64| format!("storm {} 4 1500 {}", seed.wrapping_add(number * 64 + round), 48 * MIB);
        scene.program.tell(&storm(0));
        others.iter_mut().zip(1..).for_each(|(other, number)| other.tell(&storm(number)));
        assert_eq!(scene.program.hear(), "0");
        for other in &mut others {
            assert_eq!(other.hear(), "0");
        }
        for other in &mut others {
            assert!(other.say("info").starts_with("0 "));
        }
        let books = scene.settled();
        assert!(books <= LIMIT);
    }
    assert!(scene.files.counter(usage::DENIED) > 0, "the limit was reached");
    assert!(scene.card.high_water() <= LIMIT, "{} of {LIMIT}", scene.card.high_water());
    for program in others {
        program.end();
    }
}
