//! The copies against a list, from time to time and after an error of the watch.
//!
//! A watch can be silent for ever: one from a version that the server has not reached, since its database was restored from a
//! backup; one behind a proxy that lost the server. A list has the names, UIDs and versions of the slices, and the version of the
//! server's state.

use ::kube::api::ListParams;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::copies::ListVerdict;
use super::{PublisherTask, WatchState};
use crate::clock;
use crate::kube::failure::ApiCall;
use crate::ports::AgentError;

impl PublisherTask {
    /// Compares if it is time for it. After a difference copies are not complete until the watch has listed them anew.
    ///
    /// # Errors
    /// The server cannot be asked; it is asked again with the next step.
    pub(super) async fn compare(&mut self) -> Result<(), AgentError> {
        let age = self.timing.compare_age;
        let left = self.compared.map(|at| age.saturating_sub(clock::now().duration_since(at)));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            self.wake(left);
            return Ok(());
        }
        let call = ApiCall { verb: "list", resource: "resourceslices.resource.k8s.io", object: "" };
        let own = ListParams::default().fields(&self.own_slices());
        let list = self.bounded(call, self.slices.list_metadata(&own)).await?;
        let list = list.map_err(|error| call.failed(&error))?;
        let found: Vec<&ObjectMeta> = list.items.iter().map(|slice| &slice.metadata).collect();
        let verdict = self.copies.judge(&found, list.metadata.resource_version.as_deref());
        if verdict != ListVerdict::Same {
            // A Node of an earlier state has the UID of that time.
            self.find_owner().await?;
        }
        self.note_verdict(verdict);
        self.compared = Some(clock::now());
        self.wake(age);
        Ok(())
    }

    fn note_verdict(&mut self, verdict: ListVerdict) {
        match verdict {
            ListVerdict::Same => return,
            ListVerdict::Differs => {
                tracing::warn!("the watch of slices missed changes: it starts anew");
            }
            ListVerdict::Older { found, known } => {
                tracing::warn!(
                    found,
                    known,
                    "the API server's state is older than before, as after a restore from a backup: slices are listed and \
                     compared anew, and claim statuses are written again"
                );
                self.copies.restored(found);
                self.restores += 1;
            }
        }
        // Versions of the earlier state may come again with other contents.
        self.accepted.clear();
        self.losses.clear();
        self.probed = None;
        self.counted = None;
        self.listed = false;
        self.in_sync = false;
        self.watch = WatchState::StartsAnew;
    }
}
