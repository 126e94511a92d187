//! Every hook hands its call on to the function of its own name, with the arguments that NVIDIA's header gives that function, and
//! gives its answer back: rows that are alike but for a suffix are easily mistaken for one another.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::limits::{ComputePolicy, FailMode, Limits};
use aliquot_tests::preload::{Tenant, memory_limit, shim};
use aliquot_tests::simulated::{StoodAside, kept, kept_once, root, run, said};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The card of the noting driver, and one that it does not have.
const CARD: &str = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";
const OTHER: &str = "GPU-ffffffff-0405-0607-0809-0a0b0c0d0e0f";

/// The driver and the program, compiled, and letters for the arguments of each export.
struct Scene {
    place: PathBuf,
    arguments: BTreeMap<String, String>,
}

impl Scene {
    /// The exports of hooks that the program can call and that are wanted by name. A structure of 64 bytes by
    /// value does not fit it; `tests/tests/shim/ipc.rs` calls those that take one.
    fn exports(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<&'static str> {
        let hooks = aliquot_shim::symbols::all().map(|hook| hook.export.to_str().unwrap());
        let known = |export: &&str| self.arguments.get(*export).is_some_and(|letters| !letters.contains('X'));
        let exports: BTreeSet<_> = hooks.filter(known).filter(|export| is_wanted(export)).collect();
        exports.into_iter().collect()
    }

    /// Made once: the driver has hundreds of functions to compile. `None`: it cannot be made here, and the test says so.
    fn get() -> Option<&'static Self> {
        static SCENE: OnceLock<Result<Scene, StoodAside>> = OnceLock::new();
        match SCENE.get_or_init(Self::new) {
            Ok(scene) => Some(scene),
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                None
            }
        }
    }

    fn new() -> Result<Self, StoodAside> {
        run(Command::new("cc").arg("--version"))?;
        let mut python = Command::new("python3");
        python.arg("-B").arg(root().join("tests/symbols/arguments.py")).arg(kept("typedefs"));
        let arguments = run(&mut python)?;
        let pairs = arguments.lines().filter_map(|line| line.split_once(' '));
        let arguments: BTreeMap<_, _> =
            pairs.map(|(export, letters)| (export.to_owned(), letters.to_owned())).collect();
        let programs = root().join("tests/programs");
        let header = programs.join("noting_driver.h");
        let mut source = format!("#include \"{}\"\n", header.display());
        arguments.keys().for_each(|export| source += &format!("NOTED({export})\n"));
        let program = programs.join("shim_passing.c");
        let texts = [&header, &program].map(|path| std::fs::read_to_string(path).unwrap());
        let place = kept_once("noting_driver", &(&source, texts), |place| {
            std::fs::create_dir(place).unwrap();
            std::fs::write(place.join("driver.c"), &source).unwrap();
            let compiled = |arguments: &[&str], to: &str| {
                let mut cc = Command::new("cc");
                cc.current_dir(place).args(["-O1", "-Wall", "-Werror"]).args(arguments).args(["-o", to]);
                let compiled = run(&mut cc);
                assert!(compiled.is_ok(), "{compiled:?}");
            };
            compiled(&["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "driver.c"], "libcuda.so.1");
            compiled(&[program.to_str().unwrap(), "-ldl"], "program");
        });
        Ok(Self { place, arguments })
    }

    /// What the program says of the calls of these exports.
    fn told(&self, tenant: &Tenant, exports: &[&str]) -> BTreeMap<String, String> {
        let mut command = Command::new(self.place.join("program"));
        command.env("LD_LIBRARY_PATH", &self.place).env("LD_PRELOAD", shim());
        command.env("ALIQUOT_GRANTS", tenant.grants());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        for export in exports {
            writeln!(input, "{export} {}", self.arguments[*export]).unwrap();
        }
        drop(input);
        let text = said(&child.wait_with_output().unwrap());
        let pairs = text.lines().map(|line| line.split_once(' ').unwrap());
        pairs.map(|(export, what)| (export.to_owned(), what.to_owned())).collect()
    }
}

fn limits(card: &str) -> Limits {
    Limits {
        policy: ComputePolicy::Cap,
        share_ppm: 900_000,
        granted_ppm: 900_000,
        fail_mode: FailMode::Open,
        ..memory_limit(card, 1 << 40)
    }
}

#[test]
fn every_hook_hands_its_call_on_as_it_was() {
    let Some(scene) = Scene::get() else { return };
    let exports = scene.exports(|_| true);
    assert!(exports.len() > 240, "{}", exports.len());
    // Without a grant's part in it, and as calls that are counted and metered.
    for card in [OTHER, CARD] {
        let (tenant, _files) = Tenant::with(&limits(card));
        let told = scene.told(&tenant, &exports);
        assert_eq!(told.len(), exports.len());
        let expected = |export: &str| match export {
            // The shim queries the size of a twin without memory.
            "cuArray3DCreate_v2" | "cuMipmappedArrayCreate" if card == CARD => "was called 2 times",
            export if FIRST.contains(&export) => "was not called, and answers 801",
            _ => "ok",
        };
        let wrong: Vec<_> = told.iter().filter(|(export, what)| *what != expected(export)).collect();
        assert!(wrong.is_empty(), "{card}: {wrong:#?}");
    }
}

/// How the names of what a card does begin: kernels, graphs, copies, fills and prefetches.
const WORK: [&str; 8] = [
    "cuLaunch",
    "cuGraphLaunch",
    "cuMemcpy",
    "cuMemset",
    "cuMemPrefetch",
    "cuMemDiscard",
    "cuMemBatchDecompress",
    "cuFabricCpy",
];

/// Of these, host functions are no work of a card, and lists that do not fit together are the driver's to refuse
/// (`tests/programs/copies.h` makes right ones).
const NO_WORK: [&str; 4] = [
    "cuLaunchHostFunc",
    "cuMemcpyBatchAsync",
    "cuMemPrefetchBatchAsync",
    "cuMemDiscardAndPrefetchBatchAsync",
];

/// Allocations of before CUDA 3.2, which are refused.
const FIRST: [&str; 4] = ["cuMemAlloc", "cuMemAllocPitch", "cuArrayCreate", "cuArray3DCreate"];

/// How the names of what takes memory of a card begin.
const TAKES: [&str; 12] = [
    "cuMemAlloc",
    "cuMemCreate",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuMipmappedArrayCreate",
    "cuCtxCreate",
    "cuDevicePrimaryCtxRetain",
    "cuGreenCtxCreate",
    "cuModuleLoad",
    "cuLibraryLoad",
    "cuImportExternalMemory",
    "cuGraphAddMemAllocNode",
];

/// Calls under a grant that is denied because its usage file is missing answer `code`, and the driver is not
/// called.
fn are_refused(exports: impl FnOnce(&Scene) -> Vec<&'static str>, at_least: usize, code: u32) {
    let Some(scene) = Scene::get() else { return };
    let exports = exports(scene);
    assert!(exports.len() >= at_least, "{exports:?}");
    let (tenant, files) = Tenant::with(&Limits { fail_mode: FailMode::Closed, ..limits(CARD) });
    std::fs::remove_file(files.dir().join("usage")).unwrap();
    let told = scene.told(&tenant, &exports);
    assert_eq!(told.len(), exports.len());
    let expected = format!("was not called, and answers {code}");
    let wrong: Vec<_> = told.iter().filter(|(_, what)| **what != expected).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), exports.len());
}

/// That each uses the meter: a hook that only passed its call on would reach the driver.
#[test]
fn every_form_of_work_is_refused_where_it_cannot_be_metered() {
    let begins = |export: &str, stems: &[&str]| stems.iter().any(|stem| export.starts_with(stem));
    let is_work = |export: &str| begins(export, &WORK) && !begins(export, &NO_WORK);
    are_refused(|scene| scene.exports(is_work), 96, 800);
}

#[test]
fn every_allocating_form_is_out_of_memory_if_unchargeable() {
    let takes = |export: &str| TAKES.iter().any(|stem| export.starts_with(stem));
    let takes = |export: &str| takes(export) && export != "cuMemAllocHost" && !FIRST.contains(&export);
    are_refused(|scene| scene.exports(takes), 25, 2);
}
