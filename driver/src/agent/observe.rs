//! What regions show of shares: whether the shim holds their limits, and what they use.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aliquot_abi::limits::{ComputePolicy, Limits, MemoryLimit};
use aliquot_core::grant::Grant;
use aliquot_core::id::{ClaimUid, ShareName};
use aliquot_core::units::Bytes;

use super::store::HeldClaim;
use crate::clock;
use crate::grant_file;
use crate::ports::Truth;
use crate::region::{self, GrantPaths, Life, UsageCopy, UsageFile};
use crate::run::governor::UnshimmedProcess;

/// One share, as its region shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareUse {
    /// Claim.
    pub claim: ClaimUid,
    /// Share.
    pub share: ShareName,
    /// Whether its limits hold.
    pub enforcement: EnforcementState,
    /// Memory that its processes have reserved.
    pub used: Bytes,
    /// Reservations refused so far.
    pub denied: u64,
    /// Device time used so far, in nanoseconds.
    pub device_nanos: u64,
    /// Whether launches wait for their share of time.
    pub throttled: bool,
}

/// Whether the limits of a share hold. Of use of the card without the shim, the governor reports the device time of shares with a
/// compute limit; `aliquot top` reports memory as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnforcementState {
    /// A process of the claim reserves through the shim, or did.
    Observed,
    /// A live process of the claim uses the card without the shim; its name.
    Bypassed(String),
    /// No process has used the device.
    Unused,
    /// The claim has all of the device: the hardware is the limit.
    Hardware,
    /// The region cannot be read, and why.
    Broken(String),
}

// === impl EnforcementState ===

impl EnforcementState {
    /// Status, reason and message of the condition `Enforced`.
    #[must_use]
    pub fn condition(&self) -> (Truth, &'static str, String) {
        match self {
            Self::Observed => (Truth::True, "ShimObserved", "processes of the claim use the shim".to_owned()),
            Self::Bypassed(process) => (
                Truth::False,
                "ShimBypassed",
                format!(
                    "{process} uses the card without the shim: its device time is charged to the claim, and the claim's other \
                     processes get what is left of its share; end it, or start it with the shim (docs: SECURITY.md)"
                ),
            ),
            Self::Unused => {
                (Truth::Unknown, "NotUsedYet", "no process of the claim has used the device".to_owned())
            }
            Self::Hardware => (
                Truth::True,
                "HardwareLimit",
                "the claim has all of the device; the hardware is its limit".to_owned(),
            ),
            Self::Broken(why) => (Truth::False, "RegionUnreadable", why.escape_debug().take(512).collect()),
        }
    }
}

/// A share with its limits, read once for all that need them.
pub(super) struct ReadShare<'v> {
    pub(super) grant: &'v Grant,
    pub(super) place: GrantPaths,
    pub(super) limits: io::Result<Limits>,
}

/// What the governors know of shares.
#[derive(Default)]
pub(super) struct GovernorReports {
    /// Shares with a process that uses the card without the shim.
    pub(super) unshimmed: BTreeMap<PathBuf, UnshimmedProcess>,
    /// Shares that no process uses, each with a number that differs for each time that it became so.
    pub(super) dormant: Vec<Arc<BTreeMap<PathBuf, u64>>>,
}

/// What was observed of dormant shares, with their number and the generation of their limits then.
#[derive(Default)]
pub(super) struct DormantUses(BTreeMap<PathBuf, (u64, u64, ShareUse)>);

// === impl ReadShare ===

impl<'v> ReadShare<'v> {
    /// The shares of these claims.
    pub(super) fn all(grants: &Path, claims: &'v [HeldClaim]) -> Vec<Self> {
        let read = |grant: &'v Grant| {
            let place = grant_file::place(grants, &grant.claim, &grant.share);
            Self { grant, limits: region::read(&place.limits()), place }
        };
        claims.iter().flat_map(|claim| &claim.grants).map(read).collect()
    }

    fn with(&self, enforcement: EnforcementState) -> ShareUse {
        ShareUse {
            claim: self.grant.claim.clone(),
            share: self.grant.share.clone(),
            enforcement,
            used: Bytes(0),
            denied: 0,
            device_nanos: 0,
            throttled: false,
        }
    }

    fn observe(&self, limits: &Limits, unshimmed: Option<&UnshimmedProcess>) -> ShareUse {
        let seen = match UsageCopy::of(&self.place.usage()) {
            Ok(seen) => seen,
            Err(error) => return self.with(EnforcementState::Broken(format!("usage: {error}"))),
        };
        let unlimited = limits.memory == MemoryLimit::Unlimited && limits.policy == ComputePolicy::Unlimited;
        let alive = seen.processes.iter().any(|process| process.life != Life::Dead);
        let enforcement = if unlimited {
            EnforcementState::Hardware
        } else if let Some(process) = unshimmed {
            EnforcementState::Bypassed(named(process))
        } else if alive || seen.high_water.0 > 0 || seen.reaped > 0 {
            EnforcementState::Observed
        } else {
            EnforcementState::Unused
        };
        let (used, denied, device_nanos) = (seen.total, seen.denied, seen.device_nanos);
        let throttled = alive && throttled(&self.place.usage());
        ShareUse { used, denied, device_nanos, throttled, ..self.with(enforcement) }
    }
}

// === impl GovernorReports ===

impl GovernorReports {
    fn dormant(&self, share: &Path) -> Option<u64> {
        self.dormant.iter().find_map(|of_card| of_card.get(share).copied())
    }
}

// === impl DormantUses ===

impl DormantUses {
    /// What the regions of these shares show. One that stayed dormant is not read again.
    pub(super) fn observe(&mut self, shares: &[ReadShare<'_>], reports: &GovernorReports) -> Vec<ShareUse> {
        let mut known = std::mem::take(&mut self.0);
        let observed = shares.iter().map(|share| {
            let limits = match &share.limits {
                Ok(limits) => limits,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return share.with(EnforcementState::Hardware);
                }
                Err(error) => return share.with(EnforcementState::Broken(format!("limits: {error}"))),
            };
            let dir = &share.place.dir;
            let Some(number) = reports.dormant(dir) else {
                return share.observe(limits, reports.unshimmed.get(dir));
            };
            let found = match known.remove(dir) {
                Some((then, generation, found)) if (then, generation) == (number, limits.generation) => found,
                _ => share.observe(limits, None),
            };
            self.0.insert(dir.clone(), (number, limits.generation, found.clone()));
            found
        });
        observed.collect()
    }
}

/// A process, by a name that its program chose.
fn named(process: &UnshimmedProcess) -> String {
    let command: String = process.command.escape_debug().take(64).collect();
    format!("process {} ({command})", process.pid)
}

/// Whether launches wait now. The tenant writes the word: it says nothing of others.
fn throttled(usage: &Path) -> bool {
    let waits = |view: aliquot_abi::view::UsageView<'_>| {
        view.limited_until().load(Ordering::Relaxed) > clock::monotonic().0
    };
    UsageFile::open(usage).is_ok_and(|usage| usage.view().is_ok_and(waits))
}
