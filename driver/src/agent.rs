//! The node agent, `aliquot plugin`: one process that owns a node's state and joins it to the kubelet and the API server.
//!
//! ```text
//!  kubelet ──gRPC──▶ kubelet::server ──▶ agent::service ──▶ node (journal, workers, vendor port)
//!                                             │    │ offers changed
//!            kube::claims ◀──GET claim────────┘    ▼
//!            kube::status ◀──conditions──  agent::state ──▶ kube::publisher ──▶ ResourceSlices
//! ```
//!
//! [`ports`] holds the contracts between those parts; each part is tested against them alone.

pub mod ports;
