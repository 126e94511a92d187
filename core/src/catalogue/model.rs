//! One card model: what a file of the catalogue says of a product.

use crate::card::{Card, Health, Listing, Mode, Partitioning, Supply, Topology};
use crate::id::{CardUuid, ModelId, PciAddress, TemplateName, Vendor};
use crate::partition::{Certainty, Part, PartitionTable, ShareSupport};
use crate::units::Bytes;

/// Most counters of one counter set in `resource.k8s.io/v1`.
pub const COUNTERS_MAX: usize = 32;

/// One product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardModel {
    /// Name in the catalogue.
    pub id: ModelId,
    /// Vendor.
    pub vendor: Vendor,
    /// What people call it; several models may share one (`H100`).
    pub names: Vec<String>,
    /// Products that count as the same chip for rules; the id where the file names none.
    pub family: String,
    /// Architecture, such as `Hopper`.
    pub architecture: String,
    /// Memory that tenants can use on the whole card.
    pub memory: Bytes,
    /// Whether it is offered without a word of warning.
    pub maturity: Maturity,
    /// What the file leaves out or presumes, for people.
    pub notes: Vec<String>,
    /// How discovery recognizes it.
    pub matching: ModelKeys,
    /// Whether shares of the whole card can be enforced.
    pub shareable: ShareSupport,
    /// How its cards usually hang together.
    pub topology: TopologyHint,
    /// What it may be cut into; no mode is current.
    pub partitioning: Partitioning,
    /// Template spellings of older drivers.
    pub driver_spellings: Vec<DriverSpelling>,
    /// What counters cannot say.
    pub rules: Vec<CardRule>,
    /// Where the facts are from.
    pub sources: Vec<Source>,
}

/// Whether a model may be offered as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Maturity {
    /// The sources agree.
    Settled,
    /// They do not; the text says what to mind.
    Experimental(String),
}

/// Keys by which discovery recognizes a model; an empty list says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelKeys {
    /// Names as the vendor library reports them.
    pub product_names: Vec<String>,
    /// PCI `vendor:device` ids in lower case.
    pub pci_ids: Vec<String>,
    /// Chip names as the vendor library reports them.
    pub chip_names: Vec<String>,
    /// Vendor's board numbers.
    pub board_ids: Vec<u32>,
    /// Least total memory.
    pub memory_min: Option<Bytes>,
    /// Most total memory.
    pub memory_max: Option<Bytes>,
}

/// What discovery has read of a card, as far as it could.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
    /// Name as the vendor library reports it.
    pub product_name: Option<String>,
    /// PCI `vendor:device`.
    pub pci_id: Option<String>,
    /// Chip name.
    pub chip_name: Option<String>,
    /// Board number.
    pub board_id: Option<u32>,
    /// Total memory.
    pub memory: Option<Bytes>,
}

/// How cards of a model usually hang together on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyHint {
    /// Chips on one board or module; 1 is the usual card.
    pub chips_per_card: u32,
    /// The fast link, where there is one.
    pub link: Option<LinkHint>,
}

/// A fast link between cards of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHint {
    /// Which.
    pub kind: LinkKind,
    /// How it is laid.
    pub shape: LinkShape,
    /// Cards in one group.
    pub size: u32,
}

/// Fast links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Huawei's.
    Hccs,
    /// NVIDIA's.
    Nvlink,
}

/// How a fast link is laid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkShape {
    /// Neighbours in a ring.
    Ring,
    /// Each to each.
    Mesh,
    /// Through a switch.
    Switch,
}

/// Another spelling of a template that older drivers use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverSpelling {
    /// The template.
    pub template: TemplateName,
    /// What the older driver calls it.
    pub spelling: TemplateName,
    /// The first driver version that does not, in dotted numbers.
    pub drivers_before: String,
}

/// What no counter can say; checked by the ledger, or by the backend where it concerns settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardRule {
    /// Chips of one scope are all whole or all split.
    SameMode(RuleScope),
    /// A card may be split only if the cards of its family in the scope agree in an attribute.
    Homogeneous {
        /// Among which cards.
        scope: RuleScope,
        /// In what.
        attribute: RuleAttribute,
    },
    /// A setting that the node must have before anything is cut.
    NodeSetting {
        /// Which.
        name: String,
        /// What it must be.
        value: String,
    },
}

/// How far a rule reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleScope {
    /// Chips with the same `cardID`.
    Card,
    /// All cards of the node.
    Node,
}

/// What a homogeneity rule compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAttribute {
    /// Nominal memory of the model.
    Memory,
    /// The model itself.
    Model,
}

/// Where facts are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Which parts of the file.
    pub covers: Vec<&'static str>,
    /// How sure they are.
    pub certainty: Certainty,
    /// The source's own description.
    pub text: String,
}

/// What a backend knows of one card; the model fills the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardIdentity {
    /// Vendor's identity of it.
    pub uuid: CardUuid,
    /// Enumeration index.
    pub index: u32,
    /// Name as reported; the model's first product name (or its id) otherwise.
    pub product_name: Option<String>,
    /// Usable memory as read; the model's otherwise.
    pub memory: Option<Bytes>,
    /// Driver version as reported.
    pub driver_version: String,
    /// PCI address.
    pub pci: Option<PciAddress>,
    /// PCIe root complex.
    pub pcie_root: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// Groups it belongs to.
    pub topology: Topology,
    /// Current mode, for models with modes.
    pub mode: Option<String>,
    /// Whether it works.
    pub health: Health,
    /// Parts found on it that Aliquot did not make.
    pub found: Vec<Part>,
}

// === impl CardModel ===

impl CardModel {
    /// The card of this model that a backend has found. A current mode that the model does not know makes the
    /// card unhealthy, since its parts are then unknown.
    #[must_use]
    pub fn card(&self, identity: CardIdentity) -> Card {
        let (partitioning, trouble) = self.partitioning_in(identity.mode);
        let health = match (identity.health, trouble) {
            (Health::Healthy, Some(why)) => Health::Unhealthy(why),
            (health, _) => health,
        };
        Card {
            uuid: identity.uuid,
            index: identity.index,
            vendor: self.vendor.clone(),
            model: self.id.clone(),
            product_name: identity.product_name.unwrap_or_else(|| self.product_name().to_owned()),
            architecture: self.architecture.clone(),
            memory: identity.memory.unwrap_or(self.memory),
            driver_version: identity.driver_version,
            pci: identity.pci,
            pcie_root: identity.pcie_root,
            numa_node: identity.numa_node,
            topology: identity.topology,
            shareable: self.shareable,
            partitioning,
            supply: Supply::All,
            health,
            listing: Listing::Listed,
            noted: Default::default(),
            unwell: Vec::new(),
            found: identity.found,
        }
    }

    /// The name that goes on the card where discovery reads none.
    #[must_use]
    pub fn product_name(&self) -> &str {
        self.matching.product_names.first().map_or(self.id.as_str(), String::as_str)
    }

    /// The table of its templates; `None` for a model without partitions or with modes.
    #[must_use]
    pub fn table(&self) -> Option<&PartitionTable> {
        match &self.partitioning {
            Partitioning::Templates(table) => Some(table),
            Partitioning::None | Partitioning::Modes { .. } => None,
        }
    }

    /// Every table it has: the one of its templates, or one a mode.
    #[must_use]
    pub fn tables(&self) -> Vec<&PartitionTable> {
        match &self.partitioning {
            Partitioning::None => Vec::new(),
            Partitioning::Templates(table) => vec![table],
            Partitioning::Modes { modes, .. } => modes.iter().map(|m: &Mode| &m.table).collect(),
        }
    }

    /// How a driver of this version spells the template.
    #[must_use]
    pub fn spelling<'a>(&'a self, template: &'a TemplateName, driver_version: &str) -> &'a TemplateName {
        self.driver_spellings
            .iter()
            .find(|s| s.template == *template && is_before(driver_version, &s.drivers_before))
            .map_or(template, |s| &s.spelling)
    }

    fn partitioning_in(&self, mode: Option<String>) -> (Partitioning, Option<String>) {
        match (&self.partitioning, mode) {
            (Partitioning::Modes { modes, .. }, Some(mode)) => {
                let known: Vec<&str> = modes.iter().map(|m| m.name.as_str()).collect();
                let trouble = (!known.contains(&mode.as_str()))
                    .then(|| format!("its mode is `{mode}`; {} knows {}", self.id, known.join(", ")));
                (Partitioning::Modes { modes: modes.clone(), current: Some(mode) }, trouble)
            }
            (same, _) => (same.clone(), None),
        }
    }
}

/// Whether version `a` is below `b`, number by number; text that is not a number counts as 0.
fn is_before(a: &str, b: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(|c: char| !c.is_ascii_digit())
            .filter(|p| !p.is_empty())
            .map(|p| p.parse().unwrap_or(0))
            .collect()
    };
    numbers(a) < numbers(b)
}
