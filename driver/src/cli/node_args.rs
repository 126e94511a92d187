//! The options by which a command names nodes and their offers.

use std::path::PathBuf;

use aliquot_core::offer::ServerVersion;

use super::failure::Failure;
use super::output::Terminal;
use crate::manifest::{Manifests, version_of};

/// A server version as `--kubernetes` has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerVersionArg(pub(super) ServerVersion);

impl Default for ServerVersionArg {
    fn default() -> Self {
        Self(ServerVersion::with_default_gates(37, 0))
    }
}

/// The oldest minor version that serves `resource.k8s.io/v1`.
const OLDEST_MINOR: u32 = 34;

/// The newest minor version whose scheduler and API server the decisions are compared with.
const NEWEST_MINOR: u32 = 37;

fn server_version(text: &str) -> Result<ServerVersionArg, String> {
    let expected = "expected a version such as 1.36 or 1.36.2";
    // What a server or kubelet says of itself: v1.36.3-eks-1a2b3c, 1.36+.
    let plain = text.trim_start_matches('v').split(['-', '+']).next().unwrap_or_default();
    let mut parts = plain.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(Ok(1)), Some(Ok(minor)), ..) if minor < OLDEST_MINOR => Err(format!(
            "expected 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}: earlier versions do not serve resource.k8s.io/v1, so that no \
             claim of these manifests exists there"
        )),
        (Some(Ok(1)), Some(Ok(minor)), ..) if minor > NEWEST_MINOR => Err(format!(
            "expected at most 1.{NEWEST_MINOR}: decisions are compared with its scheduler, and with none of 1.{minor}; use \
             1.{NEWEST_MINOR}, or a dump of the cluster, which counts as that"
        )),
        (Some(Ok(1)), Some(Ok(minor)), None, None) => {
            Ok(ServerVersionArg(ServerVersion::with_default_gates(minor, u32::MAX)))
        }
        (Some(Ok(1)), Some(Ok(minor)), Some(Ok(patch)), None) => {
            Ok(ServerVersionArg(ServerVersion::with_default_gates(minor, patch)))
        }
        _ => Err(expected.to_owned()),
    }
}

/// Which nodes, and how their cards are offered.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct NodeArgs {
    /// Node file, built-in node, or COUNTxMODEL; `*N` behind it makes N nodes, as in 8xh100*125. Repeatable
    #[arg(long = "node", value_name = "NODE")]
    pub(super) nodes: Vec<String>,

    /// Layout policy (TOML): what each card is published as. Without it every card is `auto`
    #[arg(long, value_name = "FILE")]
    pub(super) policy: Option<PathBuf>,

    /// Directory of card models (TOML) that add to the built-in catalogue or replace models of it
    #[arg(long, value_name = "DIR")]
    pub(super) catalogue: Option<PathBuf>,

    /// State directory of the one simulated node: what `aliquot prepare` did there is held
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,

    /// Kubernetes version that the offers and decisions are for. Default: that of the newest kubelet in a dump, else 1.37
    #[arg(long, value_name = "1.MINOR[.PATCH]", value_parser = server_version)]
    pub(super) kubernetes: Option<ServerVersionArg>,
}

// === impl NodeArgs ===

impl NodeArgs {
    /// The version to decide for.
    pub(super) fn server(&self) -> ServerVersion {
        self.kubernetes.unwrap_or_default().0
    }

    /// These with the version of a dump, where none was given. A version that no decision was compared with is decided as
    /// the newest that was, and a warning says so.
    pub(super) fn for_cluster(
        &self,
        manifests: &Manifests,
        terminal: &mut Terminal<'_>,
    ) -> Result<Self, Failure> {
        let kubelet = manifests.kubelet.as_deref().filter(|_| self.kubernetes.is_none());
        let version = match kubelet.and_then(version_of) {
            Some((minor, _)) if minor > NEWEST_MINOR => {
                terminal.note(format_args!(
                    "warning: the newest kubelet is {}, newer than 1.{NEWEST_MINOR}, the newest version that \
                     decisions are compared with: decided as 1.{NEWEST_MINOR} does",
                    kubelet.unwrap_or_default()
                ))?;
                Some(ServerVersion::with_default_gates(NEWEST_MINOR, u32::MAX))
            }
            Some((minor, patch)) => Some(ServerVersion::with_default_gates(minor, patch)),
            None => None,
        };
        Ok(Self { kubernetes: self.kubernetes.or(version.map(ServerVersionArg)), ..self.clone() })
    }
}
