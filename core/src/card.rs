//! A card as discovered: vendor-neutral facts, and what it may become.
//!
//! Backends make cards (from a real vendor library or a node file); the catalogue fills what a backend could not
//! read. Inside core a card is immutable.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::id::{CardUuid, ModelId, PciAddress, Vendor};
use crate::partition::{Part, PartitionTable, ShareSupport};
use crate::units::Bytes;

/// One physical accelerator: a GPU, an NPU chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Vendor's identity of it; names of devices come from this, never from `index`.
    pub uuid: CardUuid,
    /// Enumeration index: for people and for policy selectors only; may change at a reboot.
    pub index: u32,
    /// Vendor.
    pub vendor: Vendor,
    /// Model in the catalogue.
    pub model: ModelId,
    /// Name as the vendor library reports it, at most 64 bytes when published.
    pub product_name: String,
    /// Architecture, such as `Hopper` or `DaVinci`.
    pub architecture: String,
    /// Memory that tenants can use on the whole card.
    pub memory: Bytes,
    /// Driver version as reported; published as a semantic version where it is one.
    pub driver_version: String,
    /// PCI address.
    pub pci: Option<PciAddress>,
    /// PCIe root complex, `pciDDDD:BB`.
    pub pcie_root: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// How it is wired to its neighbours.
    pub topology: Topology,
    /// Whether shares of the whole card can be enforced.
    pub shareable: ShareSupport,
    /// What it may be cut into.
    pub partitioning: Partitioning,
    /// What of it can be had.
    pub supply: Supply,
    /// Whether it works.
    pub health: Health,
    /// Whether its driver lists it.
    pub listing: Listing,
    /// What was noted of the whole card, and its loss if the driver reports that; of another failed query, nothing.
    pub noted: BTreeSet<NotedFault>,
    /// Parts of it that accept no new claims, though the card works.
    pub unwell: Vec<Unwell>,
    /// Parts that exist on it already and that no journal of ours claims.
    pub found: Vec<Part>,
}

/// Groups of cards that are closer to each other than to the rest; absent where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Chips on one board or module.
    pub card_id: Option<String>,
    /// Chips in one HCCS ring or mesh.
    pub hccs_group: Option<String>,
    /// GPUs that reach each other over NVLink.
    pub nvlink_domain: Option<String>,
}

/// What a card may be cut into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partitioning {
    /// Nothing: the hardware has no partitions.
    None,
    /// Templates, in any mix that the counters allow. Shared by all copies of a card: tables are large and never change.
    Templates(Arc<PartitionTable>),
    /// Modes that exclude each other; exactly one is current, changed only while the card is idle.
    Modes {
        /// All modes.
        modes: Vec<Mode>,
        /// Name of the current one; `None`: the whole card.
        current: Option<String>,
    },
}

/// A whole-card switch to a fixed table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Name, such as `cpx_nps4`.
    pub name: String,
    /// What the card consists of in this mode.
    pub table: PartitionTable,
}

/// What of a card can be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supply {
    /// Itself and its parts, those that were found on it among them.
    #[default]
    All,
    /// Parts that are made on request: the card is in a mode in which no program reaches the card itself.
    /// Parts that were found on it belong to others.
    NewParts,
}

/// Whether a card works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Healthy,
    /// It does not; the text says why and is shown to people.
    Unhealthy(String),
}

/// Whether a card's driver lists it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// It does, whether or not the card works.
    #[default]
    Listed,
    /// It did, and does not now. The card counts for as long as claims hold parts of it.
    Unlisted,
}

/// A part that accepts no new claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwell {
    /// Which.
    pub part: Part,
    /// Why; shown to people.
    pub why: String,
    /// What was noted.
    pub fault: NotedFault,
}

/// What a note says is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotedFault {
    /// Unknown: notes that cannot be read or are too many, or an error at a place that the card does not have.
    Unknown,
    /// A partition, by an error that names it.
    Part,
    /// The card, by an error.
    Card,
    /// The card: it answers no more.
    Lost,
}

/// Everything found on one node, in index order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Cards, by index.
    pub cards: Vec<Card>,
}

// === impl Card ===

impl Card {
    /// The table that counts now: that of the templates, or of the current mode.
    #[must_use]
    pub fn table(&self) -> Option<&PartitionTable> {
        match &self.partitioning {
            Partitioning::None => None,
            Partitioning::Templates(table) => Some(table),
            Partitioning::Modes { modes, current } => {
                let current = current.as_ref()?;
                modes.iter().find(|m| m.name == *current).map(|m| &m.table)
            }
        }
    }
}

// === impl Inventory ===

impl Inventory {
    /// The card with this UUID.
    #[must_use]
    pub fn card(&self, uuid: &CardUuid) -> Option<&Card> {
        self.cards.iter().find(|c| c.uuid == *uuid)
    }
}
