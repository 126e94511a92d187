//! Device memory is exact: accounting, the program's own view and the card have the same number.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_abi::limits::{Limits, ManagedPolicy};
use aliquot_tests::preload::{Tenant, UNPAGED, memory_limit, unpaged};
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};
use std::path::PathBuf;

const LIMIT: u64 = 1 << 30;

/// A program on cards where contexts and modules take nothing, so that allocations alone count.
fn compiled(bench: Result<Bench, StoodAside>) -> Result<(Bench, PathBuf), StoodAside> {
    let bench = bench?;
    bench.write("node.toml", &format!("context_bytes = 0\nmodule_bytes = 0\n{UNPAGED}"));
    let program = bench.compile("shim_memory", Link::Direct)?;
    Ok((bench, program))
}

fn limits(bench: &Bench, bytes: u64) -> Limits {
    unpaged(memory_limit(&bench.card().facts().uuid, bytes))
}

/// Runs one mode of the program under a limit; accounting and card are empty afterwards. The number of
/// refused calls.
fn run(mode: &str, change: impl FnOnce(&mut Limits)) -> Option<u64> {
    run_on(Ok(Bench::new()), mode, change)
}

/// `None`: no C compiler, or no such bench here.
fn run_on(bench: Result<Bench, StoodAside>, mode: &str, change: impl FnOnce(&mut Limits)) -> Option<u64> {
    let (bench, program) = match compiled(bench) {
        Ok(both) => both,
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            return None;
        }
    };
    let mut limits = limits(&bench, LIMIT);
    change(&mut limits);
    let (tenant, files) = Tenant::with(&limits);
    let output = tenant.command(&bench, &program).arg(mode).arg(LIMIT.to_string()).output().unwrap();
    assert_eq!(said(&output), "ok\n");
    bench.card().reap();
    assert_eq!(bench.card().in_use(), 0);
    if limits.managed == ManagedPolicy::Charge {
        assert!(bench.card().high_water() <= LIMIT && files.counter(usage::HIGH_WATER) <= LIMIT);
    }
    Some(files.counter(usage::DENIED))
}

#[test]
fn the_limit_is_exact_to_the_byte() {
    // As many calls as the program has refused.
    assert!(run("exact", |_| {}).is_none_or(|denied| denied == 4));
}

#[test]
fn pitched_rows_are_charged_as_the_driver_lays_them() {
    run("pitched", |_| {});
}

/// `cuMemAlloc`, `cuMemAllocPitch` and arrays of before CUDA 3.2, with sizes and addresses of 32 bits.
#[test]
fn first_generation_allocations_are_not_supported() {
    run("first-generation", |_| {});
}

#[test]
fn allocation_refused_by_the_driver_costs_nothing() {
    run("errors", |_| {});
}

#[test]
fn managed_memory_is_charged_as_the_grant_says() {
    run("managed", |_| {});
    run("managed-free", |limits| limits.managed = ManagedPolicy::Free);
}

#[test]
fn arrays_are_charged_as_the_driver_charges_them() {
    run("arrays", |_| {});
}

#[test]
fn physical_memory_is_charged_until_its_last_hold_goes() {
    run("physical", |_| {});
}

#[test]
fn physical_memory_is_charged_to_the_card_that_it_names() {
    // No grant names the second card, so nothing can be had there.
    run("other-card", |_| {});
}

#[test]
fn stream_ordered_free_is_credited() {
    run("freed-in-order", |_| {});
}

#[test]
fn memory_of_an_ended_context_is_credited() {
    run("ended", |_| {});
}

#[test]
fn on_an_old_c_library_limits_are_as_exact_as_on_a_new_one() {
    for mode in ["exact", "pitched", "errors", "managed", "arrays", "physical", "other-card"] {
        run_on(Bench::on_an_old_c_library(), mode, |_| {});
    }
}

/// In whichever order a file system lists them.
#[test]
fn of_several_grants_of_a_card_the_largest_counts() {
    for [small, large] in [["1", "2"], ["2", "1"], ["small", "large"], ["large", "small"]] {
        let (bench, program) = match compiled(Ok(Bench::new())) {
            Ok(both) => both,
            Err(StoodAside(why)) => return println!("stood aside: {why}"),
        };
        let tenant = Tenant::new();
        let grant = |claim: &str, bytes: u64| tenant.grant(claim, &limits(&bench, bytes));
        let (small, large) = (grant(small, LIMIT / 4), grant(large, LIMIT));
        let output = tenant.command(&bench, &program).arg("exact").arg(LIMIT.to_string()).output().unwrap();
        assert_eq!(said(&output), "ok\n");
        assert_eq!((small.counter(usage::HIGH_WATER), large.counter(usage::HIGH_WATER)), (0, LIMIT));
    }
}
