//! The files, cgroups and links of one cluster, and their removal.
//!
//! | of a cluster | where | removed by |
//! |---|---|---|
//! | processes, mounts, network namespaces | PID and mount namespace of init | the kernel, with init |
//! | cgroups | `aliquot-cluster-NAME` in each hierarchy | [`Place::sweep`] |
//! | bridge | `aq-NAME` | [`Place::sweep`] |
//! | files | `BASE/NAME` | [`Place::sweep`], but for `logs` |

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ClusterError;

/// The environment variable that names the directory of all clusters.
const BASE_VARIABLE: &str = "ALIQUOT_CLUSTER_DIR";
const BASE: &str = "/var/tmp/aliquot-cluster";
const CGROUPS: &str = "/sys/fs/cgroup";
/// Longest name: a network interface has 15 characters.
const NAME_MAX: usize = 12;
/// How long a cluster may take to be gone after the process that held it has ended.
const ENDING: Duration = Duration::from_secs(40);
/// How long processes of a cgroup may take to end after SIGKILL.
const PATIENCE: Duration = Duration::from_secs(30);

/// The name of a cluster: lower-case letters and digits, at most 12.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if text.is_empty() || text.len() > NAME_MAX || !text.chars().all(legal) {
            return Err(format!(
                "name of a cluster: found {text:?}, expected 1 to {NAME_MAX} lower-case letters and digits; choose another name"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// Where a cluster of a name lies.
#[derive(Clone, Debug)]
pub struct Place {
    name: Name,
    root: PathBuf,
}

impl Place {
    /// The place of a cluster.
    #[must_use]
    pub fn new(name: &Name) -> Self {
        let base = std::env::var_os(BASE_VARIABLE).map_or_else(|| BASE.into(), PathBuf::from);
        Self { name: name.clone(), root: base.join(&name.0) }
    }

    /// A file or directory of the cluster.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The same as text.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The cluster's kubeconfig with all rights.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// The cgroup below which the kubelet makes Pods.
    pub(crate) fn cgroup(&self) -> String {
        format!("aliquot-cluster-{}", self.name)
    }

    /// The bridge that joins the Pods.
    pub(crate) fn bridge(&self) -> String {
        format!("aq-{}", self.name)
    }

    /// Locks the place for one cluster, until the lock is dropped. One that is being taken down is waited for.
    pub(crate) fn lock(&self) -> Result<Flock<File>, ClusterError> {
        let base = self.root.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(base).map_err(|error| ClusterError::file(base, &error))?;
        let path = base.join(format!("{}.lock", self.name));
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| ClusterError::file(&path, &error))?;
        let until = Instant::now() + ENDING;
        let (mut file, mut told) = (file, false);
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((again, Errno::EWOULDBLOCK)) if Instant::now() < until => file = again,
                Err((_, Errno::EWOULDBLOCK)) => {
                    let message = "found a running cluster of this name, expected none; take it down or choose another name";
                    return Err(ClusterError::failed(format!("cluster {}", self.name), message));
                }
                Err((_, error)) => return Err(ClusterError::failed(path.display().to_string(), error)),
            }
            if !std::mem::replace(&mut told, true) {
                eprintln!(
                    "cluster {}: waits for the one of this name to end, {} s at most",
                    self.name,
                    ENDING.as_secs()
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Makes the empty directories and cgroups.
    pub(crate) fn make(&self) -> Result<(), ClusterError> {
        for name in ["logs", "keys", "config"] {
            let path = self.path(name);
            fs::create_dir_all(&path).map_err(|error| ClusterError::file(&path, &error))?;
        }
        for cgroup in self.hierarchies() {
            fs::create_dir_all(&cgroup).map_err(|error| ClusterError::file(&cgroup, &error))?;
            // Without processors and memory nodes of its own a version 1 cpuset takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let above = cgroup.parent().map(|parent| parent.join(file));
                if let Some(value) = above.and_then(|above| fs::read(above).ok()) {
                    let path = cgroup.join(file);
                    fs::write(&path, value).map_err(|error| ClusterError::file(&path, &error))?;
                }
            }
        }
        Ok(())
    }

    /// Removes the logs of an earlier cluster of this name.
    pub(crate) fn remove_logs(&self) -> Result<(), ClusterError> {
        let logs = self.path("logs");
        match fs::remove_dir_all(&logs) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ClusterError::file(&logs, &error)),
            _ => Ok(()),
        }
    }

    /// Removes what outlives init: cgroups with their processes, the bridge, the files but for the logs.
    ///
    /// # Errors
    /// [`ClusterError::Failed`] for the first thing that stays.
    pub fn sweep(&self) -> Result<(), ClusterError> {
        for cgroup in self.hierarchies() {
            remove_cgroup(&cgroup)?;
        }
        if Path::new("/sys/class/net").join(self.bridge()).exists() {
            let deleted = Command::new("ip")
                .args(["link", "delete", &self.bridge()])
                .stdin(Stdio::null())
                .output()
                .map_err(|error| ClusterError::failed("ip", error))?;
            if !deleted.status.success() {
                return Err(ClusterError::failed(self.bridge(), String::from_utf8_lossy(&deleted.stderr)));
            }
        }
        let Ok(entries) = fs::read_dir(&self.root) else { return Ok(()) };
        for entry in entries.flatten().filter(|entry| entry.file_name() != "logs") {
            let path = entry.path();
            let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed = if directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| ClusterError::file(&path, &error))?;
        }
        Ok(())
    }

    /// The cluster's cgroup in each hierarchy of the machine.
    fn hierarchies(&self) -> Vec<PathBuf> {
        let root = Path::new(CGROUPS);
        if root.join("cgroup.controllers").exists() {
            return vec![root.join(self.cgroup())];
        }
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let mounted = entries.filter(|entry| {
            entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.path().join("cgroup.procs").exists()
        });
        mounted.map(|entry| entry.path().join(self.cgroup())).collect()
    }
}

/// Kills the processes of a cgroup and of those below, and removes all of them.
fn remove_cgroup(cgroup: &Path) -> Result<(), ClusterError> {
    let Ok(entries) = fs::read_dir(cgroup) else { return Ok(()) };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_cgroup(&entry.path())?;
    }
    let until = Instant::now() + PATIENCE;
    loop {
        for line in fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Ok(pid) = line.parse() {
                // A process that has ended meanwhile is no failure.
                let _ended = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        match fs::remove_dir(cgroup) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // No event reports the end of the last process of a version 1 cgroup.
            Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(ClusterError::file(cgroup, &error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn name_with_other_characters_is_refused() {
        for text in ["", "a-b", "Up", "abcdefghijklm", "../x"] {
            assert!(text.parse::<Name>().is_err(), "{text:?}");
        }
        assert_eq!(text_of("demo1"), "demo1");
    }

    fn text_of(text: &str) -> String {
        text.parse::<Name>().map(|name| name.to_string()).unwrap_or_default()
    }
}
