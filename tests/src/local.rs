//! Local runs in a test: the built `aliquot`, a state directory, and a view of its accounting.

#![expect(clippy::unwrap_used, reason = "a test world that cannot be made fails the test that wants it")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use aliquot_backend_sim::{Personality, SimNode};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::offer::LayoutPolicy;
use aliquot_core::offer::server::ServerVersion;
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, NodeParts};
use aliquot_driver::selinux::Selinux;
use aliquot_sim_device::Card;
use tempfile::TempDir;

use crate::simulated::{built, root, run};

/// Longest wait for something that a test waits for.
pub const BOUND: Duration = Duration::from_secs(60);

/// One node's local runs.
#[derive(Debug)]
pub struct Local {
    place: TempDir,
    node: &'static str,
}

/// A run with a tenant of the demo as its command.
#[derive(Debug)]
pub struct Tenant {
    /// The run.
    pub child: Child,
    /// Of the tenant itself.
    pub pid: u32,
}

/// Lets every user use these files, and directories with the files in them: those of a test may be closed to others.
///
/// # Panics
/// They are not this user's.
pub fn opened_to_everybody(paths: &[&Path]) {
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    for path in paths {
        open(path);
        let inside = fs::read_dir(path).into_iter().flatten();
        inside.for_each(|entry| open(&entry.unwrap().path()));
    }
}

/// The program, built once a test run.
///
/// # Panics
/// It does not build.
#[must_use]
pub fn aliquot() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        without_package(&mut cargo);
        // The packages of `tests/run`: of fewer packages, dependencies have other features and are compiled again.
        cargo.current_dir(root()).args(["build", "--quiet", "--bin", "aliquot"]);
        cargo.args(["--workspace", "--exclude", "aliquot_cluster"]);
        cargo.env("CARGO_TARGET_DIR", built().parent().unwrap());
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        run(&mut cargo).unwrap();
        built().join("aliquot")
    })
}

/// Removes what cargo says of the running test's package. Build scripts that read such a variable (ring's does) ran again
/// for a build under a test and again after it, and that compiled everything above them anew beside running tests.
fn without_package(cargo: &mut Command) {
    let of_package = |name: &str| {
        name == "OUT_DIR"
            || ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|start| name.starts_with(start))
    };
    for name in
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| of_package(name))
    {
        cargo.env_remove(name);
    }
}

/// Copies a program that is started next. This process never has the copy open: processes that other threads
/// start meanwhile would inherit the descriptor, and a program that is open for writing cannot be started.
///
/// # Panics
/// It cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--preserve=mode").args([from, to]).status().unwrap();
    assert!(copied.success(), "{} to {}: {copied}", from.display(), to.display());
}

/// Waits for a level.
///
/// # Panics
/// It is not there within [`BOUND`].
pub fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let bound = Instant::now() + BOUND;
    while !there() {
        assert!(Instant::now() < bound, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

// === impl Tenant ===

impl Tenant {
    /// Ends it with its input.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().code().is_some());
    }
}

// === impl Local ===

impl Local {
    /// A built-in node with a state directory of its own.
    #[must_use]
    pub fn new(node: &'static str) -> Self {
        let place = TempDir::new().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { place, node }
    }

    /// A directory for whatever the test needs; goes with the value.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.place.path()
    }

    /// The state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// `aliquot run` on this node and state, with these further arguments.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(aliquot());
        command.args(["run", "--node", self.node, "--state"]).arg(self.state()).args(arguments);
        command.env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// What a run of a shell script said.
    #[must_use]
    pub fn shell(&self, arguments: &[&str], script: &str) -> Output {
        self.run(arguments).args(["--", "sh", "-c", script]).output().unwrap()
    }

    /// A run of a tenant of the demo, once it is at work.
    #[must_use]
    pub fn tenant(&self, grant: &[&str], what: &[&str]) -> Tenant {
        let mut command = self.run(grant);
        command.arg("--").arg(aliquot()).arg("demo-tenant").args(what);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let pid = line.split(' ').nth(1).and_then(|pid| pid.parse().ok());
        assert!(pid.is_some(), "{line}");
        Tenant { child, pid: pid.unwrap() }
    }

    /// The driver's side of the node's first card, once a run made it.
    #[must_use]
    pub fn card(&self) -> Card {
        let device = aliquot_sim_device::open(&self.state().join("cards")).unwrap();
        device.card(0).unwrap().clone()
    }

    /// The node, open for changes; recovery must find nothing that it cannot mend.
    #[must_use]
    pub fn open(&self) -> Node {
        self.open_for(Access::Change)
    }

    /// The node, open as the node agent opens it.
    #[must_use]
    pub fn open_as_agent(&self) -> Node {
        self.open_for(Access::Own(BOUND))
    }

    fn open_for(&self, access: Access) -> Node {
        let file = Personality::named(self.node).unwrap().load().unwrap();
        let catalogue = Arc::new(Catalogue::embedded());
        let backend = SimNode::open(&file, &catalogue, &self.state().join("hardware")).unwrap();
        let parts = NodeParts {
            name: backend.name().clone(),
            backend: Box::new(backend),
            catalogue,
            policy: LayoutPolicy::default(),
            server: ServerVersion::with_default_gates(37, 0),
            offers: None,
            shim: aliquot_libraries::SHIM,
            disk: Disk::default(),
            gauge: None,
            selinux: Selinux::ignored(),
            host: "/".into(),
            on_wait: |_| {},
        };
        let (node, recovery) = Node::open(parts, &Dirs::in_state(self.state()), access).unwrap();
        assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
        node
    }

    /// The number of claims held; hardware, journal, accounting and files must agree.
    #[must_use]
    pub fn claims(&self) -> usize {
        let node = self.open();
        node.invariants().unwrap();
        node.claims().count()
    }

    /// Records of runs.
    #[must_use]
    pub fn records(&self) -> usize {
        fs::read_dir(self.state().join("runs")).map_or(0, Iterator::count)
    }

    /// Waits until a call finds no run and everything released. Until then it may find no place: a card with
    /// the partition of a command in its last moments has none for a share.
    pub fn settle(&self) {
        wait_for("everything given back", || {
            let run = self.run(&["--memory", "1Mi", "--", "true"]).output().unwrap();
            run.status.code() == Some(0) && self.claims() == 0 && self.records() == 0
        });
    }
}
