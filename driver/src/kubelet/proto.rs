//! The kubelet's wire formats: generated from the `.proto` files beside this one, which are written for this project.
//!
//! To generate again: `protox` reads the files, `tonic-prost-build` writes them, `cargo fmt` formats the result.

/// Service that the kubelet calls for each Pod with claims.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated"
)]
pub mod dra_v1;
/// The same under its beta name.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated"
)]
pub mod dra_v1beta1;
/// Health of devices.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod health_v1;
/// Health of devices under its alpha name.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod health_v1alpha1;
/// How the kubelet learns of a plugin.
#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated"
)]
pub mod pluginregistration_v1;
