//! The cluster of a scenario: one started here, or the one that `KUBECONFIG` names.

use std::path::{Path, PathBuf};

use aliquot_cluster::{Api, Cluster, ClusterError, Options, Scope};

/// A cluster to run scenarios on.
pub(crate) enum World {
    /// Started here; boxed, as it is much larger.
    Own(Box<Cluster>),
    /// Someone's cluster, which stays.
    Given(Api),
}

impl World {
    /// A cluster, or `None` on a machine that cannot run one; the reason is printed, and a failure with
    /// `ALIQUOT_STRICT=1`.
    pub(crate) fn start(name: &str, scope: Scope) -> Option<Self> {
        if let Some(kubeconfig) = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()) {
            return Some(Self::Given(Api::connect(Path::new(&kubeconfig)).unwrap()));
        }
        let program = PathBuf::from(env!("CARGO_BIN_EXE_aliquot_cluster"));
        match Cluster::start(&Options { name: name.parse().unwrap(), scope, program }) {
            Ok(cluster) => Some(Self::Own(Box::new(cluster))),
            Err(error @ ClusterError::Missing(_)) => {
                assert!(std::env::var("ALIQUOT_STRICT").as_deref() != Ok("1"), "{error}");
                println!("stood aside: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The API server.
    pub(crate) fn api(&self) -> &Api {
        match self {
            Self::Own(cluster) => cluster.api(),
            Self::Given(api) => api,
        }
    }
}
