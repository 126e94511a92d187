//! Local runs: processes instead of containers, on one machine without a cluster, with the same ledger, journal and grants.
//!
//! ```text
//!   ask ─▶ claim ─▶ allocator ─▶ Node::prepare ─▶ command with the shim ─▶ its end ─▶ Node::release
//!    │       │                        │                  │ signals, exit code
//!    │       └ runs/<uid>, locked ◀───┘                  └─ governor: exited processes reaped, compute granted
//!    └ part and card                                     ├─ watch: health events of the card, recorded
//!                                                        └─ enforcement: limits that do not hold, reported
//! ```
//!
//! The claim of a local run belongs to its supervisor, the process that started the command. The supervisor holds a lock on the
//! run's record until it exits. The next call that opens the node for changes finds the record unlocked, and releases the claim
//! once no process of the command is alive either ([`record`]). Module `liveness` checks that.

pub mod ask;
pub mod cards;
pub(crate) mod commands;
pub mod enforcement;
pub mod governor;
mod liveness;
pub mod machine;
pub(crate) mod processes;
pub mod record;
pub(crate) mod samples;
pub mod simulated;
pub mod stop;
pub mod supervise;
pub mod watch;
