//! The vendor's driver: its libraries where a container can get them from, and device files for every card on the bus.

use std::path::Path;

use aliquot_core::card::{Card, Health};
use aliquot_core::ports::VendorOnHost;

use super::node_root::{NodeObject, NodeRoot};
use super::{CardsAt, CheckVerdict, Finding, NodePaths};
use crate::hardware::vendors::{driver_files, on_host};

/// Where the kernel lists PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Longest list of names in a finding.
const NAMES_MAX: usize = 4;

/// Cards of a vendor on the PCI bus.
fn on_bus(root: &NodeRoot, vendor: &VendorOnHost) -> NodeObject<usize> {
    let names = match root.names(Path::new(PCI_DEVICES)) {
        NodeObject::Here(names) => names,
        NodeObject::Absent => return NodeObject::Absent,
        NodeObject::Unreadable(error) => return NodeObject::Unreadable(error),
    };
    let text = |name: &str, field: &str| root.text(&Path::new(PCI_DEVICES).join(name).join(field)).here();
    let is_card = |name: &&String| {
        text(name, "vendor").is_some_and(|found| found.trim() == vendor.pci)
            && text(name, "class")
                .is_some_and(|found| vendor.classes.iter().any(|class| found.trim().starts_with(class)))
    };
    NodeObject::Here(names.iter().filter(is_card).count())
}

/// A word of each vendor.
fn alternatives(word: impl Fn(&VendorOnHost) -> &'static str) -> String {
    on_host().map(word).collect::<Vec<_>>().join(" or ")
}

/// The driver's libraries are found, and the driver answers.
pub(super) fn libraries(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "driver libraries";
    let answer = match &site.cards {
        CardsAt::Simulated(cards) => {
            let found = format!("{} simulated cards bring their own", cards.cards.len());
            return Finding::ok(CHECK, found);
        }
        CardsAt::Machine(answer) => answer,
    };
    let mut of = String::new();
    for vendor in on_host() {
        match on_bus(root, vendor) {
            NodeObject::Unreadable(error) => {
                return Finding::unseen(CHECK, format!("{PCI_DEVICES}: {error}"));
            }
            NodeObject::Here(0) | NodeObject::Absent => continue,
            NodeObject::Here(_) => {}
        }
        match driver_files(vendor, &site.root, site.driver.as_deref()) {
            None => {}
            Some(Ok(files)) => {
                let (version, root) = (&files.version, files.root.display());
                of.push_str(&format!(", {} driver {version} below {root}", vendor.name));
            }
            Some(Err(error)) => {
                let remedy = "see docs/user/cluster.md";
                return Finding::new(CHECK, CheckVerdict::Failed, error.to_string(), remedy);
            }
        }
    }
    match answer {
        Ok(answer) => {
            let cards = &answer.cards.cards;
            let works = |card: &&Card| card.health == Health::Healthy;
            let found = format!("{} cards answer{of}", cards.iter().filter(works).count());
            let unwell = cards.iter().filter_map(|card| match &card.health {
                Health::Healthy => None,
                // The vendor may have said it already, by the card's place.
                Health::Unhealthy(why) if answer.trouble.iter().any(|line| line.contains(why)) => None,
                Health::Unhealthy(why) => Some(format!("card {}: {why}", card.uuid)),
            });
            let wrong: Vec<String> = answer.trouble.iter().cloned().chain(unwell).collect();
            if wrong.is_empty() {
                return Finding::ok(CHECK, found);
            }
            let found = format!("{found}; no new claims: {}", wrong.join("; "));
            let remedy = "claims get the cards that answer; correct the driver of the others";
            Finding::new(CHECK, CheckVerdict::Warning, found, remedy)
        }
        Err(why) => {
            let bus = on_host().filter_map(|vendor| on_bus(root, vendor).here());
            if bus.sum::<usize>() == 0 {
                let found = format!("found no {} card", alternatives(|vendor| vendor.name));
                let remedy = "the agent publishes none; --node (simulatedNode of the chart) simulates some";
                return Finding::new(CHECK, CheckVerdict::Warning, found, remedy);
            }
            Finding::new(
                CHECK,
                CheckVerdict::Failed,
                format!("no driver answers: {}", why.replace('\n', "; ")),
                format!("load the driver and run {} on the node", alternatives(|vendor| vendor.tool)),
            )
        }
    }
}

/// Every card on the bus has its device file.
pub(super) fn devices(site: &NodePaths, root: &NodeRoot) -> Finding {
    const CHECK: &str = "device files";
    if matches!(site.cards, CardsAt::Simulated(_)) {
        return Finding::ok(CHECK, "simulated cards need none");
    }
    let names = match root.names(Path::new("/dev")) {
        NodeObject::Here(names) => names,
        NodeObject::Absent => Vec::new(),
        NodeObject::Unreadable(error) => return Finding::unseen(CHECK, format!("/dev: {error}")),
    };
    let mut whole = Vec::new();
    for vendor in on_host() {
        let cards = match on_bus(root, vendor) {
            NodeObject::Here(cards) => cards,
            NodeObject::Absent => 0,
            NodeObject::Unreadable(error) => {
                return Finding::unseen(CHECK, format!("{PCI_DEVICES}: {error}"));
            }
        };
        if cards == 0 {
            continue;
        }
        let has = |name: &str| names.iter().any(|found| found == name);
        let mut absent: Vec<String> =
            vendor.common.iter().filter(|name| !has(name)).map(|name| format!("/dev/{name}")).collect();
        let number = |name: &String| {
            let rest = name.strip_prefix(vendor.card).unwrap_or_default();
            !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit())
        };
        let files = names.iter().filter(|name| number(name)).count();
        if files < cards {
            absent.push(format!("{} of {cards} files /dev/{}<number>", cards - files, vendor.card));
        }
        if !absent.is_empty() {
            absent.truncate(NAMES_MAX);
            let found = format!("{}: absent {}", vendor.name, absent.join(", "));
            return Finding::new(CHECK, CheckVerdict::Failed, found, vendor.make);
        }
        whole.push(format!("{cards} {} cards have theirs", vendor.name));
    }
    Finding::ok(CHECK, if whole.is_empty() { "no card needs one".to_owned() } else { whole.join(", ") })
}
