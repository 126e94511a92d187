//! The layout policy of an agent: the one that it is given or, where that is refused, the last good one.
//!
//! ```text
//!  given ── accepted ─▶ in force, and kept in the state directory
//!     └──── refused ──▶ the kept one, else every card `auto`; the reason goes to the log, an Event of the node, `/readyz`,
//!                       a metric and `aliquot doctor`
//! ```
//!
//! An agent that ended for a typing error would stop a rollout on every node, and release no claim meanwhile.

use std::path::Path;

use aliquot_core::offer::{LayoutPolicy, text};

use crate::checkpoint::KeptPolicy;
use crate::hardware::{HardwareError, read_text};
use crate::printable;

/// Longest reason, in characters.
const REASON_MAX: usize = 800;

/// A layout policy, and what became of the one that the agent was given.
#[derive(Clone, Debug, Default)]
pub(super) struct PolicyInForce {
    /// What holds.
    pub(super) policy: LayoutPolicy,
    /// What became of the given one.
    pub(super) outcome: PolicyOutcome,
}

/// What became of the policy that an agent was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyOutcome {
    /// Why it is not in force, with the file, the line and the field; `None`: it is, or none was given.
    pub refused: Option<String>,
    /// Why an earlier agent of the node refused the one before.
    pub refused_before: Option<String>,
}

/// The policy for an agent with this state directory.
pub(super) fn in_force(given: Option<&Path>, state: &Path) -> PolicyInForce {
    let kept = KeptPolicy::of(state);
    let refused_before = kept.refusal();
    let error = match given.map(read).transpose() {
        Ok(accepted) => {
            let text = accepted.as_ref().map(|(text, _)| text.as_str());
            if let Err(error) = kept.accept(text) {
                tracing::warn!("the layout policy cannot be kept for a later start: {error}");
            }
            let policy = accepted.map(|(_, policy)| policy).unwrap_or_default();
            return PolicyInForce { policy, outcome: PolicyOutcome { refused: None, refused_before } };
        }
        Err(error) => error,
    };
    let (policy, instead) = last_good(&kept);
    let why = printable::line_of(&format!("{error}; {instead}"), REASON_MAX);
    tracing::error!("layout policy refused: {why}");
    if let Err(error) = kept.refuse(&why) {
        tracing::warn!("`aliquot doctor` cannot name the refused layout policy: {error}");
    }
    PolicyInForce { policy, outcome: PolicyOutcome { refused: Some(why), refused_before } }
}

fn read(file: &Path) -> Result<(String, LayoutPolicy), HardwareError> {
    let text = read_text(file, "Check the name of the layout policy")?;
    let policy =
        text::parse(&text).map_err(|error| HardwareError::description(file.display().to_string(), error))?;
    Ok((text, policy))
}

/// The last good policy, and what it is in words.
fn last_good(kept: &KeptPolicy) -> (LayoutPolicy, String) {
    let none = |why: &str| (LayoutPolicy::default(), format!("every card is `auto` meanwhile{why}"));
    match kept.text() {
        Ok(None) => none(""),
        Ok(Some(text)) => match text::parse(&text) {
            Ok(policy) => (policy, "the last good policy stays in force".to_owned()),
            // Another version of the agent accepted it.
            Err(error) => none(&format!(", as the policy before is refused as well: {error}")),
        },
        Err(error) => none(&format!(", as the policy before cannot be read: {error}")),
    }
}
