//! The options by which a command finds this machine's node: its name, its cluster, its directories.

use std::ffi::OsString;
use std::path::PathBuf;

use super::failure::Failure;
use crate::kube::ClusterAccess;

/// This machine as a node.
#[derive(Debug, clap::Args)]
pub(super) struct MachineArgs {
    /// Name of the Kubernetes node; without it the cluster is not asked
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(super) node_name: Option<String>,

    /// Access to the cluster; without it the Pod's ServiceAccount, or what kubectl reads
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Simulated cards in the place of this machine's own: a node file or a built-in node, such as mixed
    #[arg(long, env = "ALIQUOT_NODE", value_name = "NODE")]
    pub(super) node: Option<String>,

    /// Where the node's file system is seen; other directories are below it
    #[arg(long, env = "ALIQUOT_HOST_ROOT", value_name = "DIR", default_value = "/")]
    pub(super) host_root: PathBuf,

    /// Root of the driver's files on the node; without it the usual ones are tried
    #[arg(long, env = "ALIQUOT_DRIVER_ROOT", value_name = "DIR")]
    pub(super) driver_root: Option<PathBuf>,

    /// Directory of the kubelet; without it /var/lib/kubelet
    #[arg(long, env = "ALIQUOT_KUBELET_ROOT", value_name = "DIR")]
    pub(super) kubelet_root: Option<PathBuf>,

    /// Directory from which the container runtime reads CDI files
    #[arg(long, env = "ALIQUOT_CDI_DIR", value_name = "DIR", default_value = "/var/run/cdi")]
    pub(super) cdi_dir: PathBuf,
}

// === impl MachineArgs ===

impl MachineArgs {
    /// The node's name, if one was given.
    ///
    /// # Errors
    /// [`Failure::Usage`]: no node can have it.
    pub(super) fn node_name(&self) -> Result<Option<&str>, Failure> {
        let Some(name) = self.node_name.as_deref() else { return Ok(None) };
        let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        match !name.is_empty() && name.bytes().all(is_plain) {
            true => Ok(Some(name)),
            false => Err(Failure::Usage(format!("--node-name: found `{name}`, expected the name of a node"))),
        }
    }

    /// How the cluster is reached.
    pub(super) fn cluster(&self) -> ClusterAccess {
        match &self.kubeconfig {
            Some(file) => ClusterAccess::Kubeconfig { file: Some(file.clone()), context: None },
            None => ClusterAccess::Inferred,
        }
    }

    /// The same options for another command of this program.
    pub(super) fn repeated(&self) -> Vec<OsString> {
        let text = |option: &'static str, value: &Option<String>| {
            value.as_ref().map(|value| [option.into(), value.into()])
        };
        let path = |option: &'static str, value: Option<&PathBuf>| {
            value.map(|value| [option.into(), value.clone().into_os_string()])
        };
        [
            text("--node-name", &self.node_name),
            path("--kubeconfig", self.kubeconfig.as_ref()),
            text("--node", &self.node),
            path("--host-root", Some(&self.host_root)),
            path("--driver-root", self.driver_root.as_ref()),
            path("--kubelet-root", self.kubelet_root.as_ref()),
            path("--cdi-dir", Some(&self.cdi_dir)),
        ]
        .into_iter()
        .flatten()
        .flatten()
        .collect()
    }
}
