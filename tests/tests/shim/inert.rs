//! Preloaded into programs that use no card, the shim leaves nothing behind: same answers, same process, little memory.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at what it did not expect")]

use aliquot_tests::preload::{Tenant, memory_limit, shim};
use aliquot_tests::simulated::{StoodAside, old_compiler, root, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Most memory that the shim may add to a process that uses no card.
const RSS_MAX_KIB: u64 = 1024;
/// The minor version of glibc since which the loader's and the threads' functions are in `libc.so.6`.
const ONE_LIBRARY: u32 = 34;

/// How a process comes by the shim, and what it finds there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// Not at all: the control.
    Bare,
    /// Preloaded on a machine that knows nothing of grants.
    NoGrants,
    /// With a grant that limits memory.
    Granted,
    /// With grants that cannot be read.
    Broken,
}

const PRELOADED: [Setting; 3] = [Setting::NoGrants, Setting::Granted, Setting::Broken];

/// The grants of each setting.
struct Place {
    tenant: Tenant,
    broken: TempDir,
}

impl Place {
    fn new() -> Self {
        let (tenant, _) = Tenant::with(&memory_limit("GPU-a11c0de0-51a0-4c4d-8000-000000000000", 1 << 30));
        let broken = TempDir::new().unwrap();
        std::fs::create_dir_all(broken.path().join("claim/share")).unwrap();
        std::fs::write(broken.path().join("claim/share/limits"), "torn").unwrap();
        Self { tenant, broken }
    }

    /// What the program did in this setting. The environment is the same but for what the setting is.
    fn run(&self, setting: Setting, library: &Path, program: &[&str]) -> Output {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).env_clear().env("PATH", "/usr/bin:/bin").env("ONE", "thing");
        let grants = match setting {
            Setting::Bare | Setting::NoGrants => None,
            Setting::Granted => Some(self.tenant.grants()),
            Setting::Broken => Some(self.broken.path()),
        };
        if let Some(grants) = grants {
            command.env("ALIQUOT_GRANTS", grants);
        }
        if setting != Setting::Bare {
            command.env("LD_PRELOAD", library);
        }
        command.output().unwrap()
    }

    /// The program does and says the same with and without the shim.
    fn same(&self, library: &Path, program: &[&str]) {
        let bare = self.run(Setting::Bare, library, program);
        for setting in PRELOADED {
            let with = self.run(setting, library, program);
            assert_eq!(with.status, bare.status, "{program:?}, {setting:?}: {with:?}");
            assert_eq!(text(&with.stdout), text(&bare.stdout), "{program:?}, {setting:?}");
            assert_eq!(text(&with.stderr), text(&bare.stderr), "{program:?}, {setting:?}");
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn program(name: &str) -> Option<PathBuf> {
    let found =
        std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|p| p.is_file());
    if found.is_none() {
        println!("stood aside: there is no {name} here");
    }
    found
}

/// Compiles the program that says what it finds in its own process.
fn probe(compiler: impl AsRef<OsStr>, into: &TempDir) -> Result<PathBuf, StoodAside> {
    let path = into.path().join("shim_inert");
    let source = root().join("tests/programs/shim_inert.c");
    run(Command::new(compiler).args(["-Wall", "-O1", "-o"]).arg(&path).arg(source))?;
    Ok(path)
}

#[test]
fn programs_without_a_card_do_the_same_with_the_shim() {
    let place = Place::new();
    let tree = root().join("core").display().to_string();
    for program in [
        &["ls", "-l", &tree][..],
        &["ls", "/does/not/exist"],
        &["env", "-u", "LD_PRELOAD", "-u", "ALIQUOT_GRANTS", "env"],
        &["sh", "-c", "exec sh -c 'kill -TERM $$'"],
        &["sh", "-c", "echo one | cat; (exit 3)"],
    ] {
        place.same(shim(), program);
    }
}

#[test]
fn a_static_program_does_not_notice() {
    let Some(busybox) = program("busybox") else { return };
    let tree = root().join("core").display().to_string();
    Place::new().same(shim(), &[busybox.to_str().unwrap(), "ls", "-l", &tree]);
}

/// What is left in a process, by the process itself; memory apart.
fn traces(output: &Output) -> (String, u64) {
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let text = text(&output.stdout);
    let (traces, memory) = text.rsplit_once("VmRSS:").expect("the last line is memory");
    let without: Vec<&str> = traces.lines().filter(|line| !line.starts_with("ALIQUOT_GRANTS=")).collect();
    (without.join("\n"), memory.split_whitespace().next().unwrap().parse().unwrap())
}

/// Threads, descriptors, signal handlers and masks, environment and errno as without; at most one MiB more. What the program
/// said without the shim.
fn leaves_nothing(compiler: impl AsRef<OsStr>) -> Option<String> {
    let compiler = compiler.as_ref();
    let (into, place) = (TempDir::new().unwrap(), Place::new());
    let probe = match probe(compiler, &into) {
        Ok(probe) => probe,
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            return None;
        }
    };
    let probe = [probe.to_str().unwrap()];
    let least = |setting| {
        let runs = (0..5).map(|_| traces(&place.run(setting, shim(), &probe)));
        runs.min_by_key(|(_, memory)| *memory).unwrap()
    };
    let (bare, memory) = least(Setting::Bare);
    assert!(bare.contains("threads 1\n") && bare.contains("ONE=thing"), "{bare}");
    for setting in PRELOADED {
        let (with, more) = least(setting);
        assert_eq!(with, bare, "{}, {setting:?}", compiler.display());
        println!("{}, {setting:?}: {} KiB more", compiler.display(), more.saturating_sub(memory));
        assert!(
            more <= memory + RSS_MAX_KIB,
            "{}, {setting:?}: {memory} KiB became {more}",
            compiler.display()
        );
    }
    Some(bare)
}

#[test]
fn a_process_without_a_card_keeps_no_trace_of_the_shim() {
    leaves_nothing("cc");
}

#[test]
fn a_process_of_another_c_library_keeps_no_trace_of_the_shim() {
    leaves_nothing("musl-gcc");
}

#[test]
fn a_process_of_an_old_c_library_keeps_no_trace_of_the_shim() {
    if std::env::var_os("ALIQUOT_OLD_GLIBC").is_none() {
        return println!("stood aside: ALIQUOT_OLD_GLIBC does not name what tests/glibc/build made");
    }
    let bare = leaves_nothing(old_compiler()).unwrap();
    let minor = bare.lines().find_map(|line| line.strip_prefix("glibc 2.")?.parse::<u32>().ok());
    assert!(minor.is_some_and(|minor| minor < ONE_LIBRARY), "{bare}");
    println!("glibc 2.{}", minor.unwrap());
}

/// The probe detects what it checks for: a library that leaves a descriptor and a handler is seen.
#[test]
fn the_probe_sees_what_a_worse_library_leaves() {
    let (into, place) = (TempDir::new().unwrap(), Place::new());
    let probe = match probe("cc", &into) {
        Ok(probe) => probe,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let (source, library) = (into.path().join("worse.c"), into.path().join("worse.so"));
    let code = "#include <fcntl.h>\n#include <signal.h>\n#include <stdlib.h>\nstatic void h(int n) { (void)n; }\n\
        __attribute__((constructor)) static void c(void) { open(\"/\", O_RDONLY); signal(SIGUSR1, h); setenv(\"A\", \"b\", 1); }\n";
    std::fs::write(&source, code).unwrap();
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source)).unwrap();
    let probe = [probe.to_str().unwrap()];
    let (bare, _) = traces(&place.run(Setting::Bare, &library, &probe));
    let (with, _) = traces(&place.run(Setting::NoGrants, &library, &probe));
    let new: Vec<&str> = with.lines().filter(|line| !bare.contains(line)).collect();
    assert!(new.contains(&"A=b") && new.contains(&"signal 10 handled"), "{new:?}");
    assert!(new.iter().any(|line| line.starts_with("descriptors ")), "{new:?}");
}

/// What a program for the other processor did under emulation; `None` where there is no way to run one.
fn emulated(environment: &[(&str, &Path)], program: &Path, arguments: &[&Path]) -> Option<Output> {
    let Some(system) = std::env::var_os("ALIQUOT_AARCH64_ROOT") else {
        println!("stood aside: there is no system for the other processor");
        return None;
    };
    let mut command = Command::new(self::program("qemu-aarch64-static")?);
    command.arg("-L").arg(&system);
    for (name, value) in environment {
        command.arg("-E").arg(format!("{name}={}", value.display()));
    }
    let program = if program.is_relative() { Path::new(&system).join(program) } else { program.to_owned() };
    Some(command.arg(program).args(arguments).output().unwrap())
}

/// The library for it, beside which lie a tenant and a driver.
fn other_library() -> Option<PathBuf> {
    let library = std::env::var_os("ALIQUOT_SHIM_AARCH64").map(PathBuf::from);
    if library.is_none() {
        println!("stood aside: there is no library for the other processor");
    }
    library
}

/// On the other processor, under emulation: the library for it loads into a program and changes nothing.
#[test]
fn a_program_for_the_other_processor_does_not_notice() {
    let Some(library) = other_library() else { return };
    let core = root().join("core");
    let run = |preload: &[(&str, &Path)]| emulated(preload, Path::new("bin/ls"), &[Path::new("-l"), &core]);
    let (Some(bare), Some(with)) = (run(&[]), run(&[("LD_PRELOAD", &library)])) else { return };
    assert!(bare.status.success() && !bare.stdout.is_empty(), "{bare:?}");
    assert_eq!(
        (with.status, text(&with.stdout)),
        (bare.status, text(&bare.stdout)),
        "{}",
        text(&with.stderr)
    );
    assert_eq!(text(&with.stderr), "");
    let absent = run(&[("LD_PRELOAD", Path::new("/no/such/library.so"))]).unwrap();
    assert!(text(&absent.stderr).contains("cannot be preloaded"), "the library is really loaded: {absent:?}");
}

/// On the other processor, under emulation: look-ups lead where they led, and a grant that cannot be read refuses, with the
/// vendor's error and the pointer untouched.
#[test]
fn a_tenant_on_the_other_processor_is_held_and_its_lookups_work() {
    let Some(library) = other_library() else { return };
    let place = library.parent().unwrap();
    let said = |more: &[(&str, &Path)]| {
        let environment = [&[("LD_LIBRARY_PATH", place)], more].concat();
        emulated(&environment, &place.join("tenant"), &[]).map(|output| text(&output.stdout))
    };
    let Some(bare) = said(&[]) else { return };
    assert_eq!(bare, "0 20823 1 1 1\n");
    assert_eq!(said(&[("LD_PRELOAD", &library)]), Some(bare));
    let closed = said(&[("LD_PRELOAD", &library), ("ALIQUOT_GRANTS", Path::new("/no/grants"))]);
    assert_eq!(closed.as_deref(), Some("2 7 1 1 1\n"));
}
