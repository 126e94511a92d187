//! Simulated cards for a test: the libraries built and installed, a directory of cards, and programs run on them.
//!
//! ```text
//!  Bench::new ─▶ the libraries as they ship ─────▶ lib/{libcuda.so.1, libnvidia-ml.so.1} ─┐
//!             └▶ an empty directory of cards ────────────────────────────────────────────┴─▶ command(program)
//! ```

#![expect(clippy::panic, clippy::unwrap_used, reason = "a bench that cannot be set up is a failed test")]

use aliquot_sim_device::{Card, Device};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// Names under which programs look for the simulated driver libraries.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// Why something cannot be done on this machine, for a reason that is no fault: the test says so and ends.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoodAside(pub String);

/// Cards of one test, and the libraries that show them.
#[derive(Debug)]
pub struct Bench {
    /// Holds everything; removed in the end.
    place: TempDir,
    /// What its programs are compiled with.
    compiler: PathBuf,
}

/// The workspace.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Where cargo puts what it builds: beside the running test.
#[must_use]
pub fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}

/// A directory that is kept between test runs, for what is dear to make.
#[must_use]
pub fn kept(name: &str) -> PathBuf {
    built().join("simulated").join(name)
}

/// What `make` makes at the path that it is given, a file or a directory; made once for all test runs with the same `facts`.
///
/// # Panics
///
/// When it cannot be put in its place.
pub fn kept_once(name: &str, facts: &impl Hash, make: impl FnOnce(&Path)) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    facts.hash(&mut hasher);
    let made = kept("programs").join(format!("{name}-{:016x}", hasher.finish()));
    if !made.exists() {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let fresh = made.with_extension(format!("{}-{number}", std::process::id()));
        std::fs::create_dir_all(kept("programs")).unwrap();
        make(&fresh);
        // Another process or thread may have been faster.
        let placed = std::fs::rename(&fresh, &made);
        assert!(placed.is_ok() || made.exists(), "{placed:?}");
    }
    made
}

/// The headers of `tests/programs`, word for word.
fn headers() -> &'static [String] {
    static TEXTS: OnceLock<Vec<String>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let files = std::fs::read_dir(root().join("tests/programs")).unwrap();
        let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
        paths.sort();
        paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
    })
}

/// Runs a command to its end.
///
/// # Errors
///
/// [`StoodAside`] where it cannot be started or fails; what it said is in the text.
pub fn run(command: &mut Command) -> Result<String, StoodAside> {
    let program = format!("{command:?}");
    let output = command.output().map_err(|error| StoodAside(format!("{program}: {error}")))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(StoodAside(format!("{program}: {}\n{said}{complaint}", output.status)))
}

/// What `tests/glibc/build` printed.
///
/// # Errors
///
/// [`StoodAside`] where it did not run.
fn old_c_library() -> Result<PathBuf, StoodAside> {
    let place = std::env::var_os("ALIQUOT_OLD_GLIBC").map(PathBuf::from);
    place.ok_or_else(|| StoodAside("ALIQUOT_OLD_GLIBC does not name what tests/glibc/build made".to_owned()))
}

/// Compiles for the C library that `tests/glibc/build` unpacked, where there is one.
#[must_use]
pub fn old_compiler() -> PathBuf {
    root().join("tests/glibc/cc")
}

/// The simulated driver libraries as they ship, installed once for a test run.
fn installed() -> &'static Result<PathBuf, String> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        aliquot_libraries::install_simulated(&kept("libraries")).map_err(|error| error.to_string())
    })
}

impl Bench {
    /// New cards of the default kind, and the libraries without `missing` symbols.
    ///
    /// # Panics
    ///
    /// When the libraries do not build or cannot be installed.
    #[must_use]
    pub fn without(missing: &[&str]) -> Self {
        let libraries = installed().as_deref().unwrap_or_else(|error| panic!("simulated libraries: {error}"));
        Self::of("cc".into(), missing, |soname| libraries.join(soname))
    }

    /// New cards of the default kind, with libraries and programs on the C library that `tests/glibc/build` unpacked.
    ///
    /// # Errors
    ///
    /// [`StoodAside`] where there is none.
    pub fn on_an_old_c_library() -> Result<Self, StoodAside> {
        let place = old_c_library()?.join("out");
        Ok(Self::of(old_compiler(), &[], |soname| place.join(soname)))
    }

    fn of(compiler: PathBuf, missing: &[&str], library: impl Fn(&str) -> PathBuf) -> Self {
        let place = TempDir::new().unwrap_or_else(|error| panic!("a directory: {error}"));
        for soname in LIBRARIES {
            let target = place.path().join("lib");
            aliquot_sim_device::install(&library(soname), &target, soname, missing)
                .unwrap_or_else(|error| panic!("{soname}: {error}"));
        }
        Self { place, compiler }
    }

    /// New cards of the default kind.
    ///
    /// # Panics
    ///
    /// When the libraries do not build or cannot be installed.
    #[must_use]
    pub fn new() -> Self {
        Self::without(&[])
    }

    /// The directory with the libraries.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.place.path().join("lib")
    }

    /// The directory of the cards; `node.toml` and `faults.toml` may be put there before the first program runs.
    #[must_use]
    pub fn cards(&self) -> PathBuf {
        self.place.path().join("cards")
    }

    /// Puts a file beside the cards.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        let written = std::fs::create_dir_all(self.cards())
            .and_then(|()| std::fs::write(self.cards().join(name), text));
        assert!(written.is_ok(), "{name}: {written:?}");
    }

    /// The driver's side.
    ///
    /// # Panics
    ///
    /// When the cards cannot be opened.
    #[must_use]
    pub fn device(&self) -> Device {
        aliquot_sim_device::open(&self.cards()).unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// The driver's side of card 0.
    ///
    /// # Panics
    ///
    /// When the cards cannot be opened.
    #[must_use]
    pub fn card(&self) -> Card {
        self.device().card(0).cloned().unwrap_or_else(|| panic!("no card 0"))
    }

    /// Streams, events and contexts that programs used after their end, one a line, since the last call.
    /// Lines that are left when the bench ends fail its test.
    #[must_use]
    pub fn misuses(&self) -> Vec<String> {
        aliquot_sim_device::take_misuses(&self.cards())
    }

    /// A command that sees these cards and no others.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.libraries())
            .env(aliquot_sim_device::DIR_ENV, self.cards())
            .env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// Compiles `tests/programs/<name>.c`, linked to the driver where `link` says so.
    ///
    /// # Errors
    ///
    /// [`StoodAside`] where there is no C compiler.
    ///
    /// # Panics
    ///
    /// When the program does not compile.
    pub fn compile(&self, name: &str, link: Link) -> Result<PathBuf, StoodAside> {
        let libraries = format!("-L{}", self.libraries().display());
        match link {
            Link::Direct => self.compile_as(name, name, &[&libraries, "-l:libcuda.so.1", "-ldl"]),
            Link::Opened => self.compile_as(name, name, &["-ldl"]),
        }
    }

    /// Compiles `tests/programs/<source>.c` into a file called `output`, with more arguments for the compiler.
    ///
    /// # Errors
    ///
    /// [`StoodAside`] where there is no C compiler.
    ///
    /// # Panics
    ///
    /// When the program does not compile.
    pub fn compile_as(&self, source: &str, output: &str, arguments: &[&str]) -> Result<PathBuf, StoodAside> {
        let version = run(Command::new(&self.compiler).arg("--version"))?;
        let path = root().join("tests/programs").join(source).with_extension("c");
        // Where the libraries lie says nothing of the program.
        let own: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with("-L")).collect();
        let facts = (&self.compiler, version, own, std::fs::read_to_string(&path).unwrap(), headers());
        let made = kept_once(source, &facts, |program| {
            let mut cc = Command::new(&self.compiler);
            cc.args(["-Wall", "-Werror", "-O1", "-o"]).arg(program).arg(&path).args(arguments);
            let compiled = run(&mut cc);
            assert!(compiled.is_ok(), "{compiled:?}");
        });
        let program = self.place.path().join(output);
        // By another process: a file that this one has open for writing could not be run by a fork of another thread.
        run(Command::new("cp").arg(made).arg(&program))?;
        Ok(program)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let misuses = self.misuses();
        assert!(std::thread::panicking() || misuses.is_empty(), "{misuses:#?}");
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

/// How a program comes by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It is linked to it.
    Direct,
    /// It opens it.
    Opened,
}

/// What a program said, when it ended well.
///
/// # Panics
///
/// When it did not.
#[must_use]
pub fn said(output: &Output) -> String {
    let (text, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{text}{complaint}", output.status);
    text.into_owned()
}

/// Longest time in which packages are fetched, in seconds.
const PIP_SECONDS_MAX: &str = "900";

/// A Python with these packages, kept between runs.
///
/// # Errors
///
/// [`StoodAside`] where there is no Python, or the packages cannot be had.
pub fn python(name: &str, packages: &[&str], alone: &[&str]) -> Result<PathBuf, StoodAside> {
    let place = kept(name);
    let (python, marker) = (place.join("bin/python"), place.join("complete"));
    let fault = |error: std::io::Error| StoodAside(format!("{}: {error}", place.display()));
    std::fs::create_dir_all(built().join("simulated")).map_err(fault)?;
    // Tests that run side by side want the same one: the first makes it, the others wait.
    let lock = std::fs::File::create(place.with_extension("lock")).map_err(fault)?;
    lock.lock().map_err(fault)?;
    if marker.exists() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))?;
    let install = |packages: &[&str], with: &[&str]| {
        let mut pip = Command::new("timeout");
        pip.arg(PIP_SECONDS_MAX).arg(&python).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--retries",
            "1",
        ]);
        run(pip.args(["--timeout", "20"]).args(with).args(packages))
    };
    install(packages, &[])?;
    if !alone.is_empty() {
        install(alone, &["--no-deps"])?;
    }
    std::fs::write(&marker, "").map_err(|error| StoodAside(error.to_string()))?;
    Ok(python)
}

/// A Python with nvidia-ml-py and cuda-python: about 10 MB from PyPI, once.
///
/// # Errors
///
/// As [`python`].
pub fn small_python() -> Result<PathBuf, StoodAside> {
    python("clients", &["nvidia-ml-py==13.615.71", "cuda-bindings==13.5.0"], &[])
}

/// A Python with gpustat and nvitop: about 5 MB from PyPI, once.
///
/// # Errors
///
/// As [`python`].
pub fn monitor_python() -> Result<PathBuf, StoodAside> {
    let packages =
        ["gpustat==1.1.1", "nvitop==1.7.2", "nvidia-ml-py==13.615.71", "psutil==7.2.2", "blessed==1.52.0"];
    python("monitors", &packages, &[])
}

/// A Python with numba-cuda: about 260 MB from PyPI, once; the compiler that it drives is most of it.
///
/// # Errors
///
/// As [`python`].
pub fn numba_python() -> Result<PathBuf, StoodAside> {
    let compiler = [
        "nvidia-cuda-nvrtc==13.5.37",
        "nvidia-nvjitlink==13.5.37",
        "nvidia-nvvm==13.5.37",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-cccl==13.3.5.0.6",
    ];
    python("numba", &["numba-cuda==0.30.4", "cuda-bindings==13.5.0"], &compiler)
}
