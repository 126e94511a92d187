//! The cluster of a scenario: one started here, or the one that `KUBECONFIG` names.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use aliquot_cluster::{Api, Cluster, ClusterError, Options, Parts, Scope};

use crate::given::kubeconfig;

/// The machine's processors: scenarios use them at the same time, but for those that measure shares of computing time.
/// It is locked before the cluster of a stage.
static PROCESSORS: RwLock<()> = RwLock::new(());

/// A scenario's right to play now.
pub(crate) enum Turn {
    /// Other scenarios play as well.
    Beside(#[expect(dead_code, reason = "held until the end")] RwLockReadGuard<'static, ()>),
    /// No other one does.
    Alone(#[expect(dead_code, reason = "held until the end")] RwLockWriteGuard<'static, ()>),
}

impl Turn {
    /// Waits until no scenario plays alone.
    pub(crate) fn beside() -> Self {
        Self::Beside(PROCESSORS.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until no other scenario plays.
    pub(crate) fn alone() -> Self {
        Self::Alone(PROCESSORS.write().unwrap_or_else(PoisonError::into_inner))
    }
}

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
        if let Some(kubeconfig) = kubeconfig() {
            return Some(Self::Given(Api::connect(&kubeconfig).unwrap()));
        }
        let program = PathBuf::from(env!("CARGO_BIN_EXE_aliquot_cluster"));
        match Cluster::start(&Options { name: name.parse().unwrap(), scope, program }) {
            Ok(cluster) => Some(Self::Own(Box::new(cluster))),
            Err(error) => {
                stand_aside(&error);
                None
            }
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

/// Whether a scenario that needs a cluster of its own cannot play; the reason is printed.
pub(crate) fn needs_own() -> bool {
    if kubeconfig().is_some() {
        println!(
            "stood aside: this scenario reaches into a node, which the cluster of KUBECONFIG does not allow"
        );
        return true;
    }
    match Parts::find() {
        Ok(_) if nix::unistd::geteuid().is_root() => return false,
        Ok(_) => println!("stood aside: found an ordinary user, expected root"),
        Err(error) => stand_aside(&error),
    }
    true
}

fn stand_aside(error: &ClusterError) {
    let ClusterError::Missing(_) = error else { panic!("{error}") };
    assert!(std::env::var("ALIQUOT_STRICT").as_deref() != Ok("1"), "{error}");
    println!("stood aside: {error}");
}
