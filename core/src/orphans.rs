//! Orphans: prepared claims that neither the kubelet nor the API server knows any more, and that no process uses.
//!
//! The kubelet unprepares each claim that it knows. One that it lost (`kubeadm reset`, its checkpoint removed, a Node that was
//! away while the claim was deleted, a database restored from an older backup) would keep its part for ever.
//!
//! ```text
//!              either knows it, a process uses it, or one of the three cannot be told
//!            ┌────────────────────────────────────────────────────────────────────────┐
//!            ▼                                                                        │
//!         (none) ── absent, absent, unused ──▶ waits ── grace over, enough passes ──▶ orphan
//!                                                └── a pass is late ──▶ waits from now on
//! ```
//!
//! What is not known for certain counts as known: a claim is kept too long rather than taken from a container.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::ClaimUid;

/// Time for which a claim is unknown and unused before it is an orphan. The kubelet repeats a failed prepare after 60 to 90 s and
/// compares its claims with its Pods each minute, and servers of a control plane that are restored one after the other answer in
/// turn: five minutes are several of each.
pub const GRACE: Duration = Duration::from_secs(300);
/// Fewest passes that find a claim unknown, so that one wrong answer at either end of the grace is not enough.
pub const PASSES_MIN: u32 = 5;

/// Whether one side knows a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// It does.
    Known,
    /// It answered, and does not.
    Absent,
    /// It did not answer, or its answer is not to be believed now.
    Unanswered,
}

/// Whether a process uses a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimUse {
    /// At least one does.
    Used,
    /// None does.
    Unused,
    /// It cannot be told.
    Unanswered,
}

/// What a pass found of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The kubelet of the node.
    pub kubelet: Knowledge,
    /// The API server.
    pub server: Knowledge,
    /// Processes of the node.
    pub processes: ClaimUse,
}

/// Claims that wait for the end of the grace.
#[derive(Clone, Debug)]
pub struct OrphanWatch {
    grace: Duration,
    waiting: BTreeMap<ClaimUid, Waiting>,
}

/// A claim that was unknown and unused in each pass since then.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    since: Duration,
    last: Duration,
    passes: u32,
}

// === impl Sighting ===

impl Sighting {
    /// Whether nothing speaks for the claim.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        matches!(
            self,
            Self { kubelet: Knowledge::Absent, server: Knowledge::Absent, processes: ClaimUse::Unused }
        )
    }
}

// === impl OrphanWatch ===

impl OrphanWatch {
    /// A watch without claims.
    #[must_use]
    pub const fn new(grace: Duration) -> Self {
        Self { grace, waiting: BTreeMap::new() }
    }

    /// Time between two passes; one that comes after twice as long begins anew.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.grace / PASSES_MIN
    }

    /// Takes what a pass found of every claim, and names the orphans. A claim that is absent here is forgotten. `now` is the time
    /// since any one moment.
    pub fn pass(&mut self, now: Duration, found: &BTreeMap<ClaimUid, Sighting>) -> Vec<ClaimUid> {
        let longest = 2 * self.pause();
        self.waiting.retain(|claim, waiting| {
            let is_lost = found.get(claim).is_some_and(|sighting| sighting.is_lost());
            is_lost && now.saturating_sub(waiting.last) <= longest
        });
        let lost = found.iter().filter(|(_, sighting)| sighting.is_lost()).map(|(claim, _)| claim);
        lost.filter(|claim| self.note(now, claim)).cloned().collect()
    }

    /// Forgets all claims: what was answered before does not count any more.
    pub fn begin_anew(&mut self) {
        self.waiting.clear();
    }

    /// Counts a pass that found a claim lost; whether it is an orphan.
    fn note(&mut self, now: Duration, claim: &ClaimUid) -> bool {
        let first = Waiting { since: now, last: now, passes: 0 };
        let waiting = self.waiting.entry(claim.clone()).or_insert(first);
        waiting.last = now;
        waiting.passes = waiting.passes.saturating_add(1);
        waiting.passes >= PASSES_MIN && now.saturating_sub(waiting.since) >= self.grace
    }
}

#[cfg(test)]
mod tests;
