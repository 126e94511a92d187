//! Tenants whose compute is limited and whose streams wait for the host.

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{Tenant, unlimited};
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
