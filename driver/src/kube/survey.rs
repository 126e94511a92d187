//! What a cluster says of itself and of one node, for `aliquot doctor`. Each answer stands alone: one that is forbidden
//! hides no other.

use std::time::Duration;

use aliquot_core::dra::{NodeSelection, ResourceSlice};
use aliquot_core::offer::{CounterNodes, CounterStance, DRIVER, ServerVersion};
use serde_json::Value;

use super::client::Connection;
use super::counter_nodes::{self, CountingNode};
use super::failure::{ApiCall, printable};
use super::publisher::probe;
use crate::manifest::Reader;

/// Longest duration of one request.
const REQUEST: Duration = Duration::from_secs(10);
/// Objects of one list; a node has far fewer slices, a cluster fewer webhooks.
const OBJECTS_MAX: usize = 500;

/// What was seen of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterSight {
    /// The server's version, the fields that it keeps, and the nodes with counters.
    pub server: Result<ServerVersion, String>,
    /// The node.
    pub node: Result<NodeFacts, String>,
    /// This driver's slices of the node.
    pub slices: Result<Vec<ResourceSlice>, String>,
    /// Webhooks that must admit every Pod.
    pub webhooks: Result<Vec<Webhook>, String>,
}

/// What the kubelet reports of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Version of the kubelet: `v1.36.3`.
    pub kubelet: String,
    /// Name and version of the runtime: `containerd://2.1.4`.
    pub runtime: String,
}

/// A webhook without which no Pod is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Name of its configuration.
    pub name: String,
    /// `namespace/name` of its service.
    pub service: String,
    /// Whether an endpoint of the service is ready.
    pub answers: bool,
}

/// Looks at a cluster and one of its nodes.
pub async fn survey(connection: &Connection, node: &str) -> ClusterSight {
    let (slices, stance) = match slices(connection, node).await {
        Ok((slices, stance)) => (Ok(slices), stance),
        Err(why) => (Err(why), None),
    };
    let server = match server(connection, node).await {
        Ok(server) => Ok(server.among(counter_nodes(connection, node, &slices, stance).await)),
        Err(why) => Err(why),
    };
    ClusterSight { server, node: facts(connection, node).await, slices, webhooks: webhooks(connection).await }
}

pub(super) async fn get(
    connection: &Connection,
    resource: &'static str,
    path: &str,
) -> Result<Value, String> {
    let call = ApiCall { verb: "get", resource, object: "" };
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    match tokio::time::timeout(REQUEST, connection.client.request_text(request)).await {
        Err(_elapsed) => Err(call.timed_out(REQUEST).message),
        Ok(Err(error)) => Err(call.failed(&error).message),
        Ok(Ok(text)) => serde_json::from_str(&text).map_err(|error| format!("{resource}: {error}")),
    }
}

async fn server(connection: &Connection, node: &str) -> Result<ServerVersion, String> {
    let asked = probe::probe(&connection.client, DRIVER, node);
    match tokio::time::timeout(REQUEST, asked).await {
        Ok(answer) => answer.map_err(|error| error.message),
        Err(_elapsed) => Err(format!("API server: no answer within {} s", REQUEST.as_secs())),
    }
}

/// The nodes with counters, as the agent of this node counts them.
async fn counter_nodes(
    connection: &Connection,
    node: &str,
    slices: &Result<Vec<ResourceSlice>, String>,
    stance: Option<CounterStance>,
) -> CounterNodes {
    let slices = slices.iter().flatten().map(|slice| slice.name.as_str()).collect();
    let own = CountingNode { node, slices };
    let counting = counter_nodes::count(&connection.client, &own, stance);
    let counted = tokio::time::timeout(REQUEST, counting).await;
    counted.ok().and_then(Result::ok).unwrap_or(CounterNodes::Unknown)
}

async fn facts(connection: &Connection, node: &str) -> Result<NodeFacts, String> {
    let found = get(connection, "nodes", &format!("/api/v1/nodes/{node}")).await?;
    let text = |field: &str| printable(found["status"]["nodeInfo"][field].as_str().unwrap_or_default());
    Ok(NodeFacts { kubelet: text("kubeletVersion"), runtime: text("containerRuntimeVersion") })
}

/// This driver's slices of the node, and what they say of its counters.
async fn slices(
    connection: &Connection,
    node: &str,
) -> Result<(Vec<ResourceSlice>, Option<CounterStance>), String> {
    let path = format!(
        "/apis/resource.k8s.io/v1/resourceslices?limit={OBJECTS_MAX}&fieldSelector=spec.nodeName%3D{node}%2C\
         spec.driver%3D{DRIVER}"
    );
    let mut list = get(connection, "resourceslices.resource.k8s.io", &path).await?;
    let mut reader = Reader::new();
    let labels = list["items"].as_array().into_iter().flatten().map(|item| &item["metadata"]["labels"]);
    let stance = labels.filter_map(|labels| CounterStance::of(labels[counter_nodes::LABEL].as_str()?)).max();
    for item in list["items"].as_array_mut().into_iter().flatten() {
        item["kind"] = "ResourceSlice".into();
        item["apiVersion"] = "resource.k8s.io/v1".into();
        reader.text("API server", &item.to_string());
    }
    let (manifests, _) = reader.finish();
    let is_of_node =
        |slice: &ResourceSlice| slice.driver == DRIVER && slice.node == NodeSelection::Name(node.to_owned());
    Ok((manifests.slices.into_iter().filter(is_of_node).collect(), stance))
}

async fn webhooks(connection: &Connection) -> Result<Vec<Webhook>, String> {
    let mut webhooks = Vec::new();
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}?limit={OBJECTS_MAX}");
        let list = get(connection, kind, &path).await?;
        for configuration in list["items"].as_array().into_iter().flatten() {
            let name = printable(configuration["metadata"]["name"].as_str().unwrap_or_default());
            for webhook in configuration["webhooks"].as_array().into_iter().flatten() {
                let Some((namespace, service)) = gatekeeper(webhook) else { continue };
                let answers = answers(connection, namespace, service).await?;
                let service = format!("{}/{}", printable(namespace), printable(service));
                webhooks.push(Webhook { name: name.clone(), service, answers });
            }
        }
    }
    Ok(webhooks)
}

/// The service of a webhook that must admit Pods; `None`: Pods start without it.
fn gatekeeper(webhook: &Value) -> Option<(&str, &str)> {
    let has = |list: &Value, words: &[&str]| {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).any(|word| words.contains(&word))
    };
    let of_pods = |rule: &Value| {
        has(&rule["resources"], &["pods", "*", "*/*"]) && has(&rule["operations"], &["CREATE", "*"])
    };
    let must = webhook["failurePolicy"].as_str().is_none_or(|policy| policy == "Fail");
    let rules = webhook["rules"].as_array()?;
    let service = &webhook["clientConfig"]["service"];
    let name = (service["namespace"].as_str()?, service["name"].as_str()?);
    // Names become part of a path.
    let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    (must && rules.iter().any(of_pods) && plain(name.0) && plain(name.1)).then_some(name)
}

async fn answers(connection: &Connection, namespace: &str, service: &str) -> Result<bool, String> {
    let path = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?limit={OBJECTS_MAX}&labelSelector=\
         kubernetes.io%2Fservice-name%3D{service}"
    );
    let list = get(connection, "endpointslices.discovery.k8s.io", &path).await?;
    let slices = list["items"].as_array().into_iter().flatten();
    let is_its = |slice: &&Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == service;
    let mut endpoints = slices.filter(is_its).filter_map(|slice| slice["endpoints"].as_array()).flatten();
    // An endpoint without a word on it is ready.
    Ok(endpoints.any(|endpoint| endpoint["conditions"]["ready"] != Value::Bool(false)))
}
