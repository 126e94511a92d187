//! Writes, one after the other, each followed by the comparison of what came back.

use std::future::Future;

use ::kube::Api;
use ::kube::api::{DeleteParams, PostParams, Preconditions};
use aliquot_core::disposition::Disposition;
use aliquot_core::dra::ResourceSlice;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::PublisherTask;
use super::copies::ServerSlice;
use super::plan::{AcceptedWrite, Write, stance_on};
use super::readback::Losses;
use super::slice_owner::SliceOwner;
use crate::clock;
use crate::kube::convert;
use crate::kube::counter_nodes::LABEL;
use crate::kube::failure::{ApiCall, code, printable};
use crate::ports::AgentError;

const RESOURCE: &str = "resourceslices.resource.k8s.io";

/// Whether a write is done or must be planned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceWriteOutcome {
    /// Done as planned.
    Written,
    /// The server's copy was another one, or lost fields: the rest of the plan no longer holds.
    PlanAgain,
}

// === impl PublisherTask ===

impl PublisherTask {
    /// Executes a plan up to its end, or to the first write after which it no longer holds.
    pub(super) async fn execute(&mut self, writes: Vec<Write>) -> Result<(), AgentError> {
        // A Node that was deleted and created again has another UID; slices of the old one are collected as garbage.
        let creates = writes.iter().any(|write| matches!(write, Write::Create(_)));
        if (creates || self.owner == SliceOwner::Unknown) && self.find_owner().await? {
            return Ok(());
        }
        for write in writes {
            let done = match write {
                Write::Delete(name) => self.delete(&name).await?,
                Write::Update(slice) => self.update(slice).await?,
                Write::Create(slice) => self.create(slice).await?,
            };
            if done == SliceWriteOutcome::PlanAgain {
                break;
            }
        }
        Ok(())
    }

    /// Looks the Node up; whether the owner is another one than before.
    pub(super) async fn find_owner(&mut self) -> Result<bool, AgentError> {
        let name = self.node.as_str().to_owned();
        let call = ApiCall { verb: "get", resource: "nodes", object: &name };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let absent = || SliceOwner::Absent { asked: clock::now() };
        let found = match self.bounded(call, nodes.get_metadata(&name)).await? {
            Ok(node) => node.metadata.uid.map_or_else(absent, SliceOwner::Node),
            Err(error) if matches!(code(&error), Some(403 | 404)) => {
                if !matches!(self.owner, SliceOwner::Absent { .. }) {
                    tracing::warn!(error = %call.failed(&error), "slices have no owner and outlive the node until it is found");
                }
                absent()
            }
            Err(error) => return Err(call.failed(&error)),
        };
        if matches!(found, SliceOwner::Absent { .. }) {
            self.wake(self.long_pause());
        }
        let differs = self.owner.uid() != found.uid();
        self.owner = found;
        Ok(differs)
    }

    /// Looks a Node up again that was not found. A failure is no failure of the slices: they are published without an owner.
    pub(super) async fn find_absent_owner(&mut self) {
        let SliceOwner::Absent { asked } = self.owner else { return };
        let left = self.long_pause().saturating_sub(clock::now().duration_since(asked));
        if !left.is_zero() {
            return self.wake(left);
        }
        match self.find_owner().await {
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "the owner of slices is looked up again later");
                self.owner = SliceOwner::Absent { asked: clock::now() };
                self.wake(self.long_pause());
            }
        }
    }

    async fn delete(&mut self, name: &str) -> Result<SliceWriteOutcome, AgentError> {
        let Some(copy) = self.copies.get(name) else { return Ok(SliceWriteOutcome::Written) };
        let call = ApiCall { verb: "delete", resource: RESOURCE, object: name };
        let preconditions = Preconditions {
            uid: Some(copy.uid().to_owned()),
            resource_version: Some(copy.resource_version().to_owned()),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.bounded(call, self.slices.delete(name, &params)).await? {
            Ok(_) => {
                tracing::info!(slice = name, "deleted");
                self.writes += 1;
                self.copies.remove(name);
                Ok(SliceWriteOutcome::Written)
            }
            Err(error) if code(&error) == Some(404) => {
                self.copies.remove(name);
                Ok(SliceWriteOutcome::Written)
            }
            Err(error) if code(&error) == Some(409) => self.read_again(name).await,
            Err(error) => Err(call.failed(&error)),
        }
    }

    async fn update(&mut self, slice: ResourceSlice) -> Result<SliceWriteOutcome, AgentError> {
        let call = ApiCall { verb: "update", resource: RESOURCE, object: &slice.name };
        let copy = self.copies.get(&slice.name);
        let object = self.object(&slice, copy)?;
        let answer =
            self.bounded(call, self.slices.replace(&slice.name, &PostParams::default(), &object)).await?;
        match answer {
            Ok(kept) => Ok(self.written("updated", slice, kept)),
            Err(error) if code(&error) == Some(404) => {
                self.copies.remove(&slice.name);
                Ok(SliceWriteOutcome::PlanAgain)
            }
            Err(error) if code(&error) == Some(409) => self.read_again(&slice.name).await,
            Err(error) => Err(call.failed(&error)),
        }
    }

    async fn create(&mut self, slice: ResourceSlice) -> Result<SliceWriteOutcome, AgentError> {
        let call = ApiCall { verb: "create", resource: RESOURCE, object: &slice.name };
        let object = self.object(&slice, None)?;
        match self.bounded(call, self.slices.create(&PostParams::default(), &object)).await? {
            Ok(kept) => Ok(self.written("created", slice, kept)),
            Err(error) if code(&error) == Some(409) => self.read_again(&slice.name).await,
            Err(error) => Err(call.failed(&error)),
        }
    }

    /// Reads one slice after a conflict.
    async fn read_again(&mut self, name: &str) -> Result<SliceWriteOutcome, AgentError> {
        let call = ApiCall { verb: "get", resource: RESOURCE, object: name };
        match self.bounded(call, self.slices.get_opt(name)).await? {
            Ok(None) => self.copies.remove(name),
            Ok(Some(object)) if self.copies.is_ours(&object) => {
                self.copies.take(ServerSlice::new(object));
            }
            Ok(Some(object)) => {
                let node = object.spec.node_name.as_deref().unwrap_or("no node");
                return Err(AgentError {
                    message: format!(
                        "slice {name}: found one of driver {} on {}, expected none of this name; delete it",
                        printable(&object.spec.driver),
                        printable(node)
                    ),
                    disposition: Disposition::Broken,
                });
            }
            Err(error) => return Err(call.failed(&error)),
        }
        Ok(SliceWriteOutcome::PlanAgain)
    }

    fn written(
        &mut self,
        verb: &'static str,
        sent: ResourceSlice,
        kept: api::ResourceSlice,
    ) -> SliceWriteOutcome {
        self.writes += 1;
        let kept = ServerSlice::new(kept);
        let losses = Losses::between(&sent, kept.content());
        let name = sent.name.clone();
        tracing::info!(
            slice = name,
            generation = sent.pool.generation,
            devices = sent.devices.len(),
            "{verb}"
        );
        let resource_version = kept.resource_version().to_owned();
        self.copies.take(kept);
        if losses.is_empty() {
            self.accepted.remove(&name);
            self.losses.remove(&name);
            return SliceWriteOutcome::Written;
        }
        tracing::warn!(slice = name, "the server dropped {losses}");
        if let Some(server) = &mut self.server {
            losses.lower(server);
        }
        self.losses.insert(name.clone(), losses);
        self.accepted.insert(name, AcceptedWrite { sent, resource_version });
        SliceWriteOutcome::PlanAgain
    }

    /// The object to send: desired spec, the rest as the server has it. Times of taints that stay are kept.
    fn object(
        &self,
        slice: &ResourceSlice,
        copy: Option<&ServerSlice>,
    ) -> Result<api::ResourceSlice, AgentError> {
        let mut object = convert::to_api(slice).map_err(|error| AgentError {
            message: format!("slice {}: it cannot be written as an object: {error}", slice.name),
            disposition: Disposition::Broken,
        })?;
        if let Some(copy) = copy {
            object.metadata = copy.object().metadata.clone();
            object.metadata.managed_fields = None;
            keep_taint_times(&mut object, copy.object());
        }
        let labels = object.metadata.labels.get_or_insert_default();
        match stance_on(self.label.as_ref(), &slice.name) {
            Some(stance) => drop(labels.insert(LABEL.to_owned(), stance.as_str().to_owned())),
            None => drop(labels.remove(LABEL)),
        }
        object.metadata.labels = object.metadata.labels.filter(|labels| !labels.is_empty());
        if let SliceOwner::Node(uid) = &self.owner {
            let owners = object.metadata.owner_references.get_or_insert_default();
            owners.retain(|owner| owner.kind != "Node");
            owners.push(OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: self.node.as_str().to_owned(),
                uid: uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            });
        }
        Ok(object)
    }

    /// The answer of a call, within the time that one may take.
    pub(super) async fn bounded<T>(
        &self,
        call: ApiCall<'_>,
        answer: impl Future<Output = T>,
    ) -> Result<T, AgentError> {
        let limit = self.timing.request;
        tokio::time::timeout(limit, answer).await.map_err(|_elapsed| call.timed_out(limit))
    }
}

/// Copies `timeAdded` of every taint that stays: `tolerationSeconds` counts from it.
fn keep_taint_times(object: &mut api::ResourceSlice, copy: &api::ResourceSlice) {
    let old = copy.spec.devices.as_deref().unwrap_or_default();
    for device in object.spec.devices.iter_mut().flatten() {
        let Some(before) = old.iter().find(|old| old.name == device.name) else { continue };
        let times = before.taints.as_deref().unwrap_or_default();
        for taint in device.taints.iter_mut().flatten() {
            let value = |taint: &api::DeviceTaint| taint.value.clone().unwrap_or_default();
            let same = |old: &&api::DeviceTaint| {
                old.key == taint.key && old.effect == taint.effect && value(old) == value(taint)
            };
            taint.time_added = times.iter().find(same).and_then(|old| old.time_added.clone());
        }
    }
}
