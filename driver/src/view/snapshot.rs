//! One look at a machine, as plain values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_abi::limits::Limits;
use aliquot_core::card::Inventory;
use aliquot_core::grant::Grant;
use aliquot_core::health::Notes;
use aliquot_core::id::CardUuid;
use aliquot_core::partition::PartitionTable;
use aliquot_core::units::Bytes;

use crate::checkpoint::Phase;
use crate::hardware::vendors::VendorCodes;
use crate::region::UsageCopy;

/// All data of one look.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// State directories, in the order in which they were named.
    pub states: Vec<StateView>,
    /// Default homes of state with a directory that another user does not let this one read.
    pub closed: Vec<PathBuf>,
    /// Cards of the node description.
    pub inventory: Inventory,
    /// Cards, and parts of cards, as their driver reports them.
    pub drivers: Vec<DriverView>,
    /// Cards that cannot be queried, and the reason.
    pub unusable: Vec<(String, String)>,
    /// What cards may be cut into, by UUID; of cards that the node description lacks.
    pub tables: BTreeMap<String, Arc<PartitionTable>>,
}

/// One state directory.
#[derive(Clone, Debug)]
pub struct StateView {
    /// Its path.
    pub dir: PathBuf,
    /// Its granted shares and partitions, or the reason why the journal cannot be read.
    pub promised: Result<JournalView, String>,
    /// Its health records, or the reason why they cannot be read.
    pub against: Result<CardRecords, String>,
}

/// Health records of cards.
#[derive(Clone, Debug, Default)]
pub struct CardRecords {
    /// The recorded events.
    pub notes: Notes,
    /// The meaning of error codes.
    pub xids: VendorCodes,
}

/// Shares and partitions of a journal.
#[derive(Clone, Debug, Default)]
pub struct JournalView {
    /// Shares of all claims, in the order of the journal.
    pub shares: Vec<ShareView>,
    /// Partitions that were created or are about to be.
    pub partitions: Vec<PartitionView>,
}

/// A partition of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// Card, template and placement.
    pub at: aliquot_core::ports::PartitionAt,
    /// The UUID that its tenant reads; `None`: it is not created yet.
    pub uuid: Option<String>,
}

/// One share.
#[derive(Clone, Debug)]
pub struct ShareView {
    /// `namespace/name` of the claim.
    pub claim: String,
    /// Phase of the claim.
    pub phase: Phase,
    /// The grant.
    pub grant: Grant,
    /// The UUID of the part that the tenant reads; `None`: the part is not created yet.
    pub visible: Option<String>,
    /// Directory of the share.
    pub dir: PathBuf,
    /// Its region, by which limits are enforced.
    pub region: Region,
}

/// The region of a share.
#[derive(Clone, Debug)]
pub enum Region {
    /// None, and the share's directory lacks as well: no limits are enforced.
    Missing,
    /// None: the node made the share's directory, and wrote no limits because the hardware is the limit.
    Absent,
    /// Two files.
    There(Box<Files>),
}

/// The two files of a region.
#[derive(Clone, Debug)]
pub struct Files {
    /// The present limits, or the reason why they cannot be read.
    pub limits: Result<Limits, String>,
    /// Use by its processes, or the reason why it cannot be read.
    pub usage: Result<UsageCopy, String>,
    /// Program names of its processes, by their pid in this namespace; untrusted text.
    pub commands: BTreeMap<u32, String>,
    /// Time of reading since the first look.
    pub at: Duration,
}

/// A card or partition as its driver reports it.
#[derive(Clone, Debug)]
pub struct DriverView {
    /// State directory of its simulation; `None`: it is the same for all state directories.
    pub state: Option<PathBuf>,
    /// UUID.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Memory.
    pub memory: Bytes,
    /// Whether it is a whole card, by the directory where it was found.
    pub whole: bool,
    /// Bytes in use by live processes.
    pub in_use: Bytes,
    /// The greatest use so far; `None`: the driver does not report it.
    pub high_water: Option<Bytes>,
    /// Device time used by all processes, in nanoseconds; `None`: the driver does not report it.
    pub busy_nanos: Option<u64>,
    /// Whether it fell off the bus.
    pub health: CardAnswer,
    /// Its processes.
    pub processes: Vec<DriverProcess>,
    /// Time of the query since the first look.
    pub at: Duration,
}

/// Whether a card answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardAnswer {
    /// It does.
    Well,
    /// It fell off the bus.
    Lost,
}

/// A process as the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverProcess {
    /// Process id.
    pub pid: u32,
    /// Its memory; `None`: the driver does not report it.
    pub held: Option<Bytes>,
    /// Its device time, in nanoseconds; `None`: the driver does not report it.
    pub device_nanos: Option<u64>,
    /// Name of its program, as the kernel reports it; untrusted text.
    pub command: Option<String>,
    /// Directories of grants that it was started with; relative ones are `claim/share`.
    pub grants: Vec<PathBuf>,
}

// === impl Snapshot ===

impl Snapshot {
    /// Shares and partitions by state directory.
    pub(super) fn promised(&self) -> impl Iterator<Item = (&Path, &JournalView)> {
        self.states.iter().filter_map(|state| Some((state.dir.as_path(), state.promised.as_ref().ok()?)))
    }
}

// === impl JournalView ===

impl JournalView {
    pub(super) fn is_on(&self, card: &CardUuid) -> bool {
        self.shares.iter().any(|share| share.grant.card == *card)
            || self.partitions.iter().any(|partition| partition.at.card == *card)
    }
}
