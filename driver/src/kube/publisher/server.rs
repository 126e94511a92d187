//! The server's version and the fields that it keeps, asked for from time to time.

use aliquot_core::offer::{DRIVER, ServerVersion};

use super::{PublisherTask, probe};
use crate::clock;
use crate::kube::failure::ApiCall;
use crate::ports::AgentError;

impl PublisherTask {
    /// Asks the server; another answer than before has slices planned anew.
    ///
    /// # Errors
    /// It does not answer, is too old, or says nothing that can be read.
    pub(super) async fn ask_server(&mut self) -> Result<(), AgentError> {
        let limit = self.timing.request;
        let call = ApiCall { verb: "get", resource: "/version", object: "" };
        let asked = probe::probe(&self.client, DRIVER, self.node.as_str());
        let answered =
            tokio::time::timeout(limit, asked).await.map_err(|_elapsed| call.timed_out(limit))??;
        let server = self.until_all_are_newer(answered);
        if self.server != Some(server) {
            tracing::info!(%server, counters = ?server.counters, shares = ?server.shares, taints = ?server.taints,
                "the API server's version and the fields that it keeps");
            // Another server may keep what the earlier one dropped.
            self.accepted.clear();
            self.losses.clear();
        }
        self.server = Some(server);
        self.probed = Some(clock::now());
        Ok(())
    }

    /// The version that counts: an older one at once, a newer one once no older server has answered for a while.
    fn until_all_are_newer(&mut self, answered: ServerVersion) -> ServerVersion {
        let Some(known) = self.server.filter(|known| known.minor < answered.minor) else {
            self.newer_since = None;
            return answered;
        };
        let now = clock::now();
        if self.newer_since.is_none() {
            tracing::info!(%known, %answered, "a newer API server answers: offers change once all of them are newer");
        }
        let since = *self.newer_since.get_or_insert(now);
        let left = self.timing.upgrade.saturating_sub(now.duration_since(since));
        if left.is_zero() {
            self.newer_since = None;
            return answered;
        }
        self.wake(left);
        known
    }
}
