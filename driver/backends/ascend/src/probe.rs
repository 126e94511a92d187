//! Discovery: what the library says of a chip becomes a card. The catalogue says what it is called and can be cut into.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use aliquot_core::card::{Card, Health, Topology};
use aliquot_core::catalogue::{CardIdentity, CardModel, Catalogue, LinkShape, Sighting};
use aliquot_core::id::{CardUuid, PciAddress, TemplateName, Vendor};
use aliquot_core::partition::{Part, PartitionTable, ShareSupport};
use aliquot_core::ports::{BackendError, LivePartition, PartitionAt, PartitionHandle, VendorOnHost};
use aliquot_core::units::Bytes;

use crate::ffi::{Facts, Library, Settings, Vnpu};
use crate::health::{Debounce, judge, unanswered};
use crate::partition;
use crate::recovery::{self, Line};

/// The vendor on a host.
pub static ON_HOST: VendorOnHost = VendorOnHost {
    name: "Ascend",
    pci: "0x19e5",
    classes: &["0x1200"],
    common: &["davinci_manager", "devmm_svm", "hisi_hdc"],
    card: "davinci",
    make: "install the Ascend driver and firmware, and restart the node",
    tool: "npu-smi",
    runtime: "ascend",
    drivers: &[
        ("device-plugins", "davinci", "Huawei's device plugin"),
        ("device-plugins", "ascend", "Huawei's device plugin"),
    ],
};

/// Where the kernel tells of PCI devices, below the root.
const PCI_DEVICES: &str = "sys/bus/pci/devices";
/// How two chips may be wired that reach each other without PCIe: HCCS, on one module, HCCS through a switch.
const FAST_WIRES: [i32; 3] = [3, 6, 7];

/// One chip as a card, and what it was made of.
#[derive(Debug)]
pub(crate) struct DiscoveredChip {
    pub(crate) card: Card,
    /// Its model as the catalogue has it: what names vNPUs.
    pub(crate) model: CardModel,
    /// The model with the partitions that are offered here.
    pub(crate) offered: CardModel,
    pub(crate) facts: Facts,
    /// Why nothing new is cut here; `None`: partitions are made on request.
    pub(crate) no_partitions: Option<String>,
}

/// What the whole machine is, for every chip of it.
pub(crate) struct Machine<'a> {
    pub(crate) root: &'a Path,
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) driver: &'a str,
    pub(crate) settings: Settings,
    pub(crate) lines: Vec<Line>,
    /// Templates that the driver turned out not to know, by model.
    pub(crate) unknown: BTreeSet<(String, TemplateName)>,
    pub(crate) debounce: &'a Debounce,
}

/// Huawei.
pub(crate) fn vendor() -> Vendor {
    #[expect(clippy::expect_used, reason = "a constant that is a vendor name")]
    let vendor = Vendor::new("huawei").expect("a name");
    vendor
}

/// The UUID that a die's words make: four of them as UUIDs are written, the fifth behind them where it says something.
pub(crate) fn uuid_of(die: [u32; 5]) -> String {
    let [a, b, c, d, rest] = die;
    let (b1, b2, c1, c2) = (b >> 16, b & 0xffff, c >> 16, c & 0xffff);
    let uuid = format!("NPU-{a:08x}-{b1:04x}-{b2:04x}-{c1:04x}-{c2:04x}{d:08x}");
    if rest == 0 { uuid } else { format!("{uuid}-{rest:08x}") }
}

/// Groups of chips, by position: the board that a chip shares with others, and the ring or mesh that it is in.
pub(crate) fn topologies(library: &Library, facts: &[Facts], models: &[Option<CardModel>]) -> Vec<Topology> {
    let fast =
        |one: &Facts, other: &Facts| library.wire(one.at, other.at).map(|wire| FAST_WIRES.contains(&wire));
    let mut groups: Vec<Option<usize>> = vec![None; facts.len()];
    let mut tells = vec![false; facts.len()];
    for (index, chip) in facts.iter().enumerate() {
        let mut known = None;
        for (other, before) in facts.iter().enumerate().take(index) {
            if let Some(is_fast) = fast(chip, before) {
                (tells[index], tells[other]) = (true, true);
                if is_fast && known.is_none() {
                    known = Some(*groups[other].get_or_insert(other));
                }
            }
        }
        groups[index] = known;
    }
    let mut firsts: Vec<usize> = groups.iter().flatten().copied().collect();
    firsts.sort_unstable();
    firsts.dedup();
    let one = |index: usize, chip: &Facts| {
        let link = models.get(index).and_then(Option::as_ref).and_then(|model| model.topology.link);
        let shape = link.map_or("hccs", |link| match link.shape {
            LinkShape::Ring => "ring",
            LinkShape::Mesh | LinkShape::Switch => "mesh",
        });
        let number = match (groups[index], link) {
            (Some(first), _) => firsts.iter().position(|other| *other == first),
            // The first chips do not tell; their rings are fixed.
            (None, Some(link)) if !tells[index] && link.shape == LinkShape::Ring => {
                usize::try_from(chip.phy / link.size.max(1)).ok()
            }
            (None, _) => None,
        };
        let shares_card = facts.iter().filter(|other| other.at.card == chip.at.card).count() > 1;
        Topology {
            card_id: shares_card.then(|| format!("card-{}", chip.at.card)),
            hccs_group: number.map(|number| format!("{shape}-{number}")),
            nvlink_domain: None,
        }
    };
    facts.iter().enumerate().map(|(index, chip)| one(index, chip)).collect()
}

/// The model of the catalogue that a chip is of.
pub(crate) fn model_of(facts: &Facts, catalogue: &Catalogue) -> Option<CardModel> {
    let memory = facts.memory_mib.as_ref().ok().and_then(|mib| Bytes::from_mib(*mib));
    let sighting = |board_id, product_name| Sighting {
        product_name,
        chip_name: Some(facts.chip.clone()),
        board_id,
        memory,
        ..Sighting::default()
    };
    // Board numbers tell chips of one name apart where the catalogue has them, and are one board's own where it has not.
    let all = [
        sighting(facts.board_id, facts.product.clone()),
        sighting(None, facts.product.clone()),
        sighting(None, None),
    ];
    let huawei = vendor();
    let matching = |seen: &Sighting| {
        let models = catalogue.matching(seen).into_iter().filter(|model| model.vendor == huawei);
        // Chips of the first generation differ by their cores alone.
        let cores = |model: &&CardModel| {
            let total = model
                .table()
                .and_then(|table| table.totals.iter().find(|(name, _)| name.as_str() == "ai-core"));
            facts.ai_cores == 0 || total.is_none_or(|(_, cores)| cores == u64::from(facts.ai_cores))
        };
        models.into_iter().find(cores).cloned()
    };
    all.iter().find_map(matching)
}

impl Machine<'_> {
    /// The card that a chip is, or why it is left out.
    pub(crate) fn card(
        &self,
        facts: Facts,
        model: Option<CardModel>,
        topology: Topology,
    ) -> Result<DiscoveredChip, String> {
        let uuid = CardUuid::new(uuid_of(facts.die)).map_err(|error| error.to_string())?;
        let memory = match &facts.memory_mib {
            Ok(mib) => Bytes::from_mib(*mib).filter(|bytes| bytes.0 > 0 && *mib < 1 << 24),
            // While a chip is split some questions are not permitted.
            Err(fault) if fault.is_forbidden() => model.as_ref().map(|model| model.memory),
            Err(fault) => return Err(format!("memory: found no size, expected MiB: {}", unanswered(fault))),
        };
        let memory = memory.ok_or_else(|| format!("memory: found {:?}, expected MiB", facts.memory_mib))?;
        let model = match model {
            Some(model) => model,
            None => CardModel::unlisted(vendor(), &facts.chip, "DaVinci", memory)
                .map_err(|error| error.to_string())?,
        };
        let (vnpus, silent) = match &facts.vnpus {
            Ok(vnpus) => (vnpus.clone(), None),
            Err(fault) if fault.is_unsupported() => {
                (Vec::new(), Some("it does not tell its vNPUs".to_owned()))
            }
            Err(fault) => {
                let why = format!("vNPUs: found no list, expected one: {}", unanswered(fault));
                (Vec::new(), Some(why))
            }
        };
        let found: Vec<Part> =
            partition::parts(&model, &facts, &vnpus).into_iter().map(|(_, part)| part).collect();
        let is_silent = facts.vnpus.as_ref().is_err_and(|fault| !fault.is_unsupported());
        let no_partitions = silent.clone().or_else(|| self.no_partitions(&model));
        let offered = self.cut(model.clone(), &found, no_partitions.is_some());
        let seen = judge(&facts.health, &facts.codes);
        let health = self.debounce.settle(&uuid, seen, facts.health.as_ref().ok().copied());
        let health = match (health, silent, recovery::pending(self.settings, &self.lines, &facts, &vnpus)) {
            (Health::Healthy, Some(why), _) if is_silent => Health::Unhealthy(why),
            (Health::Healthy, _, Some(why)) => Health::Unhealthy(why),
            (health, _, _) => health,
        };
        let pci = facts.pci.as_deref().and_then(|address| PciAddress::new(address).ok());
        let devices = self.root.join(PCI_DEVICES);
        let mut card = offered.card(CardIdentity {
            uuid,
            index: facts.logic,
            product_name: facts.product.clone(),
            memory: Some(memory),
            driver_version: self.driver.to_owned(),
            pcie_root: pci.as_ref().and_then(|pci| pcie_root(&devices, pci)),
            numa_node: pci.as_ref().and_then(|pci| numa_node(&devices, pci)),
            pci,
            topology,
            mode: None,
            health,
            found,
        });
        // Nothing holds limits of processes on an NPU.
        card.shareable = ShareSupport::No;
        Ok(DiscoveredChip { card, model, offered, facts, no_partitions })
    }

    /// Why nothing new is cut on chips of this model.
    fn no_partitions(&self, model: &CardModel) -> Option<String> {
        if self.settings.is_for_machines {
            return Some(
                "vNPU mode: found VM, expected docker: its administrator may set it (npu-smi set -t vnpu-mode -d 0) once no vNPU \
                 is left"
                    .to_owned(),
            );
        }
        match model.table() {
            None => Some("it cannot be cut".to_owned()),
            Some(table) => partition::static_reason(table)
                .map(|why| format!("{why}: its administrator cuts it (npu-smi set -t create-vnpu), and what exists is offered")),
        }
    }

    /// The model as it is here: without templates that the driver does not know, and, where nothing new is cut, with what exists
    /// alone.
    fn cut(&self, model: CardModel, found: &[Part], is_static: bool) -> CardModel {
        let Some(table) = model.table() else { return model };
        let known =
            |template: &TemplateName| !self.unknown.contains(&(model.id.to_string(), template.clone()));
        let templates = table.templates.iter().filter(|template| known(&template.name)).cloned().collect();
        let table = PartitionTable { totals: table.totals.clone(), templates };
        let table = if is_static { partition::only_found(&table, found) } else { Some(table) };
        match table.filter(|table| !table.templates.is_empty()) {
            Some(table) => model.with_table(table),
            None => model.without_partitions(),
        }
    }
}

fn numa_node(devices: &Path, pci: &PciAddress) -> Option<u32> {
    // -1: the machine has no such nodes.
    fs::read_to_string(devices.join(pci.as_str()).join("numa_node")).ok()?.trim().parse().ok()
}

/// The root complex: the part of the path to the device that is called like `pci0000:80`.
fn pcie_root(devices: &Path, pci: &PciAddress) -> Option<String> {
    let path = fs::canonicalize(devices.join(pci.as_str())).ok()?;
    let mut parts = path.components().filter_map(|part| part.as_os_str().to_str());
    parts.find(|part| part.starts_with("pci") && part.contains(':')).map(str::to_owned)
}

// === impl DiscoveredChip ===

impl DiscoveredChip {
    fn live(&self, vnpu: &Vnpu, part: &Part) -> Option<LivePartition> {
        let at = PartitionAt::of(&self.card.uuid, part)?;
        // The vendor gives a vNPU no identity beyond its number.
        let uuid = CardUuid::new(format!("{}-vnpu{}", self.card.uuid, vnpu.id)).ok()?;
        Some(LivePartition { at, handle: PartitionHandle { id: vnpu.id, uuid } })
    }

    pub(crate) fn partitions(&self) -> Vec<LivePartition> {
        let vnpus = self.facts.vnpus.as_deref().unwrap_or_default();
        let parts = partition::parts(&self.model, &self.facts, vnpus);
        let mut live: Vec<LivePartition> =
            parts.iter().filter_map(|(vnpu, part)| self.live(vnpu, part)).collect();
        live.sort();
        live
    }

    /// The first counter of which too little is left for a partition.
    pub(crate) fn shortage(&self, at: &PartitionAt) -> Option<BackendError> {
        let table = self.card.table()?;
        let left = partition::left(table, &self.card.found);
        let needs = table.consumption(&at.template, &at.placement)?;
        let (counter, asked, left) = needs.first_excess(&left)?;
        Some(BackendError::NoRoom { at: at.clone(), counter: counter.clone(), asked, left })
    }

    pub(crate) fn partition_at(&self, at: &PartitionAt) -> Option<LivePartition> {
        self.partitions().into_iter().find(|live| live.at == *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::ChipAt;

    fn facts(chip: &str, board_id: u32, ai_cores: u32, memory_mib: u64, product: Option<&str>) -> Facts {
        Facts {
            at: ChipAt { card: 0, device: 0 },
            logic: 0,
            phy: 0,
            die: [1, 2, 3, 4, 0],
            chip: chip.to_owned(),
            ai_cores,
            product: product.map(str::to_owned),
            board_id: Some(board_id),
            pci: None,
            memory_mib: Ok(memory_mib),
            health: Ok(0),
            codes: Vec::new(),
            vnpus: Ok(Vec::new()),
        }
    }

    #[test]
    fn chip_board_and_memory_lead_to_the_model() {
        let catalogue = Catalogue::embedded();
        let duo = Some("Atlas 300I Duo");
        for (facts, id) in [
            (facts("310P3", 0x64, 8, 24_576, Some("Atlas 300I Pro")), Some("huawei-310p-24gb")),
            (facts("310P3", 0x64, 8, 49_152, duo), Some("huawei-310p-duo-48gb")),
            (facts("910B3", 0x32, 20, 65_536, None), Some("huawei-910b3")),
            (facts("910B4", 0x34, 20, 32_768, None), Some("huawei-910b4")),
            (facts("910B4-1", 0x38, 20, 65_536, None), Some("huawei-910b4-1")),
            (facts("910ProA", 0x01, 32, 32_768, None), Some("huawei-910a-32c")),
            (facts("910ProA", 0x01, 30, 32_768, None), Some("huawei-910a-30c")),
            (facts("960X", 0x01, 30, 32_768, None), None),
        ] {
            let found = model_of(&facts, &catalogue).map(|model| model.id.to_string());
            assert_eq!(found.as_deref(), id, "{facts:?}");
        }
    }

    #[test]
    fn die_words_are_a_uuid_and_the_fifth_follows() {
        assert_eq!(
            uuid_of([0xa11c_0de0, 0x51a0_4c4d, 0x8000_0000, 7, 0]),
            "NPU-a11c0de0-51a0-4c4d-8000-000000000007"
        );
        assert_eq!(uuid_of([1, 0, 0, 0, 0xf]), "NPU-00000001-0000-0000-0000-000000000000-0000000f");
    }
}
