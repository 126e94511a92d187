//! Partitions of ours that hardware would not make, or has lost: the journal says so before anything else is done there.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::grant::Grant;
use aliquot_core::ports::PartitionAt;

use super::Node;
use crate::checkpoint::Making;
use crate::prepare::PrepareError;

impl Node {
    /// Writes down that a partition which hardware refused to make is none of ours: whatever lies at its place now, or will,
    /// is not undone with our plan.
    pub(super) fn disown(
        &mut self,
        error: &PrepareError,
        before: &BTreeMap<PartitionAt, Making>,
    ) -> Result<(), PrepareError> {
        let Some(at) = error.not_made() else { return Ok(()) };
        let mut next = self.journal.clone();
        match before.get(at) {
            // One that we once had: what is there now is told apart from it.
            Some(made @ Making::Made(_)) => next.partitions.insert(at.clone(), made.clone()),
            Some(Making::Planned) | None => next.partitions.remove(at),
        };
        self.write_journal(next)
    }

    /// Writes down that partitions which hardware has lost are to be made again, before they are: their next handle is
    /// another one, and a kill in between must not make strangers of them.
    pub(super) fn forget_vanished(&mut self, name: &str, grants: &[Grant]) -> Result<(), PrepareError> {
        let used: BTreeSet<PartitionAt> = grants.iter().filter_map(Grant::partition).collect();
        if used.is_empty() {
            return Ok(());
        }
        let hardware = |source| PrepareError::Hardware { claim: name.to_owned(), source: Box::new(source) };
        let live = self.parts.backend.partitions().map_err(hardware)?;
        let there: BTreeSet<&PartitionAt> = live.iter().map(|l| &l.at).collect();
        let vanished = |at: &PartitionAt| used.contains(at) && !there.contains(at);
        // This is asked for each claim whenever the node is opened: a journal that says so already is not copied.
        if !self.journal.partitions.iter().any(|(at, making)| vanished(at) && *making != Making::Planned) {
            return Ok(());
        }
        let mut next = self.journal.clone();
        for (at, making) in &mut next.partitions {
            if vanished(at) {
                *making = Making::Planned;
            }
        }
        self.write_journal(next)
    }
}
