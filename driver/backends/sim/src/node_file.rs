//! The text of a node file, read strictly: what a simulated node consists of.
//!
//! ```toml
//! schema = 1
//! name = "two-h100"
//!
//! [[card]]
//! model = "nvidia-h100-80gb-sxm"     # a model of the catalogue, or of this file
//! count = 2
//! numa = [0, 1]                      # a list has one entry for all cards of the group, or one for each
//!
//! [[model]]                          # optional: a model that no catalogue has, as a catalogue file describes it
//! id = "acme-a1"
//! ```
//!
//! An unknown field is an error that names it, as is a list of the wrong length. Nothing here knows the catalogue or
//! the disk; [`crate::probe`] makes cards of it.

use std::collections::BTreeMap;

use aliquot_core::card::Topology;
use aliquot_core::catalogue::CatalogueError;
use aliquot_core::id::{CardUuid, NameError, NodeName, PciAddress, TemplateName};
use serde::Deserialize;

/// Version of the format that this code reads.
const SCHEMA: u32 = 1;
/// Most cards in one file: ten times the largest node sold; stops a slip of the keyboard from filling the memory.
const CARDS_MAX: usize = 4096;

/// A node file, read but not yet compared with the catalogue.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeFile {
    schema: u32,
    pub(crate) name: String,
    /// One line about the node, for people.
    #[serde(default)]
    pub(crate) about: String,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(rename = "card")]
    pub(crate) groups: Vec<CardGroup>,
    #[serde(default, rename = "fault")]
    pub(crate) faults: Vec<FaultText>,
    #[serde(default, rename = "model")]
    pub(crate) models: Vec<toml::Table>,
}

/// Cards of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct CardGroup {
    pub(crate) model: String,
    #[serde(default = "one")]
    pub(crate) count: u32,
    #[serde(default)]
    pub(crate) uuid: Vec<String>,
    #[serde(default)]
    pub(crate) uuid_prefix: Option<String>,
    #[serde(default)]
    pub(crate) pci: Vec<String>,
    #[serde(default)]
    pub(crate) pcie_root: Vec<String>,
    #[serde(default)]
    pub(crate) numa: Vec<u32>,
    #[serde(default)]
    pub(crate) topology: TopologyText,
    pub(crate) driver_version: Option<String>,
    pub(crate) product_name: Option<String>,
    pub(crate) memory: Option<String>,
    pub(crate) mode: Option<String>,
    #[serde(default = "default_nodes")]
    pub(crate) device_nodes: Vec<String>,
    #[serde(default)]
    pub(crate) partition_nodes: Vec<String>,
    /// Number of the first partition of the first card.
    #[serde(default)]
    pub(crate) partition_id_first: u32,
    /// How far the numbers of two neighbouring cards are apart.
    #[serde(default)]
    pub(crate) partition_ids_a_card: u32,
    #[serde(default)]
    pub(crate) health: Vec<HealthText>,
    #[serde(default)]
    pub(crate) found: Vec<FoundText>,
}

/// Which cards are close to each other; lists as everywhere.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TopologyText {
    #[serde(default)]
    card_id: Vec<String>,
    #[serde(default)]
    hccs_group: Vec<String>,
    #[serde(default)]
    nvlink_domain: Vec<String>,
}

/// A card of the group that does not work.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct HealthText {
    pub(crate) card: usize,
    pub(crate) unhealthy: String,
}

/// A partition that exists before we come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct FoundText {
    pub(crate) card: usize,
    pub(crate) template: String,
    pub(crate) placement: String,
}

/// A call of the hardware that goes wrong; see [`crate::health`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct FaultText {
    pub(crate) call: CallText,
    pub(crate) nth: u64,
    #[serde(default = "one_time")]
    pub(crate) times: u64,
    pub(crate) effect: EffectText,
    #[serde(default)]
    pub(crate) code: i32,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) millis: u64,
}

/// Which call.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CallText {
    Discover,
    List,
    Create,
    Destroy,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EffectText {
    Error,
    Busy,
    LostAnswer,
    Slow,
}

/// Why a text is not a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeFileError {
    /// Not TOML, a field of the wrong type, or one that does not exist; the message has line and field.
    #[error("node file: {}", .0.to_string().trim_end())]
    Syntax(#[source] Box<toml::de::Error>),
    /// Another format.
    #[error(
        "node file: `schema` is {found}, this version reads {SCHEMA}: use the aliquot that the file is for"
    )]
    Schema {
        /// What the file says.
        found: u32,
    },
    /// A name breaks its rule.
    #[error("node file: `{field}` of card {card}: {source}")]
    Name {
        /// Field.
        field: &'static str,
        /// Group in the file, from 0.
        card: usize,
        /// Which rule.
        source: NameError,
    },
    /// The node's name breaks its rule.
    #[error("node file: `name`: {0}")]
    NodeName(NameError),
    /// Nothing, or too much.
    #[error("node file: {found} cards; expected 1 to {CARDS_MAX}: mend `count`")]
    Count {
        /// Cards in the file.
        found: usize,
    },
    /// A list that fits neither rule.
    #[error(
        "node file: `{field}` of card {card} has {found} entries; expected none, one for all, or {count} (one a card)"
    )]
    Length {
        /// Field.
        field: &'static str,
        /// Group in the file, from 0.
        card: usize,
        /// Entries.
        found: usize,
        /// Cards in the group.
        count: usize,
    },
    /// Two cards with one identity.
    #[error("node file: UUID {0} is given to two cards: every card needs its own")]
    DuplicateUuid(CardUuid),
    /// Two cards at one place.
    #[error("node file: PCI address {0} is given to two cards: every card needs its own")]
    DuplicatePci(PciAddress),
    /// A value that makes no card.
    #[error("node file: `{field}` of card {card}: found {found}; expected {expected}")]
    Value {
        /// Field.
        field: &'static str,
        /// Group in the file, from 0.
        card: usize,
        /// As found.
        found: String,
        /// The rule.
        expected: &'static str,
    },
    /// A model that neither the catalogue has nor the file describes.
    #[error(
        "node file: model `{model}` of card {card} is not in the catalogue; name one of {known}, or describe it in the \
         file as a `[[model]]`"
    )]
    UnknownModel {
        /// As found.
        model: String,
        /// Group in the file, from 0.
        card: usize,
        /// Models that there are.
        known: String,
    },
    /// A name that several models share.
    #[error("node file: model `{model}` of card {card} may be {several}: name one of them")]
    AmbiguousModel {
        /// As found.
        model: String,
        /// Group in the file, from 0.
        card: usize,
        /// Models of that name.
        several: String,
    },
    /// A model of the file itself is not one.
    #[error("node file: a `[[model]]` is refused")]
    Model(#[source] Box<CatalogueError>),
}

// === impl NodeFile ===

impl NodeFile {
    /// Reads the text.
    ///
    /// # Errors
    /// It is not a node file; the message names line and field.
    pub fn parse(text: &str) -> Result<Self, NodeFileError> {
        let file: Self = toml::from_str(text).map_err(|e| NodeFileError::Syntax(Box::new(e)))?;
        if file.schema != SCHEMA {
            return Err(NodeFileError::Schema { found: file.schema });
        }
        NodeName::new(file.name.as_str()).map_err(NodeFileError::NodeName)?;
        let found: usize = file.groups.iter().map(CardGroup::len).sum();
        if !(1..=CARDS_MAX).contains(&found) || file.groups.iter().any(|g| g.count == 0) {
            return Err(NodeFileError::Count { found });
        }
        Ok(file)
    }

    /// The node's name.
    ///
    /// # Errors
    /// It is no name; never for a file that [`NodeFile::parse`] made.
    pub fn node_name(&self) -> Result<NodeName, NodeFileError> {
        NodeName::new(self.name.as_str()).map_err(NodeFileError::NodeName)
    }
}

// === impl CardGroup ===

impl CardGroup {
    /// Cards in the group.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// The entry for one card of a list with one entry for all or one for each.
    pub(crate) fn entry<'a, T>(
        &self,
        list: &'a [T],
        member: usize,
        field: &'static str,
        card: usize,
    ) -> Result<Option<&'a T>, NodeFileError> {
        match list.len() {
            0 => Ok(None),
            1 => Ok(list.first()),
            n if n == self.len() => Ok(list.get(member)),
            found => Err(NodeFileError::Length { field, card, found, count: self.len() }),
        }
    }

    /// How one card is wired to its neighbours.
    pub(crate) fn topology(&self, member: usize, card: usize) -> Result<Topology, NodeFileError> {
        let text = &self.topology;
        Ok(Topology {
            card_id: self.entry(&text.card_id, member, "topology.card-id", card)?.cloned(),
            hccs_group: self.entry(&text.hccs_group, member, "topology.hccs-group", card)?.cloned(),
            nvlink_domain: self.entry(&text.nvlink_domain, member, "topology.nvlink-domain", card)?.cloned(),
        })
    }
}

/// A name of the file, parsed.
pub(crate) trait ParsedName: Sized {
    /// Parses it.
    fn parse(text: &str) -> Result<Self, NameError>;
}

macro_rules! named {
    ($($name:ty),*) => {
        $(impl ParsedName for $name {
            fn parse(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        })*
    };
}
named!(CardUuid, PciAddress, TemplateName);

/// Parses a name and says where it stands when it breaks its rule.
pub(crate) fn name<T: ParsedName>(text: &str, field: &'static str, card: usize) -> Result<T, NodeFileError> {
    T::parse(text).map_err(|source| NodeFileError::Name { field, card, source })
}

fn one() -> u32 {
    1
}

fn one_time() -> u64 {
    1
}

fn default_nodes() -> Vec<String> {
    vec!["/dev/aliquot-sim{index}".to_owned()]
}
