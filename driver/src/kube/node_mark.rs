//! Maintenance mark of the agent's node, from a watch of this one object.

use std::time::Duration;

use ::kube::Api;
use ::kube::runtime::{WatchStreamExt, watcher};
use aliquot_core::id::NodeName;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio::time::timeout;

use super::backoff::Backoff;
use super::client::Connection;
use crate::ports::MaintenanceMark;

/// Label of a node whose drivers are to be free, once it is cordoned.
pub const MAINTENANCE_LABEL: &str = "aliquot.dev/maintenance";
/// Delay after a failure of the watch, and the longest one.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Time after which the node is listed anew: a watch from a version that a restored server never had reports nothing.
const LIST_AGAIN: Duration = Duration::from_secs(300);

/// Follows the node for as long as the receiver is there.
pub async fn follow(connection: Connection, node: NodeName, marks: watch::Sender<MaintenanceMark>) {
    let nodes: Api<Node> = Api::all(connection.client.clone());
    let mut reported = String::new();
    while !marks.is_closed() {
        let config = watcher::Config::default().fields(&format!("metadata.name={node}")).timeout(60);
        let events = watcher(nodes.clone(), config).backoff(Backoff::new(RETRY.0, RETRY.1));
        let mut events = std::pin::pin!(events);
        let listen = async {
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) => {
                        let mark = mark(&node);
                        marks.send_if_modified(|known| std::mem::replace(known, mark) != mark);
                    }
                    Ok(_) => {}
                    Err(error) if error.to_string() != reported => {
                        reported = error.to_string();
                        tracing::warn!("the node's label for maintenance is not seen: {reported}");
                    }
                    Err(_) => {}
                }
            }
        };
        drop(timeout(LIST_AGAIN, listen).await);
    }
}

fn mark(node: &Node) -> MaintenanceMark {
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(MAINTENANCE_LABEL));
    let is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    match (label.map(String::as_str), is_cordoned) {
        (Some("true"), true) => MaintenanceMark::Wanted,
        (Some("true"), false) => MaintenanceMark::LabelAlone,
        (Some(_) | None, _) => MaintenanceMark::None,
    }
}
