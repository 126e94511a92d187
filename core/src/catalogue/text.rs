//! The file form of a card model: mirror structs that serde fills, and nothing else.
//!
//! Only this module knows that the files are TOML. It checks the shape (known fields, right kinds of value) and
//! leaves the meaning to [`super::check`]; numbers arrive as [`RawAmount`] so that a negative or fractional one can be
//! refused with the name of its field.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use super::CatalogueError;

/// A file larger than this is refused unread; the largest embedded one has 8 KiB.
const FILE_BYTES_MAX: usize = 256 * 1024;

/// A number as written.
#[derive(Clone, Debug)]
pub(super) enum RawAmount {
    Integer(i64),
    Fractional(f64),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    pub(super) schema: RawAmount,
    pub(super) id: String,
    pub(super) vendor: String,
    pub(super) names: Vec<String>,
    pub(super) family: Option<String>,
    pub(super) architecture: String,
    pub(super) memory: RawAmount,
    pub(super) experimental: Option<String>,
    #[serde(default)]
    pub(super) notes: Vec<String>,
    #[serde(default, rename = "match")]
    pub(super) matching: Match,
    pub(super) share: Share,
    #[serde(default)]
    pub(super) topology: Topology,
    pub(super) partitioning: Option<Table>,
    #[serde(default, rename = "mode")]
    pub(super) modes: Vec<Mode>,
    #[serde(default, rename = "rule")]
    pub(super) rules: Vec<Rule>,
    #[serde(rename = "source")]
    pub(super) sources: Vec<Source>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Match {
    #[serde(default)]
    pub(super) product_names: Vec<String>,
    #[serde(default)]
    pub(super) pci_ids: Vec<String>,
    #[serde(default)]
    pub(super) chip_names: Vec<String>,
    #[serde(default)]
    pub(super) board_ids: Vec<RawAmount>,
    pub(super) memory_min: Option<RawAmount>,
    pub(super) memory_max: Option<RawAmount>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Share {
    pub(super) support: Support,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Support {
    Enforceable,
    None,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Isolation {
    Hardware,
    Timeslice,
    Cooperative,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Topology {
    pub(super) chips_per_card: Option<RawAmount>,
    pub(super) link: Option<Link>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Link {
    pub(super) kind: LinkKind,
    pub(super) shape: LinkShape,
    pub(super) size: RawAmount,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LinkKind {
    Hccs,
    Nvlink,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LinkShape {
    Ring,
    Mesh,
    Switch,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Mode {
    pub(super) name: String,
    pub(super) partitioning: Table,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Table {
    pub(super) fraction_of: String,
    pub(super) compute_of: Option<String>,
    pub(super) isolation: Isolation,
    pub(super) shares: Support,
    pub(super) slots: Option<Slots>,
    #[serde(default)]
    pub(super) totals: BTreeMap<String, RawAmount>,
    pub(super) max_partitions: Option<RawAmount>,
    #[serde(rename = "template")]
    pub(super) templates: Vec<Template>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Slots {
    pub(super) prefix: String,
    pub(super) count: RawAmount,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Template {
    pub(super) name: String,
    pub(super) vendor_profile: Option<RawAmount>,
    #[serde(default)]
    pub(super) aliases: Vec<Alias>,
    pub(super) fraction: String,
    pub(super) isolation: Option<Isolation>,
    pub(super) shares: Option<Support>,
    pub(super) memory: RawAmount,
    pub(super) cores: Option<RawAmount>,
    #[serde(default)]
    pub(super) consumes: BTreeMap<String, RawAmount>,
    #[serde(default)]
    pub(super) capacity: BTreeMap<String, RawAmount>,
    pub(super) placements: Placements,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Alias {
    pub(super) name: String,
    pub(super) drivers_before: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Placements {
    pub(super) starts: Option<Vec<RawAmount>>,
    pub(super) size: Option<RawAmount>,
    pub(super) copies: Option<RawAmount>,
    pub(super) at: Option<Vec<At>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct At {
    pub(super) name: String,
    pub(super) takes: BTreeMap<String, RawAmount>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub(super) enum Rule {
    SameMode { scope: RuleScope },
    Homogeneous { scope: RuleScope, attribute: RuleAttribute },
    NodeSetting { name: String, value: String },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RuleScope {
    Card,
    Node,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RuleAttribute {
    Memory,
    Model,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Source {
    pub(super) covers: Vec<RawSubject>,
    pub(super) certainty: Certainty,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawSubject {
    Card,
    Templates,
    Memory,
    Compute,
    Engines,
    Placements,
    Topology,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Certainty {
    Measured,
    Presumed,
    Derived,
}

/// Reads the shape of a file.
///
/// # Errors
/// The file is too large, is not TOML, or has a field too many, too few, or of the wrong kind; the error carries the
/// line and the reader's own words, which name the field.
pub(super) fn read(file: &str, text: &str) -> Result<File, CatalogueError> {
    if text.len() > FILE_BYTES_MAX {
        let found = text.len();
        return Err(CatalogueError::TooLarge { file: file.to_owned(), found, most: FILE_BYTES_MAX });
    }
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        CatalogueError::Shape {
            file: file.to_owned(),
            line: before.map_or(1, |before| before.matches('\n').count() + 1),
            problem: error.message().trim().replace('\n', " "),
        }
    })
}

// === impl RawAmount ===

impl<'de> Deserialize<'de> for RawAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AmountVisitor;

        impl Visitor<'_> for AmountVisitor {
            type Value = RawAmount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number or a quantity in quotes such as \"9984Mi\"")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<RawAmount, E> {
                Ok(RawAmount::Integer(value))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<RawAmount, E> {
                i64::try_from(value)
                    .map(RawAmount::Integer)
                    .map_err(|_| E::custom("the number is above 2^63 - 1"))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<RawAmount, E> {
                Ok(RawAmount::Fractional(value))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<RawAmount, E> {
                Ok(RawAmount::Text(value.to_owned()))
            }
        }

        deserializer.deserialize_any(AmountVisitor)
    }
}

impl fmt::Display for RawAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Fractional(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "\"{}\"", text.chars().take(80).collect::<String>()),
        }
    }
}
