//! Present state of a node: reads state directories, drivers and `/proc`, and computes a picture.
//!
//! ```text
//!   journal ──────┐
//!   regions ──────┤                ┌─ previous look ───┐
//!   cards, real ──┼─ look ─▶ Look ─┴───────────────────┴─▶ model::picture ─▶ Picture: cards, shares, processes, problems
//!   or simulated ─┤
//!   /proc ────────┘
//! ```
//!
//! Nothing is changed, locked or waited for. An unreadable source becomes a problem with its reason, and the rest is shown; values
//! that tenants write are marked as such. A query of the simulated driver releases memory of exited processes, as any query of
//! it does.

pub mod look;
mod machine;
pub mod model;
mod simulated;
pub mod snapshot;
mod state;

pub use look::Looker;

pub(crate) use crate::error_text::chain;
