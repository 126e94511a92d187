//! The built library: small, tied to nothing but an old C library, silent at start, and exporting what the hook table says.
//!
//! For the other processor the library that `shim/aarch64/build` made is looked at, where `ALIQUOT_SHIM_AARCH64` names it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at what it did not expect")]

use aliquot_tests::preload::shim;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most bytes of the library, for x86-64.
const BYTES_MAX: u64 = 1 << 20;
/// The same for aarch64: its instructions are longer as a rule, and its segments begin at 64 KiB.
const BYTES_MAX_AARCH64: u64 = BYTES_MAX + (128 << 10);
/// Oldest C library that it must load with.
const GLIBC: (u32, u32) = (2, 17);

/// What `readelf` and `nm` say about a library.
struct Library {
    path: PathBuf,
    dynamic: String,
    symbols: String,
    segments: String,
    names: String,
}

fn told(program: &str, arguments: &[&str], path: &Path) -> String {
    let output = Command::new(program).args(arguments).arg(path).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{program} {}: {output:?}", path.display());
    String::from_utf8(output.stdout).unwrap()
}

impl Library {
    fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            dynamic: told("readelf", &["--dynamic", "--wide"], path),
            symbols: told("readelf", &["--dyn-syms", "--wide"], path),
            segments: told("readelf", &["--program-headers", "--wide"], path),
            names: told("nm", &["--demangle"], path),
        }
    }

    /// Section and name of each dynamic symbol; the name with its version, where it has one.
    fn dynamic_symbols(&self) -> Vec<(&str, &str)> {
        let rows = self.symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.len() >= 8 && row[0].ends_with(':') && row[0] != "Num:")
            .map(|row| (row[6], row[7]))
            .collect()
    }

    fn exports(&self) -> BTreeSet<&str> {
        self.dynamic_symbols()
            .into_iter()
            .filter(|(section, _)| *section != "UND")
            .map(|(_, name)| name)
            .collect()
    }

    fn imports(&self) -> BTreeSet<&str> {
        self.dynamic_symbols()
            .into_iter()
            .filter(|(section, _)| *section == "UND")
            .map(|(_, name)| name)
            .collect()
    }

    /// Everything that is promised of the library, whichever processor it is for.
    fn check(&self, bytes_max: u64) {
        let bytes = std::fs::metadata(&self.path).unwrap().len();
        println!("{}: {bytes} bytes, imports {:?}", self.path.display(), self.imports());
        assert!(bytes < bytes_max, "{bytes} bytes");

        let needed: Vec<&str> = self.dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
        assert!(needed.len() == 1 && needed[0].contains("[libc.so.6]"), "{needed:?}");
        for import in self.imports() {
            let (name, version) = import.split_once("@GLIBC_").expect("every import has a version");
            let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap());
            let version = (numbers.next().unwrap(), numbers.next().unwrap());
            assert!(version <= GLIBC, "{name} needs a C library of version {version:?}");
        }

        let hooks = aliquot_shim::symbols::all().map(|hook| hook.export.to_str().unwrap());
        let table: BTreeSet<&str> = hooks.chain(["dlsym", "dlvsym"]).collect();
        assert_eq!(self.exports(), table, "exports and hook table");

        for at_start in ["INIT", "FINI", "TEXTREL"] {
            let found: Vec<&str> = self.dynamic.lines().filter(|line| line.contains(at_start)).collect();
            assert!(found.is_empty(), "code runs when the library is loaded or unloaded: {found:?}");
        }
        assert!(self.dynamic.contains("BIND_NOW"), "a symbol that is not there must show at once");
        let segment = |name: &str| self.segments.lines().find(|line| line.trim_start().starts_with(name));
        assert_eq!(segment("TLS"), None, "each thread would pay");
        let stack = segment("GNU_STACK").expect("a stack that is not executable");
        assert!(stack.contains(" RW ") && !stack.contains("RWE"), "{stack}");
        assert!(segment("GNU_RELRO").is_some());

        let ways_out: Vec<&str> =
            self.names.lines().filter(|line| line.contains("panicking") || line.contains(" abort")).collect();
        assert!(ways_out.is_empty(), "it can panic: {ways_out:#?}");
    }
}

#[test]
fn library_is_small_needs_only_old_libc_and_has_no_constructor() {
    Library::at(shim()).check(BYTES_MAX);
}

#[test]
fn the_library_for_the_other_processor_keeps_the_same_promises() {
    match std::env::var_os("ALIQUOT_SHIM_AARCH64") {
        Some(path) => Library::at(Path::new(&path)).check(BYTES_MAX_AARCH64),
        None => println!("stood aside: ALIQUOT_SHIM_AARCH64 does not name what shim/aarch64/build made"),
    }
}
