//! What the shim decides: may this allocation be made, may this launch go now.
//!
//! - [`memory`]: exact memory across threads and processes: reserve → vendor call → keep or give back;
//! - [`growth`], [`backing`]: memory of which only the driver knows the size: pools, and what graphs still have of it;
//! - [`reap`]: the holding of dead processes goes back at once, whoever notices;
//! - [`pace`]: a measured share of the card's time: [`bucket`] holds it, [`cost`] foretells, [`marks`] measure, [`cells`] and
//!   [`sure`] add up; [`unbilled`] is what a process that died could not settle;
//! - [`share`]: what each tenant of a card may use now: the governor, which runs on the host; [`rounding`] reads what the vendor
//!   tells it; [`term`] is how long what it lends lasts.
//!
//! No allocation, no clock, no float, no system call, no `unsafe`. Time comes in as a parameter; shared words come in as
//! borrowed atomics, so the same code runs in the shim, in the agent, and under a schedule explorer.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "shuttle"))]
extern crate std;

pub mod backing;
pub mod bucket;
pub mod cells;
pub mod cost;
pub mod growth;
mod loan;
pub mod marks;
pub mod memory;
mod owed;
pub mod pace;
pub mod reap;
pub mod rounding;
pub mod share;
pub mod sure;
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
