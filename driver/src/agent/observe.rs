//! What regions show of shares: whether the shim holds their limits, and what they use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use aliquot_abi::limits::{ComputePolicy, MemoryLimit};
use aliquot_core::id::{ClaimUid, ShareName};
use aliquot_core::units::Bytes;

use super::store::HeldClaim;
use crate::clock;
use crate::grant_file;
use crate::ports::Truth;
use crate::region::{self, Life, UsageCopy, UsageFile};
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

/// What the regions of these claims show.
#[must_use]
pub(super) fn observe(
    grants: &Path,
    claims: &[HeldClaim],
    unshimmed: &BTreeMap<PathBuf, UnshimmedProcess>,
) -> Vec<ShareUse> {
    let shares = claims.iter().flat_map(|claim| &claim.grants);
    let observed = shares.map(|grant| {
        let place = grant_file::place(grants, &grant.claim, &grant.share);
        let (claim, share) = (grant.claim.clone(), grant.share.clone());
        let nothing = |enforcement| ShareUse {
            claim: claim.clone(),
            share: share.clone(),
            enforcement,
            used: Bytes(0),
            denied: 0,
            device_nanos: 0,
            throttled: false,
        };
        if !place.limits().exists() {
            return nothing(EnforcementState::Hardware);
        }
        let (limits, seen) = match (region::read(&place.limits()), UsageCopy::of(&place.usage())) {
            (Ok(limits), Ok(seen)) => (limits, seen),
            (Err(error), _) => return nothing(EnforcementState::Broken(format!("limits: {error}"))),
            (_, Err(error)) => return nothing(EnforcementState::Broken(format!("usage: {error}"))),
        };
        let unlimited = limits.memory == MemoryLimit::Unlimited && limits.policy == ComputePolicy::Unlimited;
        let alive = seen.processes.iter().any(|process| process.life != Life::Dead);
        let enforcement = if unlimited {
            EnforcementState::Hardware
        } else if let Some(process) = unshimmed.get(&place.dir) {
            EnforcementState::Bypassed(named(process))
        } else if alive || seen.high_water.0 > 0 || seen.reaped > 0 {
            EnforcementState::Observed
        } else {
            EnforcementState::Unused
        };
        let (used, denied, device_nanos) = (seen.total, seen.denied, seen.device_nanos);
        let throttled = alive && throttled(&place.usage());
        ShareUse { used, denied, device_nanos, throttled, ..nothing(enforcement) }
    });
    observed.collect()
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
