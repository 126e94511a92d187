//! A CDI file as Aliquot writes it: the only types of the workspace that mirror the format.
//!
//! There is no field for a hook, a network interface or any other edit that would act on the host. A file asks for the lowest
//! version of the format that has what it uses, because old runtimes know only old versions:
//!
//! | version | needed by |
//! |---|---|
//! | 0.3.0 | anything at all |
//! | 0.5.0 | a device node with a `hostPath`; a device name that begins with a digit |

use serde::Serialize;

/// A CDI file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    /// The version of the format that a reader must know.
    pub(crate) cdi_version: &'static str,
    /// Vendor and class of all devices of the file.
    pub(crate) kind: &'static str,
    /// The devices; at least one.
    pub(crate) devices: Vec<Device>,
}

/// A device that a container can ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Device {
    /// Its name, unique in the file.
    pub(crate) name: String,
    /// Edits for a container that gets this device; not empty.
    pub(crate) container_edits: ContainerEdits,
}

/// Edits to a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerEdits {
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) device_nodes: Vec<DeviceNode>,
    /// Mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) mounts: Vec<Mount>,
}

/// A device node for the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceNode {
    /// Path in the container, and on the host where `host_path` is not given.
    pub(crate) path: String,
    /// Path on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_path: Option<String>,
    /// `c`: every accelerator is a character device.
    #[serde(rename = "type")]
    pub(crate) node_type: &'static str,
    /// Major number.
    pub(crate) major: u32,
    /// Minor number.
    pub(crate) minor: u32,
    /// `rw`: a container never creates other nodes of the device.
    pub(crate) permissions: &'static str,
}

/// A mount for the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mount {
    /// Path on the host.
    pub(crate) host_path: String,
    /// Path in the container.
    pub(crate) container_path: String,
    /// Mount options.
    pub(crate) options: &'static [&'static str],
}

impl Spec {
    /// A file with these devices.
    pub(crate) fn of(kind: &'static str, devices: Vec<Device>) -> Self {
        Self { cdi_version: lowest_version(&devices), kind, devices }
    }

    /// The text of the file: the same spec gives the same bytes.
    pub(crate) fn render(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

fn lowest_version(devices: &[Device]) -> &'static str {
    let is_newer = |device: &Device| {
        device.name.starts_with(|c: char| c.is_ascii_digit())
            || device.container_edits.device_nodes.iter().any(|node| node.host_path.is_some())
    };
    if devices.iter().any(is_newer) { "0.5.0" } else { "0.3.0" }
}
