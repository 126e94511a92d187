//! Which cards there are: `node.toml` of the directory, or two cards of the default model.
//!
//! Figures without a source on a real card are defaults, to be replaced by measurements: `context_bytes`,
//! `module_bytes`, copy rates.

use crate::address::{self, NO_BUS, PciPlace};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;
/// Largest page of device memory, and largest slab.
const PAGE_MAX: u64 = 16 * MIB;

/// The cards and what they share.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// What cuDriverGetVersion answers: 1000 × major + 10 × minor.
    pub cuda_version: u32,
    /// Driver release text, as NVML gives it.
    pub driver: String,
    /// Device time of one turn while several processes have work, in nanoseconds.
    pub slice_nanos: u64,
    /// Launches a process may have outstanding on a card before the next one blocks.
    pub queue_depth: u32,
    /// Length of a kernel without a length in its name, in nanoseconds.
    pub kernel_nanos: u64,
    /// Lengths of kernels by function name, in nanoseconds.
    pub kernels: BTreeMap<String, u64>,
    /// Device memory of one context, in bytes.
    pub context_bytes: u64,
    /// Device memory of one loaded module, in bytes.
    pub module_bytes: u64,
    /// Unit of small allocations inside a page, in bytes.
    pub alloc_bytes: u64,
    /// Pages of device memory, in bytes: a request of more than half a slab takes whole pages, smaller ones share a slab. At most
    /// `alloc_bytes`: every request takes units of `alloc_bytes`.
    pub page_bytes: u64,
    /// Slabs of small requests, in bytes; less than a page: a slab is a page.
    pub slab_bytes: u64,
    /// Unit by which a memory pool grows, in bytes.
    pub pool_bytes: u64,
    /// When memory of graph nodes is taken, and which streams may use it.
    pub graph_memory: GraphMemory,
    /// How a requested limit of stacks is rounded.
    pub stack_limits: StackLimits,
    /// Which handle a stream gets.
    pub stream_handles: StreamHandles,
    /// When what cuMemFreeAsync frees of cuMemAlloc is back.
    pub async_frees: AsyncFrees,
    /// How long the driver takes to upload an executable graph, by itself or with its first launch, in nanoseconds of the host.
    pub graph_upload_nanos: u64,
    /// Bytes copied or set per microsecond of device time.
    pub copy_bytes_per_micro: u64,
    /// What the driver keeps of each card beside its memory, in bytes; NVML alone reports it.
    pub reserved_bytes: u64,
    /// Which time NVML's percentages of processes stand for.
    pub process_samples: ProcessSamples,
    /// Users that may change and read the GPU instances of cards in MIG mode.
    pub mig_access: MigAccess,
    /// Processes that NVML lists beside those that compute.
    #[serde(rename = "process")]
    pub listed: Vec<ListedProcess>,
    /// The cards, in index order.
    #[serde(rename = "card")]
    pub cards: Vec<CardFacts>,
}

/// What a card says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default = "CardFacts::unnumbered")]
pub struct CardFacts {
    /// Product name.
    pub name: String,
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Compute capability, major part.
    pub major: u32,
    /// Compute capability, minor part.
    pub minor: u32,
    /// PCI bus number; those of domain 1 start at 256.
    pub bus: u32,
    /// PCI device number on the bus.
    pub slot: u32,
    /// PCI device number in the upper half, vendor's in the lower.
    pub pci_id: u32,
    /// How MIG mode is set.
    pub mig: MigMode,
    /// How many processes may have contexts.
    pub compute_mode: ComputeMode,
    /// Serial number.
    pub serial: String,
    /// Device file without which a container has no such card ([`crate::DEVICES_ENV`]); empty: it needs none.
    pub device: String,
}

/// A process that does something else on a card than to compute by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedProcess {
    /// The process.
    pub pid: u32,
    /// The card, by its place.
    #[serde(default)]
    pub card: usize,
    /// What it does.
    pub does: ProcessList,
    /// What it holds for that, in bytes.
    pub bytes: u64,
}

/// In which of NVML's lists a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessList {
    /// It draws.
    Graphics,
    /// It computes through an MPS server.
    Mps,
}

/// How memory nodes of graphs come to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphMemory {
    /// At an upload or a launch, from what the stream keeps, as the vendor's documents say.
    Launch,
    /// The same, and first from memory that other streams keep unused, as the documents permit.
    Idle,
    /// At instantiation, for as long as the executable graph is there.
    Instantiation,
    /// Graphs of at most a unit as with `Launch`, larger ones as with `Instantiation`: a driver that shows one way and then another.
    Mixed,
}

impl GraphMemory {
    /// Whether a graph that needs so many bytes has its memory from its instantiation on, where pools grow by `unit`.
    #[must_use]
    pub fn is_early(self, bytes: u64, unit: u64) -> bool {
        match self {
            Self::Launch | Self::Idle => false,
            Self::Instantiation => true,
            Self::Mixed => bytes > unit,
        }
    }
}

/// What the driver makes of a limit of stacks, which it may change "to meet hardware requirements".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StackLimits {
    /// As requested.
    Exact,
    /// The next multiple of 512 bytes, 1 KiB at least and 128 KiB at most.
    Rounded,
}

impl StackLimits {
    /// What the limit becomes, in bytes.
    #[must_use]
    pub fn of(self, asked: usize) -> usize {
        match self {
            Self::Exact => asked,
            Self::Rounded => asked.clamp(1 << 10, 128 << 10).next_multiple_of(512),
        }
    }
}

/// Which handle the driver gives to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamHandles {
    /// A value that no stream had before, so the use of a stale handle is detected.
    Apart,
    /// That of the last one that went.
    Again,
}

/// When memory of cuMemAlloc is back that cuMemFreeAsync frees: the vendor's documents put the free into the stream, and do not say
/// when the card has the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AsyncFrees {
    /// When the call returns.
    Call,
    /// When its stream is there.
    Stream,
}

/// Which time a process percentage of NVML stands for. The vendor's documents permit both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessSamples {
    /// All kept sampling windows after the time that the caller gives.
    Average,
    /// The last full sampling window.
    Last,
}

/// Users with the vendor's capability to change instances, which is access to a device file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigAccess {
    /// Root, as after the driver's installation.
    Root,
    /// All users, as after an administrator opened the file.
    Anybody,
}

/// MIG mode, as NVML reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MigMode {
    /// The card has none.
    None,
    /// Off.
    Off,
    /// On.
    On,
}

/// How many processes may have contexts on a card, with the vendor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeMode {
    /// Any number.
    Default = 0,
    /// None.
    Prohibited = 2,
    /// One at a time.
    Exclusive = 3,
}

/// Why `node.toml` was refused.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It is there and cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not what a node file is.
    #[error("{path} is not a node file")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: toml::de::Error,
    },
    /// A figure that cannot be.
    #[error("{field} is {found}; expected {expected}")]
    Figure {
        /// Which.
        field: &'static str,
        /// What it says.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
}

impl Default for CardFacts {
    fn default() -> Self {
        Self::numbered(0)
    }
}

impl Default for Node {
    fn default() -> Self {
        Self {
            cuda_version: 13050,
            driver: "580.65.06".into(),
            slice_nanos: 2_000_000,
            queue_depth: 1024,
            kernel_nanos: 2_000,
            kernels: BTreeMap::new(),
            context_bytes: 480 * MIB,
            module_bytes: 2 * MIB,
            alloc_bytes: 512,
            page_bytes: 2 * MIB,
            slab_bytes: 1,
            pool_bytes: 32 * MIB,
            graph_memory: GraphMemory::Launch,
            stack_limits: StackLimits::Exact,
            stream_handles: StreamHandles::Apart,
            async_frees: AsyncFrees::Stream,
            graph_upload_nanos: 0,
            copy_bytes_per_micro: 25_000,
            reserved_bytes: 0,
            process_samples: ProcessSamples::Average,
            mig_access: MigAccess::Root,
            listed: Vec::new(),
            cards: vec![CardFacts::numbered(0), CardFacts::numbered(1)],
        }
    }
}

impl CardFacts {
    /// The default model as card `index`, with a UUID, bus and serial of its own.
    #[must_use]
    pub fn numbered(index: u32) -> Self {
        Self {
            name: "NVIDIA H100 80GB HBM3".into(),
            uuid: format!("GPU-a11c0de0-51a0-4c4d-8000-{index:012x}"),
            memory_bytes: 81_559 * MIB,
            sms: 132,
            major: 9,
            minor: 0,
            bus: address::numbered(index),
            slot: 0,
            pci_id: 0x2330_10de,
            mig: MigMode::Off,
            compute_mode: ComputeMode::Default,
            serial: format!("16500000000{index:02}"),
            device: String::new(),
        }
    }

    /// The default model, without what distinguishes a card from the next one; [`Node::read`] adds that by the card's place.
    fn unnumbered() -> Self {
        Self { uuid: String::new(), bus: NO_BUS, serial: String::new(), ..Self::numbered(0) }
    }

    /// The UUID's sixteen bytes; `None` where the text is no UUID.
    #[must_use]
    pub fn uuid_bytes(&self) -> Option<[u8; 16]> {
        let text = self.uuid.strip_prefix("GPU-").or_else(|| self.uuid.strip_prefix("MIG-"))?;
        let digits = text.bytes().filter(|byte| *byte != b'-').collect::<Vec<_>>();
        let mut bytes = [0_u8; 16];
        if digits.len() != 32 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(bytes)
    }

    /// PCI address.
    #[must_use]
    pub fn pci(&self) -> PciPlace {
        PciPlace::of(self)
    }
}

impl Node {
    /// Reads `node.toml` of `dir`; the default where there is none.
    ///
    /// # Errors
    ///
    /// [`NodeError`] where it is there and not usable.
    pub fn read(dir: &Path) -> Result<Self, NodeError> {
        let path = dir.join("node.toml");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(NodeError::Read { path, source }),
        };
        let mut node: Self = toml::from_str(&text).map_err(|source| NodeError::Parse { path, source })?;
        node.number()?;
        node.check()
    }

    /// Gives every card what it does not share with others, where the file does not say it.
    fn number(&mut self) -> Result<(), NodeError> {
        address::complete(&mut self.cards)?;
        let mut uuids = BTreeSet::new();
        for (index, card) in (0..).zip(&mut self.cards) {
            let own = CardFacts::numbered(index);
            for (field, own) in [(&mut card.uuid, own.uuid), (&mut card.serial, own.serial)] {
                if field.is_empty() {
                    *field = own;
                }
            }
            if !uuids.insert(card.uuid.to_lowercase()) {
                return Err(NodeError::Figure {
                    field: "card.uuid",
                    found: format!("{} for two cards", card.uuid),
                    expected: "another UUID for each card",
                });
            }
        }
        Ok(())
    }

    fn check(self) -> Result<Self, NodeError> {
        let figures = [
            ("slice_nanos", self.slice_nanos),
            ("queue_depth", u64::from(self.queue_depth)),
            ("alloc_bytes", self.alloc_bytes),
            ("page_bytes", self.page_bytes),
            ("slab_bytes", self.slab_bytes),
            ("pool_bytes", self.pool_bytes),
            ("copy_bytes_per_micro", self.copy_bytes_per_micro),
        ];
        for (field, found) in figures {
            if found == 0 {
                return Err(NodeError::Figure { field, found: "0".into(), expected: "at least 1" });
            }
        }
        if !self.alloc_bytes.is_power_of_two() || !self.pool_bytes.is_power_of_two() {
            let found = format!("{} and {}", self.alloc_bytes, self.pool_bytes);
            return Err(NodeError::Figure {
                field: "alloc_bytes and pool_bytes",
                found,
                expected: "powers of two",
            });
        }
        for (field, found) in [("page_bytes", self.page_bytes), ("slab_bytes", self.slab_bytes)] {
            if !found.is_power_of_two() || found > PAGE_MAX {
                return Err(NodeError::Figure {
                    field,
                    found: found.to_string(),
                    expected: "a power of two, at most 16777216",
                });
            }
        }
        for card in &self.cards {
            if card.uuid_bytes().is_none() {
                return Err(NodeError::Figure {
                    field: "card.uuid",
                    found: card.uuid.clone(),
                    expected: "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx in hexadecimal",
                });
            }
        }
        Ok(self)
    }

    /// Bytes of the slab that small requests share. At most `alloc_bytes`: there are no slabs.
    #[must_use]
    pub fn slab(&self) -> u64 {
        self.page_bytes.max(self.slab_bytes)
    }

    /// Device time to copy or set `bytes`, in nanoseconds.
    #[must_use]
    pub fn copy_nanos(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1_000) / self.copy_bytes_per_micro
    }
}
