//! Pods of claims, for labels of metrics: one name a claim, as many claims as the journal holds at most.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::id::ClaimUid;
use parking_lot::Mutex;
use serde_json::Value;

use crate::checkpoint::CLAIMS_MAX;

/// Longest name of a Pod, in bytes, as the API has it.
const NAME_BYTES_MAX: usize = 253;

/// The Pod of each claim that one Pod uses.
#[derive(Debug, Default)]
pub struct PodNames(Mutex<BTreeMap<ClaimUid, String>>);

// === impl PodNames ===

impl PodNames {
    /// Notes the Pods for which a claim is reserved, from the server's object. A claim of several Pods has no name here.
    pub fn note(&self, claim: &ClaimUid, object: &Value) {
        let consumers = object["status"]["reservedFor"].as_array().into_iter().flatten();
        let pods = consumers.filter(|consumer| consumer["resource"] == "pods");
        let mut names = pods.filter_map(|pod| pod["name"].as_str());
        let mut known = self.0.lock();
        match (names.next(), names.next()) {
            (Some(name), None) if name.len() <= NAME_BYTES_MAX && known.len() < CLAIMS_MAX => {
                known.insert(claim.clone(), name.to_owned());
            }
            _ => drop(known.remove(claim)),
        }
    }

    /// The Pod of a claim; empty if it is not known, or not the only one.
    #[must_use]
    pub fn of(&self, claim: &ClaimUid) -> String {
        self.0.lock().get(claim).cloned().unwrap_or_default()
    }

    /// Forgets all claims but these.
    pub fn keep(&self, claims: &BTreeSet<&ClaimUid>) {
        self.0.lock().retain(|claim, _| claims.contains(claim));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claim_of_one_pod_has_its_name() {
        let (pods, uid) = (PodNames::default(), ClaimUid::new("u").unwrap());
        let of = |names: &[&str]| {
            let consumers: Vec<Value> =
                names.iter().map(|name| json!({"resource": "pods", "name": name})).collect();
            pods.note(&uid, &json!({"status": {"reservedFor": consumers}}));
            pods.of(&uid)
        };
        assert_eq!(of(&["one"]), "one");
        assert_eq!(of(&["one", "other"]), "");
        assert_eq!(of(&["again"]), "again");
        assert_eq!(of(&["x".repeat(300).as_str()]), "");
        assert_eq!(of(&["again"]), "again");
        pods.keep(&BTreeSet::new());
        assert_eq!(pods.of(&uid), "");
        pods.note(&uid, &json!({"status": {"reservedFor": [{"resource": "jobs", "name": "j"}]}}));
        assert_eq!(pods.of(&uid), "");
    }
}
