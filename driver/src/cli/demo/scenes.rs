//! What the demo plays, and what must come of it.

use std::collections::BTreeSet;

use aliquot_core::dra::{DeviceResult, ResourceClaim, Sharing};
use aliquot_core::offer::Offers;
use aliquot_core::partition::Part;
use serde_json::json;

use super::DemoRecord;
use crate::cli::examples::{self, Example};
use crate::cli::failure::Failure;
use crate::cli::nodes::Fleet;
use crate::manifest::{Manifests, ProblemSeverity, Reader};

/// One manifest, and what must come of it.
pub(super) struct Scene {
    pub(super) title: &'static str,
    pub(super) example: Example,
    /// Manifest with the class that the example uses, where it is another one.
    class_from: Option<Example>,
    /// Each result in order: alternative (or request) and profile of the device.
    expected: &'static [&'static str],
    /// How many different devices, and of how many cards.
    spread: (usize, usize),
}

pub(super) const SCENES: &[Scene] = &[
    Scene {
        title: "1/4 of an Ascend 310P",
        example: examples::QUARTER,
        class_from: None,
        expected: &["npu vir02"],
        spread: (1, 1),
    },
    Scene {
        title: "Four quarters on one chip",
        example: examples::FOUR_QUARTERS,
        class_from: Some(examples::QUARTER),
        expected: &["quarters vir02", "quarters vir02", "quarters vir02", "quarters vir02_1c"],
        spread: (4, 1),
    },
    Scene {
        title: "A MIG partition",
        example: examples::MIG,
        class_from: None,
        expected: &["gpu 1g.10gb"],
        spread: (1, 1),
    },
    Scene {
        title: "Two shares of one card: memory and cores",
        example: examples::SHARES,
        class_from: None,
        expected: &["gpu whole 8Gi 30%", "gpu whole 8Gi 30%"],
        spread: (1, 1),
    },
    Scene {
        title: "Two shares inside one MIG partition",
        example: examples::SHARE_IN_PARTITION,
        class_from: None,
        expected: &["gpu 2g.20gb 8Gi 10%", "gpu 2g.20gb 8Gi 10%"],
        spread: (1, 1),
    },
    Scene {
        title: "A partition where there is one, else a share",
        example: examples::PREFER_PARTITION,
        class_from: None,
        expected: &["gpu/partition 3g.20gb", "gpu/partition 3g.20gb", "gpu/share whole 12Gi 40%"],
        spread: (3, 2),
    },
];

/// Nodes on which two NPUs are placed, and how close they must come.
pub(super) const CLOSENESS: &[(&str, &str, &str)] = &[
    ("ascend-310p-duo", "npu/same-card", "two chips of one card"),
    ("ascend-910a-8", "npu/same-hccs", "one HCCS ring"),
    ("pcie-pair", "npu/same-pcie", "one PCIe root"),
    ("ascend-310p", "", "only one NPU: no place"),
];

// === impl Scene ===

impl Scene {
    pub(super) fn manifests(&self) -> Result<Manifests, Failure> {
        let mut manifests = read(&[self.example])?;
        if let Some(other) = self.class_from {
            manifests.classes = read(&[other])?.classes;
        }
        Ok(manifests)
    }

    pub(super) fn check(&self, claims: &[ResourceClaim], fleet: &Fleet, record: &mut DemoRecord) {
        let Some(node) = fleet.nodes.first() else { return };
        let results = || claims.iter().flat_map(|c| c.allocation.iter().flat_map(|a| &a.devices));
        let found: Vec<String> = results().map(|r| described(r, &node.offers)).collect();
        if found != self.expected {
            record.differs(self.title, &format!("expected {:?}, found {found:?}", self.expected));
        }
        let devices: BTreeSet<_> = results().map(|r| &r.device).collect();
        let cards: BTreeSet<_> =
            devices.iter().filter_map(|d| node.offers.parts.get(d)).map(|part| &part.card).collect();
        if (devices.len(), cards.len()) != self.spread {
            let (devices, cards) = (devices.len(), cards.len());
            record.differs(self.title, &format!("{devices} devices of {cards} cards, not {:?}", self.spread));
        }
        record.scenes.push(json!({ "scene": self.title, "manifest": self.example.name, "found": found }));
    }
}

/// A result as the scenes expect it: request, profile, and its share where it is not all of the device.
fn described(result: &DeviceResult, offers: &Offers) -> String {
    let Some(part) = offers.parts.get(&result.device) else { return format!("{} unknown", result.request) };
    let profile = match &part.part {
        Part::Partition { template, .. } => template.to_string(),
        _ => "whole".to_owned(),
    };
    let amount = |name: &str| result.consumed_capacity.get(name).map(ToString::to_string);
    let all = amount("memory").is_none_or(|m| m == part.memory.to_string());
    match part.sharing {
        Sharing::Shareable if !all => {
            let (memory, cores) = (amount("memory").unwrap_or_default(), amount("cores").unwrap_or_default());
            format!("{} {profile} {memory} {cores}%", result.request)
        }
        _ => format!("{} {profile}", result.request),
    }
}

/// Examples as manifests; they are sound, which a test shows.
pub(super) fn read(files: &[Example]) -> Result<Manifests, Failure> {
    let mut reader = Reader::new();
    for file in files {
        reader.text(file.name, file.text);
    }
    let (manifests, problems) = reader.finish();
    let errors: Vec<_> = problems.into_iter().filter(|p| p.severity == ProblemSeverity::Error).collect();
    if errors.is_empty() { Ok(manifests) } else { Err(Failure::Manifests(errors)) }
}
