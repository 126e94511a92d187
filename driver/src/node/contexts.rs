//! The size of contexts in the limits of a claim: measured once for each driver, kept, published.
//!
//! | the claim | and of its card | then |
//! |---|---|---|
//! | has not been told | the size is known, or told for the asking | it is published in its limits |
//! | is being prepared: nobody uses it yet | nothing else is promised, or enough is promised to nobody | it is measured, kept, and published in the limits of all that we granted there |
//! | else | | its first processes find it out, as far as they can |

use std::collections::BTreeMap;
use std::path::PathBuf;

use aliquot_abi::limits::{CONTEXT_BYTES_PRESUMED, Limits, MemoryLimit};
use aliquot_core::grant::Grant;
use aliquot_core::id::CardUuid;
use aliquot_core::units::Bytes;

use super::Node;
use crate::checkpoint::{ContextSizes, Ground, Phase};
use crate::contexts::Gauge;
use crate::grant_file;
use crate::prepare::PrepareError;
use crate::region;

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
            let Some(bytes) = self.measure(gauge.as_ref(), grant, &limits) else { continue };
            let Some(sizes) = &mut sizes else {
                self.publish(grants.iter(), &ground, bytes)?;
                continue;
            };
            sizes.note(ground.clone(), bytes);
            if let Err(error) = sizes.store(&path, &self.parts.disk) {
                let path = path.display();
                self.notes.push(format!("{path}: what a context takes is not kept: {error}"));
            }
            self.publish(self.grants(), &ground, bytes)?;
        }
        Ok(())
    }

    fn sizes_path(&self) -> PathBuf {
        self.grants_dir.with_file_name("contexts")
    }

    /// Measures; where that cannot be done there is a note of it, unless another time will do.
    fn measure(&mut self, gauge: &dyn Gauge, grant: &Grant, limits: &Limits) -> Option<Bytes> {
        let visible = CardUuid::new(limits.card.as_str()).ok()?;
        let others = self.grants().filter(|other| other.claim != grant.claim && is_beside(grant, other));
        let promised = others.fold(0, |sum: u64, other| sum.saturating_add(other.memory.0));
        match gauge.measure(&visible, Bytes(promised)) {
            Ok(bytes) => Some(bytes),
            Err(why) if why.is_no_fault() => None,
            Err(why) => {
                let causes = std::iter::successors(std::error::Error::source(&why), |error| error.source());
                let why = causes.fold(why.to_string(), |text, cause| format!("{text}: {cause}"));
                let presumed = Bytes(CONTEXT_BYTES_PRESUMED);
                self.notes.push(format!(
                    "card {visible}: what a context takes cannot be measured: {why}; until it is known the first one of a part is \
                     presumed to take {presumed}"
                ));
                None
            }
        }
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

fn ground(grant: &Grant) -> Ground {
    Ground { card: grant.card.clone(), template: grant.partition().map(|at| at.template) }
}

/// Whether two grants have parts of one memory.
fn is_beside(grant: &Grant, other: &Grant) -> bool {
    grant.card == other.card && grant.partition() == other.partition()
}
