//! Aliquot on a real Kubernetes. Run with `tests/run cluster`, or on a cluster that `KUBECONFIG` names.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a scenario stops at what it did not expect")]

#[path = "scenarios/agreement.rs"]
mod agreement;
#[path = "scenarios/daemonset.rs"]
mod daemonset;
#[path = "scenarios/demo.rs"]
mod demo;
#[path = "scenarios/disruptions.rs"]
mod disruptions;
#[path = "scenarios/examples.rs"]
mod examples;
#[path = "scenarios/figures.rs"]
mod figures;
#[path = "scenarios/fleet.rs"]
mod fleet;
#[path = "scenarios/given.rs"]
mod given;
#[path = "scenarios/health.rs"]
mod health;
#[path = "scenarios/install.rs"]
mod install;
#[path = "scenarios/kueue.rs"]
mod kueue;
#[path = "scenarios/leftovers.rs"]
mod leftovers;
#[path = "scenarios/migration.rs"]
mod migration;
#[path = "scenarios/order.rs"]
mod order;
#[path = "scenarios/partitions.rs"]
mod partitions;
#[path = "scenarios/quarters.rs"]
mod quarters;
#[path = "scenarios/real_card.rs"]
mod real_card;
#[path = "scenarios/requests.rs"]
mod requests;
#[path = "scenarios/shares.rs"]
mod shares;
#[path = "scenarios/stage.rs"]
mod stage;
#[path = "scenarios/update.rs"]
mod update;
#[path = "scenarios/world.rs"]
mod world;
