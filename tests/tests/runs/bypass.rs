//! Ways past the shim that SECURITY.md names, and values of the usage file that a tenant forges: `aliquot top` shows both.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;

use aliquot_abi::layout::usage;
use aliquot_tests::preload::shim;
use aliquot_tests::simulated::{Bench, StoodAside};
use serde_json::{Value, json};

use super::top::{Probed, Running, of_pid};

const GIB: u64 = 1 << 30;

fn compiled(bench: &Bench, source: &str, output: &str, arguments: &[&str]) -> Option<PathBuf> {
    match bench.compile_as(source, output, arguments) {
        Ok(program) => Some(program),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

/// The share, while a tenant's program holds 6 GiB of its 4; `None` where its machine has no compiler.
fn share_beside(
    program: &str,
    arguments: &[&str],
    change: impl Fn(&Bench, &mut Command),
) -> Option<(Value, Value)> {
    let probed = Probed::with(&["one"])?;
    let bench = &probed.site.bench;
    let libraries = format!("-L{}", bench.libraries().display());
    let arguments = [&[libraries.as_str(), "-l:libcuda.so.1"], arguments].concat();
    let program = compiled(bench, "past_linked", program, &arguments)?;
    let claim = probed.top("0").0["shares"][0].clone();
    let mut tenant =
        probed.site.tenant(probed.site.grants().join(claim["claimUid"].as_str().unwrap()), &program);
    tenant.arg((6 * GIB).to_string());
    change(bench, &mut tenant);
    let tenant = Running::ready(&mut tenant);
    let share = probed.top("0").0["shares"][0].take();
    let process = of_pid(&share["processes"], tenant.0.id());
    Some((share, process))
}

#[test]
fn preloaded_driver_of_a_linked_program_is_shown_as_bypassed() {
    let preload = |_: &Bench, tenant: &mut Command| {
        tenant.env("LD_PRELOAD", format!("libcuda.so.1:{}", shim().display()));
    };
    let Some((share, process)) = share_beside("past_linked", &[], preload) else { return };
    assert_eq!((&share["enforcement"]["state"], &process["shim"]), (&json!("bypassed"), &json!("missing")));
}

#[test]
fn program_with_the_soname_of_the_shim_is_shown_as_bypassed() {
    let soname = format!("-Wl,-soname,{}", shim().display());
    let Some((share, process)) = share_beside("past_named", &["-pie", &soname], |_, _| {}) else { return };
    assert_eq!((&share["enforcement"]["state"], &process["shim"]), (&json!("bypassed"), &json!("missing")));
}

#[test]
fn library_with_the_soname_of_the_shim_is_shown_as_bypassed() {
    let named = |bench: &Bench, tenant: &mut Command| {
        let soname = format!("-Wl,-soname,{}", shim().display());
        let library = bench
            .compile_as("past_audit", "past_library", &["-shared", "-fPIC", "-DLIBRARY", &soname])
            .unwrap();
        tenant.env("LD_PRELOAD", format!("{}:{}", library.display(), shim().display()));
    };
    let Some((share, process)) = share_beside("past_linked", &[], named) else { return };
    assert_eq!((&share["enforcement"]["state"], &process["shim"]), (&json!("bypassed"), &json!("missing")));
}

#[test]
fn audit_library_that_drops_the_shim_is_shown_as_bypassed() {
    let audit = |bench: &Bench, tenant: &mut Command| {
        let library = bench.compile_as("past_audit", "past_audit", &["-shared", "-fPIC"]).unwrap();
        tenant.env("LD_AUDIT", library);
    };
    let Some((share, process)) = share_beside("past_linked", &[], audit) else { return };
    assert_eq!((&share["enforcement"]["state"], &process["shim"]), (&json!("bypassed"), &json!("missing")));
}

/// The share of a tenant that holds 1 GiB, after it wrote this number there in its usage file.
fn share_after_forging(place: usize, number: u64) -> Option<(Value, Value)> {
    let probed = Probed::with(&["one"])?;
    let claim = probed.top("0").0["shares"][0].clone();
    let tenant = Running::ready(&mut probed.tenant(&claim, &["hold", &GIB.to_string()]));
    let directory = PathBuf::from(claim["directory"].as_str().unwrap());
    let file = OpenOptions::new().write(true).open(directory.join("usage")).unwrap();
    file.write_all_at(&number.to_le_bytes(), u64::try_from(place).unwrap()).unwrap();
    let (mut card, problems) = probed.top("0");
    drop(tenant);
    Some((card["shares"][0].take(), problems))
}

#[test]
fn lowered_total_is_shown_as_contradicted_by_the_driver() {
    let Some((share, problems)) = share_after_forging(usage::TOTAL, 4096) else { return };
    assert_eq!(share["enforcement"]["state"], "contradicted");
    let why = share["enforcement"]["why"].as_str().unwrap();
    assert!(why.contains("its usage file 0 MiB, its limit is 4096 MiB"), "{why}");
    assert!(problems.to_string().contains("the driver reports"), "{problems}");
}

#[test]
fn untouched_usage_file_is_shown_as_observed() {
    let Some((share, problems)) = share_after_forging(usage::DENIED, 0) else { return };
    assert_eq!((&share["enforcement"]["state"], &problems), (&json!("observed"), &json!([])));
}
