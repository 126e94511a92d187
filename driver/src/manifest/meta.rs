//! Versions of the API, and the metadata of objects.

use std::collections::BTreeMap;

/// Forms of the device API; `v1beta2` has that of `v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V1Beta1,
}

/// The fields of `metadata` that are read.
#[derive(Default)]
pub(super) struct Meta {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    /// Whether it is on its way out: nothing new is allocated for it.
    pub(super) deleted: bool,
}

/// Minor version and patch of `v1.37.2-gke.1`.
pub(crate) fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("v1.")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next().and_then(|patch| patch.parse().ok()).unwrap_or(0)))
}
