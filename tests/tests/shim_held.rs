//! Tenants whose streams wait for the host: what their work is billed, and whose is memory that is freed behind it.

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{Tenant, memory_limit, unlimited};
use aliquot_tests::simulated::{Bench, Link, said};

/// The cap of all scenes, in parts of a million.
const CAP: u32 = 250_000;

/// Most of its time a stream waits for a word of its own program, or for a function.
#[test]
fn a_stream_that_waits_for_the_host_is_billed_what_it_ran_and_not_what_it_waited() {
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
fn what_is_freed_in_the_order_of_a_stream_is_in_the_books_until_the_stream_is_there() {
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
