//! What a long-lived owner looks after between calls.
//!
//! | found | done |
//! |---|---|
//! | a prepare or release that ended half way, as on a full disk | undone |
//! | a release that failed before its first record, or that could not remove a file | released |
//! | files of a prepared claim, or of a monitoring one, were removed or altered | made again |
//!
//! Nothing waits for a claim or card in use: the next pass comes back to it. A pass over claims that are as they were reads
//! metadata of three files a claim and asks no card.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use aliquot_core::id::ClaimUid;

use super::monitor::SUFFIX;
use super::operate::{NewPartitions, NodeOperation, cards_of};
use super::service::{NodeService, Stamp};
use super::site::Site;
use super::state::StateAccess;
use super::turns::Subject;
use crate::checkpoint::{ClaimKind, ClaimRecord, Phase};
use crate::error_text::chain;
use crate::grant_file;
use crate::prepare::PrepareError;

// === impl NodeService ===

impl NodeService {
    /// One pass. What was done, and what could not be done now, one line each.
    pub fn tend(&self) -> Vec<String> {
        let records = self.claims();
        let mut lines: Vec<String> = records.iter().filter_map(|record| self.tend_claim(record)).collect();
        lines.extend(self.tend_monitors());
        let known: BTreeSet<String> =
            self.claims().iter().map(|record| record.plan.claim.to_string()).collect();
        let monitors = self.site.monitors.lock();
        self.left
            .lock()
            .retain(|uid, _| known.contains(uid) || monitors.keys().any(|claim| monitor_file(claim) == *uid));
        lines
    }

    /// Remembers the files of a claim as they are now.
    pub(super) fn note_files(&self, record: &ClaimRecord) {
        let is_for_containers = record.kind == ClaimKind::Container && record.phase == Phase::Prepared;
        let stamps = stamps(&self.site, record);
        // Files that recovery could not make are not as they should be.
        if is_for_containers && stamps.iter().all(Option::is_some) {
            self.left.lock().insert(record.plan.claim.to_string(), stamps);
        }
    }

    fn tend_claim(&self, record: &ClaimRecord) -> Option<String> {
        let (uid, name) = (&record.plan.claim, &record.plan.name);
        let is_same =
            || self.left.lock().get(uid.as_str()).is_some_and(|left| *left == stamps(&self.site, record));
        if record.phase != Phase::Prepared || self.owed.lock().contains(uid) {
            let undone = self.operate(|operation| operation.undo_left(uid, &|| self.is_left(uid)));
            return match undone {
                Ok(false) => None,
                Ok(true) => {
                    self.owed.lock().remove(uid);
                    Some(format!("claim {name}: what an interrupted prepare or release left is given back"))
                }
                Err(error) => Some(format!("claim {name}: cannot be given back now: {}", chain(&error))),
            };
        }
        if record.kind == ClaimKind::Run || is_same() {
            return None;
        }
        match self.operate(|operation| operation.mend(record)) {
            Ok(None) => None,
            Ok(Some(acts)) => {
                self.note_files(record);
                let made =
                    format!("claim {name}: files of it had been removed or altered, and are made again");
                (acts > 0).then_some(made)
            }
            Err(error) => {
                Some(format!("claim {name}: its files cannot be made again now: {}", chain(&error)))
            }
        }
    }

    /// Whether a claim of which the turn is had is to be undone.
    fn is_left(&self, uid: &ClaimUid) -> bool {
        let phase = self.state.lock().claim(uid).map(|record| record.phase);
        phase.is_some_and(|phase| phase != Phase::Prepared) || self.owed.lock().contains(uid)
    }

    fn tend_monitors(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let owed = self.owed_monitors.lock().clone();
        for uid in owed {
            lines.push(match self.end_monitoring(&uid) {
                Ok(()) => format!("claim {uid}: its file for monitoring is removed"),
                Err(error) => chain(&error),
            });
        }
        for (claim, spec) in self.site.monitors.lock().iter() {
            let (path, uid) = (self.site.cdi.path(spec.claim()), monitor_file(claim));
            let is_same = |left: &Vec<Stamp>| *left == [stamp(&path)];
            if self.left.lock().get(&uid).map_or_else(|| !path.exists(), |left| !is_same(left)) {
                lines.push(match self.site.cdi.write(spec) {
                    Ok(()) => {
                        format!("{}: it had been removed or altered, and is made again", path.display())
                    }
                    Err(error) => chain(&error),
                });
            }
            self.left.lock().insert(uid, vec![stamp(&path)]);
        }
        lines
    }
}

// === impl NodeOperation ===

impl<O: StateAccess> NodeOperation<'_, O> {
    /// Undoes a claim if `is_left` says so once its turn is had, and neither it nor its cards are in use. Whether that was so.
    fn undo_left(&mut self, uid: &ClaimUid, is_left: &dyn Fn() -> bool) -> Result<bool, PrepareError> {
        let Some(_turn) = self.site.turns.try_turn(Subject::Claim(uid.clone())) else { return Ok(false) };
        let record = self.owner.with(|state| state.claim(uid).cloned());
        let Some(record) = record.filter(|_| is_left()) else { return Ok(false) };
        if !self.site.turns.are_free(&cards_of(&record.plan)) {
            return Ok(false);
        }
        self.undo_claim(uid)?;
        Ok(true)
    }

    /// Makes again what is absent of a prepared claim. How many things that was; `None`: it or its cards are in use, or it has
    /// changed.
    fn mend(&mut self, record: &ClaimRecord) -> Result<Option<usize>, PrepareError> {
        let (uid, turns) = (&record.plan.claim, &self.site.turns);
        let Some(_turn) = turns.try_turn(Subject::Claim(uid.clone())) else { return Ok(None) };
        let cards = cards_of(&record.plan);
        let is_same = self.owner.with(|state| state.claim(uid) == Some(record));
        if !is_same || !turns.are_free(&cards) {
            return Ok(None);
        }
        let place = turns.line_up(cards);
        place.wait();
        Ok(Some(self.make_whole(uid, &NewPartitions::new(), &mut None)?.acts))
    }
}

/// The files of a claim: that of the container runtime, and the directories of its grants.
fn stamps(site: &Site, record: &ClaimRecord) -> Vec<Stamp> {
    let uid = &record.plan.claim;
    let cdi = uid.as_str().parse().ok().map(|uid| site.cdi.path(&uid));
    let grants = site.grants_dir();
    let shares = record.plan.grants.iter().map(|grant| grant_file::share_dir(grants, uid, &grant.share));
    let paths = cdi.into_iter().chain([grant_file::claim_dir(grants, uid)]).chain(shares);
    paths.map(|path| stamp(&path)).collect()
}

/// The name of a monitoring claim's file among those of claims.
fn monitor_file(claim: &ClaimUid) -> String {
    format!("{claim}{SUFFIX}")
}

fn stamp(path: &Path) -> Stamp {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
}
