//! Driver libraries that answer at once and do nothing, and `tests/programs/hook_cost.c` over them: what a call through the shim
//! takes more than the same call without is the shim's own.

use crate::preload::{Tenant, shim};
use crate::simulated::{StoodAside, root, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The card of these libraries.
pub const CARD: &str = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";

/// Libraries and program, compiled.
#[derive(Debug)]
pub struct Bare {
    place: TempDir,
}

impl Bare {
    /// Compiles them.
    ///
    /// # Errors
    ///
    /// [`StoodAside`] where there is no C compiler.
    ///
    /// # Panics
    ///
    /// When they do not compile.
    pub fn new() -> Result<Self, StoodAside> {
        run(Command::new("cc").arg("--version"))?;
        let place = TempDir::new().map_err(|error| StoodAside(error.to_string()))?;
        let programs = root().join("tests/programs");
        let cc = |name: &str, to: &str, arguments: &[&str]| {
            let mut command = Command::new("cc");
            command.args(["-O2", "-Wall", "-Werror"]).arg(programs.join(name)).args(arguments);
            let compiled = run(command.arg("-o").arg(place.path().join(to)));
            assert!(compiled.is_ok(), "{name}: {compiled:?}");
        };
        for (name, library) in [("bare_driver.c", "libcuda.so.1"), ("bare_nvml.c", "libnvidia-ml.so.1")] {
            cc(name, library, &["-shared", "-fPIC", &format!("-Wl,-soname,{library}")]);
        }
        let directory = format!("-L{}", place.path().display());
        cc("hook_cost.c", "hook_cost", &[&directory, "-l:libcuda.so.1", "-ldl"]);
        Ok(Self { place })
    }

    fn library(&self) -> &Path {
        self.place.path()
    }

    fn program(&self) -> PathBuf {
        self.place.path().join("hook_cost")
    }

    /// The program without the shim.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.program());
        command.env("LD_LIBRARY_PATH", self.library());
        command
    }

    /// The same with it, and with these grants.
    #[must_use]
    pub fn command_of(&self, tenant: &Tenant) -> Command {
        let mut command = self.command();
        command.env("LD_PRELOAD", shim()).env("ALIQUOT_GRANTS", tenant.grants());
        command
    }
}

/// The number that the program printed.
///
/// # Errors
///
/// [`StoodAside`] with what it said instead.
pub fn number(command: &mut Command) -> Result<f64, StoodAside> {
    let said = run(command)?;
    said.trim().parse().map_err(|_| StoodAside(format!("no number: {said}")))
}
