//! The NPUs of a simulated node, behind the simulated `libdcmi.so`: below the state directory lies a machine with a driver, and the
//! backend that serves a real one opens it.
//!
//! ```text
//!   <state>/npus/npus.toml                   the chips; written once, may be changed by a person
//!   <state>/npus/usr/local/dcmi/libdcmi.so   the driver's library
//!   <state>/npus/{dev,etc,sys}               device nodes, recovery file, PCI devices
//! ```
//!
//! A card that the library cannot report as the node file describes it stays simulated by the node file alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_backend_sim::{ServedCards, SimNode};
use aliquot_core::card::Card;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::CardUuid;
use aliquot_core::ports::{AccessMount, DeviceBackend, MountContent};
use aliquot_sim_device::PciPlace;
use aliquot_sim_device::npu::{Chip, MACHINE_FILE, Machine, Npus, install_npus, knows_model};

use super::HardwareError;
use super::vendors::{self, dcmi};
use crate::error_text::chain;
use crate::state_dir::file::make_dirs;

/// Bus of the first chip, where the node file names no address.
const FIRST_BUS: u32 = 0x40;
/// Where the library finds the machine in a container.
const CONTAINER: &str = "/run/aliquot/npus";
/// Directories of the library below the machine's root. The backend refuses one that others may write.
const LIBRARY_DIRS: [&str; 4] = ["", "usr", "usr/local", "usr/local/dcmi"];

/// Root of the machine with the NPUs of a simulated node.
fn root(state: &Path) -> PathBuf {
    state.join("npus")
}

/// Has the NPUs of a simulated node served by the driver's library.
pub(super) fn serve(node: &mut SimNode, catalogue: &Catalogue, state: &Path) -> Result<(), HardwareError> {
    let chips = chips(node.described(), catalogue);
    if chips.is_empty() {
        return Ok(());
    }
    let root = root(state);
    let failed =
        |source| HardwareError::path("install the driver of simulated NPUs in", &root, source, ADVICE);
    install(&root, chips).map_err(failed)?;
    let root = root.canonicalize().map_err(failed)?;
    let library = vendors::open_dcmi(root.clone(), catalogue).map_err(HardwareError::Cards)?;
    let found = library.discover().map_err(|error| HardwareError::Cards(chain(&error)))?;
    let is_same = |card: &&Card| found.card(&card.uuid).is_some_and(|found| found.model == card.model);
    let cards: BTreeSet<CardUuid> = node.described().filter(is_same).map(|card| card.uuid.clone()).collect();
    let machine = AccessMount {
        host: root.display().to_string(),
        container: CONTAINER.to_owned(),
        content: MountContent::ReadOnly,
    };
    let served = ServedCards { cards, library: Some(library), mounts: vec![machine] };
    node.serve(served).map_err(|error| HardwareError::Cards(chain(&error)))
}

const ADVICE: &str = "Check the directory given with --state";

/// The backend of the NPUs below a state directory; `None`: there are none.
pub(crate) fn open(state: &Path) -> Option<Arc<dyn DeviceBackend>> {
    let root = root(state);
    root.join(MACHINE_FILE).is_file().then(|| vendors::open_dcmi(root, &Catalogue::embedded()).ok()).flatten()
}

/// Writes the machine where there is none yet, and the library where there is another one.
fn install(root: &Path, chips: Vec<Chip>) -> io::Result<()> {
    let file = root.join(MACHINE_FILE);
    if file.exists() {
        let found = Npus::open(root).map_err(io::Error::other)?;
        let dies = |chips: &[Chip]| chips.iter().map(|chip| chip.die).collect::<Vec<_>>();
        if dies(&found.machine().chips) != dies(&chips) {
            let message = format!(
                "{} describes other NPUs than the node has: remove {}, or name another state",
                file.display(),
                root.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
    } else {
        make_dirs(root)?;
        install_npus(root, &Machine { chips, ..Machine::default() }).map_err(io::Error::other)?;
    }
    aliquot_libraries::install_dcmi(root)?;
    for dir in LIBRARY_DIRS.map(|dir| root.join(dir)) {
        if fs::metadata(&dir)?.permissions().mode() & 0o777 != 0o755 {
            fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// The chips that the library can report, by physical id.
fn chips<'c>(cards: impl Iterator<Item = &'c Card>, catalogue: &Catalogue) -> Vec<Chip> {
    let vendor = dcmi();
    let mut boards: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    let cards: Vec<&Card> = cards.collect();
    let place = |card: &&Card| PciPlace::parse(card.pci.as_ref()?.as_str());
    let mut places: BTreeSet<PciPlace> = cards.iter().filter_map(place).collect();
    let mut chips: Vec<Chip> = Vec::new();
    let ours = cards.into_iter().filter(|card| card.vendor == vendor && knows_model(card.model.as_str()));
    for card in ours {
        let (Some(die), Some(model)) = (die_of(&card.uuid), catalogue.model(&card.model)) else { continue };
        let phy = u32::try_from(chips.len()).unwrap_or(u32::MAX);
        let own = format!("chip {phy}");
        let next = u32::try_from(boards.len()).unwrap_or(u32::MAX);
        let board = boards.entry(card.topology.card_id.clone().unwrap_or(own)).or_insert((next, 0));
        let (number, device) = *board;
        board.1 += 1;
        let first = |names: &[String]| names.first().cloned().unwrap_or_default();
        chips.push(Chip {
            model: card.model.to_string(),
            product: first(&model.matching.product_names),
            chip: first(&model.matching.chip_names),
            card: number,
            device,
            memory_mib: card.memory.0 >> 20,
            board_id: model.matching.board_ids.first().copied().unwrap_or(0),
            pci: card.pci.as_ref().map_or_else(
                || PciPlace::free(&mut places, FIRST_BUS.saturating_add(phy)).text(4).to_lowercase(),
                ToString::to_string,
            ),
            pcie_root: card.pcie_root.clone(),
            numa: card.numa_node,
            hccs: card.topology.hccs_group.clone(),
            die,
        });
    }
    chips
}

/// The words of the die with this UUID; `None`: no die has it.
fn die_of(uuid: &CardUuid) -> Option<[u32; 5]> {
    let digits = uuid.as_str().strip_prefix("NPU-")?;
    let lengths: Vec<usize> = digits.split('-').map(str::len).collect();
    let plain = digits.replace('-', "");
    if lengths != [8, 4, 4, 4, 12] || !plain.is_ascii() {
        return None;
    }
    let word = |index: usize| u32::from_str_radix(plain.get(index * 8..index * 8 + 8)?, 16).ok();
    let die = [word(0)?, word(1)?, word(2)?, word(3)?, 0];
    // A blank die is one that tells nothing.
    die.iter().any(|word| *word != 0).then_some(die)
}

#[cfg(test)]
mod tests {
    use aliquot_backend_sim::{NodeFile, Personality};
    use aliquot_core::partition::Part;
    use aliquot_core::ports::{ExpectedPartition, PartitionAt};

    use super::*;
    use crate::hardware::{Hardware, NodeSpec};

    fn spec(name: &str) -> NodeSpec {
        let file = Personality::named(name).unwrap().load().unwrap();
        NodeSpec { source: name.to_owned(), file, copies: 1 }
    }

    #[test]
    fn npus_of_every_built_in_node_are_served_by_the_library() {
        let catalogue = Catalogue::embedded();
        for personality in Personality::all() {
            let file = personality.load().unwrap();
            let node = SimNode::in_memory(&file, &catalogue).unwrap();
            let npus: Vec<Card> = node.described().filter(|card| card.vendor == dcmi()).cloned().collect();
            if npus.is_empty() {
                continue;
            }
            let state = tempfile::tempdir().unwrap();
            let mut node = SimNode::open(&file, &catalogue, &state.path().join("hardware")).unwrap();
            serve(&mut node, &catalogue, state.path()).unwrap();
            let library = open(state.path()).unwrap().discover().unwrap();
            for npu in npus {
                let found =
                    library.card(&npu.uuid).unwrap_or_else(|| panic!("{}: {}", node.name(), npu.uuid));
                assert_eq!((&found.model, found.memory), (&npu.model, npu.memory), "{}", node.name());
                assert_eq!(found.pcie_root, npu.pcie_root, "{}", node.name());
            }
        }
    }

    #[test]
    fn chips_without_an_address_get_one_each() {
        let group = |pci: &str| format!("[[card]]\nmodel = \"huawei-310p-24gb\"\ncount = 2\n{pci}");
        let given = group("pci = [\"0000:41:00.0\", \"0000:42:00.0\"]\n");
        let text = format!("schema = 1\nname = \"n\"\n{}{given}", group(""));
        let catalogue = Catalogue::embedded();
        let node = SimNode::in_memory(&NodeFile::parse(&text).unwrap(), &catalogue).unwrap();
        let chips = chips(node.described(), &catalogue);
        let places: Vec<&str> = chips.iter().map(|chip| chip.pci.as_str()).collect();
        assert_eq!(places, ["0000:40:00.0", "0000:43:00.0", "0000:41:00.0", "0000:42:00.0"]);
    }

    #[test]
    fn partition_of_a_simulated_npu_is_a_vnpu_of_the_library() {
        let (catalogue, state) = (Catalogue::embedded(), tempfile::tempdir().unwrap());
        let hardware = Hardware::simulated(&spec("mixed"), &catalogue, state.path()).unwrap();
        let cards = hardware.discover().unwrap();
        let npu = cards.cards.iter().find(|card| card.vendor == dcmi()).unwrap();
        let template = npu.table().unwrap().templates.iter().find(|t| t.name.as_str() == "vir02").unwrap();
        let part = Part::Partition {
            template: template.name.clone(),
            placement: template.placements[1].name.clone(),
        };
        let at = PartitionAt::of(&npu.uuid, &part).unwrap();
        let made = hardware.backend.create_partition(&at).unwrap();
        let npus = Npus::open(&root(state.path())).unwrap();
        let vnpus = npus.state().unwrap().vnpus;
        assert_eq!(vnpus.len(), 1);
        assert_eq!(
            (vnpus[0].template.as_str(), vnpus[0].id, vnpus[0].group),
            ("vir02", made.handle.id, Some(1))
        );
        let access = hardware.backend.access(&npu.uuid, &part).unwrap();
        assert_eq!(access.nodes[0].container, format!("/dev/davinci{}", made.handle.id));
        let mounts: Vec<&str> = access.mounts.iter().map(|mount| mount.container.as_str()).collect();
        assert_eq!(mounts, ["/usr/local/dcmi", CONTAINER]);
        hardware.backend.destroy_partition(&at, &ExpectedPartition::Handle(made.handle)).unwrap();
        assert_eq!(npus.state().unwrap().vnpus, []);
    }

    #[test]
    fn uuid_that_no_die_has_is_left_to_the_node_file() {
        for bad in
            ["NPU-1", "GPU-a11c0de0-51a0-4c4d-8000-000000000007", "NPU-00000000-0000-0000-0000-000000000000"]
        {
            assert_eq!(die_of(&CardUuid::new(bad).unwrap()), None, "{bad}");
        }
        let die = die_of(&CardUuid::new("NPU-a11c0de0-51a0-4c4d-8000-000000000007").unwrap());
        assert_eq!(die, Some([0xa11c_0de0, 0x51a0_4c4d, 0x8000_0000, 7, 0]));
    }
}
