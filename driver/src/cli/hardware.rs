//! Hardware of one node, opened, and what people are told of it: where the backends come in.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use aliquot_backend_nvidia::NvidiaNode;
use aliquot_backend_sim::SimNode;
use aliquot_core::card::Inventory;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::{CardUuid, NodeName};
use aliquot_core::ports::DeviceBackend;

use crate::contexts::{Gauge, MachineGauge, SimulatedGauge};

use super::failure::Failure;
use super::node_spec::NodeSpec;
use super::output::Progress;
use super::state::chain;

/// Name of this machine as a node: claims keep it, so that it must not change with the name of the host.
const MACHINE: &str = "machine";

/// This very program, also where another version has taken its place on disk.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Looks for this machine's own cards.
pub(super) fn open_machine(catalogue: &Catalogue) -> Result<Arc<NvidiaNode>, Failure> {
    let advice = "Without cards, --node names simulated ones, such as --node h100-8";
    let opened = NvidiaNode::open(catalogue);
    opened.map(Arc::new).map_err(|error| Failure::Node(format!("{}. {advice}", chain(&error))))
}

/// Hardware of one node.
pub(super) struct Hardware {
    pub(super) name: NodeName,
    pub(super) kind: Kind,
    /// One line about it, for people; may be empty.
    pub(super) about: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) backend: Box<dyn DeviceBackend>,
    /// Who finds out what a context takes.
    pub(super) gauge: Option<Arc<dyn Gauge>>,
}

/// What kind of cards they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// They are described, and nothing else.
    Simulated,
    /// They are in this machine.
    Machine,
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
        let gauge: Arc<dyn Gauge> = Arc::new(SimulatedGauge { state: state.to_owned() });
        Ok(Self { gauge: Some(gauge), ..Self::of(node) })
    }

    fn of(node: SimNode) -> Self {
        Self {
            name: node.name().clone(),
            kind: Kind::Simulated,
            about: node.about().to_owned(),
            labels: node.labels().clone(),
            backend: Box::new(node),
            gauge: None,
        }
    }

    /// This machine's own cards.
    pub(super) fn machine(node: &Arc<NvidiaNode>, progress: Progress) -> Result<Self, Failure> {
        let slow = match progress {
            Progress::On => say_measuring,
            Progress::Off => say_nothing,
        };
        let gauge = MachineGauge { node: Arc::clone(node), program: OWN_PROGRAM.into(), slow };
        Ok(Self {
            name: NodeName::new(MACHINE).map_err(|error| Failure::Node(error.to_string()))?,
            kind: Kind::Machine,
            about: format!("NVIDIA driver {}", node.driver()),
            labels: BTreeMap::new(),
            backend: Box::new(Arc::clone(node)),
            gauge: Some(Arc::new(gauge)),
        })
    }

    /// The cards as they are now.
    pub(super) fn discover(&self) -> Result<Inventory, Failure> {
        self.backend.discover().map_err(|error| Failure::Node(chain(&error)))
    }
}

/// Long work, on standard error while a person watches.
fn say_measuring(card: &CardUuid) {
    // What cannot be shown is no reason to stop.
    drop(writeln!(io::stderr(), "measuring what a context of card {card} takes"));
}

fn say_nothing(_: &CardUuid) {}

// === impl Kind ===

impl Kind {
    /// As a word behind the number of cards.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Machine => "this machine's own",
        }
    }
}
