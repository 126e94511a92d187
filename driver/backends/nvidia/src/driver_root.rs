//! The driver's files on the host: where they are, and where a container gets them.
//!
//! ```text
//!  host root (as this process sees it)   driver root (on the host)       container
//!  /host                              +  /run/nvidia/driver
//!    usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05  ─soname link─▶  <library directory>/libcuda.so.1   read-only
//! ```
//!
//! The links that the driver's installer made on the host name the sonames; [`container`] says where containers get them. Links
//! are followed inside the driver root: it may be a whole file system of its own.

pub mod container;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use aliquot_core::ports::{AccessMount, MountContent};

use container::COMPUTE;

/// Where installers put the driver: the host itself, the GPU operator's driver container, Google's and Flatcar's images, and
/// virtual machines that get the driver from their host.
pub const USUAL_ROOTS: [&str; 5] =
    ["/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/opt/nvidia", "/usr/local/nvidia"];
/// Directories below a driver root that may have its libraries.
const LIBRARIES_IN: [&str; 8] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/nvidia",
    "lib",
];
/// Directories below a driver root that may have its programs.
const PROGRAMS_IN: [&str; 4] = ["usr/bin", "bin", "usr/local/bin", "opt/bin"];
/// The library that names the driver's version.
const MANAGEMENT: &str = "libnvidia-ml";
/// Libraries of compute, management and video: what CUDA programs load. Graphics is not among them.
const FAMILIES: [&str; 19] = [
    "libcuda",
    "libcudadebugger",
    "libnvcuvid",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-compiler",
    "libnvidia-encode",
    "libnvidia-gpucomp",
    MANAGEMENT,
    "libnvidia-nscq",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-opencl",
    "libnvidia-opticalflow",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-sandboxutils",
    "libnvidia-tileiras",
];
/// Programs that people expect beside them.
const PROGRAMS: [&str; 3] = ["nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control"];
/// Most links that one path may follow.
const LINKS_MAX: usize = 40;
/// Bits of a mode that let the group or everybody else write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Where CDI generators put their files.
const CDI_DIRS: [&str; 2] = ["etc/cdi", "run/cdi"];
/// First driver that can limit a container's memory by its cgroup.
const LIMITS_FROM: u32 = 615;
/// Controllers of the kernel's cgroups.
const CONTROLLERS: &str = "sys/fs/cgroup/cgroup.controllers";
/// Tells the vendor's own container hook that the container's cards are given by CDI.
pub(crate) const NO_HOOK: (&str, &str) = ("NVIDIA_VISIBLE_DEVICES", "void");

/// Where the driver's files are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoots {
    /// Where this process sees the host's root: `/` outside of containers.
    pub host: PathBuf,
    /// Root of the driver's files on the host; `None`: one of [`USUAL_ROOTS`].
    pub driver: Option<PathBuf>,
}

/// The driver's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFiles {
    /// Where this process sees the host's root.
    pub(crate) host: PathBuf,
    /// Root of the driver's files on the host.
    pub root: PathBuf,
    /// Version in the names of its libraries.
    pub version: String,
    /// The management library, as this process sees it.
    pub management: PathBuf,
    /// The library of compute programs, as this process sees it; `None`: the driver has none there.
    pub compute: Option<PathBuf>,
    /// What a container mounts.
    pub mounts: Vec<AccessMount>,
}

/// Why there are no files of a driver.
#[derive(Debug, thiserror::Error)]
pub enum DriverRootError {
    /// No root has the management library.
    #[error(
        "driver root {}: found no {MANAGEMENT}.so.1 in its library directories, expected it in one of them{hint}; \
         name the directory under which the driver is installed on the host with --driver-root",
        tried.join(", ")
    )]
    NotFound {
        /// Roots that were looked at.
        tried: Vec<String>,
        /// Where it is instead.
        hint: String,
    },
    /// A file of the driver is missing or unsafe.
    #[error("driver file {}: {why}; install the driver anew", path.display())]
    File {
        /// Path on the host.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The file system refuses.
    #[error("driver root {}: cannot read it; check the mount of the host's root", path.display())]
    Io {
        /// Path on the host.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// One driver root.
struct Root<'p> {
    /// Where this process sees it.
    seen: PathBuf,
    /// Where it is on the host.
    host: &'p Path,
}

// === impl DriverFiles ===

impl DriverFiles {
    /// Finds the driver's files.
    ///
    /// # Errors
    /// [`DriverRootError`]: there is no driver, or it is half installed.
    pub fn find(place: &HostRoots) -> Result<Self, DriverRootError> {
        let usual = USUAL_ROOTS.map(Path::new);
        let tried: Vec<&Path> = place.driver.as_deref().map_or_else(|| usual.to_vec(), |root| vec![root]);
        for root in tried.iter().map(|root| Root::new(place, root)) {
            if let Some(dir) = root.library_dir() {
                return root.files(&dir, &place.host);
            }
        }
        let elsewhere = usual.iter().find(|root| Root::new(place, root).library_dir().is_some());
        let hint = elsewhere.map(|root| format!(" (it is below {})", root.display()));
        let tried = tried.iter().map(|root| root.display().to_string()).collect();
        Err(DriverRootError::NotFound { tried, hint: hint.unwrap_or_default() })
    }

    /// The path of a file on the host that is not there any more, as after an update of the driver's packages.
    pub(crate) fn missing(&self) -> Option<&str> {
        let is_absent = |mount: &&AccessMount| !self.host.join(below(Path::new(&mount.host))).exists();
        self.mounts.iter().find(is_absent).map(|mount| mount.host.as_str())
    }
}

/// What else on the host gives out these cards or limits them, and what Aliquot holds beside it: one line each.
#[must_use]
pub fn others(place: &HostRoots, files: Option<&DriverFiles>) -> Vec<String> {
    let mut lines = Vec::new();
    let specs: Vec<String> = CDI_DIRS.iter().flat_map(|dir| vendor_specs(place, dir)).collect();
    if !specs.is_empty() {
        lines.push(format!(
            "found CDI files of NVIDIA's toolkit ({}): containers that name their devices get cards outside of the ledger; \
             devices of claims come from Aliquot's own files",
            specs.join(", ")
        ));
    }
    let Some(files) = files else { return lines };
    let major = files.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major >= LIMITS_FROM) {
        let kernel = fs::read_to_string(place.host.join(CONTROLLERS)).unwrap_or_default();
        let by = if kernel.split_whitespace().any(|word| word == "dmem") { "dmem" } else { "misc" };
        lines.push(format!(
            "driver {} can limit memory by cgroup ({by}): Aliquot sets no such limit and changes none that is set; the shim \
             holds memory and compute of shares",
            files.version
        ));
    }
    lines
}

/// CDI files of the vendor's own kinds.
fn vendor_specs(place: &HostRoots, dir: &str) -> Vec<String> {
    let entries =
        resolve_within(&place.host, Path::new(dir)).and_then(|dir| fs::read_dir(place.host.join(dir)));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut specs: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("nvidia") || name.contains("nvidia.com"))
        .map(|name| format!("/{dir}/{}", name.escape_debug()))
        .collect();
    specs.sort();
    specs
}

// === impl Root ===

impl<'p> Root<'p> {
    fn new(place: &HostRoots, host: &'p Path) -> Self {
        Self { seen: place.host.join(below(host)), host }
    }

    /// The directory with the management library, relative to the root.
    fn library_dir(&self) -> Option<PathBuf> {
        let has = |dir: &&str| {
            resolve_within(&self.seen, &Path::new(dir).join(format!("{MANAGEMENT}.so.1")))
                .is_ok_and(|found| self.seen.join(found).is_file())
        };
        LIBRARIES_IN.into_iter().find(has).map(PathBuf::from)
    }

    fn files(&self, dir: &Path, host: &Path) -> Result<DriverFiles, DriverRootError> {
        let failed = |source| DriverRootError::Io { path: self.host.join(dir), source };
        let real = resolve_within(&self.seen, dir).map_err(failed)?;
        // By file, the names under which loaders may look for it.
        let mut names: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
        for entry in fs::read_dir(self.seen.join(&real)).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(name) = name.to_str().filter(|name| library(name).is_some()) else { continue };
            // A link without a target is a leftover of another driver.
            if let Ok(file) = resolve_within(&self.seen, &real.join(name)) {
                names.entry(file).or_default().push(name.to_owned());
            }
        }
        let management = format!("{MANAGEMENT}.so.1");
        let (file, _) = names.iter().find(|(_, names)| names.contains(&management)).ok_or_else(|| {
            DriverRootError::File {
                path: self.host.join(&real).join(&management),
                why: "found no file".into(),
            }
        })?;
        let version = version_of(file).ok_or_else(|| DriverRootError::File {
            path: self.host.join(file),
            why: format!("found no version in its name, expected {MANAGEMENT}.so.<version>"),
        })?;
        let management = self.seen.join(file);
        let (mut compute, mut mounts) = (None, Vec::new());
        for (file, names) in &names {
            if version_of(file).is_some_and(|of| of != version) {
                continue;
            }
            self.check(file)?;
            if names.iter().any(|name| name == COMPUTE) {
                compute = Some(self.seen.join(file));
            }
            let on_host = self.host.join(file).display().to_string();
            for soname in sonames(file, names) {
                mounts.extend(container::mounts(&on_host, soname));
            }
        }
        mounts.extend(self.programs());
        mounts.sort();
        let host = host.to_owned();
        Ok(DriverFiles { host, root: self.host.to_owned(), version, management, compute, mounts })
    }

    fn programs(&self) -> Vec<AccessMount> {
        let find = |name: &&str| {
            let found = PROGRAMS_IN.iter().find_map(|dir| {
                let file = resolve_within(&self.seen, &Path::new(dir).join(name)).ok()?;
                self.seen.join(&file).is_file().then_some(file)
            })?;
            self.check(&found).ok()?;
            Some(self.mount(&found, format!("/usr/bin/{name}")))
        };
        PROGRAMS.iter().filter_map(find).collect()
    }

    fn mount(&self, file: &Path, container: String) -> AccessMount {
        let host = self.host.join(file).display().to_string();
        AccessMount { host, container, content: MountContent::ReadOnly }
    }

    /// Refuses a file that other users can change: every tenant runs it.
    fn check(&self, file: &Path) -> Result<(), DriverRootError> {
        let path = self.host.join(file);
        let found = fs::metadata(self.seen.join(file));
        let found = found.map_err(|source| DriverRootError::Io { path: path.clone(), source })?;
        if !found.is_file() {
            return Err(DriverRootError::File {
                path,
                why: "found no regular file, expected one".to_owned(),
            });
        }
        let mode = found.mode() & 0o777;
        if mode & WRITABLE_BY_OTHERS != 0 {
            let why = format!("found mode {mode:03o}, expected no write permission for group and others");
            return Err(DriverRootError::File { path, why });
        }
        Ok(())
    }
}

/// The family and what follows `.so` in the name of a library that containers get.
fn library(name: &str) -> Option<(&str, &str)> {
    let (family, rest) = name.split_once(".so")?;
    let plain = rest.is_empty() || rest.starts_with('.');
    (plain && FAMILIES.contains(&family)).then_some((family, rest))
}

/// The driver's version in the name of one of its files: `580.95.05` of `libcuda.so.580.95.05`.
fn version_of(file: &Path) -> Option<String> {
    let (_, rest) = library(file.file_name()?.to_str()?)?;
    let version = rest.strip_prefix('.')?;
    let parts: Vec<&str> = version.split('.').collect();
    let numbers = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    (numbers && parts.len() > 1 && parts[0].len() > 1).then(|| version.to_owned())
}

/// The sonames of a file. One without a soname's link is asked for by its own name.
fn sonames<'n>(file: &'n Path, names: &'n [String]) -> Vec<&'n str> {
    let is_soname = |name: &&str| {
        let (_, rest) = library(name).unwrap_or_default();
        let number = rest.strip_prefix('.').unwrap_or_default();
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    let sonames: Vec<&str> = names.iter().map(String::as_str).filter(is_soname).collect();
    match (sonames.is_empty(), file.file_name().and_then(OsStr::to_str)) {
        (true, Some(own)) => vec![own],
        _ => sonames,
    }
}

/// A path relative to the root that it names.
pub(crate) fn below(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// Follows links as a process whose root is `root` would; the answer is relative to `root`.
///
/// # Errors
/// A component is absent, or links lead in a circle.
pub fn resolve_within(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut waiting: Vec<PathBuf> = parts(path);
    let (mut at, mut links) = (PathBuf::new(), 0);
    while let Some(part) = waiting.pop() {
        if part == Path::new("..") {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        if !fs::symlink_metadata(root.join(&next))?.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(io::Error::other(format!("more than {LINKS_MAX} links in {}", path.display())));
        }
        let target = fs::read_link(root.join(&next))?;
        if target.is_absolute() {
            at = PathBuf::new();
        }
        waiting.extend(parts(&target));
    }
    Ok(at)
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let plain = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    let mut parts: Vec<PathBuf> =
        path.components().filter(plain).map(|part| PathBuf::from(part.as_os_str())).collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests;
