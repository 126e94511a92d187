//! The edges of Aliquot: manifests and dumps in, answers out; plans executed, journalled and recovered on a node.
//!
//! ```text
//!  args ─▶ cli ─▶ manifest (YAML, JSON) ─▶ core: offers, allocator, plan ─▶ cli: tables, JSON, YAML
//!           │
//!           └──▶ node ─▶ prepare ─▶ checkpoint (journal) ─▶ steps: backend, grant file, CDI file
//!                  └───▶ recover (at every opening, before anything else)
//! ```
//!
//! Decisions are in core. Every write leaves either the earlier or the later state on disk after a kill at any instruction, and
//! [`node::recover`] finds which.

pub mod agent;
pub mod bundle;
pub mod checkpoint;
pub mod cli;
pub mod clock;
pub mod config;
pub mod contexts;
pub mod convert;
pub mod disk;
pub mod doctor;
pub mod error_text;
mod grant_file;
pub mod hardware;
pub mod health;
pub mod kube;
pub mod kubelet;
pub mod manifest;
pub mod node;
pub mod ports;
pub mod prepare;
pub(crate) mod printable;
pub mod region;
pub mod run;
pub mod selinux;
pub mod state_dir;
pub mod view;
