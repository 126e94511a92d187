//! Hardware of one node: opens the backends of its cards, real or simulated.
//!
//! Nothing here knows the command line: the agent and the commands open hardware the same way.

pub(crate) mod card_owners;
mod error;
mod files;
pub(crate) mod npus;
pub mod simulated_cards;
mod spec;
pub mod vendors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_backend_sim::SimNode;
use aliquot_core::card::Inventory;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::{CardUuid, NodeName};
use aliquot_core::ports::{BackendError, DeviceBackend};

pub use error::HardwareError;
pub use files::{read_catalogue, read_policy, read_text};
pub use spec::{COPIES_MAX, NodeSpec, node_spec};
pub use vendors::MachineCards;

use crate::error_text::chain;
use vendors::{ContextDrivers, HostRoots};

/// Name of this machine as a node. Claims keep it, so it must not change with the host's name.
const MACHINE: &str = "machine";

/// Opens this machine's own cards, of every vendor.
///
/// # Errors
/// [`HardwareError::Cards`] if no vendor library can be loaded or none finds a card; it has a line for each vendor.
pub fn open_machine(catalogue: &Catalogue) -> Result<Arc<MachineCards>, HardwareError> {
    Ok(MachineCards::open(catalogue)?)
}

/// The same for containers, which get the driver's files from a place on the host.
///
/// # Errors
/// As [`open_machine`]; a vendor with a named driver root and no driver there counts as one without cards.
pub fn open_machine_for_containers(
    catalogue: &Catalogue,
    place: &HostRoots,
) -> Result<Arc<MachineCards>, HardwareError> {
    Ok(MachineCards::open_for_containers(catalogue, place)?)
}

/// Hardware of one node.
pub struct Hardware {
    /// Name of the node.
    pub name: NodeName,
    /// Kind of its cards.
    pub kind: HardwareKind,
    /// One line about it, for people; may be empty.
    pub about: String,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Its cards.
    pub backend: Box<dyn DeviceBackend>,
    /// How the size of contexts is found.
    pub contexts: ContextSource,
}

/// How the size of contexts on cards is found.
pub enum ContextSource {
    /// Not at all: the cards are in memory alone.
    Unknown,
    /// From the files of simulated cards below a state directory.
    Simulated {
        /// State directory of the node.
        state: PathBuf,
    },
    /// By a measurement on this machine's cards.
    Measured {
        /// The cards.
        cards: Arc<dyn DeviceBackend>,
        /// The driver, for which measurements are stored.
        driver: Arc<dyn ContextDrivers>,
        /// Called with a card if its context takes long to measure.
        slow: fn(&CardUuid),
    },
}

/// Kind of a node's cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HardwareKind {
    /// Simulated cards.
    Simulated,
    /// Cards of this machine.
    Machine,
}

// === impl Hardware ===

impl Hardware {
    /// Simulated hardware that lives in memory.
    ///
    /// # Errors
    /// [`HardwareError::Description`] if the node file contradicts the catalogue.
    pub fn in_memory(spec: &NodeSpec, catalogue: &Catalogue) -> Result<Self, HardwareError> {
        let node = SimNode::in_memory(&spec.file, catalogue)
            .map_err(|error| HardwareError::description(spec.source.clone(), chain(&error)))?;
        Ok(Self::of(node))
    }

    /// Simulated hardware that lives in a state directory.
    ///
    /// # Errors
    /// [`HardwareError::Cards`] if its files are unreadable or describe other cards.
    pub fn simulated(spec: &NodeSpec, catalogue: &Catalogue, state: &Path) -> Result<Self, HardwareError> {
        let mut node = SimNode::open(&spec.file, catalogue, &state.join("hardware"))
            .map_err(|error| HardwareError::Cards(chain(&error)))?;
        npus::serve(&mut node, catalogue, state)?;
        Ok(Self { contexts: ContextSource::Simulated { state: state.to_owned() }, ..Self::of(node) })
    }

    fn of(node: SimNode) -> Self {
        Self {
            name: node.name().clone(),
            kind: HardwareKind::Simulated,
            about: node.about().to_owned(),
            labels: node.labels().clone(),
            backend: Box::new(node),
            contexts: ContextSource::Unknown,
        }
    }

    /// This machine's own cards. `slow` is called with a card if its context takes long to measure.
    ///
    /// # Errors
    /// None in practice: the machine's name is constant.
    pub fn machine(machine: &MachineCards, slow: fn(&CardUuid)) -> Result<Self, HardwareError> {
        let measured = |driver| ContextSource::Measured { cards: machine.backend(), driver, slow };
        Ok(Self {
            name: NodeName::new(MACHINE).map_err(|error| HardwareError::Cards(error.to_string()))?,
            kind: HardwareKind::Machine,
            about: machine.about(),
            labels: BTreeMap::new(),
            backend: Box::new(machine.backend()),
            contexts: machine.contexts().map_or(ContextSource::Unknown, measured),
        })
    }

    /// The cards as they are now.
    ///
    /// # Errors
    /// Those of [`DeviceBackend::discover`].
    pub fn discover(&self) -> Result<Inventory, BackendError> {
        self.backend.discover()
    }
}

// === impl HardwareKind ===

impl HardwareKind {
    /// As a word behind the number of cards.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Machine => "this machine's own",
        }
    }
}
