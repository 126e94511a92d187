//! The place and the identity of a partition.

use std::fmt;

use crate::id::{CardUuid, TemplateName};
use crate::partition::{Part, PlacementName};

/// The place of a partition: unique on a node whether or not the partition exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionAt {
    /// Card.
    pub card: CardUuid,
    /// Template.
    pub template: TemplateName,
    /// Placement.
    pub placement: PlacementName,
}

/// The vendor's identity of one partition; a partition made again at the same place has another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionHandle {
    /// The vendor's number for it: a MIG instance id, a vNPU id.
    pub id: u32,
    /// The vendor's UUID for it.
    pub uuid: CardUuid,
}

// === impl PartitionAt ===

impl PartitionAt {
    /// The part of the card that a partition here is.
    #[must_use]
    pub fn part(&self) -> Part {
        Part::Partition { template: self.template.clone(), placement: self.placement.clone() }
    }

    /// The place of a part; `None` for whole cards and slots, which are not made by hardware.
    #[must_use]
    pub fn of(card: &CardUuid, part: &Part) -> Option<Self> {
        match part {
            Part::Partition { template, placement } => {
                Some(Self { card: card.clone(), template: template.clone(), placement: placement.clone() })
            }
            Part::Card | Part::Slot { .. } => None,
        }
    }
}

impl fmt::Display for PartitionAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} at {} of card {}", self.template, self.placement, self.card)
    }
}

// === impl PartitionHandle ===

impl fmt::Display for PartitionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (id {})", self.uuid, self.id)
    }
}
