//! The node agent, `aliquot plugin`: one process that owns a node's state and joins it to the kubelet and the API server.
//!
//! ```text
//!  kubelet ──gRPC──▶ kubelet::server ──▶ service ──▶ store: node (journal, cards)
//!                         ▲                │  │ changed
//!                         │ health         │  ▼             publish_gate
//!                         └────────────── state ──watch: DesiredSlices──▶ kube: publisher ──▶ ResourceSlices
//!                                          ▲                                  │
//!                                          └──────watch: Publication──────────┘
//!            service ──mpsc: Report──▶ report ──▶ kube: claim status, Events
//!            metrics ◀── service, state, report      http: /metrics /healthz /readyz
//! ```
//!
//! | task | waits for | ends |
//! |---|---|---|
//! | two gRPC servers | the kubelet | registration first, then the service |
//! | one task a claim | the claim's lock, the API server, the node | with its claim |
//! | `publish_gate` | the kubelet's registration, then `state` | with `state` |
//! | `state` | a change of the ledger, an event of a card, a timer, the publisher | at the stop |
//! | `maintenance` | the node's label and cordon, the last claim | when the program is to begin anew |
//! | `card_events` | `state`, the publisher | with `state` |
//! | `report` | its queue (bounded: a full one drops and counts) | after the queue is empty, or a few seconds |
//! | `card_owners` | a timer, sockets of other drivers | when the agent begins to end |
//! | `orphans` | a timer, the kubelet's record, the API server | when the agent begins to end |
//! | `http` | scrapes and probes | at the stop |
//! | `tend`, a thread | a change of the CDI directory, a timer | with the node |
//! | `arrival`, a thread | the first card of a machine without one | the agent, which the next start follows |
//!
//! [`crate::ports`] holds the contracts between those parts; each part is tested against them alone. A blocking call of the node
//! runs off the reactor; nothing on the reactor waits for a disk or a device.

pub mod card_figures;
pub mod card_owners;
pub mod composition;
pub mod failure;
pub mod governors;
pub mod http;
pub mod layouts;
pub mod maintenance;
pub mod metrics;
pub mod observe;
pub mod orphans;
pub mod pace;
pub mod report;
pub mod service;
pub mod simulated;
pub mod start;
pub mod state;
pub mod store;
pub mod takeover;

mod answer;
mod arrival;
mod call_log;
mod card_events;
mod card_watches;
mod exposition;
mod locks;
mod publish_gate;
mod restart;
mod tend;
mod unused_pages;
