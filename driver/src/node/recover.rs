//! Recovery after a restart: interrupted operations are undone, and prepared claims are repaired.
//!
//! ```text
//!  record      meaning                                recovery
//!  Preparing   not reported as ready yet              undo, remove the record
//!  Releasing   not in use any more                    undo, remove the record
//!  Prepared    a container may use it                 check; recreate missing or altered files and partitions
//!  none        created by another program, or undone  leave it, and report it
//! ```
//!
//! Undoing comes first, so that recreated partitions find room. Another kill may interrupt each step; the next start repeats
//! recovery with the same result. An object without a record is never touched: a record is written before its objects and removed
//! after them, so another program created it. A claim that cannot be repaired (a card is missing, the hardware refuses) stays in
//! the journal and is reported; the other claims do not wait for it.

use std::fmt;

use aliquot_core::id::ClaimUid;

use super::single::Node;
use crate::checkpoint::Phase;
use crate::prepare::{PrepareError, unknown_claims};

/// The result of recovery.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Interrupted prepares and releases that were undone.
    pub undone: Vec<ClaimUid>,
    /// Prepared claims that were repaired.
    pub repaired: Vec<ClaimUid>,
    /// Claims with grants here and no record; they are left alone.
    pub unknown: Vec<ClaimUid>,
    /// Claims that could not be undone or repaired; they stay in the journal, and the next start tries again.
    pub problems: Vec<RecoveryProblem>,
}

/// A claim or file that recovery could not repair.
#[derive(Debug)]
pub struct RecoveryProblem {
    /// The object.
    pub about: String,
    /// The reason.
    pub error: PrepareError,
}

impl fmt::Display for RecoveryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.error)
    }
}

/// Brings hardware and files to the state of the journal.
///
/// # Errors
/// The journal cannot be written: no later step would be safe.
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
    // Discovered once; a repair that creates a partition discovers again.
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
    /// Keeps a failure for the report; a journal error ends recovery.
    fn keep(&mut self, about: String, error: PrepareError) -> Result<(), PrepareError> {
        if let PrepareError::Journal(_) = error {
            return Err(error);
        }
        self.problems.push(RecoveryProblem { about, error });
        Ok(())
    }
}
