//! Whether everything that knows of claims says the same.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use aliquot_core::grant::Grant;
use aliquot_core::ports::PartitionAt;

use super::Node;
use crate::checkpoint::{Making, Phase};
use crate::disk::{Disk, Still};
use crate::prepare::{Earlier, Hands, Tenant, run_steps};

/// The first thing that does not agree with the rest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hardware, journal, ledger and files differ: {0}")]
pub struct Differs(pub String);

// === impl Node ===

impl Node {
    /// Whether hardware, journal, ledger and files say the same.
    ///
    /// # Errors
    /// The first thing that differs.
    pub fn invariants(&self) -> Result<(), Differs> {
        let differs = |what: String| Err(Differs(what));
        let on_disk = self.file.load().map_err(|e| Differs(e.to_string()))?.unwrap_or_default();
        if on_disk != self.journal {
            return differs("the journal on disk is not the one in memory".to_owned());
        }
        let inventory = self.inventory().map_err(|e| Differs(e.to_string()))?;
        let (ledger, problems) = self.books(&inventory, None);
        if let Some(problem) = problems.first() {
            return differs(problem.clone());
        }
        ledger.invariants().map_err(|e| Differs(e.to_string()))?;
        self.partitions_agree()?;
        // Going through the steps on a disk that refuses everything shows that nothing is left to do.
        let still = Disk::new(Arc::new(Still));
        let hands = Hands { disk: &still, ..self.hands() };
        for record in self.claims() {
            if record.phase != Phase::Prepared {
                return differs(format!("claim {} is neither prepared nor gone", record.plan.name));
            }
            let whole =
                run_steps(&hands, &record.plan, &self.journal.partitions, Earlier::Perhaps, &mut None);
            whole.map_err(|e| Differs(format!("claim {}: {e}", record.plan.name)))?;
        }
        self.no_strangers()
    }

    fn partitions_agree(&self) -> Result<(), Differs> {
        let live = self.parts.backend.partitions().map_err(|e| Differs(e.to_string()))?;
        let held: BTreeSet<PartitionAt> = self.grants().filter_map(Grant::partition).collect();
        for (at, making) in self.partitions() {
            let there = live.iter().find(|l| l.at == *at).map(|l| Making::Made(l.handle.clone()));
            if there.as_ref() != Some(making) {
                return Err(Differs(format!("{at} is {making:?} in the journal and {there:?} in hardware")));
            }
            if !held.contains(at) {
                return Err(Differs(format!("{at} is ours and nobody holds it")));
            }
        }
        Ok(())
    }

    /// No file of a claim without a record, no file in the making.
    fn no_strangers(&self) -> Result<(), Differs> {
        let names = |dir: &Path| -> Vec<String> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        };
        for name in names(&self.grants_dir) {
            if !self.journal.claims.keys().any(|uid| uid.as_str() == name) {
                return Err(Differs(format!("grants of {name} belong to no claim")));
            }
        }
        let hands = self.hands();
        let containers = self.claims().filter(|record| hands.tenant(&record.plan) == Tenant::Containers);
        let files = containers.map(|record| format!("aliquot.dev-claim-{}.json", record.plan.claim));
        let expected: BTreeSet<String> = files.collect();
        let found: BTreeSet<String> = names(self.cdi.dir()).into_iter().collect();
        if expected != found {
            return Err(Differs(format!("CDI files are {found:?}; expected {expected:?}")));
        }
        Ok(())
    }
}
