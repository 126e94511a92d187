//! The size of contexts in the limits of a claim: measured once for each driver, kept, published.
//!
//! | the claim | and of its card | then |
//! |---|---|---|
//! | has not been told | the size is known, or told for the asking | it is published in its limits |
//! | is being prepared: nobody uses it yet | nothing else is promised, or enough is promised to nobody | it is measured, kept, and published in the limits of all that we granted there |
//! | else | | its first processes find it out, as far as they can |
//!
//! Where measuring took long and failed, the next claims of some minutes are told why and do not try.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_abi::limits::{CONTEXT_BYTES_PRESUMED, Limits, MemoryLimit};
use aliquot_core::grant::Grant;
use aliquot_core::id::CardUuid;
use aliquot_core::units::Bytes;

use super::Node;
use crate::checkpoint::{ContextSizes, FAILURE_KEPT, Ground, Phase};
use crate::clock::{self, Moment};
use crate::contexts::Gauge;
use crate::grant_file;
use crate::prepare::PrepareError;
use crate::region;

/// A failure that took longer is kept: to try again has its price.
const COSTLY: Duration = Duration::from_secs(10);

/// Why it is not known what a context takes.
enum Unknown {
    /// That is no fault, or was said.
    Said,
    /// It was tried for long.
    Costly(String),
}

impl Node {
    /// Publishes how much a context takes on the cards of a claim, and finds that out where it can.
    pub(super) fn size_contexts(&mut self, grants: &[Grant], phase: Phase) -> Result<(), PrepareError> {
        let Some(gauge) = self.parts.gauge.clone() else { return Ok(()) };
        // Claims of before were told when it was measured: this is looked at for each of them whenever the node is opened.
        let is_to_be_told = |limits: &Limits| phase == Phase::Preparing || limits.context_bytes == 0;
        let counted = |grant| {
            let limits = self.counted(grant).filter(is_to_be_told)?;
            Some((ground(grant), (grant, limits)))
        };
        let grounds: BTreeMap<Ground, (&Grant, Limits)> = grants.iter().filter_map(counted).collect();
        if grounds.is_empty() {
            return Ok(());
        }
        let path = self.sizes_path();
        let mut sizes = gauge.driver().map(|driver| ContextSizes::load(&path, driver));
        for (ground, (grant, limits)) in grounds {
            if let Some(bytes) = sizes.as_ref().and_then(|sizes| sizes.of(&ground)) {
                self.publish(grants.iter(), &ground, bytes)?;
                continue;
            }
            // Where it is told for the asking nothing of the card is used for it.
            if phase != Phase::Preparing && sizes.is_some() {
                continue;
            }
            if let Some((why, ago)) = sizes.as_ref().and_then(|sizes| sizes.failure(&ground, &Moment::now()))
            {
                self.note_unknown(&limits, &tried(why, ago));
                continue;
            }
            let measured = self.measure(gauge.as_ref(), grant, &limits);
            let Some(sizes) = &mut sizes else {
                if let Ok(bytes) = measured {
                    self.publish(grants.iter(), &ground, bytes)?;
                }
                continue;
            };
            match &measured {
                Ok(bytes) => sizes.note(ground.clone(), *bytes),
                Err(Unknown::Costly(why)) => sizes.note_failure(ground.clone(), Moment::now(), why),
                Err(Unknown::Said) => continue,
            }
            if let Err(error) = sizes.store(&path, &self.parts.disk) {
                let path = path.display();
                self.notes.push(format!("{path}: what a context takes is not kept: {error}"));
            }
            if let Ok(bytes) = measured {
                self.publish(self.grants(), &ground, bytes)?;
            }
        }
        Ok(())
    }

    fn sizes_path(&self) -> PathBuf {
        self.grants_dir.with_file_name("contexts")
    }

    /// Measures; where that cannot be done there is a note of it, unless another time will do.
    fn measure(&mut self, gauge: &dyn Gauge, grant: &Grant, limits: &Limits) -> Result<Bytes, Unknown> {
        let visible = CardUuid::new(limits.card.as_str()).map_err(|_| Unknown::Said)?;
        let others = self.grants().filter(|other| other.claim != grant.claim && is_beside(grant, other));
        let promised = others.fold(0, |sum: u64, other| sum.saturating_add(other.memory.0));
        let began = clock::now();
        match gauge.measure(&visible, Bytes(promised)) {
            Ok(bytes) => Ok(bytes),
            Err(why) if why.is_no_fault() => Err(Unknown::Said),
            Err(why) => {
                let causes = std::iter::successors(std::error::Error::source(&why), |error| error.source());
                let why = causes.fold(why.to_string(), |text, cause| format!("{text}: {cause}"));
                self.note_unknown(limits, &why);
                Err(if clock::now().duration_since(began) < COSTLY {
                    Unknown::Said
                } else {
                    Unknown::Costly(why)
                })
            }
        }
    }

    fn note_unknown(&mut self, limits: &Limits, why: &str) {
        let (card, presumed) = (limits.card.as_str(), Bytes(CONTEXT_BYTES_PRESUMED));
        self.notes.push(format!(
            "card {card}: what a context takes cannot be measured: {why}; until it is known the first one of a part is presumed to \
             take {presumed}"
        ));
    }

    /// Says it to those of the grants that are on this ground.
    fn publish<'g>(
        &self,
        grants: impl Iterator<Item = &'g Grant>,
        ground: &Ground,
        bytes: Bytes,
    ) -> Result<(), PrepareError> {
        for grant in grants.filter(|grant| self::ground(grant) == *ground) {
            if self.counted(grant).is_none_or(|limits| limits.context_bytes == bytes.0) {
                continue;
            }
            let place = grant_file::place(&self.grants_dir, &grant.claim, &grant.share);
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

    /// The limits of a grant whose memory the shim counts.
    fn counted(&self, grant: &Grant) -> Option<Limits> {
        let place = grant_file::place(&self.grants_dir, &grant.claim, &grant.share);
        let limits = region::read(&place.limits()).ok()?;
        matches!(limits.memory, MemoryLimit::Bytes(_)).then_some(limits)
    }
}

/// A reason of earlier.
fn tried(why: &str, ago: Duration) -> String {
    let left = FAILURE_KEPT.saturating_sub(ago);
    format!("{why} (tried {} s ago, and again in {} s)", ago.as_secs(), left.as_secs())
}

fn ground(grant: &Grant) -> Ground {
    Ground { card: grant.card.clone(), template: grant.partition().map(|at| at.template) }
}

/// Whether two grants have parts of one memory.
fn is_beside(grant: &Grant, other: &Grant) -> bool {
    grant.card == other.card && grant.partition() == other.partition()
}
