//! The file of one claim, built from the edits of its grants.
//!
//! A claim has one device for each share of each request. A container gets the devices of the requests that it names,
//! so each device carries all that its share needs. Any of them may meet in one container: their edits are merged against
//! each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;
use thiserror::Error;

use crate::edits::Edit;
use crate::name::{CLAIM_KIND, ClaimUid, QualifiedName, RequestName, ShareName};
use crate::owners::{Conflict, MergedEdits, Owner};
use crate::spec::{Device, Spec};

/// Why a claim's file cannot be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// Two owners contradict each other.
    #[error("claim {claim}: two grants contradict each other")]
    Conflict {
        /// The claim.
        claim: ClaimUid,
        /// What the two want.
        #[source]
        source: Conflict,
    },
    /// Two shares would have the same device name.
    #[error(
        "claim {claim}: {first} and {second} have the same device name {}, expected different ones: rename a request", device.device()
    )]
    SameDevice {
        /// The claim.
        claim: ClaimUid,
        /// The name that both have.
        device: QualifiedName,
        /// The first.
        first: Box<RequestShare>,
        /// The second.
        second: Box<RequestShare>,
    },
    /// The claim has no device.
    #[error("claim {claim} has no device, expected one for each share: add the devices before building")]
    NoDevice {
        /// The claim.
        claim: ClaimUid,
    },
    /// A device would change nothing in a container.
    #[error(
        "claim {claim}: device {} has no edits of its own, expected at least one (runtimes refuse such a device)", device.device()
    )]
    EmptyDevice {
        /// The claim.
        claim: ClaimUid,
        /// The device.
        device: QualifiedName,
    },
    /// The result has no text form.
    #[error("claim {claim}: the built spec has no text form")]
    Render {
        /// The claim.
        claim: ClaimUid,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// A share of a request of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestShare {
    /// The request.
    pub request: RequestName,
    /// The share.
    pub share: ShareName,
}

impl fmt::Display for RequestShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} share {}", self.request, self.share)
    }
}

/// A valid spec of one claim and its text; made by [`ClaimSpecBuilder::build`] alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimSpec {
    claim: ClaimUid,
    names: Vec<QualifiedName>,
    text: String,
}

impl ClaimSpec {
    /// The claim.
    #[must_use]
    pub fn claim(&self) -> &ClaimUid {
        &self.claim
    }

    /// The text of the file, byte for byte.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Every path of the host that the file names: device nodes and sources of mounts, each once.
    #[must_use]
    pub fn host_paths(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        // The text was made from a value of the same shape, so that it can be read.
        if let Ok(value) = serde_json::from_str::<Value>(&self.text) {
            add_host_paths(&value, &mut found);
        }
        found
    }

    /// The names that a runtime resolves, one a device, in the order of the file.
    pub fn qualified_names(&self) -> impl Iterator<Item = &QualifiedName> {
        self.names.iter()
    }
}

fn add_host_paths(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| add_host_paths(value, found)),
        Value::Object(fields) => {
            found.extend(fields.get("hostPath").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| add_host_paths(value, found));
        }
        _ => {}
    }
}

/// One device in the making.
#[derive(Debug, Clone)]
struct DeviceDraft {
    of: RequestShare,
    edits: MergedEdits,
}

/// Collects the edits of a claim's grants.
///
/// ```
/// use aliquot_cdi::{ClaimSpecBuilder, DeviceNode, Edit, Owner};
///
/// let node = DeviceNode::new("/dev/davinci0".parse()?, "/dev/davinci0".parse()?, (236, 0))?;
/// let mut builder = ClaimSpecBuilder::new("4ee7".parse()?);
/// let owner = Owner::new("request npu, share 0");
/// builder.device(&"npu".parse()?, &"0".parse()?, &owner, &[Edit::Node(node)])?;
/// let claim_spec = builder.build()?;
/// let names: Vec<_> = claim_spec.qualified_names().map(|name| name.to_string()).collect();
/// assert_eq!(names, ["aliquot.dev/claim=4ee7-npu-0"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ClaimSpecBuilder {
    claim: ClaimUid,
    devices: BTreeMap<QualifiedName, DeviceDraft>,
    /// All edits of all devices, as if one container had everything.
    together: MergedEdits,
}

impl ClaimSpecBuilder {
    /// An empty file for `claim`.
    #[must_use]
    pub fn new(claim: ClaimUid) -> Self {
        Self { claim, devices: BTreeMap::new(), together: MergedEdits::new() }
    }

    /// Adds edits for containers that get this share of this request. Several owners may add to one device.
    ///
    /// # Errors
    /// [`BuildError::Conflict`], [`BuildError::SameDevice`]; then nothing is added.
    pub fn device(
        &mut self,
        request: &RequestName,
        share: &ShareName,
        owner: &Owner,
        edits: &[Edit],
    ) -> Result<(), BuildError> {
        let device = QualifiedName::of_share(&self.claim, request, share);
        let of = RequestShare { request: request.clone(), share: share.clone() };
        if let Some(draft) = self.devices.get(&device)
            && draft.of != of
        {
            let (first, second) = (Box::new(draft.of.clone()), Box::new(of));
            return Err(BuildError::SameDevice { claim: self.claim.clone(), device, first, second });
        }
        let claim = &self.claim;
        let conflict = |source| BuildError::Conflict { claim: claim.clone(), source };
        self.together.add(owner, edits).map_err(conflict)?;
        let fresh = || DeviceDraft { of, edits: MergedEdits::new() };
        let draft = self.devices.entry(device).or_insert_with(fresh);
        draft.edits.add(owner, edits).map_err(conflict)
    }

    /// The finished file.
    ///
    /// # Errors
    /// [`BuildError::NoDevice`], [`BuildError::EmptyDevice`], [`BuildError::Render`].
    pub fn build(self) -> Result<ClaimSpec, BuildError> {
        let claim = self.claim;
        if self.devices.is_empty() {
            return Err(BuildError::NoDevice { claim });
        }
        let (mut names, mut devices) = (Vec::new(), Vec::new());
        for (name, draft) in self.devices {
            if draft.edits.is_empty() {
                return Err(BuildError::EmptyDevice { claim, device: name });
            }
            devices.push(Device { name: name.device().to_owned(), container_edits: draft.edits.to_spec() });
            names.push(name);
        }
        match Spec::of(CLAIM_KIND, devices).render() {
            Ok(text) => Ok(ClaimSpec { claim, names, text }),
            Err(source) => Err(BuildError::Render { claim, source }),
        }
    }
}

#[cfg(test)]
mod tests;
