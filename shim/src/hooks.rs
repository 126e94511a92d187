//! What is intercepted, by family. Each family file ends in a table of `HOOKS` and `NAMES`; both lists below name it.

pub mod dl;
pub mod memory;
pub mod pool;
pub mod proc_address;
pub mod report;

use crate::hook::Hook;

/// The families.
pub(crate) static FAMILIES: &[&[&Hook]] = &[memory::HOOKS, pool::HOOKS, proc_address::HOOKS, report::HOOKS];

/// Their names, in the same order.
pub(crate) const NAMES: &[&[&str]] = &[memory::NAMES, pool::NAMES, proc_address::NAMES, report::NAMES];
