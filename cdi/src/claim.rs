//! The file of one claim, built from the edits of its grants.
//!
//! A claim has one device for each share of each request. A container gets the devices of the requests that it names,
//! so each device carries all that its share needs, and what every container of the claim needs stands once in the
//! common edits. Any of these may meet in one container: all of them are merged against each other.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::edits::Edit;
use crate::name::{ClaimUid, DeviceName, Kind, QualifiedName, RequestName, ShareName};
use crate::owners::{Conflict, MergedEdits, Owner};
use crate::spec::{Device, RenderError, Spec};
use crate::validate::{Invalid, validate};
use crate::version::{SpecVersion, lowest};

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
        "claim {claim}: {first} and {second} have the same device name {device}, expected different ones: rename a request"
    )]
    SameDevice {
        /// The claim.
        claim: ClaimUid,
        /// The name that both have.
        device: DeviceName,
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
        "claim {claim}: device {device} has no edits of its own, expected at least one (runtimes refuse such a device)"
    )]
    EmptyDevice {
        /// The claim.
        claim: ClaimUid,
        /// The device.
        device: DeviceName,
    },
    /// The result breaks a rule of the format.
    #[error("claim {claim}: the built spec breaks a rule of the CDI format")]
    Invalid {
        /// The claim.
        claim: ClaimUid,
        /// The rule.
        #[source]
        source: Invalid,
    },
    /// The result has no text form.
    #[error("claim {claim}: the built spec has no text form")]
    Render {
        /// The claim.
        claim: ClaimUid,
        /// The cause.
        #[source]
        source: RenderError,
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
    spec: Spec,
    text: String,
}

impl ClaimSpec {
    /// The claim.
    #[must_use]
    pub fn claim(&self) -> &ClaimUid {
        &self.claim
    }

    /// The spec.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The text of the file, byte for byte.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names that a runtime resolves, one a device, in the order of the file.
    pub fn qualified_names(&self) -> impl Iterator<Item = QualifiedName> {
        let name = |device: &Device| QualifiedName { kind: Kind::claim(), device: device.name.clone() };
        self.spec.devices.iter().map(name)
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
/// let node = DeviceNode::character("/dev/davinci0".parse()?, 236, 0)?;
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
    common: MergedEdits,
    devices: BTreeMap<DeviceName, DeviceDraft>,
    /// All edits of all devices and the common ones, as if one container had everything.
    together: MergedEdits,
}

impl ClaimSpecBuilder {
    /// An empty file for `claim`.
    #[must_use]
    pub fn new(claim: ClaimUid) -> Self {
        let (common, devices, together) = (MergedEdits::new(), BTreeMap::new(), MergedEdits::new());
        Self { claim, common, devices, together }
    }

    /// Adds edits for every container that gets any device of the claim.
    ///
    /// # Errors
    /// [`BuildError::Conflict`]; then nothing is added.
    pub fn common(&mut self, owner: &Owner, edits: &[Edit]) -> Result<(), BuildError> {
        self.check_together(owner, edits)?;
        let claim = &self.claim;
        self.common.add(owner, edits).map_err(|source| BuildError::Conflict { claim: claim.clone(), source })
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
        let device = QualifiedName::of_share(&self.claim, request, share).device;
        let of = RequestShare { request: request.clone(), share: share.clone() };
        if let Some(draft) = self.devices.get(&device)
            && draft.of != of
        {
            let (first, second) = (Box::new(draft.of.clone()), Box::new(of));
            return Err(BuildError::SameDevice { claim: self.claim.clone(), device, first, second });
        }
        self.check_together(owner, edits)?;
        let claim = &self.claim;
        let fresh = || DeviceDraft { of, edits: MergedEdits::new() };
        let draft = self.devices.entry(device).or_insert_with(fresh);
        draft.edits.add(owner, edits).map_err(|source| BuildError::Conflict { claim: claim.clone(), source })
    }

    fn check_together(&mut self, owner: &Owner, edits: &[Edit]) -> Result<(), BuildError> {
        let claim = &self.claim;
        self.together
            .add(owner, edits)
            .map_err(|source| BuildError::Conflict { claim: claim.clone(), source })
    }

    /// The finished file.
    ///
    /// # Errors
    /// [`BuildError::NoDevice`], [`BuildError::EmptyDevice`].
    pub fn build(self) -> Result<ClaimSpec, BuildError> {
        let claim = self.claim;
        if self.devices.is_empty() {
            return Err(BuildError::NoDevice { claim });
        }
        let mut devices = Vec::with_capacity(self.devices.len());
        for (name, draft) in self.devices {
            if draft.edits.is_empty() {
                return Err(BuildError::EmptyDevice { claim, device: name });
            }
            let container_edits = draft.edits.to_spec();
            devices.push(Device { name, annotations: BTreeMap::new(), container_edits });
        }
        let mut spec = Spec {
            cdi_version: SpecVersion::V0_3_0,
            kind: Kind::claim(),
            annotations: BTreeMap::new(),
            devices,
            container_edits: self.common.to_spec(),
        };
        spec.cdi_version = lowest(&spec);
        if let Err(source) = validate(&spec) {
            return Err(BuildError::Invalid { claim, source });
        }
        match spec.render() {
            Ok(text) => Ok(ClaimSpec { claim, spec, text }),
            Err(source) => Err(BuildError::Render { claim, source }),
        }
    }
}

#[cfg(test)]
mod tests;
