//! The count of nodes with counters, from time to time. A verdict changes once two counts agree on it.

use std::time::Duration;

use aliquot_core::offer::{CounterNodes, CounterStance};

use super::PublisherTask;
use super::copies::ServerSlice;
use crate::clock;
use crate::kube::counter_nodes::{self, CountingNode};
use crate::kube::failure::ApiCall;
use crate::ports::AgentError;

/// Nodes from which on the number is asked for seldom: it is far from where the verdict changes.
const SURELY_MANY: u32 = 40;

impl PublisherTask {
    /// Counts if it is time for it, and the version makes a difference.
    ///
    /// # Errors
    /// The nodes were never counted, and cannot be now.
    pub(super) async fn count_nodes(&mut self) -> Result<(), AgentError> {
        let Some(server) = self.server else { return Ok(()) };
        if server.counters_are_cheap() || !server.counters.is_kept() {
            self.counter_nodes.get_or_insert(server.counter_nodes);
            return Ok(());
        }
        let left = self.counted.map(|at| self.count_age().saturating_sub(clock::now().duration_since(at)));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            self.wake(left);
            return Ok(());
        }
        let limit = self.timing.request;
        let own = CountingNode {
            node: self.node.as_str(),
            slices: self.copies.iter().map(ServerSlice::name).collect(),
        };
        let before = self.stance();
        let counting = counter_nodes::count(&self.client, &own, before);
        let call = ApiCall { verb: "list", resource: "resourceslices.resource.k8s.io", object: "" };
        let counted = tokio::time::timeout(limit, counting).await;
        match counted.unwrap_or_else(|_elapsed| Err(call.timed_out(limit))) {
            Ok(nodes) => self.judged(nodes),
            Err(error) if self.counter_nodes.is_none() => return Err(error),
            Err(error) => tracing::debug!(%error, "nodes with counters are counted again later"),
        }
        self.counted = Some(clock::now());
        let next = self.count_age();
        self.wake(next);
        Ok(())
    }

    fn judged(&mut self, nodes: CounterNodes) {
        let differs = self.counter_nodes.is_some_and(|known| known.are_few() != nodes.are_few());
        if differs && !std::mem::replace(&mut self.recounts, true) {
            tracing::info!(?nodes, "another verdict on the nodes with counters: they are counted once more");
            return;
        }
        self.recounts = false;
        if self.counter_nodes != Some(nodes) {
            tracing::info!(?nodes, "nodes with counters");
        }
        self.counter_nodes = Some(nodes);
    }

    /// What was decided last: here, or before this agent's start.
    fn stance(&self) -> Option<CounterStance> {
        match self.counter_nodes {
            Some(CounterNodes::Few(_)) => Some(CounterStance::Published),
            Some(CounterNodes::Many(_)) => Some(CounterStance::Withheld),
            Some(CounterNodes::Unknown) => None,
            None => counter_nodes::stance_of(self.copies.iter().map(|copy| &copy.object().metadata)),
        }
    }

    fn count_age(&self) -> Duration {
        match self.counter_nodes {
            Some(CounterNodes::Many(count)) if count > SURELY_MANY => self.timing.probe_age,
            _ => self.timing.count_age,
        }
    }
}
