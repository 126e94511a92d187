//! The rows of a picture: shares, processes, and what the driver says of them.

use std::path::{Path, PathBuf};

use aliquot_abi::limits::Limits;
use aliquot_core::grant::Grant;
use aliquot_core::partition::Part;
use aliquot_core::units::{Bytes, Cores};

use super::rate::TimeRate;
use crate::checkpoint::Phase;
use crate::region::UsageCopy;
use crate::view::snapshot::{Region, ShareView};

/// Which card or partition, and what it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot<'a> {
    pub(super) uuid: &'a str,
    /// State directory of its simulation.
    pub(super) state: Option<&'a Path>,
    /// Memory, if known.
    pub(super) memory: Option<Bytes>,
    /// Its part of the whole card, if known.
    pub(super) cores: Option<Cores>,
}

/// A card itself, or one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardPart {
    /// Memory, if known.
    pub memory: Option<Bytes>,
    /// Granted memory.
    pub granted: Bytes,
    /// Bytes accounted in the usage files of all shares here.
    pub books: Bytes,
    /// Driver figures; `None`: the driver cannot be queried.
    pub driver: Option<DriverRow>,
    /// Shares, in the order of their journals.
    pub shares: Vec<ShareRow>,
    /// Processes on it that belong to no grant.
    pub outside: Vec<ProcessRow>,
}

/// Driver figures of a card or partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverRow {
    /// Bytes in use.
    pub in_use: Bytes,
    /// The greatest use so far; `None`: not reported.
    pub high_water: Option<Bytes>,
    /// Bytes in use that no usage file accounts for.
    pub unattributed: Bytes,
    /// Time in which it was busy.
    pub busy: TimeRate,
}

/// One share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRow {
    /// `namespace/name` of the claim.
    pub claim: String,
    /// Phase of the claim.
    pub phase: Phase,
    /// The grant.
    pub grant: Grant,
    /// The UUID of the part that its tenant reads.
    pub visible: Option<String>,
    /// Directory of the share.
    pub dir: PathBuf,
    /// Whether its limits are enforced.
    pub enforcement: Enforcement,
    /// Present limits, if they can be read.
    pub limits: Option<Limits>,
    /// Use by its processes, if it can be read.
    pub usage: Option<UsageCopy>,
    /// Compute that is guaranteed to it, in parts per million of the whole card; `None`: not known, or no limits are enforced.
    pub guaranteed: Option<u64>,
    /// Compute that is granted to it at present, likewise.
    pub granted: Option<u64>,
    /// Device time that it used.
    pub measured: TimeRate,
    /// Its processes.
    pub processes: Vec<ProcessRow>,
}

/// Whether the limits of a share are enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Processes with live slots use the shim, and no process of this grant is on the card without it.
    Observed,
    /// No process has used the shim or the card yet.
    Unseen,
    /// Processes of this grant are on the card without the shim.
    Bypassed,
    /// Its processes use the shim, and the driver reports more of them than their usage file or their limits allow; the figures.
    Contradicted(String),
    /// There is no limit: all of the card is granted.
    Unlimited,
    /// All of a partition is granted: the hardware is its limit.
    Hardware,
    /// There is no region: no limit is enforced.
    Absent,
    /// The region cannot be used, and the reason.
    Broken(String),
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    /// Its pid in this namespace; `None`: it is not visible here.
    pub pid: Option<u32>,
    /// Its pid in its own namespace, from its slot.
    pub inner_pid: Option<u32>,
    /// Name of its program, which the program can change.
    pub command: Option<String>,
    /// Whether it uses the shim.
    pub shim: Shim,
    /// Bytes accounted in its slot.
    pub books: Option<Bytes>,
    /// Bytes that the driver reports for it.
    pub driver: Option<Bytes>,
    /// Device time that it used.
    pub measured: TimeRate,
}

/// Whether a process uses the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shim {
    /// It holds its slot's lock, as the kernel reports.
    Held,
    /// A slot, which the tenant writes, names it.
    Named,
    /// It exited, and its slot is not free yet.
    Dead,
    /// It belongs to the grant and is on the card, and has no slot.
    Missing,
    /// It belongs to no grant.
    Outside,
}

// === impl Enforcement ===

impl Enforcement {
    /// That of a grant of all of a part.
    pub(super) const fn of_all(part: &Part) -> Self {
        match part {
            Part::Partition { .. } => Self::Hardware,
            Part::Card | Part::Slot { .. } => Self::Unlimited,
        }
    }

    /// That of a share without files; the node writes none for a grant of all of a card or partition.
    pub(super) fn without_limits(share: &ShareView, spot: Spot<'_>) -> Self {
        let Grant { memory, cores, .. } = &share.grant;
        let is_all = spot.memory.is_none_or(|all| *memory >= all)
            && (*cores == Cores::NONE || spot.cores.is_some_and(|all| *cores >= all));
        match (&share.region, &share.grant.part) {
            (Region::Absent, Part::Card | Part::Partition { .. })
                if is_all && share.phase == Phase::Prepared =>
            {
                Self::of_all(&share.grant.part)
            }
            _ => Self::Absent,
        }
    }

    /// The enforcement, by its processes.
    pub(super) fn with(self, processes: &[ProcessRow]) -> Self {
        let any = |is: &[Shim]| processes.iter().any(|process| is.contains(&process.shim));
        match self {
            Self::Unseen if any(&[Shim::Missing]) => Self::Bypassed,
            Self::Unseen if any(&[Shim::Held, Shim::Named]) => Self::Observed,
            other => other,
        }
    }

    /// As a word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Observed => "observed",
            Self::Unseen => "unseen",
            Self::Bypassed => "bypassed",
            Self::Contradicted(_) => "contradicted",
            Self::Unlimited => "unlimited",
            Self::Hardware => "hardware",
            Self::Absent => "absent",
            Self::Broken(_) => "broken",
        }
    }
}

// === impl Shim ===

impl Shim {
    /// As a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Named => "named",
            Self::Dead => "dead",
            Self::Missing => "missing",
            Self::Outside => "outside",
        }
    }
}
