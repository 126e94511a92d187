//! What selectors can ask of a device: one set of attributes for cards, partitions and slots of every vendor.
//!
//! Names are bare, so they are in the driver's own domain; those in `resource.kubernetes.io/` are the
//! standard ones. Sizes beyond memory and cores are attributes and not capacities: on a shareable device
//! requests use up a capacity. They stand on cards and on exclusive partitions. A node has hundreds of
//! shareable partitions; their profile says as much.
//!
//! One value that Kubernetes would refuse loses the whole slice. So every value passes [`CardAttributes::put`] here, which
//! cuts, leaves out and reports.

use std::collections::BTreeMap;

use super::names::{PartHash, hash_text};
use super::problem::OfferProblem;
use super::server::ServerVersion;
use crate::card::Card;
use crate::dra::{AttributeValue, Sharing};
use crate::id::{CounterName, NodeName};
use crate::partition::Isolation;
use crate::units::Fraction;

/// Attributes that say which cards are close to each other, in the order of the fields of a card's topology.
pub(super) const TOPOLOGY: [&str; 3] = ["cardID", "hccsGroup", "nvlinkDomain"];

/// Several claims can hold the card: the API's own field, for readers that see attributes alone. Absent of other devices, as
/// slices have a limit of size.
pub(super) const SHAREABLE: &str = "shareable";

/// Longest text value, in bytes.
const TEXT_MAX: usize = 64;
/// Attributes of a device beside its two capacities, `memory` and `cores`.
const ATTRIBUTES_MAX: usize = 30;
/// Longest bare name.
const NAME_MAX: usize = 32;
/// Domain of the standard attributes.
const STANDARD: &str = "resource.kubernetes.io";
/// Domain of the `numaNode` that drivers of NICs and CPUs publish where the standard one is unknown.
const SHARED_NUMA_DOMAIN: &str = "dra.net";

/// What sort of thing a device is: the attribute `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Card,
    Partition,
    Slot,
}

/// What distinguishes the devices of one card.
pub(super) struct PublishedFacts<'a> {
    pub(super) kind: Kind,
    pub(super) profile: &'a str,
    pub(super) fraction: Option<Fraction>,
    pub(super) isolation: Isolation,
    pub(super) sharing: Sharing,
    pub(super) hash: PartHash,
    /// Whole numbers worth publishing, by name as in the catalogue.
    pub(super) extra: BTreeMap<String, u64>,
}

/// The attributes that all devices of a card share.
pub(super) struct CardAttributes {
    common: BTreeMap<String, AttributeValue>,
    uuid: String,
    /// What only the card itself has, and slots, which share it.
    of_card: BTreeMap<String, AttributeValue>,
}

// === impl CardAttributes ===

impl CardAttributes {
    /// Reads the card once for all its devices.
    pub(super) fn of_card(
        card: &Card,
        node: &NodeName,
        server: ServerVersion,
        problems: &mut Vec<OfferProblem>,
    ) -> Self {
        let mut this =
            Self { common: BTreeMap::new(), uuid: card.uuid.as_str().to_owned(), of_card: BTreeMap::new() };
        let mut text = |name: &str, value: &str| this.put_text(name, value, problems);
        text("vendor", card.vendor.as_str());
        text("model", card.model.as_str());
        text("productName", &card.product_name);
        text("architecture", &card.architecture);
        text("parentUUID", card.uuid.as_str());
        if let Some(root) = &card.pcie_root {
            text(&format!("{STANDARD}/pcieRoot"), root);
        }
        this.put_links(card, node);
        this.put_driver_version(&card.driver_version, problems);
        if let Some(numa) = card.numa_node {
            let numa = AttributeValue::Int(i64::from(numa));
            if server.knows_numa_attribute() {
                this.common.insert(format!("{STANDARD}/numaNode"), numa.clone());
            }
            this.common.insert(format!("{SHARED_NUMA_DOMAIN}/numaNode"), numa.clone());
            this.common.insert("numaNode".to_owned(), numa);
        }
        this
    }

    /// All attributes of one device.
    pub(super) fn of_device(
        &self,
        face: &PublishedFacts<'_>,
        problems: &mut Vec<OfferProblem>,
    ) -> BTreeMap<String, AttributeValue> {
        let mut all = self.common.clone();
        let mut text = |name: &str, value: String| {
            all.insert(name.to_owned(), AttributeValue::String(value));
        };
        text("type", face.kind.as_str().to_owned());
        text("profile", face.profile.to_owned());
        text("isolation", face.isolation.as_str().to_owned());
        // A partition has no identity of its vendor's before it is made; ours is there from the start and stays.
        text(
            "uuid",
            match face.kind {
                Kind::Card => self.uuid.clone(),
                Kind::Partition | Kind::Slot => face.hash.as_str().to_owned(),
            },
        );
        if let Some(fraction) = face.fraction {
            text("fraction", fraction.to_string());
        }
        if face.kind == Kind::Card && face.sharing == Sharing::Shareable {
            all.insert(SHAREABLE.to_owned(), AttributeValue::Bool(true));
        }
        if matches!(face.kind, Kind::Card | Kind::Slot) {
            all.extend(self.of_card.clone());
        }
        let mut left_out = Vec::new();
        for (found, amount) in &face.extra {
            let Some(name) = identifier(found).filter(|name| !all.contains_key(name)) else {
                report_once(problems, OfferProblem::AttributeName { found: found.clone() });
                continue;
            };
            if all.len() >= ATTRIBUTES_MAX {
                left_out.push(name);
                continue;
            }
            all.insert(name, AttributeValue::Int(i64::try_from(*amount).unwrap_or(i64::MAX)));
        }
        if !left_out.is_empty() {
            report_once(problems, OfferProblem::AttributesLeftOut { names: left_out.join(", ") });
        }
        all
    }

    /// Puts a text, cut to what Kubernetes takes; an empty one says nothing and is left out.
    fn put_text(&mut self, name: &str, value: &str, problems: &mut Vec<OfferProblem>) {
        if value.is_empty() {
            return;
        }
        let kept = cut(value);
        if kept.len() < value.len() {
            let found = value.chars().take(200).collect();
            problems.push(OfferProblem::TextCut { attribute: name.to_owned(), length: value.len(), found });
        }
        self.common.insert(name.to_owned(), AttributeValue::String(kept.to_owned()));
    }

    /// The PCI function, and the groups of cards that reach each other. A partition is no function of its own and has no
    /// link to another partition; nodes have hundreds of them.
    fn put_links(&mut self, card: &Card, node: &NodeName) {
        let on_node = |group: &Option<String>| group.as_ref().map(|group| on_node(node, group));
        let [card_id, hccs_group, nvlink_domain] = TOPOLOGY.map(str::to_owned);
        let links = [
            (format!("{STANDARD}/pciBusID"), card.pci.as_ref().map(ToString::to_string)),
            (card_id, on_node(&card.topology.card_id)),
            (hccs_group, on_node(&card.topology.hccs_group)),
            (nvlink_domain, on_node(&card.topology.nvlink_domain)),
        ];
        let there = links.into_iter().filter_map(|(name, link)| Some((name, AttributeValue::String(link?))));
        self.of_card.extend(there);
    }

    fn put_driver_version(&mut self, found: &str, problems: &mut Vec<OfferProblem>) {
        match semantic_version(found) {
            Some(version) => {
                self.common.insert("driverVersion".to_owned(), AttributeValue::Version(version));
            }
            None if found.is_empty() => {}
            None => {
                problems.push(OfferProblem::NotAVersion { found: found.chars().take(80).collect() });
                self.put_text("driverVersion", found, problems);
            }
        }
    }
}

// === values ===

/// As much of a text as is published: at most 64 bytes, whole characters.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A group of cards, unique in the cluster: two nodes may both have a ring `0`.
pub(super) fn on_node(node: &NodeName, group: &str) -> String {
    let plain = format!("{node}-{group}");
    if plain.len() <= TEXT_MAX {
        return plain;
    }
    let short = format!("{}-{group}", hash_text(node.as_str()));
    if short.len() <= TEXT_MAX { short } else { hash_text(&plain) }
}

/// A vendor's version as a strict semantic one: `580.95.05` is 580.95.5, `24.1.rc2` is 24.1.0-rc2, a fourth number is
/// build metadata. `None` if it does not begin with a number or does not fit in 64 bytes.
fn semantic_version(found: &str) -> Option<String> {
    let tokens: Vec<&str> = found.trim().split(['.', '-', '_', '+', ' ']).filter(|t| !t.is_empty()).collect();
    let mut numbers = Vec::new();
    for token in tokens.iter().take(3) {
        match token.parse::<u64>() {
            Ok(number) if token.bytes().all(|b| b.is_ascii_digit()) => numbers.push(number),
            _ => break,
        }
    }
    let rest = &tokens[numbers.len()..];
    if numbers.is_empty() || !rest.iter().all(|t| t.bytes().all(|b| b.is_ascii_alphanumeric())) {
        return None;
    }
    let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
    let mut version = format!("{}.{}.{}", number(0), number(1), number(2));
    if let Some(first) = rest.first() {
        // Words as in rc2 come before the release they name; further numbers say nothing about order.
        let word = first.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
        version.push(if word { '-' } else { '+' });
        let parts: Vec<&str> = rest.iter().map(|t| if word { strip_zeros(t) } else { t }).collect();
        version.push_str(&parts.join("."));
    }
    (version.len() <= TEXT_MAX).then_some(version)
}

/// A number without leading zeros, which semantic versions forbid before the build metadata.
fn strip_zeros(token: &str) -> &str {
    if token.bytes().all(|b| b.is_ascii_digit()) {
        let stripped = token.trim_start_matches('0');
        if stripped.is_empty() { "0" } else { stripped }
    } else {
        token
    }
}

/// A catalogue's name as an attribute name: `copy-engines` is `copyEngines`.
fn identifier(found: &str) -> Option<String> {
    let mut name = String::new();
    let mut raise = false;
    for c in found.chars() {
        match c {
            '-' | '_' | '.' | ' ' => raise = !name.is_empty(),
            c if c.is_ascii_alphanumeric() && raise => {
                name.push(c.to_ascii_uppercase());
                raise = false;
            }
            c if c.is_ascii_alphanumeric() => name.push(c),
            _ => return None,
        }
    }
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    (begins && name.len() <= NAME_MAX).then_some(name)
}

/// What the whole card has of the quantities that its templates publish.
pub(super) fn extras_of_card(card: &Card) -> BTreeMap<String, u64> {
    let Some(table) = card.table() else { return BTreeMap::new() };
    let names = table.templates.iter().flat_map(|t| t.extra_capacity.keys());
    names
        .filter_map(|name| {
            let counter = CounterName::new(name.as_str()).ok()?;
            let total = table.totals.get(&counter);
            (total > 0).then(|| (name.clone(), total))
        })
        .collect()
}

/// Every device of a card says the same; the admin hears it once.
fn report_once(problems: &mut Vec<OfferProblem>, problem: OfferProblem) {
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

// === impl Kind ===

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Partition => "partition",
            Self::Slot => "slot",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_versions_become_semantic_ones() {
        for (found, version) in [
            ("580.95.05", Some("580.95.5")),
            ("580.95", Some("580.95.0")),
            ("25.2.0", Some("25.2.0")),
            ("24.1.rc2", Some("24.1.0-rc2")),
            ("23.0.rc3.06", Some("23.0.0-rc3.6")),
            ("24.1.0.3", Some("24.1.0+3")),
            ("v1.2.3", None),
            ("", None),
            ("1.2.3.ä", None),
        ] {
            assert_eq!(semantic_version(found).as_deref(), version, "{found}");
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let found = format!("{}é", "x".repeat(63));
        assert_eq!(found.len(), 65);
        assert_eq!(cut(&found), "x".repeat(63));
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn groups_are_unique_in_the_cluster_whatever_the_length() {
        let long = NodeName::new("n".repeat(60)).unwrap();
        assert_eq!(on_node(&NodeName::new("n1").unwrap(), "hccs0"), "n1-hccs0");
        assert_ne!(on_node(&long, "hccs0"), on_node(&long, "hccs1"));
        assert!(on_node(&long, &"g".repeat(64)).len() <= TEXT_MAX);
    }

    #[test]
    fn catalogue_names_become_identifiers() {
        for (found, name) in
            [("copy-engines", Some("copyEngines")), ("aiCore", Some("aiCore")), ("4k", None), ("ä", None)]
        {
            assert_eq!(identifier(found).as_deref(), name, "{found}");
        }
    }
}
