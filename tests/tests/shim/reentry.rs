//! Calls that begin while the same thread is inside another one, or that never end: handlers of signals that call the driver,
//! handlers that jump out of what they interrupted, threads that are cancelled on the way. The driver allows all of it.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_tests::bare::CARD;
use aliquot_tests::preload::{Tenant, memory_limit, shim};
use aliquot_tests::simulated::{StoodAside, root, run};
use std::process::Command;
use tempfile::TempDir;

const BLOCK: u64 = 512;
/// No call is refused for it: a cancelled thread leaves a page of 2 MiB reserved, and some hundreds are cancelled.
const LIMIT: u64 = 1 << 36;
const MILLIS: &str = "1500";

/// The accounting at the end of a scene.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// What the driver has given and not got back.
    out: u64,
    total: u64,
}

/// `None`: no C compiler here.
fn play(scene: &str) -> Option<Told> {
    let place = TempDir::new().unwrap();
    let cc = |source: &str, output: &str, arguments: &[&str]| {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Werror", "-o"]).arg(place.path().join(output));
        cc.arg(root().join("tests/programs").join(source)).args(arguments);
        let compiled = run(&mut cc);
        assert!(compiled.is_ok(), "{compiled:?}");
    };
    if let Err(StoodAside(why)) = run(Command::new("cc").arg("--version")) {
        println!("stood aside: {why}");
        return None;
    }
    cc("reentry_driver.c", "libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let directory = format!("-L{}", place.path().display());
    cc("shim_reentry.c", "shim_reentry", &[&directory, "-l:libcuda.so.1", "-pthread"]);
    let (tenant, files) = Tenant::with(&memory_limit(CARD, LIMIT));
    // A context takes nothing, and its size is known.
    files.set_counter(usage::CONTEXT_BYTES, 1);
    let mut command = Command::new(place.path().join("shim_reentry"));
    command.env("LD_LIBRARY_PATH", place.path()).env("LD_PRELOAD", shim());
    let output = command.env("ALIQUOT_GRANTS", tenant.grants()).args([scene, MILLIS]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {said}", output.status);
    let blocks: u64 = said.split_whitespace().next_back().unwrap().parse().unwrap();
    let told = Told { out: blocks * BLOCK, total: files.counter(usage::TOTAL) };
    println!("{scene}: {said}{told:?}");
    Some(told)
}

#[test]
fn a_handler_that_interrupts_a_call_may_call_the_driver() {
    let Some(told) = play("handler") else { return };
    assert_eq!((told.out, told.total), (0, 0), "{told:?}");
}

#[test]
fn handler_jumping_out_of_a_call_leaves_others_their_calls() {
    let Some(told) = play("jump") else { return };
    assert!(told.total >= told.out && told.total < LIMIT, "{told:?}");
}

#[test]
fn thread_cancelled_in_a_call_leaves_others_their_calls() {
    let Some(told) = play("cancel") else { return };
    assert!(told.total >= told.out && told.total < LIMIT, "{told:?}");
}
