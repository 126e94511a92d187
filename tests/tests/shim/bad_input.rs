//! What the shim does when its region is missing, torn, foreign or hostile, or the driver is not what it knows: closed, open or
//! held to the limit, as docs/developer/faults.md says row by row.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

mod files;

use aliquot_abi::layout::{header, limits, usage};
use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, ManagedPolicy};
use aliquot_tests::local::{aliquot, opened_to_everybody};
use aliquot_tests::preload::{Tenant, memory_limit, unlimited};
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};
use aliquot_tests::talk::Talk;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const GIB: u64 = 1 << 30;
/// More than a context takes, less than the card has.
const LIMIT: u64 = 2 * GIB;

/// What came of two allocations of every family, one below the limit and one above it, and of contexts and modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Closed,
    Held,
    Open,
}

struct Scene {
    bench: Bench,
    program: PathBuf,
    verdict: PathBuf,
    card: String,
}

/// `None` where there is no compiler, and the test says so.
fn scene() -> Option<Scene> {
    let bench = Bench::new();
    let shown = bench.compile_as("shim_shown", "shim_shown", &["-ldl", "-DWATCHES"]);
    match shown.and_then(|program| Ok((program, bench.compile("shim_verdict", Link::Opened)?))) {
        Ok((program, verdict)) => {
            let card = bench.card().facts().uuid.clone();
            Some(Scene { bench, program, verdict, card })
        }
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

impl Scene {
    /// The answers by family: the small allocation's, the large one's.
    fn answers(&self, command: &mut Command) -> BTreeMap<String, (String, String)> {
        let told = said(&command.arg((2 * LIMIT).to_string()).output().unwrap());
        let family = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let [name, small, large] = words.try_into().unwrap_or_else(|_| panic!("{told}"));
            (name, (small, large))
        };
        told.lines().map(family).collect()
    }

    /// What all families agree on.
    fn try_out(&self, command: &mut Command) -> Verdict {
        let answers = self.answers(command);
        let is = |verdict: Verdict| {
            answers.values().all(|(small, large)| match (small.as_str(), large.as_str()) {
                ("-", "-") => true,
                ("2", "2" | "-") => verdict == Verdict::Closed,
                ("0", "-") => verdict != Verdict::Closed,
                ("0", "2") => verdict == Verdict::Held,
                ("0", "0") => verdict == Verdict::Open,
                _ => false,
            })
        };
        let all = [Verdict::Closed, Verdict::Held, Verdict::Open];
        all.into_iter().find(|verdict| is(*verdict)).unwrap_or_else(|| panic!("{answers:#?}"))
    }

    fn run(&self, tenant: &Tenant) -> Verdict {
        self.try_out(&mut tenant.command(&self.bench, &self.verdict))
    }

    /// With the variable set to this.
    fn pointed(&self, place: Option<&Path>) -> Verdict {
        let tenant = Tenant::new();
        let mut command = tenant.command(&self.bench, &self.verdict);
        match place {
            Some(place) => command.env("ALIQUOT_GRANTS", place),
            None => command.env_remove("ALIQUOT_GRANTS"),
        };
        self.try_out(&mut command)
    }

    /// A grant for the card with this fail mode, spoilt.
    fn spoilt(&self, fail_mode: FailMode, spoil: impl FnOnce(&Path)) -> Verdict {
        let (tenant, files) = Tenant::with(&Limits { fail_mode, ..memory_limit(&self.card, LIMIT) });
        spoil(files.dir());
        self.run(&tenant)
    }
}

/// How mount namespaces are made here.
struct Unshare(&'static [&'static str]);

impl Unshare {
    /// `None`: not at all, and the test says so.
    fn found() -> Option<Self> {
        let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
        let can = |way: &&[&str]| {
            let tried =
                Command::new("unshare").args(*way).args(["mount", "-t", "tmpfs", "x", "/run"]).output();
            tried.is_ok_and(|tried| tried.status.success())
        };
        let found = ways.into_iter().find(can).map(Self);
        if found.is_none() {
            println!("stood aside: nothing can be mounted");
        }
        found
    }
}

fn overwrite(file: PathBuf, at: usize, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(bytes, u64::try_from(at).unwrap()).unwrap();
}

fn cut(file: PathBuf, length: u64) {
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length).unwrap();
}

fn pipe(place: &Path) {
    assert!(Command::new("mkfifo").arg(place).status().unwrap().success());
}

/// Puts something else in place of a file.
fn replace(file: &Path, with: impl FnOnce(&Path)) {
    std::fs::remove_file(file).unwrap();
    with(file);
}

fn endless(link: &Path) {
    symlink(link.file_name().unwrap(), link).unwrap();
}

/// Bytes that repeat in every run.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u8::try_from(state >> 56).unwrap()
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn a_place_of_grants_that_is_named_and_not_usable_is_closed() {
    let Some(scene) = scene() else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    assert_eq!(scene.pointed(None), Verdict::Open);
    assert_eq!(scene.pointed(Some(Path::new(""))), Verdict::Open);
    std::fs::write(at("file"), "").unwrap();
    std::fs::create_dir(at("empty")).unwrap();
    endless(&at("endless"));
    pipe(&at("pipe"));
    for name in ["absent", "file", "empty", "endless", "pipe"] {
        assert_eq!(scene.pointed(Some(&at(name))), Verdict::Closed, "{name}");
    }
}

/// The variable is the tenant's own: it counts where the container has no place of grants, and not where that cannot be opened.
#[test]
fn the_containers_place_of_grants_goes_before_the_variable() {
    let Some(scene) = scene() else { return };
    let Some(unshare) = Unshare::found() else { return };
    let (generous, _files) = Tenant::with(&memory_limit(&scene.card, 32 * LIMIT));
    let (container, _others) = Tenant::with(&memory_limit(&scene.card, LIMIT));
    let own = format!("mkdir grants && mount --bind {} grants", container.grants().display());
    // Root may open what is closed to all users, unless it has no capabilities.
    let closed = r#"mkdir -m 0 grants && set -- setpriv --inh-caps=-all --bounding-set=-all "$@""#;
    for (place, verdict) in [
        ("true", Verdict::Open),
        (own.as_str(), Verdict::Held),
        ("mkdir grants", Verdict::Closed),
        ("touch grants", Verdict::Closed),
        ("ln -s grants grants", Verdict::Closed),
        ("mkfifo grants", Verdict::Closed),
        (closed, Verdict::Closed),
    ] {
        let script = format!(
            r#"mount -t tmpfs aliquot /run && mkdir /run/aliquot && cd /run/aliquot && {place} && cd / && exec "$@""#
        );
        let mut command = generous.command(&scene.bench, "unshare");
        command.args(unshare.0).args(["sh", "-c", &script, "sh"]).arg(&scene.verdict);
        assert_eq!(scene.try_out(&mut command), verdict, "{place}");
    }
}

#[test]
fn container_of_a_claim_allows_no_run_without_a_supervisor() {
    let Some(unshare) = Unshare::found() else { return };
    let state = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs aliquot /run && mkdir -p /run/aliquot/grants && exec "$@""#;
    for (mode, code, said, told) in [("closed", 125, "", "error: "), ("open", 0, "ran\n", "warning: ")] {
        let mut run = Command::new("unshare");
        run.args(unshare.0).args(["sh", "-c", script, "sh"]).arg(aliquot());
        run.args(["run", "--node", "t4-2", "--memory", "1Gi", "--fail-mode", mode, "--state"]);
        let output = run.arg(state.path()).args(["--", "echo", "ran"]).output().unwrap();
        let found = (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned());
        assert_eq!(found, (Some(code), said.to_owned()), "{output:?}");
        let told = format!("{told}/run/aliquot/grants is there: ");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with(&told), "{output:?}");
    }
}

#[test]
fn unreadable_limits_are_denied_whatever_they_say() {
    let Some(scene) = scene() else { return };
    type Spoil<'a> = &'a dyn Fn(PathBuf);
    let spoils: [(&str, Spoil<'_>); 13] = [
        ("missing", &|file| std::fs::remove_file(file).unwrap()),
        ("empty", &|file| cut(file, 0)),
        ("a word", &|file| cut(file, 8)),
        ("short by a byte", &|file| cut(file, 4095)),
        ("magic", &|file| overwrite(file, header::MAGIC, b"NOTOURS!")),
        ("kind", &|file| overwrite(file, header::KIND, &2_u32.to_le_bytes())),
        ("for later readers", &|file| overwrite(file, header::MIN_READER, &2_u32.to_le_bytes())),
        ("torn", &|file| overwrite(file, limits::RECORDS + 8, &GIB.to_le_bytes())),
        ("the other record", &|file| overwrite(file, limits::ACTIVE, &1_u32.to_le_bytes())),
        ("noise", &|file| overwrite(file, 64, &noise(7, 4032))),
        ("a directory", &|file| replace(&file, |file| std::fs::create_dir(file).unwrap())),
        ("a pipe", &|file| replace(&file, pipe)),
        ("a loop", &|file| replace(&file, endless)),
    ];
    for (name, spoil) in spoils {
        for mode in [FailMode::Closed, FailMode::Open] {
            let verdict = scene.spoilt(mode, |dir| spoil(dir.join("limits")));
            assert_eq!(verdict, Verdict::Closed, "{name}, {mode:?}");
        }
    }
    let context = scene.bench.device().node().context_bytes;
    // The one that the program got past the hooks, and what it had another interface make.
    assert_eq!(scene.bench.card().high_water(), context + 2 * LIMIT);
}

#[test]
fn usage_that_cannot_be_used_is_as_the_limits_say() {
    let Some(scene) = scene() else { return };
    type Spoil<'a> = &'a dyn Fn(PathBuf);
    let spoils: [(&str, Spoil<'_>); 9] = [
        ("missing", &|file| std::fs::remove_file(file).unwrap()),
        ("empty", &|file| cut(file, 0)),
        ("short by a byte", &|file| cut(file, u64::try_from(usage::BYTES).unwrap() - 1)),
        ("magic", &|file| overwrite(file, header::MAGIC, &[0; 8])),
        ("kind", &|file| overwrite(file, header::KIND, &1_u32.to_le_bytes())),
        ("for later readers", &|file| overwrite(file, header::MIN_READER, &9_u32.to_le_bytes())),
        ("a directory", &|file| replace(&file, |file| std::fs::create_dir(file).unwrap())),
        ("a pipe", &|file| replace(&file, pipe)),
        ("a loop", &|file| replace(&file, endless)),
    ];
    for (name, spoil) in spoils {
        for (mode, expected) in [(FailMode::Closed, Verdict::Closed), (FailMode::Open, Verdict::Open)] {
            let verdict = scene.spoilt(mode, |dir| spoil(dir.join("usage")));
            assert_eq!(verdict, expected, "{name}, {mode:?}");
        }
    }
}

#[test]
fn a_card_that_no_grant_names_is_closed_unless_all_say_open() {
    let Some(scene) = scene() else { return };
    let other = "GPU-00000000-0000-0000-0000-000000000000";
    let open = Limits { fail_mode: FailMode::Open, ..memory_limit(other, LIMIT) };
    for (first, second, expected) in [
        (memory_limit(other, LIMIT), memory_limit(other, LIMIT), Verdict::Closed),
        (open, memory_limit(other, LIMIT), Verdict::Closed),
        (open, open, Verdict::Open),
        (unlimited(other), unlimited(other), Verdict::Open),
        (memory_limit("no UUID at all", LIMIT), open, Verdict::Closed),
        (memory_limit(other, LIMIT), memory_limit(&scene.card, LIMIT), Verdict::Held),
    ] {
        let tenant = Tenant::new();
        let _files = (tenant.grant("first", &first), tenant.grant("second", &second));
        let verdict = scene.run(&tenant);
        assert_eq!(verdict, expected, "{} {}", first.card.as_str(), second.card.as_str());
    }
}

/// Half of a card's time, and all of its memory.
fn half_of(card: &str) -> Limits {
    Limits { policy: ComputePolicy::Cap, share_ppm: 500_000, granted_ppm: 500_000, ..unlimited(card) }
}

/// Where compute is limited and cannot be metered, launches are refused; where it is not limited they are none of its business.
#[test]
fn unmeterable_call_is_refused_if_the_grant_is_denied() {
    let Some(scene) = scene() else { return };
    let half = half_of(&scene.card);
    let both = Limits { memory: memory_limit(&scene.card, LIMIT).memory, ..half };
    let elsewhere = Limits { card: memory_limit("GPU-00000000-0000-0000-0000-000000000000", 0).card, ..half };
    let open = |limits| Limits { fail_mode: FailMode::Open, ..limits };
    type Spoil<'a> = &'a dyn Fn(&Path);
    let (whole, cut_usage): (Spoil<'_>, Spoil<'_>) = (&|_| {}, &|dir| cut(dir.join("usage"), 0));
    let torn_limits: Spoil<'_> = &|dir| cut(dir.join("limits"), 100);
    for (name, limits, spoil, expected) in [
        ("whole", half, whole, "0 0 0 0"),
        ("usage", half, cut_usage, "800 800 800 800"),
        ("usage, and memory is limited", both, cut_usage, "- 800 800 800"),
        ("usage, open", open(half), cut_usage, "0 0 0 0"),
        ("limits", open(half), torn_limits, "- 800 800 800"),
        ("another card's", elsewhere, whole, "800 800 800 800"),
        ("another card's, open", open(elsewhere), whole, "0 0 0 0"),
        // No memory is to be had, so the driver refuses the fill and the copy.
        ("usage, memory alone", memory_limit(&scene.card, LIMIT), cut_usage, "- 0 1 1"),
    ] {
        let (tenant, files) = Tenant::with(&limits);
        spoil(files.dir());
        let mut command = tenant.command(&scene.bench, &scene.verdict);
        assert_eq!(said(&command.arg("launches").output().unwrap()).trim_end(), expected, "{name}");
    }
}

/// Pools take the places of meters; what cards have besides is counted all the same.
#[test]
fn more_pools_than_are_counted_leave_no_other_family_uncounted() {
    let Some(scene) = scene() else { return };
    let (tenant, _files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
    let mut command = tenant.command(&scene.bench, &scene.verdict);
    let told = said(&command.args([&(2 * LIMIT).to_string(), "crowded"]).output().unwrap());
    for family in ["graph-node", "any-node", "edged-node", "described-node", "captured", "physical"] {
        assert!(told.lines().any(|line| line == format!("{family} 0 2")), "{family}: {told}");
    }
    assert!(told.contains("primary-context 0 -"), "{told}");
}

/// A process without address space for what metering takes is refused its launches; it does not get the card.
#[test]
fn process_without_address_space_has_no_unmetered_launch() {
    let Some(scene) = scene() else { return };
    let half = half_of(&scene.card);
    let memory = memory_limit(&scene.card, LIMIT);
    for (name, limits, expected) in [
        ("closed", half, "800 800 800 800"),
        ("open", Limits { fail_mode: FailMode::Open, ..half }, "0 0 0 0"),
        ("compute is not limited", memory, "0 0 0 0"),
    ] {
        let (tenant, _files) = Tenant::with(&limits);
        let mut command = tenant.command(&scene.bench, &scene.verdict);
        assert_eq!(said(&command.arg("launches-short").output().unwrap()).trim_end(), expected, "{name}");
    }
}

#[test]
fn compute_only_grant_ignores_memory_and_denies_other_cards() {
    let Some(scene) = scene() else { return };
    let half = |card: &str| Limits {
        policy: ComputePolicy::Cap,
        share_ppm: 500_000,
        granted_ppm: 500_000,
        own_ppm: 500_000,
        ..unlimited(card)
    };
    let (tenant, files) = Tenant::with(&half(&scene.card));
    assert_eq!(scene.run(&tenant), Verdict::Open);
    cut(files.dir().join("usage"), 0);
    assert_eq!(scene.run(&tenant), Verdict::Open);
    // Without a context there is nothing else to be had.
    let (tenant, _files) = Tenant::with(&half("GPU-00000000-0000-0000-0000-000000000000"));
    let answers = scene.answers(&mut tenant.command(&scene.bench, &scene.verdict));
    let contexts = ["primary-context", "context-1", "context-2", "context-3", "context-4"];
    for name in
        contexts.into_iter().chain(["physical", "graph-node", "any-node", "edged-node", "described-node"])
    {
        assert_eq!(answers[name].0, "2", "{name}");
    }
}

#[test]
fn a_call_that_names_no_card_has_the_drivers_own_error() {
    let Some(scene) = scene() else { return };
    let errors = |mut command: Command| said(&command.arg("errors").output().unwrap());
    let bare = errors(scene.bench.command(&scene.verdict));
    assert_eq!(bare.lines().filter(|line| line.ends_with(" untouched")).count(), 3, "{bare}");
    let (held, _files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
    assert_eq!(errors(held.command(&scene.bench, &scene.verdict)), bare);
    let closed = Tenant::new();
    assert_eq!(errors(closed.command(&scene.bench, &scene.verdict)), bare);
}
