//! The programs of a cluster: built by `tests/cluster/build`, kept outside the checkout.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::ClusterError;

/// The environment variable that names a directory of built programs.
const PARTS_VARIABLE: &str = "ALIQUOT_CLUSTER_PARTS";
/// The exit status of the build script on a machine that cannot build.
const CANNOT: i32 = 4;
/// Where distributions keep CNI plugins.
const CNI_DIRECTORIES: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// A directory with kube-apiserver, kubelet, containerd, runc and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    directory: PathBuf,
}

impl Parts {
    /// The programs in the directory that `ALIQUOT_CLUSTER_PARTS` names, or else those of the build script, which builds
    /// them if they are not there yet.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] if this machine cannot build them, [`ClusterError::Failed`] if the build fails.
    pub fn find() -> Result<Self, ClusterError> {
        if let Some(directory) = std::env::var_os(PARTS_VARIABLE) {
            return Ok(Self { directory: directory.into() });
        }
        Self::built_by("build")
    }

    /// Kueue, which is built where a scenario needs it: `kueue`, and its resources in `definitions.yaml`.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] if this machine cannot build it, [`ClusterError::Failed`] if the build fails.
    pub fn find_kueue() -> Result<Self, ClusterError> {
        Self::built_by("kueue/build")
    }

    /// What a script of this package builds, if it is not there yet.
    fn built_by(script: &str) -> Result<Self, ClusterError> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
        let output = Command::new(&script)
            .stderr(Stdio::piped())
            .output()
            .map_err(|error| ClusterError::file(&script, &error))?;
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => Ok(Self { directory: String::from_utf8_lossy(&output.stdout).trim().into() }),
            Some(CANNOT) => Err(ClusterError::Missing(said.trim().to_owned())),
            _ => Err(ClusterError::failed(script.display().to_string(), said.trim())),
        }
    }

    /// The path of a program.
    #[must_use]
    pub fn program(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// The directory of all programs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of the CNI plugins.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] if no directory holds them.
    pub(crate) fn cni() -> Result<&'static str, ClusterError> {
        let missing = "CNI plugins are missing: install containernetworking-plugins";
        CNI_DIRECTORIES
            .into_iter()
            .find(|directory| Path::new(directory).join("bridge").exists())
            .ok_or_else(|| ClusterError::Missing(missing.to_owned()))
    }
}
