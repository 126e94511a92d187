//! The meaning of a card-model file: every name, number and reference is checked once, here.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::source_file::{SourceFile, support};
use super::text::{self, RawAmount, RawSubject};
use super::{
    CardModel, CardRule, CatalogueError, LinkHint, LinkKind, LinkShape, Maturity, ModelKeys, RuleAttribute,
    RuleScope, Source, TopologyHint, plain_name, table,
};
use crate::card::{Mode, Partitioning};
use crate::partition::Certainty;
use crate::units::Bytes;

/// Version of the file form that this program reads.
const SCHEMA: u64 = 1;
/// Checks a file's meaning.
pub(super) fn model(file: &str, raw: &text::File) -> Result<CardModel, CatalogueError> {
    let place = SourceFile { file };
    let schema = place.whole("schema", &raw.schema)?;
    if schema != SCHEMA {
        return Err(place.wrong(
            "schema",
            schema.to_string(),
            SCHEMA.to_string(),
            "write the file for this version of the form",
        ));
    }
    let id: crate::id::ModelId = place.name("id", &raw.id)?;
    let memory = place.bytes("memory", &raw.memory)?;
    let shareable = support(raw.share.support);
    let mut driver_spellings = Vec::new();
    let partitioning = match (&raw.partitioning, raw.modes.as_slice()) {
        (None, []) => Partitioning::None,
        (Some(raw_table), []) => {
            let (table, spellings) = table::table(place, "partitioning", memory, raw_table)?;
            driver_spellings = spellings;
            Partitioning::Templates(Arc::new(table))
        }
        (None, modes) => Partitioning::Modes { modes: all_modes(place, memory, modes)?, current: None },
        (Some(_), modes) => {
            let found = format!("{} beside partitioning", modes.len());
            return Err(place.wrong(
                "mode",
                found,
                "either modes or one partitioning",
                "remove one of the two",
            ));
        }
    };
    Ok(CardModel {
        family: match &raw.family {
            None => id.to_string(),
            Some(family) => place.words("family", family)?,
        },
        id,
        vendor: place.name("vendor", &raw.vendor)?,
        names: names(place, raw)?,
        architecture: place.words("architecture", &raw.architecture)?,
        memory,
        maturity: raw.experimental.clone().map_or(Maturity::Settled, Maturity::Experimental),
        notes: raw.notes.clone(),
        matching: matching(place, &raw.matching)?,
        shareable,
        topology: topology(place, &raw.topology)?,
        sources: sources(place, raw)?,
        rules: raw.rules.iter().map(rule).collect(),
        partitioning,
        driver_spellings,
    })
}

fn all_modes(place: SourceFile<'_>, memory: Bytes, raw: &[text::Mode]) -> Result<Vec<Mode>, CatalogueError> {
    let mut modes: Vec<Mode> = Vec::new();
    for (i, mode) in raw.iter().enumerate() {
        let field = format!("mode[{i}]");
        if modes.iter().any(|m| m.name == mode.name) {
            let fix = "rename or remove one of the two";
            return Err(place.wrong(&format!("{field}.name"), &mode.name, "a name no other mode has", fix));
        }
        let name = place.words(&format!("{field}.name"), &mode.name)?;
        let (table, _) = table::table(place, &format!("{field}.partitioning"), memory, &mode.partitioning)?;
        modes.push(Mode { name, table });
    }
    Ok(modes)
}

fn names(place: SourceFile<'_>, raw: &text::File) -> Result<Vec<String>, CatalogueError> {
    place.at_most("names", raw.names.len())?;
    let mut seen = BTreeSet::from([plain_name(&raw.id)]);
    for (i, name) in raw.names.iter().enumerate() {
        let field = format!("names[{i}]");
        place.words(&field, name)?;
        if !seen.insert(plain_name(name)) {
            let expected =
                "a name that differs from the id and the other names by more than case and separators";
            return Err(place.wrong(&field, format!("`{name}`"), expected, "remove it"));
        }
    }
    Ok(raw.names.clone())
}

fn matching(place: SourceFile<'_>, raw: &text::Match) -> Result<ModelKeys, CatalogueError> {
    for (field, list) in [("match.product-names", &raw.product_names), ("match.chip-names", &raw.chip_names)]
    {
        place.at_most(field, list.len())?;
        for name in list {
            place.words(field, name)?;
        }
    }
    place.at_most("match.pci-ids", raw.pci_ids.len())?;
    place.at_most("match.board-ids", raw.board_ids.len())?;
    for id in &raw.pci_ids {
        let hex =
            |t: &str| t.len() == 4 && t.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !id.split_once(':').is_some_and(|(vendor, device)| hex(vendor) && hex(device)) {
            let fix = "write vendor and device in lower-case hexadecimal";
            return Err(place.wrong("match.pci-ids", format!("`{id}`"), "an id such as 10de:2330", fix));
        }
    }
    let mut board_ids = Vec::new();
    for id in &raw.board_ids {
        board_ids.push(place.small("match.board-ids", id, u32::MAX)?);
    }
    let bound =
        |field, amount: &Option<RawAmount>| amount.as_ref().map(|a| place.bytes(field, a)).transpose();
    let (memory_min, memory_max) =
        (bound("match.memory-min", &raw.memory_min)?, bound("match.memory-max", &raw.memory_max)?);
    if let (Some(least), Some(most)) = (memory_min, memory_max)
        && least > most
    {
        let expected = format!("at most memory-max ({most})");
        return Err(place.wrong("match.memory-min", least.to_string(), expected, "swap the two"));
    }
    let (product_names, pci_ids, chip_names) =
        (raw.product_names.clone(), raw.pci_ids.clone(), raw.chip_names.clone());
    Ok(ModelKeys { product_names, pci_ids, chip_names, board_ids, memory_min, memory_max })
}

fn topology(place: SourceFile<'_>, raw: &text::Topology) -> Result<TopologyHint, CatalogueError> {
    let group = |field, amount: &RawAmount| match place.small(field, amount, 1024)? {
        0 => Err(place.wrong(field, "0", "1 or more", "leave the field out where there is no group")),
        size => Ok(size),
    };
    let link = match &raw.link {
        None => None,
        Some(link) => Some(LinkHint {
            kind: match link.kind {
                text::LinkKind::Hccs => LinkKind::Hccs,
                text::LinkKind::Nvlink => LinkKind::Nvlink,
            },
            shape: match link.shape {
                text::LinkShape::Ring => LinkShape::Ring,
                text::LinkShape::Mesh => LinkShape::Mesh,
                text::LinkShape::Switch => LinkShape::Switch,
            },
            size: group("topology.link.size", &link.size)?,
        }),
    };
    let chips_per_card = match &raw.chips_per_card {
        None => 1,
        Some(chips) => group("topology.chips-per-card", chips)?,
    };
    Ok(TopologyHint { chips_per_card, link })
}

fn rule(raw: &text::Rule) -> CardRule {
    let reach = |scope: &text::RuleScope| match scope {
        text::RuleScope::Card => RuleScope::Card,
        text::RuleScope::Node => RuleScope::Node,
    };
    match raw {
        text::Rule::SameMode { scope } => CardRule::SameMode(reach(scope)),
        text::Rule::Homogeneous { scope, attribute } => CardRule::Homogeneous {
            scope: reach(scope),
            attribute: match attribute {
                text::RuleAttribute::Memory => RuleAttribute::Memory,
                text::RuleAttribute::Model => RuleAttribute::Model,
            },
        },
        text::Rule::NodeSetting { name, value } => {
            CardRule::NodeSetting { name: name.clone(), value: value.clone() }
        }
    }
}

/// Every part of the file that states facts must say where they are from, once.
fn sources(place: SourceFile<'_>, raw: &text::File) -> Result<Vec<Source>, CatalogueError> {
    place.at_most("source", raw.sources.len())?;
    let mut covered = BTreeSet::new();
    for (i, source) in raw.sources.iter().enumerate() {
        if let Some(twice) = source.covers.iter().find(|s| !covered.insert(**s)) {
            let found = format!("`{}` again", subject(*twice));
            let fix = "name each part of the file in one source";
            return Err(place.wrong(&format!("source[{i}].covers"), found, "parts not covered above", fix));
        }
        if source.text.trim().is_empty() {
            let fix = "name the observation or publication with these facts";
            return Err(place.wrong(&format!("source[{i}].text"), "empty", "where the facts are from", fix));
        }
    }
    let needed: &[RawSubject] = match (&raw.partitioning, raw.modes.is_empty()) {
        (None, true) => &[RawSubject::Card],
        _ => &[RawSubject::Card, RawSubject::Templates, RawSubject::Memory, RawSubject::Placements],
    };
    if let Some(missing) = needed.iter().find(|s| !covered.contains(s)) {
        let found = format!("without `{}`", subject(*missing));
        let fix = "add a [[source]] that covers it, with its certainty";
        return Err(place.wrong("source", found, "a source for each part of the file", fix));
    }
    Ok(raw
        .sources
        .iter()
        .map(|s| Source {
            covers: s.covers.iter().copied().map(subject).collect(),
            certainty: match s.certainty {
                text::Certainty::Measured => Certainty::Measured,
                text::Certainty::Presumed => Certainty::Presumed,
                text::Certainty::Derived => Certainty::Derived,
            },
            text: s.text.clone(),
        })
        .collect())
}

const fn subject(subject: RawSubject) -> &'static str {
    match subject {
        RawSubject::Card => "card",
        RawSubject::Templates => "templates",
        RawSubject::Memory => "memory",
        RawSubject::Compute => "compute",
        RawSubject::Engines => "engines",
        RawSubject::Placements => "placements",
        RawSubject::Topology => "topology",
    }
}

// === impl SourceFile ===
