//! `status.devices` of claims: this driver's entries are replaced, entries of other drivers stay.
//!
//! The claim is handled as plain JSON: a field that this build does not know survives the write. The merge patch names
//! the version that it was made from, so a change in between is a conflict and not a loss.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::kube::Client;
use aliquot_core::disposition::Disposition;
use aliquot_core::offer::DRIVER;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::claims::{get_claim, path};
use super::client::Connection;
use super::failure::{ApiCall, code, printable};
use crate::kube::pod_names::PodNames;
use crate::ports::{AgentError, BoxFuture, ClaimReference, Condition, DeviceStatus, StatusWriter, Truth};

/// Conflicts in a row after which the caller tries again.
const CONFLICTS_MAX: u32 = 5;
/// Longest duration of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Conditions of a device that the API takes.
const CONDITIONS_MAX: usize = 8;
/// Bytes of `data` that the API takes.
const DATA_BYTES_MAX: usize = 10 * 1_024;

/// Writes `status.devices`.
#[derive(Clone)]
pub struct ApiStatus {
    client: Client,
    /// Learns the Pods of each claim that is read.
    pods: Arc<PodNames>,
}

// === impl ApiStatus ===

impl ApiStatus {
    /// A writer over this connection.
    #[must_use]
    pub fn new(connection: &Connection) -> Self {
        Self { client: connection.client.clone(), pods: Arc::default() }
    }

    /// The same, which notes the Pods of claims here.
    #[must_use]
    pub fn with_pods(self, pods: Arc<PodNames>) -> Self {
        Self { pods, ..self }
    }

    async fn replace(&self, claim: &ClaimReference, devices: &[DeviceStatus]) -> Result<(), AgentError> {
        let object = format!("{}/{}", claim.namespace, claim.name);
        let own = entries(&object, devices)?;
        for _ in 0..CONFLICTS_MAX {
            let text = get_claim(&self.client, claim).await?;
            if let Ok(object) = serde_json::from_str(&text) {
                self.pods.note(&claim.uid, &object);
            }
            let Some(patch) = patch(claim, &text, &own)? else { return Ok(()) };
            if self.send(claim, &object, &patch).await? {
                return Ok(());
            }
        }
        Err(AgentError {
            message: format!(
                "claim {object}: status.devices is not written: found {CONFLICTS_MAX} conflicting changes in a row; \
                 it is written again later"
            ),
            disposition: Disposition::Retry,
        })
    }

    /// Sends the patch; whether it is applied, rather than in conflict with a change by others.
    async fn send(&self, claim: &ClaimReference, object: &str, patch: &Value) -> Result<bool, AgentError> {
        let call = ApiCall { verb: "patch", resource: "resourceclaims/status.resource.k8s.io", object };
        let request = http::Request::patch(format!("{}/status", path(claim)?))
            .header("content-type", "application/merge-patch+json")
            .body(patch.to_string().into_bytes())
            .map_err(|error| AgentError {
                message: format!("claim {}: no request can be made of it: {error}", printable(object)),
                disposition: Disposition::Refuse,
            })?;
        match tokio::time::timeout(REQUEST_TIMEOUT, self.client.request_text(request)).await {
            Err(_elapsed) => Err(call.timed_out(REQUEST_TIMEOUT)),
            Ok(Ok(_claim)) => Ok(true),
            Ok(Err(error)) if code(&error) == Some(409) => Ok(false),
            Ok(Err(error)) if matches!(code(&error), Some(400 | 422)) => {
                Err(AgentError { disposition: Disposition::Refuse, ..call.failed(&error) })
            }
            Ok(Err(error)) => Err(call.failed(&error)),
        }
    }
}

impl StatusWriter for ApiStatus {
    fn write<'a>(
        &'a self,
        claim: &'a ClaimReference,
        devices: &'a [DeviceStatus],
    ) -> BoxFuture<'a, Result<(), AgentError>> {
        Box::pin(self.replace(claim, devices))
    }
}

/// The entries as the API has them.
fn entries(object: &str, devices: &[DeviceStatus]) -> Result<Vec<Value>, AgentError> {
    devices.iter().map(|device| entry(object, device)).collect()
}

fn entry(object: &str, status: &DeviceStatus) -> Result<Value, AgentError> {
    let refuse = |what: &str, found: usize, most: usize| AgentError {
        message: format!(
            "claim {object}: status of device {}: found {found} {what}, expected at most {most}; report this",
            status.device
        ),
        disposition: Disposition::Refuse,
    };
    if status.conditions.len() > CONDITIONS_MAX {
        return Err(refuse("conditions", status.conditions.len(), CONDITIONS_MAX));
    }
    let bytes = status.data.to_string().len();
    if bytes > DATA_BYTES_MAX {
        return Err(refuse("bytes of data", bytes, DATA_BYTES_MAX));
    }
    let conditions: Vec<Value> = status.conditions.iter().map(condition).collect();
    let mut entry = json!({
        "driver": status.device.driver, "pool": status.device.pool, "device": status.device.device,
        "conditions": conditions,
    });
    if let Some(share) = &status.share {
        entry["shareID"] = share.as_str().into();
    }
    if !status.data.is_null() {
        entry["data"] = status.data.clone();
    }
    Ok(entry)
}

fn condition(condition: &Condition) -> Value {
    let status = match condition.status {
        Truth::True => "True",
        Truth::False => "False",
        Truth::Unknown => "Unknown",
    };
    json!({
        "type": condition.kind, "status": status, "reason": condition.reason, "message": condition.message,
        "lastTransitionTime": seconds(condition.changed),
    })
}

/// Time as the API writes it, in whole seconds.
fn seconds(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let stamp = i64::try_from(since).ok().and_then(|since| Timestamp::from_second(since).ok());
    stamp.unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// The patch that brings the claim's status to these entries; `None`: it has them already.
fn patch(claim: &ClaimReference, text: &str, own: &[Value]) -> Result<Option<Value>, AgentError> {
    let refuse = |message: String| AgentError { message, disposition: Disposition::Refuse };
    let object = format!("claim {}/{}", claim.namespace, claim.name);
    let found: Value = serde_json::from_str(text)
        .map_err(|error| refuse(format!("{object}: the server's answer is no JSON: {error}")))?;
    let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
    if uid != claim.uid.as_str() {
        return Err(refuse(format!(
            "{object}: found UID {}, expected {}; the claim was deleted and another one has its name",
            printable(uid),
            claim.uid
        )));
    }
    let results = found.pointer("/status/allocation/devices/results").and_then(Value::as_array);
    let allocated = |entry: &Value| results.into_iter().flatten().any(|result| same_device(result, entry));
    let read = |entry: &Value| {
        let mut devices = results.into_iter().flatten().filter(|result| result["adminAccess"] == true);
        devices.any(|result| same_device(result, entry))
    };
    let old: &[Value] = found.pointer("/status/devices").and_then(Value::as_array).map_or(&[], Vec::as_slice);
    // The server rejects entries of devices that the claim does not hold any more.
    let own: Vec<Value> = own.iter().filter(|entry| allocated(entry)).map(|entry| aged(entry, old)).collect();
    // An agent that started since knows what the claim holds, not what it reads.
    let is_kept = |entry: &Value| {
        entry["driver"] != DRIVER || (read(entry) && !own.iter().any(|one| same_device(one, entry)))
    };
    let mut merged: Vec<Value> = old.iter().filter(|entry| is_kept(entry)).cloned().collect();
    merged.extend(own);
    let unchanged = merged.len() == old.len() && merged.iter().all(|entry| old.contains(entry));
    let version = &found["metadata"]["resourceVersion"];
    Ok((!unchanged).then(|| {
        json!({
            "metadata": { "uid": uid, "resourceVersion": version },
            "status": { "devices": merged },
        })
    }))
}

/// An entry whose conditions are as old as the same ones of the server: the time is that of the last change of the status.
fn aged(entry: &Value, old: &[Value]) -> Value {
    let mut entry = entry.clone();
    let before = old.iter().find(|one| same_device(one, &entry));
    let before: Vec<&Value> =
        before.and_then(|one| one["conditions"].as_array()).into_iter().flatten().collect();
    for condition in entry["conditions"].as_array_mut().into_iter().flatten() {
        let same = |one: &&&Value| ["type", "status"].iter().all(|field| one[field] == condition[field]);
        if let Some(one) = before.iter().find(same)
            && one["lastTransitionTime"].is_string()
        {
            condition["lastTransitionTime"] = one["lastTransitionTime"].clone();
        }
    }
    entry
}

/// Whether two entries are of one device and share.
fn same_device(one: &Value, other: &Value) -> bool {
    ["driver", "pool", "device", "shareID"].iter().all(|field| one[field] == other[field])
}

#[cfg(test)]
mod tests {
    use aliquot_core::dra::DeviceId;
    use aliquot_core::id::ClaimUid;

    use super::*;

    fn reference() -> ClaimReference {
        ClaimReference { namespace: "a".to_owned(), name: "c".to_owned(), uid: ClaimUid::new("u1").unwrap() }
    }

    fn status(device: &str, share: Option<&str>) -> DeviceStatus {
        DeviceStatus {
            device: DeviceId { driver: DRIVER.to_owned(), pool: "p".to_owned(), device: device.to_owned() },
            share: share.map(str::to_owned),
            conditions: vec![Condition {
                kind: "Ready",
                status: Truth::True,
                reason: "Prepared".to_owned(),
                message: String::new(),
                changed: SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600),
            }],
            data: json!({"card": "GPU-1"}),
        }
    }

    fn claim(results: &Value, devices: &Value) -> String {
        json!({
            "metadata": {"uid": "u1", "resourceVersion": "7"},
            "status": {"allocation": {"devices": {"results": results}}, "devices": devices},
        })
        .to_string()
    }

    #[test]
    fn entries_of_other_drivers_stay() {
        let results = json!([
            {"request": "r", "driver": DRIVER, "pool": "p", "device": "d", "shareID": "s1"},
            {"request": "n", "driver": "net.example.com", "pool": "p", "device": "d"},
        ]);
        let foreign =
            json!({"driver": "net.example.com", "pool": "p", "device": "d", "networkData": {"x": 1}});
        let stale = json!({"driver": DRIVER, "pool": "p", "device": "gone"});
        let own = entries("a/c", &[status("d", Some("s1")), status("not-allocated", None)]).unwrap();
        let patch = patch(&reference(), &claim(&results, &json!([stale, foreign])), &own).unwrap().unwrap();
        assert_eq!(patch["metadata"], json!({"uid": "u1", "resourceVersion": "7"}));
        assert_eq!(patch["status"]["devices"], json!([foreign, own[0]]));
        assert_eq!(own[0]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
    }

    #[test]
    fn equal_entries_are_not_written() {
        let results = json!([{"request": "r", "driver": DRIVER, "pool": "p", "device": "d"}]);
        let own = entries("a/c", &[status("d", None)]).unwrap();
        assert_eq!(patch(&reference(), &claim(&results, &json!(own)), &own).unwrap(), None);
    }

    #[test]
    fn conditions_keep_the_time_of_their_last_change() {
        let results = json!([{"request": "r", "driver": DRIVER, "pool": "p", "device": "d"}]);
        let old = entries("a/c", &[status("d", None)]).unwrap();
        let mut later = status("d", None);
        later.conditions[0].changed += Duration::from_secs(3_600);
        let same = entries("a/c", &[later.clone()]).unwrap();
        let of = |own: &[Value]| patch(&reference(), &claim(&results, &json!(old)), own).unwrap();
        assert_eq!(of(&same), None, "only the time of the write differs");
        later.conditions[0].reason = "Repaired".to_owned();
        let reason = of(&entries("a/c", &[later.clone()]).unwrap()).unwrap();
        let condition = |patch: &Value| patch["status"]["devices"][0]["conditions"][0].clone();
        assert_eq!(condition(&reason)["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(condition(&reason)["reason"], "Repaired");
        later.conditions[0].status = Truth::False;
        let changed = of(&entries("a/c", &[later]).unwrap()).unwrap();
        assert_eq!(condition(&changed)["lastTransitionTime"], "2026-01-01T01:00:00Z");
    }

    #[test]
    fn entries_of_devices_that_are_read_stay() {
        let results = json!([
            {"request": "r", "driver": DRIVER, "pool": "p", "device": "d"},
            {"request": "m", "driver": DRIVER, "pool": "p", "device": "read", "adminAccess": true},
        ]);
        let old = entries("a/c", &[status("read", None), status("given-back", None)]).unwrap();
        let own = entries("a/c", &[status("d", None)]).unwrap();
        let patch = patch(&reference(), &claim(&results, &json!(old)), &own).unwrap().unwrap();
        assert_eq!(patch["status"]["devices"], json!([old[0], own[0]]));
    }

    #[test]
    fn entries_beyond_the_limits_are_refused() {
        let mut many = status("d", None);
        many.conditions = vec![many.conditions[0].clone(); CONDITIONS_MAX + 1];
        let mut large = status("d", None);
        large.data = json!({"x": "y".repeat(DATA_BYTES_MAX)});
        for status in [many, large] {
            assert_eq!(entries("a/c", &[status]).unwrap_err().disposition, Disposition::Refuse);
        }
        let other = json!({"metadata": {"uid": "u2"}}).to_string();
        assert!(patch(&reference(), &other, &[]).unwrap_err().message.contains("found UID u2"));
    }
}
