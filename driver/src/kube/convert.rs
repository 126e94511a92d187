//! Plain values ⇄ the API's types, by way of the API's JSON: [`crate::manifest`] renders and reads it.

use aliquot_core::dra::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1 as api;

use crate::manifest::{self, Object, ProblemSeverity};

/// A slice as the client sends it.
pub(super) fn to_api(slice: &ResourceSlice) -> Result<api::ResourceSlice, serde_json::Error> {
    serde_json::from_value(Object::Slice(slice).json())
}

/// A slice as the server sent it; `None` if it has what no reader of Aliquot's understands.
pub(super) fn from_api(object: &api::ResourceSlice) -> Option<ResourceSlice> {
    let text = serde_json::to_string(object).ok()?;
    let (manifests, _) = manifest::read("API server", &text);
    manifests.slices.into_iter().next()
}

/// A claim from the server's answer.
///
/// # Errors
/// The faults of the claim, one after the other.
pub(super) fn claim(text: &str) -> Result<Option<ResourceClaim>, String> {
    let (manifests, problems) = manifest::read("API server", text);
    let errors: Vec<String> =
        problems.iter().filter(|p| p.severity == ProblemSeverity::Error).map(ToString::to_string).collect();
    if errors.is_empty() { Ok(manifests.claims.into_iter().next()) } else { Err(errors.join("; ")) }
}
