//! What goes on right now: a look at everything that lies on disk, and what it adds up to.
//!
//! ```text
//!   journal ──────┐
//!   regions ──────┤                ┌─ the look before ─┐
//!   cards, real ──┼─ look ─▶ Look ─┴───────────────────┴─▶ model::picture ─▶ Picture: cards, shares, processes, problems
//!   or simulated ─┤
//!   /proc ────────┘
//! ```
//!
//! Nothing is changed, locked or waited for. What cannot be read becomes a problem with its reason, and the rest is
//! shown; words of tenants are shown as such. The simulated driver, when it is asked, takes back what dead processes
//! held, as any query of it does.

pub mod look;
mod machine;
pub mod model;
pub(crate) mod processes;
mod simulated;
mod state;

pub use look::Looker;

pub(crate) use crate::error_text::chain;
