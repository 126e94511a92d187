//! The size of contexts in the limits of a claim: measured once for each driver, kept, published.
//!
//! | the claim | the memory of its grant | then |
//! |---|---|---|
//! | any | the size is known, or told for the asking | it is published in its limits |
//! | of a run that was just prepared | no other claim has a part of it | it is measured, stored and published |
//! | else | | its first processes find it out, as far as they can |
//!
//! An agent measures cards on which there is no claim, and stores the size for the claims to come.
//!
//! Measuring may take long, and the node is open to others meanwhile:
//!
//! ```text
//!  node locked:    prepare ─▶ to_measure: memory with an unknown size on which the claim is alone
//!  node unlocked:     └─▶ ContextMeasurement::take
//!  node locked:              └─▶ keep_measured: stored and published, if the claim is still alone there
//! ```
//!
//! A claim that came meanwhile may have falsified the result, so it is discarded then. After a slow failure, claims of the next
//! minutes report its reason and do not measure; an agent does so after every failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_abi::limits::{CONTEXT_BYTES_PRESUMED, Limits, MemoryLimit};
use aliquot_core::card::{Card, Supply};
use aliquot_core::grant::Grant;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::partition::Part;
use aliquot_core::ports::BackendError;
use aliquot_core::units::Bytes;

use super::Node;
use super::operate::NodeOperation;
use super::service::NodeService;
use super::site::Site;
use super::state::StateAccess;
use crate::checkpoint::{ContextDevice, ContextSizes, FAILURE_KEPT, Phase, SizesFault};
use crate::clock::{self, Moment};
use crate::contexts::{ContextGauge, ContextSizeError};
use crate::error_text::chain;
use crate::grant_file;
use crate::hardware::vendors::cuda;
use crate::prepare::PrepareError;
use crate::region::{self, Footprint};

/// A failure that took longer is kept: to try again has its price.
const COSTLY: Duration = Duration::from_secs(10);

/// Which failures are stored, so that the next minutes do not try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptFailures {
    /// Those that took long: a run waits for its measurement.
    Costly,
    /// Each: an agent tries by itself.
    All,
}

/// A measurement of a context on a ground. The node need not be open meanwhile.
#[derive(Debug)]
pub struct ContextMeasurement {
    gauge: Arc<dyn ContextGauge>,
    ground: ContextDevice,
    visible: CardUuid,
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
    /// Measures.
    #[must_use]
    pub fn take(self) -> MeasuredContext {
        let began = clock::now();
        let outcome = self.gauge.measure(&self.visible);
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
        let sizes = gauge.driver().map(|driver| ContextSizes::load(&site.sizes_path(), &driver));
        for (ground, visible) in grounds {
            let known = match &sizes {
                Some(sizes) => sizes.of(&ground),
                None => {
                    let (gauge, ground) = (Arc::clone(&gauge), ground.clone());
                    let measured = ContextMeasurement { gauge, ground, visible }.take();
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
    /// What to measure for a claim that no process uses yet: memory with an unknown context size, on which the claim is alone. A
    /// recent failure there becomes a note instead.
    pub fn to_measure(&mut self, uid: &ClaimUid) -> Vec<ContextMeasurement> {
        let Some(gauge) = self.site.parts.gauge.clone() else { return Vec::new() };
        let Some(driver) = gauge.driver() else { return Vec::new() };
        let sizes = ContextSizes::load(&self.site.sizes_path(), &driver);
        let grants = self.claim(uid).map(|record| record.plan.grants.clone()).unwrap_or_default();
        let mut grounds = self.site.grounds(grants.iter(), |limits| limits.context_bytes == 0);
        grounds.retain(|ground, _| sizes.of(ground).is_none() && self.is_alone(uid, ground));
        let mut measurements = Vec::new();
        for (ground, visible) in grounds {
            if let Some((why, ago)) = sizes.failure(&ground, &Moment::now()) {
                self.notes.push(unmeasured(&visible, &tried(why, ago)));
            } else {
                measurements.push(ContextMeasurement { gauge: Arc::clone(&gauge), ground, visible });
            }
        }
        measurements
    }

    /// Whether no other claim has a part of the memory that this one has a part of.
    fn is_alone(&self, uid: &ClaimUid, on: &ContextDevice) -> bool {
        let own = |grant: &Grant| grant.claim == *uid && ground(grant) == *on;
        let parts: Vec<&Grant> = self.grants().filter(|grant| own(grant)).collect();
        let others = |grant: &Grant| grant.claim != *uid && parts.iter().any(|own| is_beside(own, grant));
        !parts.is_empty() && !self.grants().any(others)
    }

    /// Stores a measurement and publishes it in the grants there, if the claim is still alone there.
    ///
    /// # Errors
    /// The limits of a grant cannot be written.
    pub fn keep_measured(&mut self, uid: &ClaimUid, measured: &MeasuredContext) -> Result<(), PrepareError> {
        if measured.outcome.is_ok() && !self.is_alone(uid, &measured.ground) {
            return Ok(());
        }
        self.notes.extend(self.site.keep(measured, KeptFailures::Costly));
        let ground = &measured.ground;
        match &measured.outcome {
            Ok(bytes) => self.site.publish(self.grants(), ground, *bytes),
            Err(_) => Ok(()),
        }
    }
}

// === impl NodeService ===

impl NodeService {
    /// Measures what a context takes on each card without a claim, where it is unknown, and stores it for the claims to come. Takes
    /// a second or more on each; the node serves other calls meanwhile.
    pub fn measure_idle_cards(&self) {
        let Some(gauge) = self.site.parts.gauge.clone() else { return };
        let cards = match self.site.unmeasured_cards(gauge.as_ref()) {
            Ok(cards) => cards,
            Err(error) => return tracing::debug!("contexts are not measured: {error}"),
        };
        for card in cards {
            let Some(before) = self.idle_since(&card) else { continue };
            let measurement =
                ContextMeasurement { gauge: Arc::clone(&gauge), ground: whole(&card), visible: card.clone() };
            let earlier = self.site.mark_begun(gauge.as_ref(), &card);
            let measured = measurement.take();
            // Of a claim that came and went, a process may have allocated or freed.
            if self.idle_since(&card) != Some(before) {
                self.site.store_sizes(&earlier);
                continue;
            }
            if let Ok(size) = &measured.outcome {
                tracing::info!(%card, bytes = size.context.0, "measured what a context takes");
            }
            for note in self.site.keep(&measured, KeptFailures::All) {
                tracing::warn!("{note}");
            }
        }
    }

    /// The number of journalled changes, if no claim has a part of the card.
    fn idle_since(&self, card: &CardUuid) -> Option<u64> {
        let state = self.state.lock();
        let mut grants = state.journal().claims.values().flat_map(|record| &record.plan.grants);
        grants.all(|grant| grant.card != *card).then_some(state.changes)
    }
}

// === impl Site ===

impl Site {
    /// Each ground with memory that the shim accounts, and the UUID that its processes read.
    fn grounds<'g>(
        &self,
        grants: impl Iterator<Item = &'g Grant>,
        wanted: impl Fn(&Limits) -> bool,
    ) -> BTreeMap<ContextDevice, CardUuid> {
        let counted = |grant: &Grant| {
            let limits = self.counted(grant).filter(&wanted)?;
            Some((ground(grant), CardUuid::new(limits.card.as_str()).ok()?))
        };
        grants.filter_map(counted).collect()
    }

    /// Stores a measurement, or that it failed where that is worth it. What people are to be told.
    fn keep(&self, measured: &MeasuredContext, kept_failures: KeptFailures) -> Vec<String> {
        let mut notes: Vec<String> = measured.note().into_iter().collect();
        let gauge = self.parts.gauge.as_ref();
        let Some(driver) = gauge.and_then(|gauge| gauge.driver()) else { return notes };
        let path = self.sizes_path();
        let kept = ContextSizes::read(&path, &driver);
        notes.extend(kept.as_ref().err().map(|fault| unread(&path, fault)));
        let mut sizes = kept.unwrap_or_else(|_| ContextSizes::none(&driver));
        match &measured.outcome {
            Ok(bytes) => sizes.note(measured.ground.clone(), *bytes),
            Err(why) if kept_failures == KeptFailures::All || measured.took >= COSTLY => {
                sizes.note_failure(measured.ground.clone(), Moment::now(), &chain(why));
            }
            Err(_) => return notes,
        }
        if let Err(error) = sizes.store(&path, &self.parts.disk) {
            let path = path.display();
            notes.push(format!("{path}: what a context takes is not kept: {error}"));
        }
        notes
    }

    /// Notes that a measurement has begun, so that an agent that ends in it does not begin again at its next start; the sizes before.
    fn mark_begun(&self, gauge: &dyn ContextGauge, card: &CardUuid) -> ContextSizes {
        let sizes = ContextSizes::load(&self.sizes_path(), &gauge.driver().unwrap_or_default());
        let mut marked = sizes.clone();
        marked.note_failure(whole(card), Moment::now(), "the agent ended while it was measured");
        self.store_sizes(&marked);
        sizes
    }

    fn store_sizes(&self, sizes: &ContextSizes) {
        if let Err(error) = sizes.store(&self.sizes_path(), &self.parts.disk) {
            tracing::warn!("{}: it is not written: {error}", self.sizes_path().display());
        }
    }

    /// Cards that work and no process uses, on which contexts can be made and their size is unknown and was not looked for of late.
    fn unmeasured_cards(&self, gauge: &dyn ContextGauge) -> Result<Vec<CardUuid>, BackendError> {
        let Some(driver) = gauge.driver() else { return Ok(Vec::new()) };
        let sizes = ContextSizes::load(&self.sizes_path(), &driver);
        let now = Moment::now();
        let is_wanted = |card: &Card| {
            let ground = whole(&card.uuid);
            card.vendor == cuda()
                && card.supply == Supply::All
                && card.why_unwell(&Part::Card).is_none()
                && sizes.of(&ground).is_none()
                && sizes.failure(&ground, &now).is_none()
        };
        // A context on a card that another program has nearly filled could take what that program asks for next.
        let is_unused = |card: &Card| match self.parts.backend.usage(&card.uuid) {
            Ok(usage) => usage.processes.is_empty(),
            Err(_) => true,
        };
        let cards = self.look()?.cards.into_iter().filter(is_wanted).filter(is_unused);
        Ok(cards.map(|card| card.uuid).collect())
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
    /// A note if it could not be measured.
    fn note(&self) -> Option<String> {
        self.outcome.as_ref().err().map(|why| unmeasured(&self.visible, &chain(why)))
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

fn whole(card: &CardUuid) -> ContextDevice {
    ContextDevice { card: card.clone(), template: None }
}

fn ground(grant: &Grant) -> ContextDevice {
    ContextDevice { card: grant.card.clone(), template: grant.partition().map(|at| at.template) }
}

/// Whether two grants have parts of one memory.
fn is_beside(grant: &Grant, other: &Grant) -> bool {
    grant.card == other.card && grant.partition() == other.partition()
}
