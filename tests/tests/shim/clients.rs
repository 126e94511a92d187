//! Clients from PyPI under the shim, unmodified: they see the grant and are stopped at it with the vendor's error.

use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, StoodAside, monitor_python, numba_python, root, said, small_python};
use aliquot_tests::talk::Talk;
use std::path::PathBuf;

const LIMIT: u64 = 4 << 30;

fn client(which: &str, python: Result<PathBuf, StoodAside>) {
    let python = match python {
        Ok(python) => python,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let bench = Bench::new();
    let card = bench.card();
    let (tenant, _files) = Tenant::with(&memory_limit(&card.facts().uuid, LIMIT));
    let mut command = tenant.command(&bench, python);
    command.arg(root().join("tests/programs/shim_client.py")).args([which, &LIMIT.to_string()]);
    assert_eq!(command.output().map(|output| said(&output)).ok().as_deref(), Some("OK\n"));
    assert!(card.high_water() <= LIMIT, "{} bytes on the card", card.high_water());
}

#[test]
fn nvidia_ml_py_sees_the_grant() {
    client("nvml", small_python());
}

/// Monitors see the grant and its own processes alone, beside another process with more of the card.
fn monitor(which: &str, python: Result<PathBuf, StoodAside>, limits: impl Fn(Limits) -> Limits) {
    let bench = Bench::new();
    let program = bench.compile_as("shim_shown", "shim_shown", &["-ldl", "-DWATCHES"]);
    let (python, program) = match python.and_then(|python| Ok((python, program?))) {
        Ok(both) => both,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let mut stranger = Talk::start(&mut bench.command(&program));
    assert_eq!(stranger.say("take 5000000000"), "0");
    assert_eq!(stranger.say("run 600000000000"), "0");
    let (tenant, _files) = Tenant::with(&limits(memory_limit(&bench.card().facts().uuid, LIMIT)));
    let mut command = tenant.command(&bench, python);
    command.arg(root().join("tests/programs/shim_client.py")).args([which, &LIMIT.to_string()]);
    assert_eq!(command.output().map(|output| said(&output)).ok().as_deref(), Some("OK\n"));
    stranger.end();
}

#[test]
fn gpustat_sees_the_grant() {
    monitor("gpustat", monitor_python(), |memory| memory);
}

#[test]
fn nvitop_sees_the_grant() {
    monitor("nvitop", monitor_python(), |memory| memory);
}

#[test]
fn nvidia_ml_py_sees_work_as_a_part_of_the_grant() {
    let most =
        |memory| Limits { policy: ComputePolicy::Cap, share_ppm: 800_000, granted_ppm: 800_000, ..memory };
    monitor("work", small_python(), most);
}

#[test]
fn cuda_python_is_stopped_at_the_grant() {
    client("cuda", small_python());
}

#[test]
fn numba_compiles_launches_and_is_stopped_at_the_grant() {
    client("numba", numba_python());
}
