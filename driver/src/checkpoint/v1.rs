//! The records of version 1 as they stand on disk. Frozen: a change of meaning is a new version with its own file.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One record of a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub(super) enum Record {
    /// A claim, new or in place of its earlier record.
    Claim(Claim),
    /// A partition, new or in place of its earlier record.
    Partition(Partition),
    /// A claim of an earlier record goes on.
    Phase(PhaseChange),
    /// A claim of an earlier record holds nothing any more.
    Released(Released),
    /// A partition of an earlier record is no longer ours.
    Destroyed(Place),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) phase: Phase,
    pub(super) grants: Vec<Grant>,
    pub(super) steps: Vec<Step>,
    /// Fields of a newer version; none in files of this one.
    #[serde(flatten)]
    pub(super) later: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Container,
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    Preparing,
    Prepared,
    Releasing,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PhaseChange {
    pub(super) uid: String,
    pub(super) phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Released {
    pub(super) uid: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Grant {
    pub(super) share: String,
    pub(super) request: String,
    pub(super) driver: String,
    pub(super) pool: String,
    pub(super) device: String,
    pub(super) card: String,
    pub(super) part: Part,
    pub(super) sharing: String,
    pub(super) memory_bytes: u64,
    pub(super) cores_percent: u8,
    pub(super) compute: String,
    pub(super) priority: String,
    pub(super) fail_mode: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub(super) enum Part {
    Card,
    Partition { template: String, placement: String },
    Slot { name: String, copy: u32 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) enum Step {
    CreatePartition { card: String, template: String, placement: String },
    WriteGrant { share: String },
    WriteCdi,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Partition {
    pub(super) card: String,
    pub(super) template: String,
    pub(super) placement: String,
    pub(super) handle: Option<Handle>,
    /// Fields of a newer version; none in files of this one.
    #[serde(flatten)]
    pub(super) later: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    pub(super) card: String,
    pub(super) template: String,
    pub(super) placement: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Handle {
    pub(super) id: u32,
    pub(super) uuid: String,
}
