//! A simulated node in a directory of its own, and claims as a scheduler would have allocated them on it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test world that cannot be made fails the test that wants it"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use aliquot_backend_sim::{NodeFile, Personality, SimNode};
use aliquot_core::catalogue::Catalogue;
use aliquot_core::dra::{
    Access as ResultAccess, AllocationResult, DeviceResult, ResourceClaim, ShareId, Sharing,
};
use aliquot_core::offer::server::ServerVersion;
use aliquot_core::offer::{LayoutPolicy, Offers, text};
use aliquot_core::partition::Part;
use aliquot_core::ports::{DeviceBackend, LivePartition};
use aliquot_core::quantity::{Format, Quantity};
use aliquot_driver::disk::{Disk, Seam};
use aliquot_driver::node::recover::Recovery;
use aliquot_driver::node::{Access, Dirs, Node, NodeParts, OpenError};
use aliquot_driver::selinux::Selinux;

/// A node that can be opened again and again.
pub struct World {
    dir: PathBuf,
    /// Removes the directory at the end; `None` if its owner removes it.
    owned: Option<tempfile::TempDir>,
    file: NodeFile,
    catalogue: Arc<Catalogue>,
    policy: LayoutPolicy,
    offers: OnceLock<Arc<Offers>>,
    hardware: OnceLock<Arc<SimNode>>,
}

/// One device that a claim was given.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Index of the card.
    pub card: u32,
    /// Which part of it, as people say it: `card`, `1g.10gb at 3`, `slot small #0`.
    pub part: &'static str,
    /// Memory that it consumes; `None`: all of the part.
    pub memory_mib: Option<u64>,
    /// Compute that it consumes, in percent of the whole card.
    pub cores: u8,
}

/// Every file below a directory, with bytes and mode.
pub type Files = BTreeMap<PathBuf, (Vec<u8>, u32)>;

// === impl World ===

impl World {
    /// A built-in node with a policy in the text of a policy file; empty: the default.
    #[must_use]
    pub fn new(personality: &str, policy: &str) -> Self {
        let file = Personality::named(personality).unwrap().load().unwrap();
        Self::of(file, policy)
    }

    /// A node of a node file.
    #[must_use]
    pub fn of(file: NodeFile, policy: &str) -> Self {
        // A kill is enumerated byte by byte: syncing to a real disk each time would only measure the disk.
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let dir = dir.unwrap();
        Self::at(dir.path(), file, policy).owning(dir)
    }

    /// A node of a node file in a directory that is there already.
    #[must_use]
    pub fn at(dir: &Path, file: NodeFile, policy: &str) -> Self {
        let policy = if policy.is_empty() { LayoutPolicy::default() } else { text::parse(policy).unwrap() };
        let catalogue = Arc::new(Catalogue::embedded());
        Self {
            dir: dir.to_owned(),
            owned: None,
            file,
            catalogue,
            policy,
            offers: OnceLock::new(),
            hardware: OnceLock::new(),
        }
    }

    fn owning(mut self, dir: tempfile::TempDir) -> Self {
        self.owned = Some(dir);
        self
    }

    /// The state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// The simulated hardware, beside any node that is open on it.
    #[must_use]
    pub fn hardware(&self) -> Arc<SimNode> {
        let open = || SimNode::open(&self.file, &self.catalogue, &self.dir.join("hardware")).unwrap();
        self.hardware.get_or_init(|| Arc::new(open())).clone()
    }

    /// Partitions that exist.
    #[must_use]
    pub fn live(&self) -> Vec<LivePartition> {
        self.hardware().partitions().unwrap()
    }

    /// What a node is made of, on this disk.
    #[must_use]
    pub fn parts(&self, disk: Disk) -> NodeParts {
        let backend = self.hardware();
        NodeParts {
            name: backend.name().clone(),
            backend: Box::new(backend),
            catalogue: self.catalogue.clone(),
            policy: self.policy.clone(),
            server: ServerVersion::with_default_gates(37, 2),
            offers: self.offers.get().cloned(),
            shim: aliquot_libraries::SHIM,
            disk,
            gauge: None,
            selinux: Selinux::ignored(),
            host: "/".into(),
            on_wait: |_| {},
        }
    }

    /// Opens the node for changes.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn try_open(&self, seam: Option<Arc<dyn Seam>>) -> Result<(Node, Recovery), OpenError> {
        let disk = seam.map_or_else(Disk::default, Disk::new);
        Node::open(self.parts(disk), &Dirs::in_state(self.state()), Access::ChangeNow)
    }

    /// Publishes once and for all: what follows is about claims, and making offers thousands of times would take most
    /// of the time.
    pub fn publish(&self) {
        let offers = self.open().offers().unwrap().clone();
        self.offers.get_or_init(|| Arc::new(offers));
    }

    /// Opens the node for changes; recovery must find nothing that it cannot mend.
    #[must_use]
    pub fn open(&self) -> Node {
        let (node, recovery) = self.try_open(None).unwrap();
        assert!(recovery.problems.is_empty(), "{:?}", recovery.problems);
        node
    }

    /// Opens the node to look at it.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn look(&self) -> Result<Node, OpenError> {
        let parts = self.parts(Disk::default());
        Node::open(parts, &Dirs::in_state(self.state()), Access::Read).map(|(node, _)| node)
    }

    /// Opens the node on a disk with a seam.
    #[must_use]
    pub fn open_on(&self, seam: Arc<dyn Seam>) -> Node {
        self.try_open(Some(seam)).unwrap().0
    }

    /// Every file of state and hardware.
    #[must_use]
    pub fn files(&self) -> Files {
        let mut files = Files::new();
        read_tree(&self.dir, &mut files);
        files
    }

    /// Puts these files in place of all that there are.
    pub fn restore(&self, files: &Files) {
        for entry in fs::read_dir(&self.dir).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        for (path, (bytes, mode)) in files {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(*mode)).unwrap();
        }
    }
}

fn read_tree(dir: &Path, files: &mut Files) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_tree(&path, files);
        } else {
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            files.insert(path.clone(), (fs::read(&path).unwrap(), mode));
        }
    }
}

/// A claim with an allocation of these devices.
///
/// # Panics
/// The node offers no such device: the test has a mistake.
#[must_use]
pub fn claim(node: &Node, uid: &str, wants: &[Want]) -> ResourceClaim {
    let cards = node.inventory().unwrap().cards;
    let offers = node.offers().unwrap();
    let devices = wants.iter().enumerate().map(|(place, want)| {
        let card = &cards[usize::try_from(want.card).unwrap()].uuid;
        let mut parts = offers.parts.iter();
        let found = parts.find(|(_, p)| p.card == *card && p.part.to_string() == want.part);
        let (id, part) = found.unwrap_or_else(|| {
            let there: Vec<String> =
                offers.parts.values().filter(|p| p.card == *card).map(|p| p.part.to_string()).collect();
            panic!("card {} offers no {}, but {there:?}", want.card, want.part)
        });
        let memory = want.memory_mib.map_or(part.memory.0, |mib| mib << 20);
        let shared = part.sharing == Sharing::Shareable && !matches!(part.part, Part::Slot { .. });
        let consumed = [("memory", i64::try_from(memory).unwrap()), ("cores", i64::from(want.cores))];
        DeviceResult {
            request: format!("r{place}"),
            device: id.clone(),
            access: ResultAccess::Normal,
            tolerations: Vec::new(),
            binding_conditions: Vec::new(),
            binding_failure_conditions: Vec::new(),
            share_id: shared.then(|| ShareId(format!("{place:08}-0000-4000-8000-000000000000"))),
            consumed_capacity: consumed
                .into_iter()
                .filter(|_| shared)
                .map(|(name, units)| (name.to_owned(), Quantity::from_units(units, Format::BinarySi)))
                .collect(),
        }
    });
    ResourceClaim {
        namespace: "test".to_owned(),
        name: format!("claim-{uid}"),
        uid: uid.to_owned(),
        requests: Vec::new(),
        constraints: Vec::new(),
        config: Vec::new(),
        allocation: Some(AllocationResult {
            devices: devices.collect(),
            config: Vec::new(),
            node_selector: None,
        }),
    }
}
