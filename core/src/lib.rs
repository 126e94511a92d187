//! Aliquot's partitioning core: pure code that decides what a card may become, what claims hold, and where a
//! claim goes.
//!
//! ```text
//!  catalogue ─┐
//!  backend ───┴▶ card::Inventory ─▶ offer ─▶ dra::ResourceSlice ─▶ allocate ─▶ dra::AllocationResult ─▶ plan ─▶ grant
//!                     │                                                                        │
//!                     └────────────────────▶ ledger: one account per card ◀────────────────────┘
//! ```
//!
//! No IO, no clock, no environment, no randomness, no serialization: the same input gives the same output.

pub mod allocate;
pub mod card;
pub mod catalogue;
pub mod cel;
pub mod counters;
pub mod disposition;
pub mod dra;
pub mod fraction;
pub mod grant;
pub mod health;
pub mod id;
pub mod ledger;
pub mod node_order;
pub mod offer;
pub mod orphans;
pub mod partition;
pub mod plan;
pub mod ports;
pub mod rounding;
pub mod units;

pub use aliquot_cel::quantity;
