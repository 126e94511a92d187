//! Discovery: what the library says of a card becomes a card. The catalogue says what it is called and belongs to; what was
//! read of the card itself wins.

use std::fs;
use std::path::Path;

use aliquot_core::card::{Card, Health, Supply, Topology};
use aliquot_core::catalogue::{CardIdentity, CardModel, Catalogue, Sighting};
use aliquot_core::id::{CardUuid, PciAddress, Vendor};
use aliquot_core::partition::Part;
use aliquot_core::ports::VendorOnHost;
use aliquot_core::units::Bytes;

use crate::ffi::{Facts, Fault, MigLayout};
use crate::health::{instances_unread, unanswered};
use crate::partition;

/// The vendor on a host.
pub static ON_HOST: VendorOnHost = VendorOnHost {
    name: "NVIDIA",
    pci: "0x10de",
    classes: &["0x0300", "0x0302"],
    common: &["nvidiactl", "nvidia-uvm"],
    card: "nvidia",
    make: "load the driver: modprobe nvidia nvidia-uvm; nvidia-modprobe -u -c 0 makes the files",
    tool: "nvidia-smi",
    runtime: "nvidia",
    drivers: &[
        ("device-plugins", "nvidia", "NVIDIA's device plugin"),
        ("plugins_registry", "gpu.nvidia.com", "NVIDIA's DRA driver"),
    ],
};

/// Where the kernel describes PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Where the driver describes capabilities and their device files.
const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";
/// Unit of memory that can be handed out.
const MEMORY_STEP: u64 = 1 << 20;

/// What discovery comes to: cards in the order of the library, and what is wrong at places without one.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    pub(crate) cards: Vec<Card>,
    /// Their models as they are here: with the memory that was read, and with partitions where a card gives them.
    pub(crate) models: Vec<CardModel>,
    pub(crate) facts: Vec<Facts>,
    pub(crate) unread: Vec<Unread>,
}

/// A place in the library's list of which no card was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) index: u32,
    pub(crate) loss: Loss,
    pub(crate) why: String,
}

/// Whether the driver says that a card is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It does: the card is off the bus, or of no use until its reset.
    Reported,
    /// It does not.
    Unknown,
}

// === impl Unread ===

impl Unread {
    /// A card that does not answer.
    pub(crate) fn of(index: u32, fault: &Fault) -> Self {
        let loss = if fault.is_lost() { Loss::Reported } else { Loss::Unknown };
        Self { index, loss, why: unanswered(fault) }
    }
}

// === impl Discovery ===

impl Discovery {
    /// What is wrong at places without a card, one line each.
    pub(crate) fn trouble(&self) -> Vec<String> {
        self.unread.iter().map(|Unread { index, why, .. }| format!("card {index}: {why}")).collect()
    }

    /// Adds what was found at an index.
    pub(crate) fn add(
        &mut self,
        index: u32,
        facts: Result<Facts, Fault>,
        driver: &str,
        catalogue: &Catalogue,
    ) {
        let facts = match facts {
            Ok(facts) => facts,
            Err(fault) => return self.unread.push(Unread::of(index, &fault)),
        };
        match card(&facts, driver, catalogue) {
            Ok((card, mut model)) => {
                // Parts of a model are to fit on each of its cards.
                model.memory = card.memory;
                match self.models.iter_mut().find(|known| known.id == model.id) {
                    Some(known) => {
                        known.memory = known.memory.min(model.memory);
                        // One of its cards may be in MIG mode, and another not.
                        if known.table().is_none() {
                            known.partitioning = model.partitioning;
                        }
                    }
                    None => self.models.push(model),
                }
                self.cards.push(card);
                self.facts.push(facts);
            }
            Err(why) => self.unread.push(Unread { index, loss: Loss::Unknown, why }),
        }
    }
}

/// Device files of the capabilities by which programs reach an instance, as far as the kernel's driver
/// describes them.
pub(crate) fn capability_nodes(minor: Option<u32>, gpu: u32, compute: u32) -> Vec<String> {
    let of_gpu = minor.map(|minor| format!("{CAPABILITIES}/gpu{minor}/mig/gi{gpu}"));
    let paths = of_gpu.map(|gpu| [format!("{gpu}/access"), format!("{gpu}/ci{compute}/access")]);
    let told = paths.into_iter().flatten().filter_map(|path| fs::read_to_string(path).ok());
    told.filter_map(|text| capability_minor(&text))
        .map(|minor| format!("nvidia-caps/nvidia-cap{minor}"))
        .collect()
}

/// The number in `DeviceFileMinor: 3`.
fn capability_minor(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok())
}

/// NVIDIA.
pub(crate) fn vendor() -> Vendor {
    #[expect(clippy::expect_used, reason = "a constant that is a vendor name")]
    let vendor = Vendor::new("nvidia").expect("a name");
    vendor
}

fn card(facts: &Facts, driver: &str, catalogue: &Catalogue) -> Result<(Card, CardModel), String> {
    let uuid = CardUuid::new(facts.uuid.as_str()).map_err(|error| error.to_string())?;
    let listed = || catalogue.matching(&sighting(facts, None)).first().map(|model| model.memory);
    let memory = match &facts.memory {
        Ok(bytes) if *bytes >= MEMORY_STEP => Bytes(bytes - bytes % MEMORY_STEP),
        Ok(bytes) => return Err(format!("memory: found {bytes} bytes, expected at least {MEMORY_STEP}")),
        Err(fault) => match listed().filter(|_| fault.is_forbidden()) {
            // In MIG mode only privileged users can read the size of the whole card.
            Some(nominal) => nominal,
            None => return Err(format!("memory: found no size, expected bytes: {}", unanswered(fault))),
        },
    };
    let model = model(facts, memory, catalogue)?;
    let (model, found, cut_trouble) = match facts.cut() {
        None => (model.without_partitions(), Vec::new(), None),
        Some(cut) => cut_model(model, cut)?,
    };
    let pci = pci_address(&facts.pci);
    let trouble = match &facts.mig {
        Ok(_) => cut_trouble,
        // A card in MIG mode must not be shared, so that one that does not say is not shared either.
        Err(fault) => Some(format!("MIG mode: found no answer, expected on or off: {}", unanswered(fault))),
    };
    let mut card = model.card(CardIdentity {
        uuid,
        index: facts.index,
        product_name: Some(facts.name.clone()),
        memory: Some(memory),
        driver_version: driver.to_owned(),
        pcie_root: pci.as_ref().and_then(pcie_root),
        numa_node: pci.as_ref().and_then(numa_node),
        pci,
        topology: Topology::default(),
        mode: None,
        health: trouble.map_or(Health::Healthy, Health::Unhealthy),
        found,
    });
    if facts.cut().is_some() {
        card.supply = Supply::NewParts;
    }
    Ok((card, model))
}

/// A model as its card in MIG mode has it, the partitions that exist on the card, and why the card accepts no
/// claims.
fn cut_model(
    model: CardModel,
    cut: &Result<MigLayout, Fault>,
) -> Result<(CardModel, Vec<Part>, Option<String>), String> {
    match cut {
        Ok(MigLayout { profiles, instances }) => {
            let table = partition::table(profiles, model.table())?;
            let found =
                instances.iter().filter_map(|instance| partition::part_of(instance, &table)).collect();
            Ok((model.with_table(table), found, None))
        }
        Err(fault) => Ok((model.without_partitions(), Vec::new(), Some(instances_unread(fault)))),
    }
}

/// The model of the catalogue, or one made up of what was read.
fn model(facts: &Facts, memory: Bytes, catalogue: &Catalogue) -> Result<CardModel, String> {
    if let Some(model) = catalogue.matching(&sighting(facts, Some(memory))).first() {
        return Ok((*model).clone());
    }
    CardModel::unlisted(vendor(), &facts.name, architecture(facts.capability), memory)
        .map_err(|error| error.to_string())
}

fn sighting(facts: &Facts, memory: Option<Bytes>) -> Sighting {
    let (device, vendor_id) = (facts.pci_id >> 16, facts.pci_id & 0xffff);
    Sighting {
        product_name: Some(facts.name.clone()),
        pci_id: Some(format!("{vendor_id:04x}:{device:04x}")),
        memory,
        ..Sighting::default()
    }
}

/// Name of the architecture with this compute capability.
fn architecture(capability: (i32, i32)) -> &'static str {
    match capability {
        (..=4, _) => "unknown",
        (5, _) => "Maxwell",
        (6, _) => "Pascal",
        (7, 5) => "Turing",
        (7, _) => "Volta",
        (8, 9) => "Ada",
        (8, _) => "Ampere",
        (9, _) => "Hopper",
        (10..=12, _) => "Blackwell",
        _ => "unknown",
    }
}

/// `00000000:81:00.0` as the kernel writes it: `0000:81:00.0`.
fn pci_address(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    PciAddress::new(format!("{domain:04x}:{rest}").to_ascii_lowercase()).ok()
}

fn numa_node(pci: &PciAddress) -> Option<u32> {
    let text = fs::read_to_string(Path::new(PCI_DEVICES).join(pci.as_str()).join("numa_node")).ok()?;
    // -1: the machine has no such nodes.
    text.trim().parse().ok()
}

/// The root complex: the first part of the path to the device, such as `pci0000:80`.
fn pcie_root(pci: &PciAddress) -> Option<String> {
    let path = fs::canonicalize(Path::new(PCI_DEVICES).join(pci.as_str())).ok()?;
    let mut parts = path.components().filter_map(|part| part.as_os_str().to_str());
    parts.find(|part| part.starts_with("pci") && part.contains(':')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::MigMode;

    fn facts(name: &str, pci_id: u32) -> Facts {
        Facts {
            index: 3,
            uuid: "GPU-00000000-0000-0000-0000-000000000003".to_owned(),
            name: name.to_owned(),
            minor: Some(3),
            pci: "00000000:81:00.0".to_owned(),
            pci_id,
            memory: Ok(81_000 * MEMORY_STEP + 17),
            capability: (9, 0),
            mig: Ok(MigMode::Off),
        }
    }

    fn found(facts: Facts) -> Discovery {
        let mut found = Discovery::default();
        found.add(facts.index, Ok(facts), "580.65.06", &Catalogue::embedded());
        found
    }

    #[test]
    fn a_card_is_of_the_model_that_name_and_number_agree_on() {
        let h100 = found(facts("NVIDIA H100 80GB HBM3", 0x2330_10de));
        let card = &h100.cards[0];
        assert_eq!((card.model.as_str(), card.memory), ("nvidia-h100-80gb-sxm", Bytes(81_000 * MEMORY_STEP)));
        assert_eq!((card.index, card.pci.as_ref().unwrap().as_str()), (3, "0000:81:00.0"));
        assert_eq!((&card.health, card.table()), (&Health::Healthy, None), "no partitions while MIG is off");
        // A number that no file has is a new board of that name; one that another model has is another card.
        let board = found(facts("NVIDIA H100 80GB HBM3", 0x9999_10de));
        assert_eq!(board.cards[0].model.as_str(), "nvidia-h100-80gb-sxm");
        let other = found(facts("NVIDIA H100 80GB HBM3", 0x2331_10de));
        assert_eq!(other.cards[0].model.as_str(), "nvidia-h100-80gb-hbm3");
        let unlisted = found(facts("NVIDIA GeForce RTX 4090", 0x2684_10de));
        let card = &unlisted.cards[0];
        assert_eq!((card.model.as_str(), card.architecture.as_str()), ("nvidia-geforce-rtx-4090", "Hopper"));
        assert_eq!(card.memory, Bytes(81_000 * MEMORY_STEP));
    }

    #[test]
    fn card_with_a_missing_answer_is_not_handed_out() {
        let lost = Fault::Code { code: 15, text: "lost".to_owned() };
        let on = |fault| Facts { mig: Ok(MigMode::On(Err(fault))), ..facts("NVIDIA L4", 0x27b8_10de) };
        let forbidden = Fault::Code { code: 4, text: "no".to_owned() };
        let silent = Facts { mig: Err(lost.clone()), ..facts("NVIDIA L4", 0x27b8_10de) };
        for (facts, words) in [
            (
                on(forbidden.clone()),
                "this user may not create MIG instances, expected a user with that right",
            ),
            (on(lost.clone()), "MIG instances: found no answer"),
            (silent, "MIG mode: found no answer"),
        ] {
            let found = found(facts);
            let Health::Unhealthy(why) = &found.cards[0].health else { unreachable!("{found:?}") };
            assert!(why.contains(words), "{why}");
        }
        // Facts of a card in MIG mode that an ordinary user cannot read have their usual values.
        let untold = found(Facts { memory: Err(forbidden.clone()), ..on(forbidden) });
        assert_eq!(untold.cards[0].memory, Catalogue::embedded().resolve("nvidia-l4-24gb")[0].memory);
        let unsized_card = Facts { memory: Err(lost.clone()), ..facts("NVIDIA L4", 0x27b8_10de) };
        let nothing = Facts { memory: Ok(0), ..facts("NVIDIA L4", 0x27b8_10de) };
        let unnamed = Facts { uuid: "../GPU".to_owned(), ..facts("NVIDIA L4", 0x27b8_10de) };
        for (facts, words) in
            [(unsized_card, "memory: found no size"), (nothing, "memory: found 0 bytes"), (unnamed, "../GPU")]
        {
            let found = found(facts);
            assert!(found.cards.is_empty() && found.trouble()[0].contains(words), "{found:?}");
        }
        let mut gone = Discovery::default();
        gone.add(1, Err(lost), "580.65.06", &Catalogue::embedded());
        assert!(gone.trouble()[0].starts_with("card 1: NVML error 15: lost: "), "{gone:?}");
    }

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        assert_eq!(pci_address("00000000:0A:1F.7").unwrap().as_str(), "0000:0a:1f.7");
        assert_eq!(pci_address("0001:0A:1F.7").unwrap().as_str(), "0001:0a:1f.7");
        assert_eq!(pci_address("00010000:0A:1F.7"), None);
        assert_eq!(pci_address("nothing"), None);
    }
}
