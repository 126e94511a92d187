//! The vendor's driver: its libraries where a container can get them from, and device files for every card on the bus.

use std::path::Path;

use aliquot_core::card::{Card, Health};
use aliquot_core::ports::VendorOnHost;
use nix::unistd::{AccessFlags, geteuid};

use super::node_root::{FileMode, NodeObject, NodeRoot};
use super::{CardsAt, CheckVerdict, Finding, NodePaths, Purpose};
use crate::hardware::vendors::{driver_files, on_host};

/// Where the kernel lists PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
const LIBRARIES: &str = "driver libraries";
const DEVICES: &str = "device files";
/// Bits of a mode.
const GROUP_READS_AND_WRITES: u32 = 0o060;
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
pub(super) fn libraries(purpose: Purpose, site: &NodePaths, root: &NodeRoot) -> Finding {
    let answer = match &site.cards {
        CardsAt::Simulated(cards) => {
            let found = format!("{} simulated cards bring their own", cards.cards.len());
            return Finding::ok(LIBRARIES, found);
        }
        CardsAt::Machine(answer) => answer,
    };
    let mut of = String::new();
    for vendor in on_host() {
        match on_bus(root, vendor) {
            NodeObject::Unreadable(error) => {
                return Finding::unseen(LIBRARIES, format!("{PCI_DEVICES}: {error}"));
            }
            NodeObject::Here(0) | NodeObject::Absent => continue,
            NodeObject::Here(_) => {}
        }
        // Programs of a local run load the driver as every program of the machine does.
        if purpose == Purpose::LocalRuns {
            continue;
        }
        match driver_files(vendor, &site.root, site.driver.as_deref()) {
            None => {}
            Some(Ok(files)) => {
                let (version, root) = (&files.version, files.root.display());
                of.push_str(&format!(", {} driver {version} below {root}", vendor.name));
            }
            Some(Err(error)) => {
                let remedy = "see docs/user/cluster.md";
                return Finding::new(LIBRARIES, CheckVerdict::Failed, error.to_string(), remedy);
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
                return Finding::ok(LIBRARIES, found);
            }
            let found = format!("{found}; no new claims: {}", wrong.join("; "));
            let remedy = "claims get the cards that answer; correct the driver of the others";
            Finding::new(LIBRARIES, CheckVerdict::Warning, found, remedy)
        }
        Err(why) => unanswered(purpose, root, why),
    }
}

/// No driver answers: there is no card, or its driver is not loaded.
fn unanswered(purpose: Purpose, root: &NodeRoot, why: &str) -> Finding {
    let bus = on_host().filter_map(|vendor| on_bus(root, vendor).here());
    if bus.sum::<usize>() == 0 {
        let found = format!("found no {} card", alternatives(|vendor| vendor.name));
        let remedy = match purpose {
            Purpose::Pods => "the agent publishes none; --node (simulatedNode of the chart) simulates some",
            Purpose::LocalRuns => "`aliquot run --node h100-8` simulates some",
        };
        return Finding::new(LIBRARIES, CheckVerdict::Warning, found, remedy);
    }
    Finding::new(
        LIBRARIES,
        CheckVerdict::Failed,
        format!("no driver answers: {}", why.replace('\n', "; ")),
        format!("load the driver and run {} on the node", alternatives(|vendor| vendor.tool)),
    )
}

/// A device file that the programs of this user cannot open.
fn closed(root: &NodeRoot, file: &Path) -> Option<Finding> {
    match root.permits(file, AccessFlags::R_OK | AccessFlags::W_OK) {
        NodeObject::Here(true) => return None,
        NodeObject::Here(false) | NodeObject::Absent => {}
        NodeObject::Unreadable(error) => {
            return Some(Finding::unseen(DEVICES, format!("{}: {error}", file.display())));
        }
    }
    let FileMode { group, mode } = root.mode(file).here()?;
    let (path, user) = (file.display(), geteuid());
    let found = format!(
        "{path}: found mode {mode:03o} and group {group}, expected that user {user} may read and write it"
    );
    let remedy = match mode & GROUP_READS_AND_WRITES == GROUP_READS_AND_WRITES {
        true => format!("add the user to group {group}: usermod -aG {group} $USER, then log in again"),
        false => "let the driver make its files for all users, or run as root".to_owned(),
    };
    Some(Finding::new(DEVICES, CheckVerdict::Failed, found, remedy))
}

/// Every card on the bus has its device file.
pub(super) fn devices(purpose: Purpose, site: &NodePaths, root: &NodeRoot) -> Finding {
    if matches!(site.cards, CardsAt::Simulated(_)) {
        return Finding::ok(DEVICES, "simulated cards need none");
    }
    let names = match root.names(Path::new("/dev")) {
        NodeObject::Here(names) => names,
        NodeObject::Absent => Vec::new(),
        NodeObject::Unreadable(error) => return Finding::unseen(DEVICES, format!("/dev: {error}")),
    };
    let mut whole = Vec::new();
    for vendor in on_host() {
        let cards = match on_bus(root, vendor) {
            NodeObject::Here(cards) => cards,
            NodeObject::Absent => 0,
            NodeObject::Unreadable(error) => {
                return Finding::unseen(DEVICES, format!("{PCI_DEVICES}: {error}"));
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
        let files: Vec<&str> = names.iter().filter(|name| number(name)).map(String::as_str).collect();
        if files.len() < cards {
            absent.push(format!("{} of {cards} files /dev/{}<number>", cards - files.len(), vendor.card));
        }
        if !absent.is_empty() {
            absent.truncate(NAMES_MAX);
            let found = format!("{}: absent {}", vendor.name, absent.join(", "));
            return Finding::new(DEVICES, CheckVerdict::Failed, found, vendor.make);
        }
        let used = vendor.common.iter().copied().chain(files);
        if purpose == Purpose::LocalRuns
            && let Some(finding) =
                used.map(|name| Path::new("/dev").join(name)).find_map(|file| closed(root, &file))
        {
            return finding;
        }
        whole.push(format!("{cards} {} cards have theirs", vendor.name));
    }
    Finding::ok(DEVICES, if whole.is_empty() { "no card needs one".to_owned() } else { whole.join(", ") })
}
