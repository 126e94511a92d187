//! Admission decisions of the shim: whether an allocation is granted, and when a launch may start.
//!
//! - [`memory`]: exact memory across threads and processes: reserve → vendor call → keep or release;
//! - [`growth`], [`graph_store`]: memory whose size only the driver knows: pools, and the memory that graphs keep;
//! - [`residue`]: memory that the driver's account has and no slot;
//! - [`reap`]: memory leaked by exited processes is released at once, by any process that detects the exit;
//! - [`pace`]: a measured share of the card's time. [`bucket`] is the credit, [`cost`] predicts, [`marks`] measure, [`cells`] and
//!   [`busy_floor`] add up; [`unbilled`] is the unsettled work of an exited process;
//! - [`share`]: the governor, which runs on the host and sets each tenant's share of a card. [`rounding`] corrects the vendor's
//!   percentages; [`term`] limits how long borrowed compute time lasts.
//!
//! No allocation, no clock, no float, no system call, no `unsafe`. Time comes in as a parameter; shared words come in as
//! borrowed atomics, so the same code runs in the shim, in the agent, and under a schedule explorer.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "shuttle", feature = "ablation"))]
extern crate std;

pub mod ablation;
mod borrowed_time;
pub mod bucket;
pub mod busy_floor;
pub mod cells;
pub mod cost;
pub mod graph_store;
pub mod growth;
pub mod marks;
pub mod memory;
mod owed;
pub mod pace;
pub mod reap;
pub mod residue;
pub mod rounding;
pub mod share;
pub mod term;
pub mod unbilled;
pub mod units;

#[cfg(feature = "shuttle")]
pub mod explore;

/// The atomics: the processor's, or the schedule explorer's.
pub(crate) mod atomic {
    #[cfg(feature = "shuttle")]
    pub(crate) use crate::explore::{AtomicU32, AtomicU64};
    pub(crate) use core::sync::atomic::Ordering;
    #[cfg(not(feature = "shuttle"))]
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64};
}
