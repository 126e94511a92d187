//! A CDI file as it is on disk: every field of 0.3.0 to 1.1.0, and no other.
//!
//! These are the only types of the workspace that mirror the format. Reading is strict: an unknown field is an error
//! that names it. Hooks can be read, so that foreign files can be checked, and can never be written.

use std::collections::BTreeMap;

use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use crate::name::{DeviceName, Kind};
use crate::validate::{Invalid, validate};
use crate::version::SpecVersion;

/// Why a text is not a CDI file.
#[derive(Debug, Error)]
pub enum ParseSpecError {
    /// Not JSON of the right shape: the source names the field and the place.
    #[error("not a CDI spec in JSON")]
    Shape(#[source] serde_json::Error),
    /// The shape is right and the content breaks a rule of the format.
    #[error("a rule of the CDI format is broken")]
    Content(#[source] Invalid),
}

/// A spec holds something that is never written.
#[derive(Debug, Error)]
#[error("the CDI spec of kind {kind} cannot be written")]
pub struct RenderError {
    /// Kind of the spec.
    kind: Kind,
    #[source]
    source: serde_json::Error,
}

/// A CDI file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The version of the format that a reader must know.
    pub cdi_version: SpecVersion,
    /// Vendor and class of all devices of the file.
    pub kind: Kind,
    /// For readers of the file; no effect on a container. Since 0.6.0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices; at least one.
    pub devices: Vec<Device>,
    /// Edits for every container that gets any of the devices.
    #[serde(default, skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// A device that a container can ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Its name, unique in the file.
    pub name: DeviceName,
    /// For readers of the file; no effect on a container. Since 0.6.0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Edits for a container that gets this device; not empty.
    pub container_edits: ContainerEdits,
}

/// Edits to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    /// `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces that move into the container. Since 1.1.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Programs that the runtime runs. Read only: writing a spec that has any is an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty", serialize_with = "refuse_hooks")]
    pub hooks: Vec<Hook>,
    /// Mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Cache and memory bandwidth class. Since 0.7.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Groups added to the container's process; 0 is ignored by runtimes. Since 0.7.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// A device node for the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// Path in the container, and on the host where `host_path` is not given.
    pub path: String,
    /// Path on the host. Since 0.5.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// `c`, `b`, `u` or `p`; read from the host's node where not given.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub node_type: Option<String>,
    /// Major number; read from the host's node where not given or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Minor number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// File mode, as a decimal number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Of `r`, `w`, `m`, or `none`; all three where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Owner in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A mount for the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// File system type. Since 0.4.0.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub mount_type: Option<String>,
}

/// A program that a foreign file makes the runtime run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// When it runs.
    pub hook_name: String,
    /// The program.
    pub path: String,
    /// Its arguments, the zeroth first.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(default)]
    pub env: Vec<String>,
    /// How long it may run, in seconds.
    #[serde(default)]
    pub timeout: Option<u32>,
}

/// A network interface that moves into the container. Since 1.1.0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    /// Its name on the host.
    pub host_interface_name: String,
    /// Its name in the container.
    pub name: String,
}

/// Intel resource control. Since 0.7.0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntelRdt {
    /// Class of service.
    #[serde(default, rename = "closID", skip_serializing_if = "Option::is_none")]
    pub clos_id: Option<String>,
    /// Cache allocation.
    #[serde(default, rename = "l3CacheSchema", skip_serializing_if = "Option::is_none")]
    pub l3_cache_schema: Option<String>,
    /// Memory bandwidth allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_bw_schema: Option<String>,
    /// Whole schemata lines. Since 1.1.0, even when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schemata: Option<Vec<String>>,
    /// Whether the class is monitored. Since 1.1.0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}

impl Spec {
    /// Reads a file's text and checks it.
    ///
    /// # Errors
    /// [`ParseSpecError`], with the field in its source.
    pub fn parse(text: &str) -> Result<Self, ParseSpecError> {
        let spec: Self = serde_json::from_str(text).map_err(ParseSpecError::Shape)?;
        validate(&spec).map_err(ParseSpecError::Content)?;
        Ok(spec)
    }

    /// The spec as the text of a file: the same spec gives the same bytes. Does not validate.
    ///
    /// # Errors
    /// [`RenderError`] when the spec has a hook.
    pub fn render(&self) -> Result<String, RenderError> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|source| RenderError { kind: self.kind.clone(), source })?;
        text.push('\n');
        Ok(text)
    }
}

impl ContainerEdits {
    /// Whether there is nothing to edit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn refuse_hooks<S: Serializer>(hooks: &[Hook], _: S) -> Result<S::Ok, S::Error> {
    let names: Vec<&str> = hooks.iter().map(|hook| hook.hook_name.as_str()).collect();
    Err(S::Error::custom(format!(
        "hooks: found {}, expected none: only static edits are written, a hook would run a program on the host",
        names.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_read_and_never_written() {
        let text = r#"{"cdiVersion": "0.3.0", "kind": "v.com/d", "devices": [{"name": "a", "containerEdits":
            {"hooks": [{"hookName": "createContainer", "path": "/bin/x", "args": ["x"], "timeout": 1}]}}]}"#;
        let spec = Spec::parse(text).unwrap();
        assert_eq!(spec.devices[0].container_edits.hooks[0].path, "/bin/x");
        let error = spec.render().unwrap_err();
        assert_eq!(error.to_string(), "the CDI spec of kind v.com/d cannot be written");
        assert_eq!(
            std::error::Error::source(&error).unwrap().to_string(),
            "hooks: found createContainer, expected none: only static edits are written, a hook would run a program on the host"
        );
    }
}
