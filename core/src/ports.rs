//! Ports: what the deciding side asks of the world, as traits over plain data.
//!
//! ```text
//!   plan, prepare, recover ──▶ DeviceBackend ◀─┬─ Composite ─▶ one backend per vendor
//!                                              └─ backends/{sim, nvidia, …}: a node file or a vendor's library behind it
//! ```
//!
//! A backend states facts and does single things to hardware; it holds no policy and no accounting. Every call may
//! be repeated after a crash: a partition is named by card, template and placement, so the second creation of the
//! same partition is told apart from the first ([`BackendError::AlreadyThere`]), and the destruction of an absent one
//! is told apart from a failed one ([`BackendError::Absent`]).
//!
//! A vendor implements [`DeviceBackend`]; discovery, partitions and access are required. The rest (usage, samples,
//! events, context size, error codes) has defaults for hardware that does not report it. Calls name a card by its UUID and
//! do not enumerate the others.

mod composite;
mod error;
mod on_host;
mod partition_at;
mod usage;

use std::sync::Arc;
use std::time::Duration;

pub use composite::{Composite, Member};
pub use error::BackendError;
pub use on_host::VendorOnHost;
pub use partition_at::{PartitionAt, PartitionHandle};
pub use usage::{CardEvent, CardEvents, CardSample, CardUsage, Samples};

use crate::card::{Card, Inventory};
use crate::health::{Harm, Meaning};
use crate::id::CardUuid;
use crate::partition::Part;
use crate::units::Bytes;

/// A snapshot of the cards counts for no longer, whatever [`DeviceBackend::generation`] says.
pub const DISCOVERY_AGE_MAX: Duration = Duration::from_secs(30);

/// Hardware of one vendor on one node, or a simulation of it.
pub trait DeviceBackend: Send + Sync {
    /// Every card, with the partitions that exist on it right now in [`crate::card::Card::found`], also those of other programs.
    ///
    /// # Errors
    /// The hardware cannot be asked.
    fn discover(&self) -> Result<Inventory, BackendError>;

    /// One card as it is right now, as [`DeviceBackend::discover`] finds it. Its index may differ where several vendors are on one
    /// node. A vendor with a library that can be asked about one card asks about no other.
    ///
    /// # Errors
    /// The hardware cannot be asked; [`BackendError::UnknownCard`] if it does not know the card.
    fn discover_card(&self, card: &CardUuid) -> Result<Card, BackendError> {
        let found = self.discover()?.cards.into_iter().find(|found| found.uuid == *card);
        found.ok_or_else(|| BackendError::UnknownCard(card.clone()))
    }

    /// Every partition that exists right now, by card, template and placement.
    ///
    /// # Errors
    /// The hardware cannot be asked.
    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError>;

    /// The partitions of one card. A vendor with a library that can be asked about one card asks about no other.
    ///
    /// # Errors
    /// The hardware cannot be asked; [`BackendError::UnknownCard`] if it does not know the card.
    fn partitions_on(&self, card: &CardUuid) -> Result<Vec<LivePartition>, BackendError> {
        let mut all = self.partitions()?;
        all.retain(|live| live.at.card == *card);
        Ok(all)
    }

    /// Makes one partition.
    ///
    /// # Errors
    /// The hardware refuses; nothing was made, except where the answer itself was lost ([`BackendError::Vendor`]):
    /// the caller asks [`DeviceBackend::partitions`] before it believes an error.
    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError>;

    /// Destroys the one partition at this place, if it still is the one with this handle.
    ///
    /// # Errors
    /// The hardware refuses, nothing is there, or another partition is there by now.
    fn destroy_partition(&self, at: &PartitionAt, handle: &ExpectedPartition) -> Result<(), BackendError>;

    /// Load of the driver that serves the hardware now, in one word; it changes when the driver is loaded anew. `None` if no
    /// driver was asked: the cards are described.
    fn driver_load(&self) -> Option<String> {
        None
    }

    /// A number that changes once discovery may answer differently, as far as that is known without asking each card: this
    /// backend made or destroyed a partition, a card reported its loss, the driver was loaded anew. A caller that keeps a
    /// snapshot discovers again after a change, and at the latest after [`DISCOVERY_AGE_MAX`], since another program may change
    /// cards without a sign. `None` if the backend cannot tell, or if its latest discovery found trouble: discover each time.
    fn generation(&self) -> Option<u64> {
        None
    }

    /// Vendors and cards of the node that are out of service, one line each, as the latest discovery found them; empty if all
    /// works.
    fn trouble(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why no card gives new partitions, one line a card; empty if at least one does.
    fn no_partitions(&self) -> Vec<String> {
        Vec::new()
    }

    /// Memory and processes of a card, or of a partition by its visible UUID.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if the hardware does not report it.
    fn usage(&self, visible: &CardUuid) -> Result<CardUsage, BackendError> {
        Err(BackendError::Unsupported { what: format!("usage of {visible}") })
    }

    /// Compute time of a card and of its processes, sampled after `since_micros` of the driver's clock. `None` if the driver
    /// has no samples of either for this card.
    ///
    /// # Errors
    /// The card does not answer.
    fn samples(&self, visible: &CardUuid, since_micros: u64) -> Result<Option<Samples>, BackendError> {
        let _ = (visible, since_micros);
        Ok(None)
    }

    /// Events of one card, from now on.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if the driver has no events for this card.
    fn events(&self, card: &CardUuid) -> Result<Box<dyn CardEvents>, BackendError> {
        Err(BackendError::Unsupported { what: format!("events of card {card}") })
    }

    /// Size of one context on a card or partition, if the backend knows it without measuring.
    fn context_size(&self, visible: &CardUuid) -> Option<Bytes> {
        let _ = visible;
        None
    }

    /// Meaning of a vendor's error code on a card.
    fn meaning(&self, card: &CardUuid, code: u64) -> Meaning {
        let _ = card;
        Meaning {
            name: format!("error {code}"),
            what: "the vendor's table does not list it",
            harm: Harm::Card,
        }
    }

    /// Variables under which a program outside of containers, or a container runtime that it starts, finds a part.
    ///
    /// # Errors
    /// The card is unknown, or the partition does not exist.
    fn variables(&self, card: &CardUuid, part: &Part) -> Result<Vec<(String, String)>, BackendError> {
        let _ = (card, part);
        Ok(Vec::new())
    }

    /// How a tenant reaches a part: device files, and the identity under which it sees the part.
    ///
    /// # Errors
    /// The card is unknown, or the partition does not exist.
    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError>;
}

impl<B: DeviceBackend + ?Sized> DeviceBackend for Arc<B> {
    fn discover(&self) -> Result<Inventory, BackendError> {
        self.as_ref().discover()
    }

    fn discover_card(&self, card: &CardUuid) -> Result<Card, BackendError> {
        self.as_ref().discover_card(card)
    }

    fn partitions(&self) -> Result<Vec<LivePartition>, BackendError> {
        self.as_ref().partitions()
    }

    fn partitions_on(&self, card: &CardUuid) -> Result<Vec<LivePartition>, BackendError> {
        self.as_ref().partitions_on(card)
    }

    fn create_partition(&self, at: &PartitionAt) -> Result<LivePartition, BackendError> {
        self.as_ref().create_partition(at)
    }

    fn destroy_partition(&self, at: &PartitionAt, handle: &ExpectedPartition) -> Result<(), BackendError> {
        self.as_ref().destroy_partition(at, handle)
    }

    fn driver_load(&self) -> Option<String> {
        self.as_ref().driver_load()
    }

    fn generation(&self) -> Option<u64> {
        self.as_ref().generation()
    }

    fn trouble(&self) -> Vec<String> {
        self.as_ref().trouble()
    }

    fn no_partitions(&self) -> Vec<String> {
        self.as_ref().no_partitions()
    }

    fn usage(&self, visible: &CardUuid) -> Result<CardUsage, BackendError> {
        self.as_ref().usage(visible)
    }

    fn samples(&self, visible: &CardUuid, since_micros: u64) -> Result<Option<Samples>, BackendError> {
        self.as_ref().samples(visible, since_micros)
    }

    fn events(&self, card: &CardUuid) -> Result<Box<dyn CardEvents>, BackendError> {
        self.as_ref().events(card)
    }

    fn context_size(&self, visible: &CardUuid) -> Option<Bytes> {
        self.as_ref().context_size(visible)
    }

    fn meaning(&self, card: &CardUuid, code: u64) -> Meaning {
        self.as_ref().meaning(card, code)
    }

    fn variables(&self, card: &CardUuid, part: &Part) -> Result<Vec<(String, String)>, BackendError> {
        self.as_ref().variables(card, part)
    }

    fn access(&self, card: &CardUuid, part: &Part) -> Result<DeviceAccess, BackendError> {
        self.as_ref().access(card, part)
    }
}

/// A partition that exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LivePartition {
    /// Where.
    pub at: PartitionAt,
    /// Which one.
    pub handle: PartitionHandle,
}

/// Which partition the caller believes to be at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedPartition {
    /// The one with this handle and no other.
    Handle(PartitionHandle),
    /// Whichever is there: the caller planned it and died before it learned the handle.
    Any,
}

/// How a tenant reaches a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAccess {
    /// UUID that tools in the container show.
    pub visible_uuid: CardUuid,
    /// Device files.
    pub nodes: Vec<DeviceNode>,
    /// What of the vendor's driver a container mounts: libraries, and the hardware itself where it is simulated.
    pub mounts: Vec<AccessMount>,
    /// Constants in the environment of a container; each name has one value on a node.
    pub environment: Vec<(String, String)>,
}

/// One bind mount.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessMount {
    /// Path on the host.
    pub host: String,
    /// Path in the container.
    pub container: String,
    /// What the container does with it.
    pub content: MountContent,
}

/// What a container does with a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountContent {
    /// It reads it.
    ReadOnly,
    /// It writes it: the simulated cards, which take the place of device memory and registers.
    SimulatedCards,
}

/// One device file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNode {
    /// Path on the host.
    pub host: String,
    /// Path in the container.
    pub container: String,
    /// Major number of the character device.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

// === impl DeviceAccess ===

impl DeviceAccess {
    /// Device files alone.
    #[must_use]
    pub const fn by_nodes(visible_uuid: CardUuid, nodes: Vec<DeviceNode>) -> Self {
        Self { visible_uuid, nodes, mounts: Vec::new(), environment: Vec::new() }
    }
}

// === impl PartitionHandle ===
