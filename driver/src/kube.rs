//! The Kubernetes API as the agent and the command line use it. Only this folder knows its client and its types.
//!
//! ```text
//!  desired slices ──▶ publisher ──create, PUT, delete──▶ API server     watch: slices of this driver and node
//!  publication    ◀──    │      ◀──────watch, read-back────┘
//!                        ├─ plan    pure: desired and server's copies → fewest writes
//!                        ├─ copies  pure: watch events and answers → server's copies
//!                        └─ probe   dry run: which fields the server keeps
//!  claims   GET with UID check          status  status.devices, merged        events  bounded, aggregated
//!  listing  what `--cluster` reads                survey  what `aliquot doctor` asks
//! ```
//!
//! Slices are written with create and PUT, never with server-side apply: an apply fails as a whole on a field that the
//! server does not know, while create and PUT drop the field, which the read-back shows.

pub(crate) mod backoff;
pub mod claims;
pub mod client;
mod convert;
mod counter_nodes;
pub mod events;
mod failure;
pub mod kept_slices;
pub mod listing;
pub mod node_mark;
pub mod node_objects;
pub mod node_order;
pub mod pod_names;
pub mod publisher;
pub mod status;
pub mod survey;
mod version;

pub use claims::ApiClaims;
pub use client::{ClusterAccess, ConnectError, Connection};
pub use events::EventQueue;
pub use publisher::{Publisher, Timing};
pub use status::ApiStatus;
