//! Claims that wait on this node: their last prepare failed, and the kubelet asks again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_core::id::ClaimUid;
use parking_lot::Mutex;

use crate::checkpoint::CLAIMS_MAX;

/// The kubelet asks again within two minutes; of a claim that it no longer asks for, it forgot the Pod.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Claims, with the end of their last prepare.
#[derive(Debug, Default)]
pub(super) struct WaitingClaims(Mutex<BTreeMap<ClaimUid, Instant>>);

// === impl WaitingClaims ===

impl WaitingClaims {
    /// A prepare failed.
    pub(super) fn begins(&self, claim: &ClaimUid, now: Instant) {
        let mut waiting = self.0.lock();
        if waiting.len() >= CLAIMS_MAX {
            waiting.retain(|_, last| now.duration_since(*last) < FORGOTTEN);
        }
        if waiting.len() < CLAIMS_MAX || waiting.contains_key(claim) {
            waiting.insert(claim.clone(), now);
        }
    }

    /// It succeeded, or the claim is to be given back.
    pub(super) fn ends(&self, claim: &ClaimUid) {
        self.0.lock().remove(claim);
    }

    /// How many wait.
    pub(super) fn count(&self, now: Instant) -> usize {
        self.0.lock().values().filter(|last| now.duration_since(**last) < FORGOTTEN).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_waits_until_prepared_given_back_or_forgotten() {
        let (waiting, now) = (WaitingClaims::default(), Instant::now());
        let [a, b] = ["a", "b"].map(|uid| ClaimUid::new(uid).unwrap());
        waiting.begins(&a, now);
        waiting.begins(&a, now);
        waiting.begins(&b, now + FORGOTTEN / 2);
        assert_eq!(waiting.count(now + FORGOTTEN / 2), 2);
        assert_eq!(waiting.count(now + FORGOTTEN), 1);
        waiting.ends(&b);
        assert_eq!(waiting.count(now), 1);
    }

    #[test]
    fn claims_that_wait_are_bounded() {
        let (waiting, now) = (WaitingClaims::default(), Instant::now());
        for number in 0..CLAIMS_MAX + 2 {
            waiting.begins(&ClaimUid::new(format!("c-{number}")).unwrap(), now);
        }
        assert_eq!(waiting.count(now), CLAIMS_MAX);
        waiting.begins(&ClaimUid::new("later").unwrap(), now + FORGOTTEN);
        assert_eq!(waiting.count(now + FORGOTTEN), 1);
    }
}
