//! Hardware of one node, opened, and what people are told of it: where the backends come in.

use std::collections::BTreeMap;
use std::path::Path;

use aliquot_backend_sim::SimNode;
use aliquot_core::card::Inventory;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::NodeName;
use aliquot_core::ports::DeviceBackend;

use super::failure::Failure;
use super::node_spec::NodeSpec;
use super::state::chain;

/// Hardware of one node.
pub(super) struct Hardware {
    pub(super) name: NodeName,
    pub(super) kind: Kind,
    /// One line about it, for people; may be empty.
    pub(super) about: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) backend: Box<dyn DeviceBackend>,
}

/// What kind of cards they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// They are described, and nothing else.
    Simulated,
}

// === impl Hardware ===

impl Hardware {
    /// Simulated hardware that lives in memory.
    pub(super) fn in_memory(spec: &NodeSpec, catalogue: &Catalogue) -> Result<Self, Failure> {
        let node = SimNode::in_memory(&spec.file, catalogue)
            .map_err(|error| Failure::input(spec.source.clone(), chain(&error)))?;
        Ok(Self::of(node))
    }

    /// Simulated hardware that lives in a state directory.
    pub(super) fn simulated(spec: &NodeSpec, catalogue: &Catalogue, state: &Path) -> Result<Self, Failure> {
        let node = SimNode::open(&spec.file, catalogue, &state.join("hardware"))
            .map_err(|error| Failure::Node(chain(&error)))?;
        Ok(Self::of(node))
    }

    fn of(node: SimNode) -> Self {
        Self {
            name: node.name().clone(),
            kind: Kind::Simulated,
            about: node.about().to_owned(),
            labels: node.labels().clone(),
            backend: Box::new(node),
        }
    }

    /// The cards as they are now.
    pub(super) fn discover(&self) -> Result<Inventory, Failure> {
        self.backend.discover().map_err(|error| Failure::Node(chain(&error)))
    }
}

// === impl Kind ===

impl Kind {
    /// As a word behind the number of cards.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
        }
    }
}
