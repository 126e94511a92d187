//! Reads what a packing order of nodes is made of, and writes its taints ([`aliquot_core::node_order`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::kube::Api;
use ::kube::api::{Patch, PatchParams};
use aliquot_core::node_order::{EFFECT, NodeTaint, Rank, RankFound, is_of_order};
use aliquot_core::offer::DRIVER;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::client::Connection;
use super::failure::{ApiCall, code};
use super::survey::get;

/// Objects of one page.
const PAGE: usize = 500;
/// Longest duration of one request.
const REQUEST: Duration = Duration::from_secs(10);
/// Writes of one node until the server takes one: each conflict means that another client wrote it meanwhile.
const WRITES_MAX: u32 = 5;
/// Name under which the server records the writer of the taints.
const MANAGER: &str = "aliquot-order";

/// A node with what its taints say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintedNode {
    /// Its name.
    pub name: String,
    /// Whether this driver publishes devices of it.
    pub has_devices: bool,
    /// Its rank, as found.
    pub rank: RankFound,
}

/// A Pod that a packing order does not move.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndifferentPod(pub String);

/// All nodes of a cluster, by name.
///
/// # Errors
/// Nodes or slices cannot be listed; the text says what to do.
pub async fn nodes(connection: &Connection) -> Result<Vec<TaintedNode>, String> {
    let mut offering = BTreeSet::new();
    let path = format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver%3D{DRIVER}&");
    each(connection, "resourceslices.resource.k8s.io", &path, |slice| {
        // A node without cards has one slice, which is empty.
        if slice["spec"]["devices"].as_array().is_some_and(|devices| !devices.is_empty()) {
            offering.extend(slice["spec"]["nodeName"].as_str().map(str::to_owned));
        }
    })
    .await?;
    let mut nodes = BTreeMap::new();
    each(connection, "nodes", "/api/v1/nodes?", |node| {
        let Some(name) = node["metadata"]["name"].as_str() else { return };
        let rank = RankFound::of(taints(&node).iter().map(taint));
        let has_devices = offering.contains(name);
        nodes.insert(name.to_owned(), TaintedNode { name: name.to_owned(), has_devices, rank });
    })
    .await?;
    Ok(nodes.into_values().collect())
}

/// Pods with claims that bear every taint, so that no order moves them; `namespace/name`.
///
/// # Errors
/// Pods cannot be listed.
pub async fn indifferent_pods(connection: &Connection) -> Result<BTreeSet<IndifferentPod>, String> {
    let mut found = BTreeSet::new();
    let path = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed&";
    each(connection, "pods", path, |pod| {
        let has_claims = pod["spec"]["resourceClaims"].as_array().is_some_and(|claims| !claims.is_empty());
        let tolerations = pod["spec"]["tolerations"].as_array();
        if has_claims && tolerations.into_iter().flatten().any(bears_any_order) {
            let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
            found.insert(IndifferentPod(format!("{}/{}", text("namespace"), text("name"))));
        }
    })
    .await?;
    Ok(found)
}

/// Gives a node exactly the taints of a rank, or none of an order; all other taints stay as they are. Repeated if another client
/// writes the node meanwhile, and without a write where the taints are there already.
///
/// # Errors
/// The node cannot be read or written.
pub async fn write(connection: &Connection, name: &str, rank: Option<Rank>) -> Result<(), String> {
    let nodes: Api<Node> = Api::all(connection.client.clone());
    let call = ApiCall { verb: "patch", resource: "nodes", object: name };
    let mut refused = String::new();
    for _ in 0..WRITES_MAX {
        let node = get(connection, "nodes", &format!("/api/v1/nodes/{name}")).await?;
        let old = taints(&node);
        let new = with_rank(old, rank);
        if new == old {
            return Ok(());
        }
        let version = &node["metadata"]["resourceVersion"];
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": version },
            "spec": { "taints": new },
        }));
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let written = nodes.patch(name, &parameters, &patch);
        match tokio::time::timeout(REQUEST, written).await {
            Err(_elapsed) => return Err(call.timed_out(REQUEST).message),
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) if code(&error) == Some(409) => refused = call.failed(&error).message,
            Ok(Err(error)) => return Err(call.failed(&error).message),
        }
    }
    Err(refused)
}

/// Calls `visit` with each object of a list, page by page.
async fn each(
    connection: &Connection,
    resource: &'static str,
    path: &str,
    mut visit: impl FnMut(Value),
) -> Result<(), String> {
    let mut next = String::new();
    loop {
        let token = next.replace('%', "%25").replace('=', "%3D").replace('+', "%2B").replace('&', "%26");
        let mut page = get(connection, resource, &format!("{path}limit={PAGE}&continue={token}")).await?;
        page["items"].as_array_mut().into_iter().flatten().map(Value::take).for_each(&mut visit);
        match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(token) => token.clone_into(&mut next),
            None => return Ok(()),
        }
    }
}

fn taints(node: &Value) -> &[Value] {
    node["spec"]["taints"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn taint(taint: &Value) -> NodeTaint<'_> {
    let text = |field: &str| taint[field].as_str().unwrap_or_default();
    NodeTaint { key: text("key"), effect: text("effect") }
}

/// Other taints as they were, then those of the rank.
fn with_rank(old: &[Value], rank: Option<Rank>) -> Vec<Value> {
    let others = old.iter().filter(|one| !is_of_order(taint(one).key)).cloned();
    let own = rank.into_iter().flat_map(Rank::keys).map(|key| json!({ "key": key, "effect": EFFECT }));
    others.chain(own).collect()
}

/// Whether a toleration bears taints of an order whatever their key.
fn bears_any_order(toleration: &Value) -> bool {
    let text = |field: &str| toleration[field].as_str().unwrap_or_default();
    text("key").is_empty() && text("operator") == "Exists" && ["", EFFECT].contains(&text("effect"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_taints_stay_as_they_are() {
        let other =
            json!({"key": "a", "value": "b", "effect": "NoExecute", "timeAdded": "2026-11-28T00:00:00Z"});
        let old = [json!({"key": "order.aliquot.dev/3", "effect": "NoSchedule"}), other.clone()];
        let RankFound::Torn(rank) = RankFound::of(old.iter().map(taint)) else { panic!("{old:?}") };
        let own = json!({"key": "order.aliquot.dev/1", "effect": "PreferNoSchedule"});
        assert_eq!(with_rank(&old, Some(rank)), [other.clone(), own]);
        assert_eq!(with_rank(&old, None), [other]);
    }

    #[test]
    fn pods_that_bear_every_taint_are_told_apart() {
        for (toleration, bears) in [
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "PreferNoSchedule"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "nvidia.com/gpu", "operator": "Exists"}), false),
            (json!({"operator": "Equal", "value": ""}), false),
            (json!("torn"), false),
        ] {
            assert_eq!(bears_any_order(&toleration), bears, "{toleration}");
        }
    }
}
