//! Whether everything that knows of claims says the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use aliquot_core::grant::Grant;
use aliquot_core::ledger::Ledger;
use aliquot_core::ports::PartitionAt;

use super::operate::NewPartitions;
use super::site::Site;
use super::state::{State, ledger_of};
use crate::checkpoint::{ClaimKind, PartitionProgress, Phase};
use crate::disk::{Disk, Still};
use crate::prepare::{Hands, run_steps};

/// The first thing that does not agree with the rest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hardware, journal, ledger and files differ: {0}")]
pub struct Differs(pub String);

// === impl State ===

impl State {
    /// As [`Node::invariants`], while no operation is in progress.
    pub(super) fn agrees(&self, site: &Site) -> Result<(), Differs> {
        let differs = |what: String| Err(Differs(what));
        let on_disk = self.store().file().load().map_err(|e| Differs(e.to_string()))?;
        if on_disk.map(|found| found.journal).unwrap_or_default() != *self.journal() {
            return differs("the journal on disk is not the one in memory".to_owned());
        }
        let found = site.look().map_err(|e| Differs(e.to_string()))?;
        let cards = self.without_ours(found);
        let (ledger, problems) = ledger_of(&cards, &site.parts.catalogue, self.journal());
        if let Some(problem) = problems.first() {
            return differs(problem.clone());
        }
        ledger.invariants().map_err(|e| Differs(e.to_string()))?;
        self.kept_ledger_agrees(site)?;
        self.partitions_agree(site)?;
        // Going through the steps on a disk that refuses everything shows that nothing is left to do.
        let still = Disk::new(Arc::new(Still));
        let hands = Hands { disk: &still, ..site.hands() };
        for record in self.journal().claims.values() {
            if record.phase != Phase::Prepared {
                return differs(format!("claim {} is neither prepared nor gone", record.plan.name));
            }
            let ours = self.ours_of(&record.plan);
            let whole = run_steps(&hands, &record.plan, record.kind, &ours, &NewPartitions::new(), &mut None);
            whole.map_err(|e| Differs(format!("claim {}: {e}", record.plan.name)))?;
        }
        self.no_strangers(site)
    }

    /// Whether the ledger that is kept from decision to decision holds what one made anew of its cards does.
    fn kept_ledger_agrees(&self, site: &Site) -> Result<(), Differs> {
        let (Some(kept), Some(cards)) = (self.kept_ledger(), self.known_cards()) else { return Ok(()) };
        let (anew, _) = ledger_of(&cards, &site.parts.catalogue, self.journal());
        kept.invariants().map_err(|e| Differs(e.to_string()))?;
        let held = |ledger: &Ledger| {
            let holdings = ledger.holdings().map(|holding| format!("{holding:?}"));
            holdings.collect::<BTreeSet<String>>()
        };
        let (kept, anew) = (held(kept), held(&anew));
        match kept.symmetric_difference(&anew).next() {
            Some(holding) => Err(Differs(format!("{holding} is in one ledger alone"))),
            None => Ok(()),
        }
    }

    fn partitions_agree(&self, site: &Site) -> Result<(), Differs> {
        let live = site.parts.backend.partitions().map_err(|e| Differs(e.to_string()))?;
        let held: BTreeSet<PartitionAt> = self.grants().filter_map(Grant::partition).collect();
        for (at, making) in &self.journal().partitions {
            let there = live.iter().find(|l| l.at == *at).map(|l| PartitionProgress::Made(l.handle.clone()));
            if there.as_ref() != Some(making) {
                return Err(Differs(format!("{at} is {making:?} in the journal and {there:?} in hardware")));
            }
            if !held.contains(at) {
                return Err(Differs(format!("{at} is ours and no claim holds it")));
            }
        }
        Ok(())
    }

    /// No file of a claim without a record, no file in the making.
    fn no_strangers(&self, site: &Site) -> Result<(), Differs> {
        let names = |dir: &Path| -> Vec<String> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        };
        for name in names(&site.grants) {
            if !self.journal().claims.keys().any(|uid| uid.as_str() == name) {
                return Err(Differs(format!("grants of {name} belong to no claim")));
            }
        }
        let claims = self.journal().claims.values();
        let containers = claims.filter(|record| record.kind == ClaimKind::Container);
        let files = containers.map(|record| format!("aliquot.dev-claim-{}.json", record.plan.claim));
        let expected: BTreeSet<String> = files.collect();
        let found: BTreeSet<String> = names(site.cdi.dir()).into_iter().collect();
        if expected != found {
            return Err(Differs(format!("CDI files are {found:?}; expected {expected:?}")));
        }
        Ok(())
    }
}
