//! Whichever way a program comes by a driver function, it gets what the driver gives, and where that is a function that the
//! shim stands in for, the shim's with the same ABI.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::layout::usage;
use aliquot_abi::limits::Limits;
use aliquot_tests::preload::{Tenant, memory_limit, metered, shim, unlimited};
use aliquot_tests::simulated::{Bench, Link, StoodAside, root, said};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const LIMIT: u64 = 8 << 30;

/// What `compile` made; the test ends where there is no compiler, and says so.
macro_rules! or_stand_aside {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(StoodAside(why)) => return println!("stood aside: {why}"),
        }
    };
}

fn versions_of_the_table() -> BTreeSet<u32> {
    let text = std::fs::read_to_string(root().join("shim/symbols/cuda.tsv")).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| line.split('\t').nth(1).unwrap().parse().unwrap()).collect()
}

/// Runs the table program on a driver of this version over these versions: bare, and under the shim with a grant of memory, and
/// with one of memory and compute.
fn tables(driver: u32, versions: &BTreeSet<u32>) -> Result<(String, [String; 2]), StoodAside> {
    let bench = Bench::new();
    bench.write("node.toml", &format!("cuda_version = {driver}\n"));
    let program = bench.compile("shim_table", Link::Opened)?;
    let list = bench.cards().with_file_name("versions");
    let lines: Vec<String> = versions.iter().map(ToString::to_string).collect();
    std::fs::write(&list, lines.join("\n")).unwrap();
    let card = bench.card().facts().uuid.clone();
    let table = root().join("shim/symbols/cuda.tsv");
    let bare = said(&bench.command(&program).arg(&table).arg(&list).output().unwrap());
    let ours = [memory_limit(&card, LIMIT), metered(memory_limit(&card, LIMIT))].map(|limits| {
        let (tenant, _files) = Tenant::with(&limits);
        said(&tenant.command(&bench, &program).arg(&table).arg(&list).output().unwrap())
    });
    Ok((bare, ours))
}

/// Line by line, so that the first difference is what is said.
fn same(bare: &str, ours: &[String; 2], driver: u32) {
    for (ours, grant) in ours.iter().zip(["memory", "memory and compute"]) {
        for (bare, ours) in bare.lines().zip(ours.lines()) {
            assert_eq!(ours, bare, "driver {driver}, a grant of {grant}");
        }
        assert_eq!(ours.len(), bare.len(), "driver {driver}, a grant of {grant}");
    }
}

#[test]
fn every_symbol_version_and_flag_has_the_drivers_answer_and_abi() {
    let every_ten = (0..=1405).map(|version| version * 10).filter(|version| *version >= 2000);
    let (bare, ours) = or_stand_aside!(tables(13_050, &every_ten.collect()));
    assert!(bare.lines().count() > 4 * 516 && bare.contains("cuLaunchKernel_ptsz"));
    assert!(!bare.contains(" ? "), "an address that is no export's");
    same(&bare, &ours, 13_050);
}

/// Exports for which a program gets a function of the shim.
fn substituted(bench: &Bench, program: &Path, limits: &Limits) -> BTreeSet<String> {
    let (tenant, _files) = Tenant::with(limits);
    let table = root().join("shim/symbols/cuda.tsv");
    let told = said(&tenant.command(bench, program).arg(&table).output().unwrap());
    let pairs: Vec<_> = told.lines().filter_map(|line| line.split_once(' ')).collect();
    assert!(pairs.len() > 516 && pairs.iter().any(|(_, library)| library.starts_with("libcuda.so")));
    let ours = pairs.into_iter().filter(|(_, library)| library.starts_with("libaliquot"));
    ours.map(|(export, _)| export.to_owned()).collect()
}

/// A tenant without a compute limit launches and copies by the driver's own functions, at no cost at all.
#[test]
fn only_compute_limits_hook_launches_and_copies() {
    let bench = Bench::new();
    let program = or_stand_aside!(bench.compile("shim_table", Link::Opened));
    let card = bench.card().facts().uuid.clone();
    let of = |limits: Limits| substituted(&bench, &program, &limits);
    let (nothing, memory) = (of(unlimited(&card)), of(memory_limit(&card, LIMIT)));
    let (compute, both) = (of(metered(unlimited(&card))), of(metered(memory_limit(&card, LIMIT))));
    println!("{} {} {} {}", nothing.len(), memory.len(), compute.len(), both.len());
    let work: BTreeSet<_> = both.difference(&memory).map(String::as_str).collect();
    for export in
        ["cuLaunchKernel", "cuLaunchKernelEx_ptsz", "cuMemcpyHtoDAsync_v2", "cuMemsetD8_v2", "cuMemcpy2D_v2"]
    {
        assert!(work.contains(export), "{export}: {work:?}");
    }
    assert!(work.len() > 100, "{work:?}");
    assert!(work.iter().all(|export| compute.contains(*export)), "{compute:?}");
    let launches = |export: &&String| work.contains(export.as_str());
    assert_eq!(nothing.iter().find(launches), None);
    assert!(nothing.len() < 20, "{nothing:?}");
}

#[test]
fn answers_of_older_drivers_stay_theirs() {
    let mut versions = versions_of_the_table();
    let around = |version: &u32| [version - 1, version + 1];
    versions.extend(versions.clone().iter().flat_map(around));
    for driver in [11_030, 11_080, 12_000, 12_080, 13_000] {
        versions.extend([0, 2_000, driver - 1, driver, driver + 1, 13_050, 13_051, 14_000]);
        let (bare, ours) = or_stand_aside!(tables(driver, &versions));
        same(&bare, &ours, driver);
    }
}

/// A bench, its program under the shim, and what it said; `bare` is what it says without.
struct Ways {
    bench: Bench,
    program: PathBuf,
    tenant: Tenant,
    memory: u64,
}

impl Ways {
    fn new(bench: Bench, flags: &[&str]) -> Result<Self, StoodAside> {
        let program =
            bench.compile_as("shim_ways", "shim_ways", &[flags, &["-ldl", "-lpthread"]].concat())?;
        let card = bench.card().facts().clone();
        let (tenant, _files) = Tenant::with(&memory_limit(&card.uuid, LIMIT));
        Ok(Self { bench, program, tenant, memory: card.memory_bytes })
    }

    fn bare(&self, arguments: &[&str]) -> String {
        said(&self.bench.command(&self.program).args(arguments).output().unwrap()).trim().to_owned()
    }

    fn ours(&self, arguments: &[&str]) -> String {
        said(&self.tenant.command(&self.bench, &self.program).args(arguments).output().unwrap())
            .trim()
            .to_owned()
    }

    /// The same with more libraries before or behind the shim.
    fn with(&self, preload: &str, arguments: &[&str]) -> String {
        let mut command = self.tenant.command(&self.bench, &self.program);
        said(&command.env("LD_PRELOAD", preload).args(arguments).output().unwrap()).trim().to_owned()
    }

    fn library(&self, define: &str, flags: &[&str]) -> PathBuf {
        let name = format!("lib{}.so", define.trim_start_matches("-D").to_lowercase());
        let all = [&["-shared", "-fPIC", define], flags, &["-ldl"]].concat();
        self.bench.compile_as("shim_interposer", &name, &all).unwrap()
    }
}

/// Each way that leads to the driver leads to the grant, and no other does.
fn shows_the_grant(ways: &Ways) {
    let (limit, memory) = (LIMIT.to_string(), ways.memory.to_string());
    for way in [
        "opened",
        "deepbind",
        "default",
        "next",
        "program",
        "namespace",
        "c-library",
        "constructor",
        "exits",
        "twice",
    ] {
        assert_eq!(ways.bare(&[way]), memory, "{way}");
        assert_eq!(ways.ours(&[way]), limit, "{way}");
    }
    // What is not there without the shim is not there with it.
    for way in ["default-local", "nothing"] {
        assert_eq!((ways.ours(&[way]), ways.bare(&[way])), ("null told".into(), "null told".into()), "{way}");
    }
    // Of what comes next loaders before 2.24 tell nothing.
    let bare = ways.bare(&["next-local"]);
    assert_eq!((ways.ours(&["next-local"]), bare.split(' ').next()), (bare.clone(), Some("null")));
    assert_eq!(ways.ours(&["versioned", "CUDA_1"]), ways.bare(&["versioned", "CUDA_1"]));
}

#[test]
fn the_grant_is_shown_by_every_way_that_leads_to_the_driver() {
    shows_the_grant(&or_stand_aside!(Ways::new(Bench::new(), &[])));
}

#[test]
fn old_libc_resolves_every_way_like_a_new_one() {
    let bench = or_stand_aside!(Bench::on_an_old_c_library());
    let ways = or_stand_aside!(Ways::new(bench, &[]));
    shows_the_grant(&ways);
    assert_eq!(ways.ours(&["errors"]), ways.bare(&["errors"]));
    works_beside_one_that_looks_up(&ways);
    finds_versions_and_counts_what_is_unknown(&ways);
}

#[test]
fn errno_and_dlerror_are_left_alone() {
    let ways = or_stand_aside!(Ways::new(Bench::new(), &[]));
    assert_eq!(ways.ours(&["errors"]), ways.bare(&["errors"]));
}

#[test]
fn a_function_that_the_driver_lacks_is_lacking() {
    let missing = ["cuDeviceTotalMem_v2"];
    let bench = Bench::without(&missing);
    bench.write("faults.toml", "[[fault]]\nsymbol = \"cuDeviceTotalMem_v2\"\naction = \"missing\"\n");
    let ways = or_stand_aside!(Ways::new(bench, &[]));
    for way in ["opened", "default", "next", "program", "namespace"] {
        assert_eq!((ways.ours(&[way]), ways.bare(&[way])), ("null told".into(), "null told".into()), "{way}");
    }
    assert_eq!(ways.ours(&["errors"]), ways.bare(&["errors"]));
}

#[test]
fn a_linked_program_gets_the_grant_and_keeps_its_pending_error() {
    let old = Bench::on_an_old_c_library().inspect_err(|StoodAside(why)| println!("stood aside: {why}"));
    for bench in [Bench::new()].into_iter().chain(old) {
        let program = or_stand_aside!(bench.compile("shim_linked", Link::Direct));
        let card = bench.card().facts().clone();
        let (tenant, _files) = Tenant::with(&memory_limit(&card.uuid, LIMIT));
        assert_eq!(said(&bench.command(&program).output().unwrap()), format!("{}\n", card.memory_bytes));
        assert_eq!(said(&tenant.command(&bench, &program).output().unwrap()), format!("{LIMIT}\n"));
    }
}

#[test]
fn a_library_of_the_program_keeps_its_own_function_of_that_name() {
    let ways = or_stand_aside!(Ways::new(Bench::new(), &[]));
    let own = ways.library("-DOWN", &[]);
    assert_eq!(ways.ours(&["own", own.to_str().unwrap()]), "4242");
    assert_eq!(ways.ours(&["opened"]), LIMIT.to_string());
}

#[test]
fn a_library_that_sees_the_driver_alone_gets_the_grant() {
    let ways = or_stand_aside!(Ways::new(Bench::new(), &[]));
    let place = format!("-L{}", ways.bench.libraries().display());
    let late = ways.library("-DLATE", &["-Wl,--no-as-needed", &place, "-l:libcuda.so.1"]);
    for way in ["late", "late-next"] {
        let arguments = [way, late.to_str().unwrap()];
        assert_eq!(ways.bare(&arguments), ways.memory.to_string(), "{way}");
        assert_eq!(ways.ours(&arguments), LIMIT.to_string(), "{way}");
    }
}

/// What is remembered of the driver stays right when a plugin goes that was all that held it.
#[test]
fn a_plugin_that_is_unloaded_and_loaded_again_finds_the_driver() {
    let ways = or_stand_aside!(Ways::new(Bench::new(), &[]));
    let place = format!("-L{}", ways.bench.libraries().display());
    let plugin = ways.library("-DPLUGIN", &[&place, "-l:libcuda.so.1"]);
    let arguments = ["plugin", plugin.to_str().unwrap()];
    assert_eq!(ways.bare(&arguments), ways.memory.to_string());
    assert_eq!(ways.ours(&arguments), LIMIT.to_string());
    let mut inert = ways.bench.command(&ways.program);
    let output = inert.env("LD_PRELOAD", shim()).args(arguments).output().unwrap();
    assert_eq!(said(&output).trim(), ways.memory.to_string());
}

#[test]
fn preload_resolving_the_compared_symbols_returns() {
    let ways = or_stand_aside!(Ways::new(Bench::new(), &[]));
    let (lazy, shim) = (ways.library("-DLAZY", &["-fno-builtin"]), shim().display());
    let lazy = lazy.display();
    for preload in [format!("{lazy}:{shim}"), format!("{shim}:{lazy}")] {
        assert_eq!(ways.with(&preload, &["opened"]), LIMIT.to_string(), "{preload}");
    }
}

/// Another library that looks functions up bypasses no hook, before the shim and behind it.
fn works_beside_one_that_looks_up(ways: &Ways) {
    let (asks, shim) = (ways.library("-DDLSYM", &[]), shim().display());
    let asks = asks.display();
    for way in ["opened", "default", "next", "program", "namespace", "constructor", "exits"] {
        assert_eq!(ways.with(&format!("{asks}:{shim}"), &[way]), LIMIT.to_string(), "before, {way}");
        assert_eq!(ways.with(&format!("{shim}:{asks}"), &[way]), LIMIT.to_string(), "behind, {way}");
    }
}

#[test]
fn other_preloads_that_look_up_work_before_and_behind_the_shim() {
    works_beside_one_that_looks_up(&or_stand_aside!(Ways::new(Bench::new(), &[])));
}

#[test]
fn tracer_of_driver_functions_is_passed_through_on_both_sides() {
    let ways = or_stand_aside!(Ways::new(Bench::new(), &[]));
    let (tracer, shim) = (ways.library("-DPASSING", &[]), shim().display());
    let tracer = tracer.display();
    for preload in [format!("{tracer}:{shim}"), format!("{shim}:{tracer}")] {
        for way in ["default", "next", "program"] {
            assert_eq!(ways.with(&preload, &[way]), format!("{LIMIT}\npassed on 1"), "{preload}: {way}");
        }
        assert_eq!(ways.with(&preload, &["opened"]), format!("{LIMIT}\npassed on 0"), "{preload}");
    }
}

#[test]
fn a_program_with_its_own_heap_and_walk_over_libraries_runs() {
    let ways = or_stand_aside!(Ways::new(Bench::new(), &["-DOVERRIDES", "-rdynamic", "-fno-builtin"]));
    for way in ["opened", "deepbind", "default", "constructor", "exits"] {
        assert_eq!(ways.ours(&[way]), LIMIT.to_string(), "{way}");
    }
}

/// The driver is another one afterwards: all its functions have a version.
fn finds_versions_and_counts_what_is_unknown(ways: &Ways) {
    let script = ways.bench.cards().with_file_name("versions.map");
    std::fs::write(&script, "CUDA_1 { global: cu*; local: *; };\n").unwrap();
    let version = format!("-Wl,--version-script={}", script.display());
    let flags = ["-Wl,-soname,libcuda.so.1", version.as_str()];
    let driver = ways.library("-DVERSIONED", &flags);
    std::fs::copy(driver, ways.bench.libraries().join("libcuda.so.1")).unwrap();
    let uuid = "GPU-01010101-0101-0101-0101-010101010101";
    let (tenant, files) = Tenant::with(&memory_limit(uuid, LIMIT));
    let ours = |arguments: &[&str]| {
        said(&tenant.command(&ways.bench, &ways.program).args(arguments).output().unwrap())
    };
    assert_eq!(ours(&["unknown"]), "7\n");
    assert_eq!(files.counter(usage::UNKNOWN_SYMBOLS), 1);
    // As runtime libraries ask, by both versions.
    assert_eq!(ours(&["unknown-address"]), "0 0 7 7\n");
    assert_eq!(files.counter(usage::UNKNOWN_SYMBOLS), 3);
    assert_eq!(ours(&["versioned", "CUDA_2"]), "null told\n");
    assert_eq!(ways.bare(&["versioned", "CUDA_1"]), (64_u64 << 30).to_string());
    assert_eq!(ours(&["versioned", "CUDA_1"]), format!("{LIMIT}\n"));
    assert_eq!(files.counter(usage::UNKNOWN_SYMBOLS), 3);
}

#[test]
fn versioned_functions_are_hooked_unknown_ones_pass_counted() {
    finds_versions_and_counts_what_is_unknown(&or_stand_aside!(Ways::new(Bench::new(), &[])));
}
