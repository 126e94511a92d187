//! How many nodes of the cluster have counters: those of this driver by a label on one slice a node, others by content.
//!
//! A node keeps its label while layout `auto` does without counters, so no decision changes what it was made of.

use std::collections::BTreeSet;

use ::kube::api::{ListParams, Request};
use ::kube::{Api, Client};
use aliquot_core::disposition::Disposition;
use aliquot_core::offer::{CounterNodes, CounterStance};
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::failure::{ApiCall, code};
use crate::ports::AgentError;

/// Label of a slice: its node has counters, and what layout `auto` makes of them.
pub(super) const LABEL: &str = "aliquot.dev/counters";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const RESOURCE: &str = "resourceslices.resource.k8s.io";
/// Most labelled slices that are read: far more than decide.
const LABELLED_MAX: u32 = 200;
/// Slices of one page, and most pages: content is read while few nodes have the label.
const PAGE: u32 = 50;
const PAGES_MAX: usize = 40;

/// The node that asks, and its slices.
pub(super) struct CountingNode<'a> {
    pub(super) node: &'a str,
    pub(super) slices: BTreeSet<&'a str>,
}

/// A page of slices, with the little that is read of each.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default)]
    items: Vec<CountedSlice>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct CountedSlice {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: CountedSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CountedSpec {
    #[serde(default)]
    node_name: Option<String>,
    #[serde(default)]
    shared_counters: Option<Vec<serde::de::IgnoredAny>>,
}

/// The stance that slices say of their node.
pub(super) fn stance_of<'a>(slices: impl Iterator<Item = &'a ObjectMeta>) -> Option<CounterStance> {
    slices.filter_map(|slice| CounterStance::of(slice.labels.as_ref()?.get(LABEL)?)).max()
}

/// The verdict on the nodes with counters, this one included. A server that does not show them gives
/// [`CounterNodes::Unknown`].
///
/// # Errors
/// The server cannot be reached.
pub(super) async fn count(
    client: &Client,
    own: &CountingNode<'_>,
    before: Option<CounterStance>,
) -> Result<CounterNodes, AgentError> {
    let mut nodes = match labelled(client, own).await {
        Err(error) if error.disposition != Disposition::Retry => return Ok(unknown(&error)),
        labelled => labelled?,
    };
    let judge = |nodes: &BTreeSet<String>| {
        CounterNodes::judge(u32::try_from(nodes.len()).unwrap_or(u32::MAX).saturating_add(1), before)
    };
    let mut next = None;
    for _ in 0..PAGES_MAX {
        if !judge(&nodes).are_few() {
            return Ok(judge(&nodes));
        }
        let page = match page(client, next).await {
            Err(error) if error.disposition != Disposition::Retry => return Ok(unknown(&error)),
            page => page?,
        };
        let has_counters = |slice: &&CountedSlice| {
            slice.spec.shared_counters.as_ref().is_some_and(|counters| !counters.is_empty())
                && !slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL))
                && slice.spec.node_name.as_deref() != Some(own.node)
                && !own.slices.contains(slice.metadata.name.as_deref().unwrap_or_default())
        };
        nodes.extend(page.items.iter().filter(has_counters).map(|slice| match &slice.spec.node_name {
            Some(node) => node.clone(),
            None => node_of(&slice.metadata),
        }));
        next = page.metadata.next.filter(|next| !next.is_empty());
        if next.is_none() {
            return Ok(judge(&nodes));
        }
    }
    tracing::warn!(
        "nodes with counters are not counted: the cluster has more than {PAGES_MAX} pages of slices"
    );
    Ok(CounterNodes::Unknown)
}

fn unknown(error: &AgentError) -> CounterNodes {
    tracing::warn!(%error, "nodes with counters are not counted");
    CounterNodes::Unknown
}

/// Other nodes whose slices have the label.
async fn labelled(client: &Client, own: &CountingNode<'_>) -> Result<BTreeSet<String>, AgentError> {
    let call = ApiCall { verb: "list", resource: RESOURCE, object: "" };
    let slices: Api<api::ResourceSlice> = Api::all(client.clone());
    let with_label = ListParams::default().labels(LABEL).limit(LABELLED_MAX);
    let list = slices.list_metadata(&with_label).await.map_err(|error| failed(call, &error))?;
    let is_other = |slice: &&ObjectMeta| {
        slice.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL))
            && !own.slices.contains(slice.name.as_deref().unwrap_or_default())
    };
    let nodes = list.items.iter().map(|slice| &slice.metadata).filter(is_other).map(node_of);
    Ok(nodes.filter(|node| node != own.node).collect())
}

/// One page of slices without the label.
async fn page(client: &Client, next: Option<String>) -> Result<Page, AgentError> {
    let call = ApiCall { verb: "list", resource: RESOURCE, object: "" };
    let without_label = ListParams::default().labels(&format!("!{LABEL}")).limit(PAGE);
    let params = ListParams { continue_token: next, ..without_label };
    let request = Request::new(SLICES).list(&params).map_err(|error| AgentError {
        message: format!("{RESOURCE}: list cannot be requested: {error}"),
        disposition: Disposition::Broken,
    })?;
    client.request(request).await.map_err(|error| failed(call, &error))
}

/// The error of a list; an expired one begins anew.
fn failed(call: ApiCall<'_>, error: &::kube::Error) -> AgentError {
    let failed = call.failed(error);
    match code(error) {
        Some(410) => AgentError { disposition: Disposition::Retry, ..failed },
        _ => failed,
    }
}

/// The node that owns a slice; its own name, where it has no owner.
fn node_of(slice: &ObjectMeta) -> String {
    let owners = slice.owner_references.as_deref().unwrap_or_default();
    let node = owners.iter().find(|owner| owner.kind == "Node").map(|owner| owner.name.clone());
    node.or_else(|| slice.name.clone()).unwrap_or_default()
}
