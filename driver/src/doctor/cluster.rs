//! What the cluster says of itself and of this node: versions, gates, webhooks, published slices against the hardware.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::card::Inventory;
use aliquot_core::dra::{AttributeValue, Device, ResourceSlice};
use aliquot_core::offer::{CounterNodes, ServerVersion};

use super::{CardsAt, CheckVerdict, Finding};
pub use crate::kube::survey::ClusterSight;
use crate::kube::survey::{NodeFacts, Webhook};

/// Oldest minor version that serves the device API.
const SERVER_MIN: u32 = 34;
/// Oldest minor version whose default gates keep counters, shares and taints.
const SERVER_WHOLE: u32 = 36;
/// A kubelet may be so many minor versions behind its server.
const KUBELET_BEHIND_MAX: u32 = 3;

/// Every check of the cluster; `Err` says why it cannot be reached.
#[must_use]
pub fn judge_cluster(sight: &Result<ClusterSight, String>, node: &str, cards: &CardsAt) -> Vec<Finding> {
    const CHECKS: [&str; 5] = ["versions", "feature gates", "webhooks", "layout auto", "published slices"];
    let sight = match sight {
        Ok(sight) => sight,
        Err(why) => {
            let remedy = "give --node-name NAME and --kubeconfig FILE, or run it in the agent's container";
            return CHECKS.map(|check| Finding::new(check, CheckVerdict::NotChecked, why, remedy)).to_vec();
        }
    };
    vec![
        versions(CHECKS[0], &sight.server, &sight.node, node),
        gates(CHECKS[1], &sight.server),
        webhooks(CHECKS[2], &sight.webhooks),
        auto_layout(CHECKS[3], &sight.server),
        slices(CHECKS[4], &sight.slices, node, cards),
    ]
}

fn unseen(check: &'static str, why: &str) -> Finding {
    Finding::new(check, CheckVerdict::NotChecked, why, "use credentials that may read it")
}

fn versions(
    check: &'static str,
    server: &Result<ServerVersion, String>,
    node: &Result<NodeFacts, String>,
    name: &str,
) -> Finding {
    let server = match server {
        Ok(server) => server,
        Err(why) => return unseen(check, why),
    };
    if server.minor < SERVER_MIN {
        let found = format!("API server {server}, expected 1.{SERVER_MIN} or later");
        return Finding::new(
            check,
            CheckVerdict::Failed,
            found,
            "update the cluster: it has no resource.k8s.io/v1",
        );
    }
    let facts = match node {
        Ok(facts) => facts,
        Err(why) => return unseen(check, why),
    };
    let Some(kubelet) = minor(&facts.kubelet) else {
        return unseen(check, &format!("node {name}: kubelet version `{}` is not understood", facts.kubelet));
    };
    if kubelet > server.minor || kubelet + KUBELET_BEHIND_MAX < server.minor || kubelet < SERVER_MIN {
        let found = format!("kubelet {} with API server {server}", facts.kubelet);
        let remedy = format!(
            "update the kubelet of this node: 1.{SERVER_MIN} or later, not newer than the server and at most \
             {KUBELET_BEHIND_MAX} behind it"
        );
        return Finding::new(check, CheckVerdict::Failed, found, remedy);
    }
    if let Some(("containerd", version)) = facts.runtime.split_once("://")
        && (version.starts_with("0.")
            || ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6"]
                .iter()
                .any(|old| version.starts_with(&format!("{old}."))))
    {
        let found = format!("container runtime {}, expected containerd 1.7 or later", facts.runtime);
        return Finding::new(
            check,
            CheckVerdict::Failed,
            found,
            "update containerd: older ones do not know CDI",
        );
    }
    Finding::ok(check, format!("API server {server}, kubelet {}, {}", facts.kubelet, facts.runtime))
}

/// The minor version in `v1.36.3-eks-1a2b3c`.
fn minor(version: &str) -> Option<u32> {
    version.trim_start_matches('v').split('.').nth(1)?.parse().ok()
}

fn gates(check: &'static str, server: &Result<ServerVersion, String>) -> Finding {
    let server = match server {
        Ok(server) => server,
        Err(why) => return unseen(check, why),
    };
    let fields = [
        ("DRAPartitionableDevices", server.counters, "no partition of a card is published beside others"),
        ("DRAConsumableCapacity", server.shares, "no shares are published"),
        ("DRADeviceTaints", server.taints, "unhealthy cards are not tainted"),
    ];
    let lost: Vec<_> = fields.iter().filter(|(_, support, _)| !support.is_kept()).collect();
    if lost.is_empty() {
        return Finding::ok(check, "the server keeps counters, shares and taints");
    }
    let list = |part: fn(&&(&'static str, aliquot_core::offer::Support, &'static str)) -> &'static str| {
        lost.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    let found = format!("the server drops fields: {}", list(|(_, _, effect)| effect));
    let remedy = format!(
        "switch on {} of API server, scheduler and controllers; on a managed cluster update to 1.{SERVER_WHOLE}, which \
         has them on",
        list(|(gate, _, _)| gate)
    );
    Finding::new(check, CheckVerdict::Warning, found, remedy)
}

fn webhooks(check: &'static str, webhooks: &Result<Vec<Webhook>, String>) -> Finding {
    let webhooks = match webhooks {
        Ok(webhooks) => webhooks,
        Err(why) => return unseen(check, why),
    };
    match webhooks.iter().find(|webhook| !webhook.answers) {
        None => {
            let count = webhooks.len();
            Finding::ok(check, format!("Aliquot has none; {count} of others must admit Pods, and answer"))
        }
        Some(dead) => Finding::new(
            check,
            CheckVerdict::Failed,
            format!(
                "{} must admit every Pod, and its service {} has no ready endpoint",
                dead.name, dead.service
            ),
            "no Pod starts: bring the service up, or delete the webhook's configuration",
        ),
    }
}

/// Whether layout `auto` publishes MIG instances and vNPUs, and why.
fn auto_layout(check: &'static str, server: &Result<ServerVersion, String>) -> Finding {
    let server = match server {
        Ok(server) => server,
        Err(why) => return unseen(check, why),
    };
    let most = CounterNodes::FEW_MAX;
    match server.counter_nodes {
        _ if !server.counters.is_kept() => {
            Finding::ok(check, "no MIG instance and no vNPU is cut on demand: the server keeps no counters")
        }
        _ if server.counters_are_cheap() => {
            Finding::ok(check, "cards with templates are cut on demand: this server counts cheaply")
        }
        CounterNodes::Few(count) => Finding::ok(
            check,
            format!(
                "cards with templates are cut on demand: nodes with counters: {count}, before Kubernetes 1.37 at most {most}"
            ),
        ),
        CounterNodes::Many(count) => Finding::ok(
            check,
            format!(
                "no MIG instance and no vNPU is cut on demand: nodes with counters: {count}, before Kubernetes 1.37 at \
                 most {most}; a policy with layout dynamic cuts them all the same"
            ),
        ),
        CounterNodes::Unknown => unseen(check, "the nodes with counters cannot be counted"),
    }
}

fn slices(
    check: &'static str,
    slices: &Result<Vec<ResourceSlice>, String>,
    node: &str,
    cards: &CardsAt,
) -> Finding {
    let slices = match slices {
        Ok(slices) => slices,
        Err(why) => return unseen(check, why),
    };
    if slices.is_empty() {
        let remedy = "start the agent of this node; its log names what keeps it from publishing";
        return Finding::new(check, CheckVerdict::Failed, format!("node {node} has none"), remedy);
    }
    if let Some(pool) = incomplete(slices) {
        let remedy = "wait for the agent to write the rest; /readyz of the agent says what keeps it";
        return Finding::new(
            check,
            CheckVerdict::Failed,
            format!("pool {pool} is incomplete: no device of it is allocated"),
            remedy,
        );
    }
    let inventory = match cards {
        CardsAt::Simulated(inventory) => inventory,
        CardsAt::Machine(Ok(answer)) => &answer.cards,
        CardsAt::Machine(Err(_)) => &Inventory::default(),
    };
    let (there, published): (BTreeSet<&str>, BTreeSet<&str>) = (
        inventory.cards.iter().map(|card| card.uuid.as_str()).collect(),
        slices.iter().flat_map(|slice| slice.devices.iter()).filter_map(card_of).collect(),
    );
    if let Some(gone) = published.difference(&there).next() {
        let found = format!("card {gone} is published, and this node does not have it");
        let remedy = "restart the agent; a claim on that card cannot be prepared";
        return Finding::new(check, CheckVerdict::Failed, found, remedy);
    }
    if let Some(absent) = there.difference(&published).next() {
        let found = format!("card {absent} is not published");
        let remedy = "the agent's log says why; a policy may exclude it";
        return Finding::new(check, CheckVerdict::Warning, found, remedy);
    }
    let devices: usize = slices.iter().map(|slice| slice.devices.len()).sum();
    Finding::ok(check, format!("{devices} devices of {} cards in {} slices", there.len(), slices.len()))
}

/// A pool of which slices are missing at its newest generation.
fn incomplete(slices: &[ResourceSlice]) -> Option<&str> {
    let mut pools: BTreeMap<&str, (i64, i64, i64)> = BTreeMap::new();
    for slice in slices {
        let (generation, count) = (slice.pool.generation, slice.pool.slice_count);
        let newest = pools.entry(&slice.pool.name).or_insert((generation, count, 0));
        if generation > newest.0 {
            *newest = (generation, count, 0);
        }
        newest.2 += i64::from(generation == newest.0);
    }
    pools.into_iter().find(|(_, (_, expected, found))| expected != found).map(|(name, _)| name)
}

/// The card that a device is, or is a part of.
fn card_of(device: &Device) -> Option<&str> {
    let text = |name: &str| match device.attributes.get(name) {
        Some(AttributeValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    text("parentUUID").or_else(|| text("uuid"))
}
