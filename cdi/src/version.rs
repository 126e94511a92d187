//! Versions of the CDI format, and the lowest one that has everything a file uses.
//!
//! A runtime refuses a file of an unknown version, and old runtimes know only old versions. So a file asks
//! for no more than it needs.
//!
//! | needs | when the file has |
//! |---|---|
//! | 0.3.0 | anything at all |
//! | 0.4.0 | a mount with a `type` |
//! | 0.5.0 | a device node with a `hostPath`; a device name that begins with a digit |
//! | 0.6.0 | `annotations`; a class with a dot |
//! | 0.7.0 | `intelRdt`; `additionalGids` |
//! | 1.1.0 | `netDevices`; `schemata` or `enableMonitoring` in `intelRdt` |
//!
//! 0.8.0 and 1.0.0 brought nothing that a file can hold.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::spec::{ContainerEdits, IntelRdt, Spec};

/// A released version of the format that files may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum SpecVersion {
    /// 0.3.0, the first.
    V0_3_0,
    /// 0.4.0
    V0_4_0,
    /// 0.5.0
    V0_5_0,
    /// 0.6.0
    V0_6_0,
    /// 0.7.0
    V0_7_0,
    /// 0.8.0
    V0_8_0,
    /// 1.0.0
    V1_0_0,
    /// 1.1.0
    V1_1_0,
}

/// A text is not a version that files may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "cdiVersion {found:?} is not known, expected one of 0.3.0, 0.4.0, 0.5.0, 0.6.0, 0.7.0, 0.8.0, 1.0.0, 1.1.0"
)]
pub struct UnknownVersion {
    /// The text found.
    pub found: String,
}

impl SpecVersion {
    /// All versions, lowest first.
    pub const ALL: [Self; 8] = [
        Self::V0_3_0,
        Self::V0_4_0,
        Self::V0_5_0,
        Self::V0_6_0,
        Self::V0_7_0,
        Self::V0_8_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// The version as it stands in a file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_4_0 => "0.4.0",
            Self::V0_5_0 => "0.5.0",
            Self::V0_6_0 => "0.6.0",
            Self::V0_7_0 => "0.7.0",
            Self::V0_8_0 => "0.8.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}

impl FromStr for SpecVersion {
    type Err = UnknownVersion;

    /// Takes a leading `v`, as runtimes do.
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        let bare = text.strip_prefix('v').unwrap_or(text);
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == bare)
            .ok_or_else(|| UnknownVersion { found: text.to_owned() })
    }
}

impl TryFrom<String> for SpecVersion {
    type Error = UnknownVersion;
    fn try_from(text: String) -> Result<Self, UnknownVersion> {
        text.parse()
    }
}

impl From<SpecVersion> for &'static str {
    fn from(version: SpecVersion) -> Self {
        version.as_str()
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A version that a file needs, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredVersion {
    /// The version.
    pub version: SpecVersion,
    /// The feature that needs it, as a field path.
    pub feature: String,
}

/// The lowest version that has all features of `spec`, whatever version `spec` asks for.
#[must_use]
pub fn lowest(spec: &Spec) -> SpecVersion {
    needs(spec).into_iter().map(|needed| needed.version).max().unwrap_or(SpecVersion::V0_3_0)
}

/// Each feature of `spec` that 0.3.0 does not have, in the order of the file.
#[must_use]
pub fn needs(spec: &Spec) -> Vec<RequiredVersion> {
    let mut needs = Vec::new();
    let mut need = |version, feature: String| needs.push(RequiredVersion { version, feature });
    if spec.kind.class.as_str().contains('.') {
        need(SpecVersion::V0_6_0, "kind: a dot in the class".to_owned());
    }
    if !spec.annotations.is_empty() {
        need(SpecVersion::V0_6_0, "annotations".to_owned());
    }
    for (index, device) in spec.devices.iter().enumerate() {
        if device.name.as_str().starts_with(|c: char| c.is_ascii_digit()) {
            need(SpecVersion::V0_5_0, format!("devices[{index}].name: a digit in front"));
        }
        if !device.annotations.is_empty() {
            need(SpecVersion::V0_6_0, format!("devices[{index}].annotations"));
        }
        edits_need(&device.container_edits, &format!("devices[{index}].containerEdits"), &mut need);
    }
    edits_need(&spec.container_edits, "containerEdits", &mut need);
    needs
}

fn edits_need(edits: &ContainerEdits, at: &str, need: &mut impl FnMut(SpecVersion, String)) {
    for (index, node) in edits.device_nodes.iter().enumerate() {
        if node.host_path.as_deref().is_some_and(|path| !path.is_empty()) {
            need(SpecVersion::V0_5_0, format!("{at}.deviceNodes[{index}].hostPath"));
        }
    }
    if !edits.net_devices.is_empty() {
        need(SpecVersion::V1_1_0, format!("{at}.netDevices"));
    }
    for (index, mount) in edits.mounts.iter().enumerate() {
        if mount.mount_type.as_deref().is_some_and(|text| !text.is_empty()) {
            need(SpecVersion::V0_4_0, format!("{at}.mounts[{index}].type"));
        }
    }
    if let Some(IntelRdt { schemata, enable_monitoring, .. }) = &edits.intel_rdt {
        need(SpecVersion::V0_7_0, format!("{at}.intelRdt"));
        if schemata.is_some() {
            need(SpecVersion::V1_1_0, format!("{at}.intelRdt.schemata"));
        }
        if *enable_monitoring {
            need(SpecVersion::V1_1_0, format!("{at}.intelRdt.enableMonitoring"));
        }
    }
    if !edits.additional_gids.is_empty() {
        need(SpecVersion::V0_7_0, format!("{at}.additionalGids"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_print_as_they_parse_and_are_in_order() {
        for version in SpecVersion::ALL {
            assert_eq!(version.as_str().parse(), Ok(version));
            assert_eq!(format!("v{version}").parse(), Ok(version));
        }
        assert!(SpecVersion::ALL.is_sorted());
    }

    #[test]
    fn unknown_versions_are_refused_with_the_known_ones() {
        for text in ["", "0.2.0", "1.2.0", "1.1", "vv1.1.0"] {
            let error = text.parse::<SpecVersion>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("cdiVersion {text:?} is not known, expected one of 0.3.0")),
                "{error}"
            );
            for version in SpecVersion::ALL {
                assert!(error.contains(version.as_str()), "{error} names {version}");
            }
        }
    }
}
