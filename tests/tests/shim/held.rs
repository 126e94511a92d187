//! Tenants with streams that wait for the host: the billing of their work, and the owner of memory that is
//! freed behind it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{Tenant, memory_limit, unlimited};
use aliquot_tests::simulated::{Bench, Link, said};

/// The cap of all scenes, in parts of a million.
const CAP: u32 = 250_000;

/// Most of its time a stream waits for a word of its own program, or for a function.
#[test]
fn host_waiting_stream_is_billed_run_time_not_wait_time() {
    let bench = Bench::new();
    let program = match bench.compile("shim_held", Link::Direct) {
        Ok(program) => program,
        Err(why) => return println!("stood aside: {why}"),
    };
    let card = bench.card();
    let limits = Limits {
        share_ppm: CAP,
        granted_ppm: CAP,
        policy: ComputePolicy::Cap,
        ..unlimited(&card.facts().uuid)
    };
    for scene in ["rounds", "functions"] {
        let (tenant, files) = Tenant::with(&limits);
        let before = card.busy_nanos();
        // Kernels of 2 ms behind waits of 20 ms, fifty times.
        let told = said(&tenant.command(&bench, &program).args([scene, "2000000", "50"]).output().unwrap());
        let ran = card.busy_nanos() - before;
        let billed = files.counter(usage::DEVICE_NANOS);
        println!("{scene}: {}, ran {ran} ns, billed {billed} ns", told.trim());
        assert_eq!(ran, 50 * 2_000_000, "{scene}");
        // Of a second that was waited for nothing, and of what ran all.
        assert!(billed >= ran * 9 / 10 && billed <= ran * 5 / 4, "{scene}: {billed} of {ran}");
    }
}

const MIB: u64 = 1 << 20;
/// Memory of a context, as the default node has it.
const CONTEXT: u64 = 480 * MIB;

#[test]
fn stream_ordered_free_is_charged_until_the_stream_reaches_it() {
    let alone =
        ["one", "many", "default", "thread", "behind", "destroyed", "captured"].map(|scene| (scene, 1));
    for (scene, contexts) in alone.into_iter().chain([("other", 2), ("ends", 2)]) {
        let bench = Bench::new();
        bench.write("node.toml", "stream_handles = \"again\"\n");
        let program = match bench.compile("shim_freed", Link::Direct) {
            Ok(program) => program,
            Err(why) => return println!("stood aside: {why}"),
        };
        let card = bench.card();
        let limit = contexts * CONTEXT + 64 * MIB;
        let (tenant, _files) = Tenant::with(&memory_limit(&card.facts().uuid, limit));
        assert_eq!(said(&tenant.command(&bench, &program).arg(scene).output().unwrap()), "OK\n", "{scene}");
        assert!(card.high_water() <= limit, "{scene}: {} of {limit}", card.high_water());
    }
}

const HOLDS: [&str; 6] = ["value32", "value64", "batch", "function", "callback", "event"];
const MILLI: u64 = 1_000_000;

/// What a scene came to.
#[derive(Debug)]
struct Told {
    launched: u64,
    /// The longest launch and all of it, in milliseconds.
    longest: u64,
    took: u64,
    /// On the card and accounted, in milliseconds.
    ran: u64,
    billed: u64,
}

/// Runs a scene under a cap; `None` stands aside.
fn scene(share: u32, arguments: &[&str]) -> Option<Told> {
    let bench = Bench::new();
    let program = match bench.compile("shim_held", Link::Direct) {
        Ok(program) => program,
        Err(why) => {
            println!("stood aside: {why}");
            return None;
        }
    };
    let card = bench.card();
    let limits = Limits {
        share_ppm: share,
        granted_ppm: share,
        policy: ComputePolicy::Cap,
        ..unlimited(&card.facts().uuid)
    };
    let (tenant, files) = Tenant::with(&limits);
    let before = card.busy_nanos();
    let told = said(&tenant.command(&bench, &program).args(arguments).output().unwrap());
    let numbers: Vec<u64> = told.split(' ').filter_map(|word| word.trim().parse().ok()).collect();
    assert_eq!(numbers.len(), 3, "{told}");
    let (launched, longest, took) = (numbers[0], numbers[1], numbers[2]);
    let (ran, billed) = (card.busy_nanos() - before, files.counter(usage::DEVICE_NANOS));
    let told = Told { launched, longest, took, ran: ran / MILLI, billed: billed / MILLI };
    println!("{share} {arguments:?}: {told:?}");
    Some(told)
}

#[test]
fn streams_beside_a_host_wait_share_and_waiting_work_is_billed() {
    for hold in HOLDS {
        // Two hundred kernels of 1 ms are 0.8 s of a quarter.
        let Some(told) = scene(CAP, &["beside", "1000000", "200", hold]) else { return };
        assert_eq!((told.launched, told.ran), (203, 203), "{hold}");
        assert!(told.longest < 8_000 && told.took < 15_000, "{hold}: {told:?}");
        assert!(told.billed >= told.ran * 4 / 5 && told.billed <= told.ran * 2, "{hold}: {told:?}");
    }
}

#[test]
fn stream_of_the_same_program_can_do_what_another_waits_for() {
    for share in [CAP, 1_000_000] {
        for hold in ["value32", "function", "event"] {
            let Some(told) = scene(share, &["ended", "1000000", "20", hold]) else { return };
            assert_eq!((told.launched, told.ran), (100, 100), "{hold}");
            assert!(told.longest < 8_000 && told.took < 15_000, "{hold}: {told:?}");
            assert!(told.billed >= told.ran * 4 / 5 && told.billed <= told.ran * 2, "{hold}: {told:?}");
        }
    }
}

/// Over all that it ran: what is let go at once was paid for before.
#[test]
fn program_holding_its_launches_gets_no_more_than_its_share() {
    let Some(told) = scene(CAP, &["always", "1000000", "16", "value32"]) else { return };
    assert_eq!((told.launched, told.ran), (800, 800));
    let share = told.ran * 100 / told.took;
    assert!(share <= 27 && told.longest < 8_000, "{share} %: {told:?}");
}
