//! Stacks of threads: what the shim needs of one beside what the driver needs, and that threads with small stacks do what they did.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::limits::ComputePolicy;
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit, shim};
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};
use std::path::PathBuf;
use std::process::Command;

/// Most bytes of a stack that a call takes beside what it takes without the shim.
const BYTES_MAX: usize = 4096;
/// Most bytes of one function of the library.
const FRAME_MAX: usize = 1536;
/// The smallest stack that a C library lets a thread have.
const SMALLEST: &str = "16384";

/// A card with limited memory and compute, and a program that prints how much stack calls take. `None`: no C
/// compiler.
fn scene() -> Option<(Bench, PathBuf, Tenant, GrantFiles)> {
    let bench = Bench::new();
    let program = match bench.compile("shim_stack", Link::Opened) {
        Ok(program) => program,
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            return None;
        }
    };
    let mut limits = memory_limit(&bench.card().facts().uuid, 4 << 30);
    (limits.policy, limits.share_ppm, limits.granted_ppm) = (ComputePolicy::Cap, 900_000, 900_000);
    let (tenant, files) = Tenant::with(&limits);
    Some((bench, program, tenant, files))
}

#[test]
fn a_call_takes_little_more_of_a_stack_than_without_the_shim() {
    let Some((bench, program, tenant, _files)) = scene() else { return };
    // What a C library needs to find a function at its first call is not the shim's.
    let depths = |mut command: Command| {
        let told = said(&command.env("LD_BIND_NOW", "1").output().unwrap());
        let words = |line: &str| {
            let (call, bytes) = line.split_once(' ').unwrap();
            (call.to_owned(), bytes.parse::<usize>().unwrap())
        };
        told.lines().map(words).collect::<Vec<_>>()
    };
    let (bare, under) = (depths(bench.command(&program)), depths(tenant.command(&bench, &program)));
    assert!(bare.len() > 10 && bare.len() == under.len(), "{bare:?} {under:?}");
    for ((call, bare), (_, under)) in bare.iter().zip(&under) {
        println!("{call}: {bare}, and {under} with the shim");
    }
    for ((call, bare), (_, under)) in bare.iter().zip(&under) {
        assert!(under.saturating_sub(*bare) <= BYTES_MAX, "{call}: {bare}, and {under} with the shim");
    }
}

#[test]
fn threads_with_the_smallest_stacks_do_what_they_did() {
    let Some((bench, program, tenant, _files)) = scene() else { return };
    let bare = bench.command(&program).arg(SMALLEST).output().unwrap();
    if !bare.status.success() {
        return println!("stood aside: it needs larger ones without the shim, too: {bare:?}");
    }
    assert_eq!(said(&bare), "ok\n");
    assert_eq!(said(&tenant.command(&bench, &program).arg(SMALLEST).output().unwrap()), "ok\n");
}

/// Functions of the built library and the bytes that each takes of a stack for itself, by its instructions.
fn frames(code: &str) -> Vec<(&str, usize)> {
    let number = |text: &str| usize::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let mut frames: Vec<(&str, usize)> = Vec::new();
    for line in code.lines() {
        if let Some((_, name)) = line.split_once(" <").filter(|_| line.ends_with(">:")) {
            frames.push((name.trim_end_matches(">:"), 0));
        }
        let Some((_, frame)) = frames.last_mut() else { continue };
        // A large one is taken in steps, each looked at, or in a loop down to what `lea` works out.
        if let Some((_, taken)) = line.split_once("sub ").filter(|_| line.ends_with(",%rsp")) {
            let immediate = taken.trim().strip_prefix('$').and_then(|taken| taken.strip_suffix(",%rsp"));
            *frame += immediate.map_or(0, number);
        } else if let Some((_, taken)) = line.split_once("lea ").filter(|_| line.ends_with("(%rsp),%r11")) {
            *frame += taken
                .trim()
                .strip_prefix('-')
                .map_or(0, |taken| number(taken.trim_end_matches("(%rsp),%r11")));
        }
    }
    frames
}

#[test]
fn no_function_of_the_library_takes_much_of_a_stack() {
    if !cfg!(target_arch = "x86_64") {
        return println!("stood aside: the instructions of another processor are not read here");
    }
    let output = Command::new("objdump")
        .args(["--disassemble", "--no-show-raw-insn", "--demangle"])
        .arg(shim())
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut frames = frames(std::str::from_utf8(&output.stdout).unwrap()).into_iter().collect::<Vec<_>>();
    frames.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    println!("{:#?}", frames.get(..8));
    assert!(frames.len() > 500 && frames.iter().filter(|(_, bytes)| *bytes > 0).count() > 100, "{frames:?}");
    let large: Vec<_> = frames.iter().filter(|(_, bytes)| *bytes > FRAME_MAX).collect();
    assert!(large.is_empty(), "{large:#?}");
}
