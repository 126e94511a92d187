//! What the API server has of one node, for a support archive. Each answer stands alone; Pods lose what may carry a secret.

use std::collections::BTreeSet;

use aliquot_core::offer::DRIVER;
use serde_json::{Map, Value, json};

use super::client::Connection;
use super::events::CONTROLLER;
use super::survey::get;

/// The group that has claims.
const DRA: &str = "resource.k8s.io/v1";
/// Objects of a page, and most pages of a list: a cluster has more claims than an archive needs.
const PAGE: usize = 500;
const PAGES_MAX: usize = 40;

/// A part of the answer: its name, and the objects or why there are none.
pub type NodeObjects = (&'static str, Result<Value, String>);

/// The node's objects, as this user may read them.
pub async fn of_node(connection: &Connection, node: &str) -> Vec<NodeObjects> {
    let on_node = format!("spec.nodeName={node}");
    let of_dra = |kind| Listed { group: DRA, kind };
    let of_core = |kind| Listed { group: "v1", kind };
    let slices = of_dra("ResourceSlice").list(connection, &on_node).await;
    let pools = pools_of(&slices);
    let claims = of_dra("ResourceClaim").list(connection, "").await;
    let claims = claims.map(|claims| kept(claims, &|claim| is_in(claim, &pools)));
    let pods = of_core("Pod").list(connection, &on_node).await.map(stripped);
    let waiting = of_core("Pod").list(connection, "spec.nodeName=").await.map(stripped);
    let own = get(connection, "nodes", &format!("/api/v1/nodes/{node}")).await.map(|mut own| {
        without_history(&mut own);
        own
    });
    let reporter = format!("reportingComponent={CONTROLLER}");
    vec![
        ("version", get(connection, "version", "/version").await),
        ("node", own),
        ("resourceslices", slices),
        ("deviceclasses", of_dra("DeviceClass").list(connection, "").await),
        ("resourceclaims", claims),
        ("pods", pods),
        ("pods-without-node", waiting),
        ("events", of_core("Event").list(connection, &reporter).await),
    ]
}

/// A kind whose objects are listed.
struct Listed {
    group: &'static str,
    kind: &'static str,
}

// === impl Listed ===

impl Listed {
    /// All pages, as a `List` that `aliquot explain -f` reads, without the fields of field managers. One that is longer than the
    /// pages that are read has `metadata.continue`.
    async fn list(&self, connection: &Connection, selector: &str) -> Result<Value, String> {
        let Self { group, kind } = self;
        let (resource, root) = match *kind {
            "ResourceSlice" => ("resourceslices", "/apis"),
            "ResourceClaim" => ("resourceclaims", "/apis"),
            "DeviceClass" => ("deviceclasses", "/apis"),
            "Pod" => ("pods", "/api"),
            _ => ("events", "/api"),
        };
        let selector = selector.replace('=', "%3D").replace('/', "%2F");
        let (mut items, mut next) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let page = format!(
                "{root}/{group}/{resource}?limit={PAGE}&fieldSelector={selector}&continue={}",
                next.replace('=', "%3D")
            );
            let mut found = get(connection, resource, &page).await?;
            items.extend(items_mut(&mut found).map(Value::take));
            next = found["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                break;
            }
        }
        for item in &mut items {
            item["apiVersion"] = json!(group);
            item["kind"] = json!(kind);
            without_history(item);
        }
        Ok(json!({ "apiVersion": "v1", "kind": "List", "metadata": { "continue": next }, "items": items }))
    }
}

/// Removes the field managers, and the earlier form of the object that a client keeps: it has what a Pod loses below.
fn without_history(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    metadata.remove("managedFields");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

fn items_mut(list: &mut Value) -> impl Iterator<Item = &mut Value> {
    list["items"].as_array_mut().into_iter().flatten()
}

fn kept(mut list: Value, keep: &dyn Fn(&Value) -> bool) -> Value {
    if let Some(items) = list["items"].as_array_mut() {
        items.retain(|item| keep(item));
    }
    list
}

/// The pools of this driver's slices.
fn pools_of(slices: &Result<Value, String>) -> BTreeSet<String> {
    let all = slices.iter().flat_map(|list| list["items"].as_array().into_iter().flatten());
    let ours = all.filter(|slice| slice["spec"]["driver"] == json!(DRIVER));
    ours.filter_map(|slice| slice["spec"]["pool"]["name"].as_str().map(str::to_owned)).collect()
}

/// Whether a claim waits for its allocation or has a device of these pools.
fn is_in(claim: &Value, pools: &BTreeSet<String>) -> bool {
    match claim["status"]["allocation"]["devices"]["results"].as_array() {
        None => true,
        Some(results) => results.iter().any(|result| {
            result["driver"] == json!(DRIVER)
                && result["pool"].as_str().is_some_and(|pool| pools.contains(pool))
        }),
    }
}

fn stripped(mut pods: Value) -> Value {
    items_mut(&mut pods).for_each(strip_pod);
    pods
}

/// Leaves of a Pod what tells which claims it has and how it is.
fn strip_pod(pod: &mut Value) {
    const CONTAINER: &[&str] = &["name", "image", "resources"];
    const SPEC: &[&str] =
        &["nodeName", "resourceClaims", "schedulerName", "tolerations", "priorityClassName"];
    let mut spec = only(&pod["spec"], SPEC);
    for kind in ["initContainers", "containers"] {
        if let Some(containers) = pod["spec"][kind].as_array() {
            spec.insert(kind.to_owned(), containers.iter().map(|one| only(one, CONTAINER)).collect());
        }
    }
    let metadata = only(
        &pod["metadata"],
        &["namespace", "name", "uid", "labels", "creationTimestamp", "deletionTimestamp"],
    );
    // The last words of a container are what it liked to write, such as the end of its log.
    for kind in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        for container in pod["status"][kind].as_array_mut().into_iter().flatten() {
            for state in ["state", "lastState"] {
                if let Some(ended) = container[state]["terminated"].as_object_mut() {
                    ended.remove("message");
                }
            }
        }
    }
    *pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": pod["status"].take() });
}

fn only(object: &Value, fields: &[&str]) -> Map<String, Value> {
    let all = fields.iter().filter_map(|field| Some(((*field).to_owned(), object.get(field)?.clone())));
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_keeps_claims_and_no_environment() {
        let mut pod = json!({
            "metadata": {"name": "p", "annotations": {"token": "secret-1"}},
            "spec": {
                "nodeName": "n",
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
                "volumes": [{"secret": {"secretName": "secret-3"}}],
                "containers": [{
                    "name": "main", "image": "i", "command": ["run", "--key=secret-4"], "args": ["secret-5"],
                    "env": [{"name": "KEY", "value": "secret-6"}],
                    "resources": {"claims": [{"name": "gpu"}]},
                }],
            },
            "status": {"phase": "Pending", "containerStatuses": [{"name": "main", "lastState": {
                "terminated": {"exitCode": 1, "message": "secret-7"},
            }}]},
        });
        strip_pod(&mut pod);
        let text = pod.to_string();
        assert!(!text.contains("secret-"), "{text}");
        assert_eq!(pod["spec"]["containers"][0]["resources"]["claims"][0]["name"], "gpu");
        assert_eq!(pod["spec"]["resourceClaims"][0]["resourceClaimName"], "c");
        assert_eq!(pod["status"]["phase"], "Pending");
        assert_eq!(pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 1);
    }

    #[test]
    fn claims_of_other_pools_are_left_out() {
        let pools = BTreeSet::from(["n/whole".to_owned()]);
        let on = |driver: &str, pool: &str| json!({"status": {"allocation": {"devices": {"results": [{"driver": driver, "pool": pool}]}}}});
        assert!(is_in(&on(DRIVER, "n/whole"), &pools));
        assert!(!is_in(&on(DRIVER, "other/whole"), &pools));
        assert!(!is_in(&on("gpu.nvidia.com", "n/whole"), &pools));
        assert!(is_in(&json!({"status": {}}), &pools), "it waits for its allocation");
    }
}
