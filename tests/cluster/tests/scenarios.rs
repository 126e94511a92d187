//! Aliquot on a real Kubernetes. Run with `tests/run cluster`, or on a cluster that `KUBECONFIG` names.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a scenario stops at what it did not expect")]

#[path = "scenarios/agreement.rs"]
mod agreement;
#[path = "scenarios/shares.rs"]
mod shares;
#[path = "scenarios/world.rs"]
mod world;
