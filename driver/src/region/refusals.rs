//! The last refusals of a usage file, as its tenant wrote them: shown, never trusted.

use std::time::Duration;

use aliquot_abi::refusal::Refusal;
use aliquot_abi::view::UsageView;
use aliquot_enforce::units::Nanos;

/// One refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRefusal {
    /// What was refused, and what was in its way.
    pub refusal: Refusal,
    /// Time since then.
    pub ago: Duration,
}

/// The refusals, the newest first. One of the future was written by no shim and is left out.
pub(super) fn refusals(view: UsageView<'_>, now: Nanos) -> Vec<SeenRefusal> {
    let seen = |refusal: Refusal| {
        let ago = Duration::from_nanos(now.0.checked_sub(refusal.at_nanos)?);
        Some(SeenRefusal { refusal, ago })
    };
    let mut all: Vec<SeenRefusal> = view.refusals().all().filter_map(seen).collect();
    all.sort_by_key(|seen| seen.ago);
    all
}
