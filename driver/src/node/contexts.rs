//! The size of contexts in the limits of a claim: measured once for each driver, kept, published.
//!
//! | the claim | and of its card | then |
//! |---|---|---|
//! | has not been told | the size is known, or told for the asking | it is published in its limits |
//! | was just prepared: no process uses it yet | no other grant exists, or enough memory is ungranted | it is measured, stored, and published in the limits of all grants there |
//! | else | | its first processes find it out, as far as they can |
//!
//! Measuring may take long, and the node is open to others meanwhile:
//!
//! ```text
//!  node locked:      prepare ─▶ to_measure: what is promised beside the claim
//!                                 │ the card's turn: had at once, or waited for with the node let go, and to_measure again
//!  the turn alone:                └─▶ Measuring::take
//!  turn and node:                        └─▶ keep_measured: kept, and published to everybody there
//! ```
//!
//! A claim without a known size takes the card's lock before its part is used. So no tenant starts on that card during a
//! measurement, whatever is granted meanwhile. A part granted after the measurement started is used only after it ended. A kill
//! releases the card's lock, and the claim is cleaned up like any claim of an exited process.
//!
//! After a slow failure, claims of the next minutes report its reason and do not measure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_abi::limits::{CONTEXT_BYTES_PRESUMED, Limits, MemoryLimit};
use aliquot_core::grant::Grant;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::units::Bytes;

use super::Node;
use super::operate::NodeOperation;
use super::site::Site;
use super::state::{State, StateAccess};
use crate::checkpoint::{ContextDevice, ContextSizes, FAILURE_KEPT, Phase, SizesFault};
use crate::clock::{self, Moment};
use crate::contexts::{ContextGauge, ContextSizeError};
use crate::error_text::chain;
use crate::grant_file;
use crate::prepare::PrepareError;
use crate::region::{self, Footprint};

/// A failure that took longer is kept: to try again has its price.
const COSTLY: Duration = Duration::from_secs(10);

/// A measurement of a context on a ground, by the process that holds its card's lock. The node need not be open meanwhile.
#[derive(Debug)]
pub struct ContextMeasurement {
    gauge: Arc<dyn ContextGauge>,
    ground: ContextDevice,
    visible: CardUuid,
    /// To others, there.
    promised: Bytes,
}

/// What came of it.
#[derive(Debug)]
pub struct MeasuredContext {
    ground: ContextDevice,
    visible: CardUuid,
    outcome: Result<Footprint, ContextSizeError>,
    took: Duration,
}

// === impl ContextMeasurement ===

impl ContextMeasurement {
    /// The ground.
    #[must_use]
    pub const fn ground(&self) -> &ContextDevice {
        &self.ground
    }

    /// Tells the user that it takes long.
    pub fn tell(&self) {
        self.gauge.tell(&self.visible);
    }

    /// Measures.
    #[must_use]
    pub fn take(self) -> MeasuredContext {
        let began = clock::now();
        let outcome = self.gauge.measure(&self.visible, self.promised);
        let took = clock::now().duration_since(began);
        MeasuredContext { ground: self.ground, visible: self.visible, outcome, took }
    }
}

// === impl NodeOperation ===

impl<O: StateAccess> NodeOperation<'_, O> {
    /// Publishes how much a context takes on the cards of a claim, as far as that is known or told for the asking.
    pub(super) fn publish_contexts(&mut self, grants: &[Grant], phase: Phase) -> Result<(), PrepareError> {
        let site = self.site;
        let Some(gauge) = site.parts.gauge.clone() else { return Ok(()) };
        // Claims of before were told when it was measured: this is looked at for each of them whenever the node is opened.
        let is_to_be_told = |limits: &Limits| phase == Phase::Preparing || limits.context_bytes == 0;
        let grounds = site.grounds(grants.iter(), is_to_be_told);
        if grounds.is_empty() {
            return Ok(());
        }
        let sizes = gauge.driver().map(|driver| ContextSizes::load(&site.sizes_path(), driver));
        for (ground, (grant, visible)) in grounds {
            let known = match &sizes {
                Some(sizes) => sizes.of(&ground),
                None => {
                    let promised = self.owner.with(|state| state.promised_beside(&grant));
                    let (gauge, ground) = (Arc::clone(&gauge), ground.clone());
                    let measured = ContextMeasurement { gauge, ground, visible, promised }.take();
                    self.notes.extend(measured.note());
                    measured.outcome.ok()
                }
            };
            if let Some(bytes) = known {
                site.publish(grants.iter(), &ground, bytes)?;
            }
        }
        Ok(())
    }
}

// === impl Node ===

impl Node {
    /// The next ground of an unused claim with an unknown context size, without those in `looked_at`. A recent failure there
    /// becomes a note instead. The caller repeats until there is none, before the claim is used.
    pub fn to_measure(
        &mut self,
        uid: &ClaimUid,
        looked_at: &mut BTreeSet<ContextDevice>,
    ) -> Option<ContextMeasurement> {
        let gauge = self.site.parts.gauge.clone()?;
        let sizes = ContextSizes::load(&self.site.sizes_path(), gauge.driver()?);
        let grants = self.claim(uid).map(|record| record.plan.grants.clone()).unwrap_or_default();
        let mut grounds = self.site.grounds(grants.iter(), |limits| limits.context_bytes == 0);
        grounds.retain(|ground, _| sizes.of(ground).is_none() && !looked_at.contains(ground));
        for (ground, (grant, visible)) in grounds {
            let Some((why, ago)) = sizes.failure(&ground, &Moment::now()) else {
                let promised = self.state.promised_beside(&grant);
                return Some(ContextMeasurement { gauge, ground, visible, promised });
            };
            self.notes.push(unmeasured(&visible, &tried(why, ago)));
            looked_at.insert(ground);
        }
        None
    }

    /// Stores a measurement, and publishes it in all grants there.
    ///
    /// # Errors
    /// The limits of a grant cannot be written.
    pub fn keep_measured(&mut self, measured: &MeasuredContext) -> Result<(), PrepareError> {
        self.notes.extend(measured.note());
        let (path, ground) = (self.site.sizes_path(), &measured.ground);
        let Some(driver) = self.site.parts.gauge.as_ref().and_then(|gauge| gauge.driver().map(str::to_owned))
        else {
            return Ok(());
        };
        let kept = ContextSizes::read(&path, &driver);
        self.notes.extend(kept.as_ref().err().map(|fault| unread(&path, fault)));
        let mut sizes = kept.unwrap_or_else(|_| ContextSizes::none(&driver));
        match &measured.outcome {
            Ok(bytes) => sizes.note(ground.clone(), *bytes),
            Err(why) if !why.is_no_fault() && measured.took >= COSTLY => {
                sizes.note_failure(ground.clone(), Moment::now(), &chain(why));
            }
            Err(_) => return Ok(()),
        }
        if let Err(error) = sizes.store(&path, &self.site.parts.disk) {
            let path = path.display();
            self.notes.push(format!("{path}: what a context takes is not kept: {error}"));
        }
        match &measured.outcome {
            Ok(bytes) => self.site.publish(self.grants(), ground, *bytes),
            Err(_) => Ok(()),
        }
    }
}

// === impl State ===

impl State {
    /// What other claims were promised of the memory that a grant has a part of.
    fn promised_beside(&self, grant: &Grant) -> Bytes {
        let others = self.others(&grant.claim).filter(|other| is_beside(grant, other));
        Bytes(others.fold(0, |sum: u64, other| sum.saturating_add(other.memory.0)))
    }
}

// === impl Site ===

impl Site {
    /// One grant of each ground with memory that the shim accounts, and the UUID that its processes read.
    fn grounds<'g>(
        &self,
        grants: impl Iterator<Item = &'g Grant>,
        wanted: impl Fn(&Limits) -> bool,
    ) -> BTreeMap<ContextDevice, (Grant, CardUuid)> {
        let counted = |grant: &Grant| {
            let limits = self.counted(grant).filter(&wanted)?;
            Some((ground(grant), (grant.clone(), CardUuid::new(limits.card.as_str()).ok()?)))
        };
        grants.filter_map(counted).collect()
    }

    fn sizes_path(&self) -> PathBuf {
        self.state.join("contexts")
    }

    /// Says it to those of the grants that are on this ground.
    fn publish<'g>(
        &self,
        grants: impl Iterator<Item = &'g Grant>,
        ground: &ContextDevice,
        bytes: Footprint,
    ) -> Result<(), PrepareError> {
        for grant in grants.filter(|grant| self::ground(grant) == *ground) {
            if self.counted(grant).is_none_or(|limits| bytes.is_in(&limits)) {
                continue;
            }
            let place = grant_file::place(&self.grants, &grant.claim, &grant.share);
            let published =
                self.parts.disk.before("publish context").and_then(|()| place.publish_context(bytes));
            published.map_err(|source| PrepareError::Grant {
                claim: grant.claim.to_string(),
                verb: "write",
                path: place.limits().display().to_string(),
                source,
            })?;
        }
        Ok(())
    }

    /// The limits of a grant with memory that the shim accounts.
    fn counted(&self, grant: &Grant) -> Option<Limits> {
        let place = grant_file::place(&self.grants, &grant.claim, &grant.share);
        let limits = region::read(&place.limits()).ok()?;
        matches!(limits.memory, MemoryLimit::Bytes(_)).then_some(limits)
    }
}

// === impl MeasuredContext ===

impl MeasuredContext {
    /// Where it could not be measured there is a note of it, unless another time will do.
    fn note(&self) -> Option<String> {
        let why = self.outcome.as_ref().err().filter(|why| !why.is_no_fault())?;
        Some(unmeasured(&self.visible, &chain(why)))
    }
}

fn unmeasured(visible: &CardUuid, why: &str) -> String {
    let presumed = Bytes(CONTEXT_BYTES_PRESUMED);
    format!(
        "card {visible}: what a context takes cannot be measured: {why}; until it is known the first one of a part is presumed to \
         take {presumed}"
    )
}

/// A file of sizes that is not used.
fn unread(path: &Path, fault: &SizesFault) -> String {
    format!(
        "{}: kept context and page sizes are not used: {}; measured anew now, pages of 2 MiB are assumed until then",
        path.display(),
        chain(fault)
    )
}

/// A reason of earlier.
fn tried(why: &str, ago: Duration) -> String {
    let left = FAILURE_KEPT.saturating_sub(ago);
    format!("{why} (tried {} s ago, and again in {} s)", ago.as_secs(), left.as_secs())
}

fn ground(grant: &Grant) -> ContextDevice {
    ContextDevice { card: grant.card.clone(), template: grant.partition().map(|at| at.template) }
}

/// Whether two grants have parts of one memory.
fn is_beside(grant: &Grant, other: &Grant) -> bool {
    grant.card == other.card && grant.partition() == other.partition()
}
