//! A real Kubernetes for tests and demonstrations: etcd, API server, controllers, scheduler, containerd and kubelet as
//! plain processes on 127.0.0.1.
//!
//! ```text
//!  Cluster ──JSON lines──▶ hold ──▶ unshare --pid --mount ──▶ init (PID 1) ──▶ etcd, kube-apiserver, … kubelet, driver
//!     │                     └─ after init: cgroups, bridge, directory             └─ containerd ──▶ runc ──▶ containers
//!     └──HTTPS──▶ [`Api`]
//! ```
//!
//! Invariants: the kernel ends every process and mount of a cluster together with its init; init ends with the pipe to
//! the process that started it, so a killed test leaves nothing behind; a cluster sees its own `/var/lib/kubelet`,
//! `/run/cdi`, `/run/aliquot` and so on, never those of the machine.

mod agent;
mod api;
mod captured;
mod client;
mod cluster;
mod components;
mod demo;
mod error;
mod images;
mod init;
mod namespace;
mod parts;
mod place;
mod wire;

pub use agent::{AGENT_PROCESSES, Agent, AgentOptions, sample};
pub use api::{Api, ApiError};
pub use client::Client;
pub use cluster::{Cluster, Options, Scope};
pub use demo::{AGENT_IMAGE, EXAMPLE_IMAGE, install_examples, show, start_agent};
pub use error::ClusterError;
pub use images::{Image, MadeImage};
pub use init::{hold, serve_namespace};
pub use namespace::Namespace;
pub use parts::Parts;
pub use place::{Name, Place};
pub use wire::{Output, Start};
