//! The vendor's driver: its libraries where a container can get them from, and device files for every card on the bus.

use std::path::Path;

use aliquot_core::card::{Card, Health};

use super::node_root::{NodeObject, NodeRoot};
use super::{CardsAt, CheckVerdict, Finding, NodePaths};
use crate::hardware::vendors::driver_files;

/// Where the kernel lists PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Longest list of names in a finding.
const NAMES_MAX: usize = 4;

/// A vendor as its cards and driver appear in a file system.
struct Vendor {
    name: &'static str,
    /// PCI vendor, as the kernel writes it.
    pci: &'static str,
    /// Beginnings of the PCI classes of its cards.
    classes: &'static [&'static str],
    /// Device files that every container needs.
    common: &'static [&'static str],
    /// A card's device file without its number.
    card: &'static str,
    /// What makes absent device files.
    make: &'static str,
}

const NVIDIA: Vendor = Vendor {
    name: "NVIDIA",
    pci: "0x10de",
    classes: &["0x0300", "0x0302"],
    common: &["nvidiactl", "nvidia-uvm"],
    card: "nvidia",
    make: "load the driver: modprobe nvidia nvidia-uvm; nvidia-modprobe -u -c 0 makes the files",
};
const ASCEND: Vendor = Vendor {
    name: "Ascend",
    pci: "0x19e5",
    classes: &["0x1200"],
    common: &["davinci_manager", "devmm_svm", "hisi_hdc"],
    card: "davinci",
    make: "install the Ascend driver and firmware, and restart the node",
};

/// Cards of a vendor on the PCI bus.
fn on_bus(root: &NodeRoot, vendor: &Vendor) -> NodeObject<usize> {
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
    let files = match on_bus(root, &NVIDIA) {
        NodeObject::Unreadable(error) => return Finding::unseen(CHECK, format!("{PCI_DEVICES}: {error}")),
        NodeObject::Here(0) | NodeObject::Absent => None,
        NodeObject::Here(_) => match driver_files(&site.root, site.driver.as_deref()) {
            Ok(files) => Some(files),
            Err(error) => {
                return Finding::new(
                    CHECK,
                    CheckVerdict::Failed,
                    error.to_string(),
                    "see docs/user/cluster.md",
                );
            }
        },
    };
    let of = files.map_or(String::new(), |files| {
        format!(", NVIDIA driver {} below {}", files.version, files.root.display())
    });
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
            let bus = [&NVIDIA, &ASCEND].into_iter().filter_map(|vendor| on_bus(root, vendor).here());
            if bus.sum::<usize>() == 0 {
                let remedy = "the agent publishes none; --node (simulatedNode of the chart) simulates some";
                return Finding::new(CHECK, CheckVerdict::Warning, "found no NVIDIA or Ascend card", remedy);
            }
            Finding::new(
                CHECK,
                CheckVerdict::Failed,
                format!("no driver answers: {}", why.replace('\n', "; ")),
                "load the driver and run nvidia-smi or npu-smi on the node",
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
    for vendor in [&NVIDIA, &ASCEND] {
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
