//! The backend over the simulated `libdcmi.so`, down to the C interface.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "abi/faults.rs"]
mod faults;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aliquot_backend_ascend::{AscendNode, OpenError, Site};
use aliquot_core::card::{Card, Health, Listing};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::disposition::Disposition;
use aliquot_core::health::Cause;
use aliquot_core::id::TemplateName;
use aliquot_core::partition::{Part, PlacementName};
use aliquot_core::ports::{BackendError, DeviceBackend, ExpectedPartition, PartitionAt};
use aliquot_sim_device::npu::{
    Chip, ChipHealth, Machine, Npus, Recover, VnpuMode, VnpuRequest, install_npus,
};
use tempfile::TempDir;

/// The library, built once a test run beside the running test.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let built = test.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "-p", "aliquot_sim_dcmi"]);
        cargo.env("CARGO_TARGET_DIR", built.parent().unwrap());
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
        built.join("libaliquot_sim_dcmi.so")
    })
}

/// A machine of one test, which goes with the value.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new(machine: &Machine) -> Self {
        Self::without(machine, &[])
    }

    /// With a library that lacks symbols.
    fn without(machine: &Machine, missing: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        install_npus(dir.path(), machine).unwrap();
        let place = dir.path().join("usr/local/dcmi");
        aliquot_sim_device::install(library(), &place, "libdcmi.so", missing).unwrap();
        Self { dir }
    }

    fn site(&self) -> Site {
        Site::below(self.dir.path().to_owned())
    }

    fn open(&self) -> Arc<AscendNode> {
        AscendNode::open(&Catalogue::embedded(), &self.site()).unwrap()
    }

    fn refusal(&self) -> String {
        let refused = AscendNode::open(&Catalogue::embedded(), &self.site()).unwrap_err();
        let source = std::error::Error::source(&refused).map(|source| format!(": {source}"));
        format!("{refused}{}", source.unwrap_or_default())
    }

    fn npus(&self) -> Npus {
        Npus::open(self.dir.path()).unwrap()
    }

    fn fault(&self, symbol: &str, action: &str) {
        self.faults(&format!("[[fault]]\nsymbol = \"{symbol}\"\naction = {action}\n"));
    }

    fn faults(&self, text: &str) {
        fs::write(self.dir.path().join("npu-faults.toml"), text).unwrap();
    }
}

fn chip(model: &str, name: &str, phy: u32, memory_mib: u64) -> Chip {
    Chip {
        model: model.to_owned(),
        product: String::new(),
        chip: name.to_owned(),
        card: phy,
        device: 0,
        memory_mib,
        board_id: 0,
        pci: format!("0000:{:02x}:00.0", 0x11 + phy),
        pcie_root: Some(format!("pci0000:{:02x}", 0x11 + phy)),
        numa: Some(0),
        hccs: None,
        die: [0xa11c_0000 + phy, 1, 2, 3, 0],
    }
}

fn machine(chips: Vec<Chip>) -> Machine {
    Machine { chips, ..Machine::default() }
}

fn two_310p() -> Machine {
    machine((0..2).map(|phy| chip("huawei-310p-24gb", "310P3", phy, 24_576)).collect())
}

fn at(card: &Card, template: &str, placement: &str) -> PartitionAt {
    PartitionAt {
        card: card.uuid.clone(),
        template: TemplateName::new(template).unwrap(),
        placement: PlacementName(placement.to_owned()),
    }
}

fn vnpu(npus: &Npus, phy: usize, template: &str) -> u32 {
    npus.create(phy, &VnpuRequest { template: template.to_owned(), id: None, group: None }).unwrap().id
}

fn unhealthy(card: &Card) -> &str {
    match &card.health {
        Health::Unhealthy(why) => why,
        Health::Healthy => "healthy",
    }
}

#[test]
fn discovery_reads_every_fact_of_a_card() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let (cards, trouble) = node.cards().unwrap();
    assert_eq!((cards.cards.len(), trouble.len()), (2, 0));
    let card = &cards.cards[1];
    assert_eq!(card.uuid.as_str(), "NPU-a11c0001-0000-0001-0000-000200000003");
    assert_eq!((card.model.as_str(), card.index, card.memory.0), ("huawei-310p-24gb", 1, 24 << 30));
    assert_eq!((card.driver_version.as_str(), card.numa_node), ("25.2.0", Some(0)));
    assert_eq!(card.pci.as_ref().unwrap().as_str(), "0000:12:00.0");
    assert_eq!(card.pcie_root.as_deref(), Some("pci0000:12"));
    assert_eq!((&card.health, card.found.len()), (&Health::Healthy, 0));
    assert_eq!(card.table().unwrap().templates.len(), 7);
    assert_eq!(node.usage(&card.uuid).unwrap().busy_percent, Some(0));
}

#[test]
fn topology_is_card_and_ring_and_absent_without_one() {
    let mut duo: Vec<Chip> = (0..4).map(|phy| chip("huawei-310p-duo-24gb", "310P3", phy, 24_576)).collect();
    for (phy, chip) in duo.iter_mut().enumerate() {
        chip.product = "Atlas 300I Duo".to_owned();
        (chip.card, chip.device) = (u32::try_from(phy / 2).unwrap(), u32::try_from(phy % 2).unwrap());
    }
    let mut mesh: Vec<Chip> = (0..4).map(|phy| chip("huawei-910b3", "910B3", phy, 61_440)).collect();
    for (phy, chip) in mesh.iter_mut().enumerate() {
        chip.hccs = Some(format!("group-{}", phy / 2));
    }
    let rings: Vec<Chip> = (0..8).map(|phy| chip("huawei-910a-32c", "910ProA", phy, 32_768)).collect();
    let groups = |chips: Vec<Chip>| -> Vec<String> {
        let bench = Bench::new(&machine(chips));
        let cards = bench.open().discover().unwrap().cards;
        let word = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        cards
            .iter()
            .map(|c| format!("{} {}", word(&c.topology.card_id), word(&c.topology.hccs_group)))
            .collect()
    };
    assert_eq!(groups(two_310p().chips), ["- -", "- -"]);
    assert_eq!(groups(duo), ["card-0 -", "card-0 -", "card-1 -", "card-1 -"]);
    assert_eq!(groups(mesh), ["- mesh-0", "- mesh-0", "- mesh-1", "- mesh-1"]);
    let found = groups(rings);
    assert_eq!((found[3].as_str(), found[4].as_str()), ("- ring-0", "- ring-1"));
}

#[test]
fn four_quarters_are_made_at_their_places_and_destroyed() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[1].clone();
    let places = [("vir02", "vg0"), ("vir02", "vg1"), ("vir02", "vg2"), ("vir02_1c", "vg3")];
    let mut made = Vec::new();
    for (template, placement) in places {
        made.push(node.create_partition(&at(&card, template, placement)).unwrap());
    }
    let ids: Vec<u32> = made.iter().map(|live| live.handle.id).collect();
    assert_eq!(ids, [116, 118, 120, 122]);
    let groups: Vec<Option<u32>> = bench.npus().state().unwrap().vnpus.iter().map(|v| v.group).collect();
    assert_eq!(groups, [Some(0), Some(1), Some(2), Some(3)]);
    let listed: BTreeSet<_> = node.partitions().unwrap().into_iter().collect();
    assert_eq!(listed, made.iter().cloned().collect());
    let again = node.create_partition(&at(&card, "vir02", "vg0"));
    assert!(matches!(again, Err(BackendError::AlreadyThere { .. })), "{again:?}");
    let more = node.create_partition(&at(&card, "vir01", "vg0a"));
    let Err(BackendError::NoRoom { counter, .. }) = &more else { unreachable!("{more:?}") };
    assert_eq!(counter.as_str(), "ai-core");
    for live in &made {
        node.destroy_partition(&live.at, &ExpectedPartition::Handle(live.handle.clone())).unwrap();
    }
    let gone = node.destroy_partition(&made[0].at, &ExpectedPartition::Any);
    assert!(matches!(gone, Err(BackendError::Absent { .. })), "{gone:?}");
    assert_eq!(bench.npus().state().unwrap().vnpus, []);
}

#[test]
fn access_names_the_vnpu_and_the_shared_nodes() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[1].clone();
    let quarter = at(&card, "vir02", "vg1");
    assert!(matches!(node.access(&card.uuid, &quarter.part()), Err(BackendError::Absent { .. })));
    let live = node.create_partition(&quarter).unwrap();
    let access = node.access(&card.uuid, &quarter.part()).unwrap();
    let inside: Vec<&str> = access.nodes.iter().map(|node| node.container.as_str()).collect();
    assert_eq!(inside, ["/dev/davinci118", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]);
    assert_eq!(access.visible_uuid, live.handle.uuid);
    let whole = node.access(&card.uuid, &Part::Card).unwrap();
    assert_eq!((whole.nodes[0].container.as_str(), &whole.visible_uuid), ("/dev/davinci1", &card.uuid));
    fs::remove_file(bench.dir.path().join("dev/davinci_manager")).unwrap();
    let missing = node.access(&card.uuid, &Part::Card).unwrap_err();
    assert_eq!(missing.disposition(), Disposition::Retry);
    let missing = missing.to_string();
    assert!(missing.contains("dev/davinci_manager: found none, expected a character device"), "{missing}");
    assert!(missing.contains("it is looked for again"), "{missing}");
}

/// The driver makes a vNPU's node a moment after the vNPU.
#[test]
fn late_node_of_a_vnpu_is_waited_for() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[1].clone();
    let quarter = at(&card, "vir02", "vg1");
    node.create_partition(&quarter).unwrap();
    let file = bench.dir.path().join("dev/vdavinci118");
    fs::remove_file(&file).unwrap();
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        std::os::unix::fs::symlink("/dev/null", file).unwrap();
    });
    let access = node.access(&card.uuid, &quarter.part()).unwrap();
    assert_eq!(access.nodes[0].container, "/dev/davinci118");
    late.join().unwrap();
}

#[test]
fn vnpus_of_the_administrator_are_found_and_stay() {
    let bench = Bench::new(&two_310p());
    let npus = bench.npus();
    let theirs = vnpu(&npus, 0, "vir04");
    let node = bench.open();
    let card = node.discover().unwrap().cards[0].clone();
    assert_eq!(card.found, [at(&card, "vir04", "vg0").part()]);
    node.create_partition(&at(&card, "vir02", "vg1")).unwrap();
    let ids: Vec<u32> = npus.state().unwrap().vnpus.iter().map(|vnpu| vnpu.id).collect();
    assert_eq!(ids, [theirs, 102]);
    // A first-generation chip is cut by its administrator alone.
    let bench = Bench::new(&machine(vec![chip("huawei-910a-32c", "910ProA", 0, 32_768)]));
    let node = bench.open();
    assert_eq!(node.discover().unwrap().cards[0].table(), None);
    assert!(node.no_partitions()[0].contains("its administrator cuts it"), "{:?}", node.no_partitions());
    vnpu(&bench.npus(), 0, "vir08");
    let card = node.discover().unwrap().cards[0].clone();
    assert_eq!((card.found.len(), card.table().unwrap().templates.len()), (1, 1));
    let refused = node.create_partition(&at(&card, "vir08", "1")).unwrap_err().to_string();
    assert!(refused.contains("its administrator cuts it"), "{refused}");
}

#[test]
fn vnpu_that_no_process_opened_keeps_its_claim() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[0].clone();
    let live = node.create_partition(&at(&card, "vir02", "vg0")).unwrap();
    assert!(!bench.npus().state().unwrap().vnpus[0].used);
    // Neither a look nor another partition takes it away.
    node.create_partition(&at(&card, "vir02", "vg1")).unwrap();
    assert!(node.partitions().unwrap().contains(&live));
}

#[test]
fn vnpu_in_use_is_not_destroyed() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[0].clone();
    let live = node.create_partition(&at(&card, "vir02", "vg0")).unwrap();
    let opened = |used: bool| {
        bench.npus().change(|state| {
            state.vnpus[0].used = used;
            Ok(())
        })
    };
    opened(true).unwrap();
    let refused = node.destroy_partition(&live.at, &ExpectedPartition::Any);
    assert!(matches!(refused, Err(BackendError::Busy { .. })), "{refused:?}");
    opened(false).unwrap();
    node.destroy_partition(&live.at, &ExpectedPartition::Any).unwrap();
}

#[test]
fn whole_chip_in_use_blocks_creation() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[1].clone();
    bench.npus().change(|state| Ok(state.whole.insert(1))).unwrap();
    let refused = node.create_partition(&at(&card, "vir02", "vg0")).unwrap_err().to_string();
    assert!(refused.contains("a process may have /dev/davinci1 open"), "{refused}");
}

#[test]
fn template_is_tried_under_its_older_name() {
    let one = || vec![chip("huawei-910b4-1", "910B4-1", 0, 61_440)];
    // The driver's number says little: what counts is which name it takes.
    for driver in ["8.5.0", "25.2.0"] {
        let bench = Bench::new(&Machine { driver: driver.to_owned(), ..machine(one()) });
        let node = bench.open();
        let card = node.discover().unwrap().cards[0].clone();
        let live = node.create_partition(&at(&card, "vir10_3c_32g", "1")).unwrap();
        assert_eq!((live.handle.id, live.at.template.as_str()), (101, "vir10_3c_32g"));
    }
}

#[test]
fn template_that_the_driver_refuses_is_offered_no_more() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[0].clone();
    bench.fault("dcmi_create_vdevice", "{ error = -8001 }");
    let refused = node.create_partition(&at(&card, "vir02", "vg0")).unwrap_err().to_string();
    assert!(refused.contains("vendor error -8001"), "{refused}");
    let names = node.discover().unwrap().cards[0].table().unwrap().templates.len();
    assert_eq!(names, 6);
}

#[test]
fn npu_smi_table_takes_templates_away_that_it_lacks() {
    let bench = Bench::new(&two_310p());
    let rule = format!("+{}+", "-".repeat(90));
    let script = format!(
        "#!/bin/sh\ncat <<'END'\n{rule}\n|Name AICORE Memory AICPU VPC VENC JPEGD|\n| GB PNGD VDEC JPEGE|\n|{}|\n\
         |vir02 2 6 2 3 1 4|\n| 0 3 2|\n{rule}\nEND\n",
        "=".repeat(90)
    );
    let tool = bench.dir.path().join("usr/local/bin/npu-smi");
    fs::create_dir_all(tool.parent().unwrap()).unwrap();
    fs::write(&tool, script).unwrap();
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let templates = |node: &AscendNode| node.discover().unwrap().cards[0].table().unwrap().templates.len();
    assert_eq!(templates(&bench.open()), 1);
    fs::write(&tool, "#!/bin/sh\necho foreign\n").unwrap();
    assert_eq!(templates(&bench.open()), 7);
}

#[test]
fn lost_answer_of_a_creation_is_found_by_listing() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[0].clone();
    bench.fault("dcmi_create_vdevice", "\"lose_answer\"");
    let at = at(&card, "vir02", "vg0");
    let lost = node.create_partition(&at);
    assert!(matches!(lost, Err(BackendError::Vendor { code: -8006, .. })), "{lost:?}");
    assert_eq!(node.partitions().unwrap()[0].at, at);
}

#[test]
fn machine_without_library_says_what_to_install() {
    let bench = Bench::new(&two_310p());
    fs::remove_file(bench.dir.path().join("usr/local/dcmi/libdcmi.so")).unwrap();
    let opened = AscendNode::open(&Catalogue::embedded(), &bench.site());
    assert!(matches!(&opened, Err(error @ OpenError::NoLibrary(_)) if error.is_absence()), "{opened:?}");
    let refusal = bench.refusal();
    assert!(refusal.contains("found no libdcmi.so that can be loaded, expected"), "{refusal}");
    fs::write(bench.dir.path().join("usr/local/dcmi/libdcmi.so"), "no library").unwrap();
    assert!(bench.refusal().contains("invalid ELF header") || bench.refusal().contains("too short"));
}

#[test]
fn older_library_works_as_far_as_it_goes() {
    // An older name of the card list; no topology, no product, no newer chip info, no settings.
    let optional = [
        "dcmi_get_card_list",
        "dcmi_get_device_chip_info_v2",
        "dcmi_get_product_type",
        "dcmi_get_topo_info_by_device_id",
        "dcmi_get_vdevice_mode",
        "dcmi_get_vnpu_config_recover_mode",
        "dcmi_get_device_errorcode_v2",
        "dcmi_get_device_health",
        "dcmi_subscribe_fault_event",
    ];
    let bench = Bench::without(&two_310p(), &optional);
    let node = bench.open();
    let card = node.discover().unwrap().cards[0].clone();
    node.create_partition(&at(&card, "vir02", "vg0")).unwrap();
    let unwatched = node.watch(&card.uuid).unwrap_err();
    assert!(matches!(unwatched, BackendError::Unsupported { .. }), "{unwatched:?}");
    // Without these nothing can be said of a card.
    for needed in
        ["dcmi_init", "dcmi_get_driver_version", "dcmi_get_device_logic_id", "dcmi_get_device_num_in_card"]
    {
        let refusal = Bench::without(&two_310p(), &[needed]).refusal();
        assert!(refusal.ends_with(&format!("no such function: {needed}")), "{refusal}");
    }
    // Without vNPUs the chips are whole.
    let bench = Bench::without(&two_310p(), &["dcmi_get_device_info"]);
    let node = bench.open();
    assert_eq!(node.discover().unwrap().cards[0].table(), None);
    assert!(node.no_partitions()[0].contains("does not tell its vNPUs"), "{:?}", node.no_partitions());
}

#[test]
fn unsupported_library_is_refused_with_its_reason() {
    let bench = Bench::new(&two_310p());
    bench.fault("dcmi_init", "{ error = -8255 }");
    let refusal = bench.refusal();
    assert!(
        refusal.contains("initialise: not supported by these NPUs") && refusal.contains("-8255"),
        "{refusal}"
    );
    bench.fault("dcmi_init", "{ error = -8005 }");
    assert!(bench.refusal().contains("inner error"), "{}", bench.refusal());
}
