//! Driver refusals stay the driver's under limits, with its own code, whatever the size and wherever pointers
//! lead: no denial is counted, nothing is charged, and nothing is read that the driver does not read.

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};

const GIB: u64 = 1 << 30;

#[test]
fn driver_refusals_keep_their_code_under_every_limit() {
    let bench = Bench::new();
    let program = match bench.compile("shim_codes", Link::Opened) {
        Ok(program) => program,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let bare = said(&bench.command(&program).output().unwrap());
    assert!(bare.ends_with("end\n"), "{bare}");
    let memory = memory_limit(&bench.card().facts().uuid, 2 * GIB);
    let both = Limits { policy: ComputePolicy::Cap, granted_ppm: 250_000, share_ppm: 250_000, ..memory };
    for limits in [memory, both] {
        let (tenant, files) = Tenant::with(&limits);
        let told = String::from_utf8(tenant.command(&bench, &program).output().unwrap().stdout).unwrap();
        let first = (0..bare.lines().count()).find(|at| bare.lines().nth(*at) != told.lines().nth(*at));
        let line = |text: &str| first.and_then(|at| text.lines().nth(at).map(str::to_owned));
        assert_eq!(line(&told), line(&bare), "{:?}", limits.policy);
        assert_eq!(files.counter(usage::DENIED), 0);
        // No process has reaped it since it ended.
        assert_eq!(files.counter(usage::TOTAL), bench.device().node().context_bytes);
    }
}
