//! After a restart: what was interrupted is undone or finished, what was promised is made true again.
//!
//! ```text
//!  record      means                                  recovery
//!  Preparing   nobody was told that it is ready       undo, forget
//!  Releasing   nobody uses it any more                undo, forget
//!  Prepared    a container may run on it              look over; make again what is missing or altered
//!  none        not ours, or undone already            leave it, and say so
//! ```
//!
//! Undoing comes first, so that what is made again finds room. Each step may be cut short by another kill; the next
//! start begins again and ends the same. What has no record is never touched: whoever made it, it was not us, since the
//! record comes before the thing and goes after it. A claim that cannot be made whole (a card is gone, the hardware
//! refuses) stays in the journal and is reported; the others are not kept waiting.

use std::fmt;

use aliquot_core::id::ClaimUid;

use crate::checkpoint::Phase;
use crate::node::Node;
use crate::prepare::{PrepareError, unknown_claims};

/// What recovery did.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Interrupted prepares and releases that are gone now.
    pub undone: Vec<ClaimUid>,
    /// Prepared claims of which something was made again.
    pub repaired: Vec<ClaimUid>,
    /// Claims that have grants here and no record; they are left alone.
    pub unknown: Vec<ClaimUid>,
    /// What could not be made whole; it stays in the journal, and the next start tries again.
    pub problems: Vec<RecoveryProblem>,
}

/// Something that recovery could not make whole.
#[derive(Debug)]
pub struct RecoveryProblem {
    /// What it is about.
    pub about: String,
    /// Why.
    pub error: PrepareError,
}

impl fmt::Display for RecoveryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.error)
    }
}

/// Brings hardware and files to what the journal says.
///
/// # Errors
/// The journal cannot be written: nothing that follows would be safe.
pub(crate) fn recover(node: &mut Node) -> Result<Recovery, PrepareError> {
    let mut recovery = Recovery::default();
    let in_phase = |node: &Node, prepared: bool| -> Vec<ClaimUid> {
        let records = node.claims().filter(|record| (record.phase == Phase::Prepared) == prepared);
        records.map(|record| record.plan.claim.clone()).collect()
    };
    for uid in in_phase(node, false) {
        match node.undo_claim(&uid) {
            Ok(()) => recovery.undone.push(uid),
            Err(error) => recovery.keep(uid.to_string(), error)?,
        }
    }
    // Asked for once: what is made again asks anew.
    let mut cards = None;
    for uid in in_phase(node, true) {
        match node.make_whole(&uid, &mut cards) {
            Ok(outcome) if outcome.acts > 0 => recovery.repaired.push(uid),
            Ok(_) => {}
            Err(error) => recovery.keep(uid.to_string(), error)?,
        }
    }
    match unknown_claims(&node.hands(), |uid| node.claim(uid).is_some()) {
        Ok(unknown) => recovery.unknown = unknown,
        Err(error) => recovery.keep("files without a claim".to_owned(), error)?,
    }
    Ok(recovery)
}

// === impl Recovery ===

impl Recovery {
    /// Keeps what went wrong for the report, unless it makes going on unsafe.
    fn keep(&mut self, about: String, error: PrepareError) -> Result<(), PrepareError> {
        if let PrepareError::Journal(_) = error {
            return Err(error);
        }
        self.problems.push(RecoveryProblem { about, error });
        Ok(())
    }
}
