//! Connections to a cluster: from a Pod's ServiceAccount, or from a kubeconfig.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use ::kube::{Client, Config};

use super::failure::printable;
use crate::config;

/// Time that a connection may take to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where address and credentials of the cluster come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterAccess {
    /// The ServiceAccount of the Pod that this process runs in.
    InCluster,
    /// A kubeconfig: this file, or those that kubectl reads (`KUBECONFIG`, `~/.kube/config`).
    Kubeconfig {
        /// The file; `None` for kubectl's.
        file: Option<PathBuf>,
        /// The context; `None` for the current one.
        context: Option<String>,
    },
    /// The kubeconfig that kubectl reads; without one, the Pod's ServiceAccount.
    Inferred,
}

/// An error of a connection's configuration; a server that does not answer is an error of the first call.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No kubeconfig, and no ServiceAccount of a Pod.
    #[error(
        "cluster: found no kubeconfig ({detail}), expected one; set KUBECONFIG to a file, or write ~/.kube/config"
    )]
    NoKubeconfig {
        /// What the search found.
        detail: String,
    },
    /// The kubeconfig lacks the context.
    #[error("kubeconfig: found no context `{wanted}`, expected one of: {known}; name one of them")]
    NoContext {
        /// Context as asked for.
        wanted: String,
        /// Contexts that exist.
        known: String,
    },
    /// The kubeconfig cannot be used.
    #[error("kubeconfig: {detail}; check it with `kubectl config view`")]
    Kubeconfig {
        /// What is wrong with it.
        detail: String,
    },
    /// The process runs in no Pod, or in one without a ServiceAccount token.
    #[error(
        "ServiceAccount: {detail}; run in a Pod with automountServiceAccountToken, or give --kubeconfig FILE"
    )]
    ServiceAccount {
        /// What is missing.
        detail: String,
    },
    /// The client cannot be made of the configuration.
    #[error("cluster {server}: {detail}; check certificates and credentials in the kubeconfig")]
    Client {
        /// Address of the API server.
        server: String,
        /// What failed.
        detail: String,
    },
}

/// A client of one cluster. Cheap to clone; requests share its connections.
#[derive(Clone)]
pub struct Connection {
    pub(super) client: Client,
    /// Address of the API server, as configured.
    server: String,
    /// Namespace of the kubeconfig's context, or of the Pod.
    namespace: String,
}

// === impl Connection ===

impl Connection {
    /// A client for the cluster; no request is made yet.
    ///
    /// # Errors
    /// [`ConnectError`]: the configuration is absent or cannot be used.
    pub async fn open(access: &ClusterAccess) -> Result<Self, ConnectError> {
        // The first provider stays; an error says that one is installed already.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let mut config = match access {
            ClusterAccess::InCluster => in_cluster()?,
            ClusterAccess::Kubeconfig { file, context } => kubeconfig(file.clone(), context.clone()).await?,
            ClusterAccess::Inferred => match kubeconfig(None, None).await {
                Err(none @ ConnectError::NoKubeconfig { .. }) => in_cluster().map_err(|_| none)?,
                other => other?,
            },
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // Callers retry by themselves, within their own deadlines.
        config.default_retry = false;
        let (server, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| ConnectError::Client {
            server: server.clone(),
            detail: printable(&error.to_string()),
        })?;
        Ok(Self { client, server, namespace })
    }

    /// The namespace that its user works in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Address of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        self.server.trim_end_matches('/')
    }
}

fn in_cluster() -> Result<Config, ConnectError> {
    Config::incluster()
        .map_err(|error| ConnectError::ServiceAccount { detail: printable(&error.to_string()) })
}

/// Most bytes of a kubeconfig: those of large organisations hold hundreds of clusters with their certificates.
const KUBECONFIG_BYTES_MAX: u64 = 16 << 20;

/// Whether reading the file ends: a plain file of bounded size, or none at all.
fn is_bounded(file: &Path) -> bool {
    std::fs::metadata(file).map_or(true, |found| found.is_file() && found.len() <= KUBECONFIG_BYTES_MAX)
}

fn too_long(file: &Path) -> String {
    let file = printable(&file.display().to_string());
    format!("{file}: found no plain file or more than {KUBECONFIG_BYTES_MAX} bytes, expected a shorter file")
}

async fn kubeconfig(file: Option<PathBuf>, context: Option<String>) -> Result<Config, ConnectError> {
    let read_files = file.clone().map_or_else(config::kubeconfig_files, |file| vec![file]);
    if let Some(file) = read_files.iter().find(|file| !is_bounded(file)) {
        return Err(ConnectError::Kubeconfig { detail: too_long(file) });
    }
    let read = match &file {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    let kubeconfig = read.map_err(|error| match &error {
        KubeconfigError::FindPath | KubeconfigError::ReadConfig(..) => {
            ConnectError::NoKubeconfig { detail: printable(&error.to_string()) }
        }
        _ => ConnectError::Kubeconfig { detail: printable(&error.to_string()) },
    })?;
    let known: Vec<String> = kubeconfig.contexts.iter().map(|context| printable(&context.name)).collect();
    if let Some(wanted) = &context
        && !kubeconfig.contexts.iter().any(|known| known.name == *wanted)
    {
        return Err(ConnectError::NoContext { wanted: printable(wanted), known: known.join(", ") });
    }
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(|error| ConnectError::Kubeconfig { detail: printable(&error.to_string()) })
}
