//! A run that is prepared: what its supervisor is given.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::run::enforcement::LimitWatch;
use crate::run::governor::Scope;
use crate::run::record::Run;
use crate::run::watch::EventSource;

use super::home::Home;

/// Longest wait of an ended command's supervisor for another process that changes the node. After it the claim is left to that
/// process or to the next one.
pub(super) const GIVE_BACK_WITHIN: Duration = Duration::from_secs(2);

/// A prepared run.
pub(super) struct PreparedRun {
    pub(super) home: Home,
    pub(super) run: Run,
    pub(super) grants: PathBuf,
    pub(super) beside: Beside,
    pub(super) environment: Environment,
}

/// Work beside the command.
pub(super) struct Beside {
    /// Scope of its governor; `None`: the part has no limits, the hardware isolates it.
    pub(super) scope: Option<Scope>,
    /// The limits to watch; `None`: there are none, or the driver reports no processes.
    pub(super) limits: Option<LimitWatch>,
    /// Its card, if its driver reports events.
    pub(super) followed: Option<EventSource>,
}

/// Environment variables of a command beside the inherited ones.
pub(super) type Environment = Vec<(String, OsString)>;
