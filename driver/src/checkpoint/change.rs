//! One change of the journal: all of its entries count, or none.

use aliquot_core::id::ClaimUid;
use aliquot_core::ports::PartitionAt;

use super::{ClaimRecord, Journal, PartitionProgress, Phase};

/// What one change does to one claim or partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// A claim, new or in place of its earlier record.
    Claim(ClaimRecord),
    /// A claim that is there is in another phase.
    Phase(ClaimUid, Phase),
    /// A claim that is there holds nothing any more.
    Released(ClaimUid),
    /// A partition, new or in place of its earlier record.
    Partition(PartitionAt, PartitionProgress),
    /// A partition that is there is no longer ours.
    Destroyed(PartitionAt),
}

/// Entries that count together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change(Vec<JournalEntry>);

// === impl JournalEntry ===

impl JournalEntry {
    /// Whether the journal says this already.
    fn is_said(&self, journal: &Journal) -> bool {
        match self {
            Self::Claim(record) => journal.claims.get(&record.plan.claim) == Some(record),
            Self::Phase(uid, phase) => journal.claims.get(uid).is_none_or(|record| record.phase == *phase),
            Self::Released(uid) => !journal.claims.contains_key(uid),
            Self::Partition(at, making) => journal.partitions.get(at) == Some(making),
            Self::Destroyed(at) => !journal.partitions.contains_key(at),
        }
    }

    /// What the record of a claim is called in messages, and among carried fields.
    pub(super) fn claim_key(uid: &ClaimUid) -> String {
        format!("claim {uid}")
    }

    /// What the record of a partition is called in messages, and among carried fields.
    pub(super) fn partition_key(at: &PartitionAt) -> String {
        format!("partition {} {} {}", at.card, at.template, at.placement)
    }
}

// === impl Change ===

impl Change {
    /// A change of these entries, in this order.
    #[must_use]
    pub fn of(entries: impl IntoIterator<Item = JournalEntry>) -> Self {
        Self(entries.into_iter().collect())
    }

    /// Adds an entry behind the others.
    pub fn push(&mut self, entry: JournalEntry) {
        self.0.push(entry);
    }

    /// Its entries.
    #[must_use]
    pub fn entries(&self) -> &[JournalEntry] {
        &self.0
    }

    /// Without the entries that the journal says already.
    #[must_use]
    pub fn news_to(mut self, journal: &Journal) -> Self {
        self.0.retain(|entry| !entry.is_said(journal));
        self
    }

    /// Whether nothing changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// === impl Journal ===

impl Journal {
    /// Makes a change.
    pub fn apply(&mut self, change: Change) {
        for entry in change.0 {
            match entry {
                JournalEntry::Claim(record) => drop(self.claims.insert(record.plan.claim.clone(), record)),
                JournalEntry::Phase(uid, phase) => {
                    if let Some(record) = self.claims.get_mut(&uid) {
                        record.phase = phase;
                    }
                }
                JournalEntry::Released(uid) => {
                    self.claims.remove(&uid);
                    // Unknown fields must not come back with a later record of the same name.
                    self.carried.fields.remove(&JournalEntry::claim_key(&uid));
                }
                JournalEntry::Partition(at, making) => drop(self.partitions.insert(at, making)),
                JournalEntry::Destroyed(at) => {
                    self.partitions.remove(&at);
                    self.carried.fields.remove(&JournalEntry::partition_key(&at));
                }
            }
        }
    }
}
