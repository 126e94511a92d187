//! What is intercepted, by family. Each family file ends in a table of `HOOKS` and `NAMES`; both lists below name it.

#[macro_use]
pub(crate) mod hook;

pub mod arrays;
pub mod context;
pub mod copy;
pub mod dl;
pub mod external;
pub mod graph;
pub mod hold;
pub mod launch;
mod listeners;
pub mod memory;
pub mod module;
pub mod multicast;
pub mod nvml;
pub mod physical;
pub mod pool;
pub mod proc_address;
pub mod replay;
pub mod report;
pub mod stream;
pub mod symbols;

use crate::hooks::hook::Hook;

/// The families.
#[rustfmt::skip]
pub(crate) static FAMILIES: &[&[&Hook]] = &[
    arrays::HOOKS,
    context::HOOKS,
    copy::HOOKS,
    copy::array::HOOKS,
    copy::batch::HOOKS,
    external::HOOKS,
    graph::HOOKS,
    hold::HOOKS,
    launch::HOOKS,
    memory::HOOKS,
    module::HOOKS,
    multicast::HOOKS,
    nvml::HOOKS,
    physical::HOOKS,
    pool::HOOKS,
    proc_address::HOOKS,
    replay::HOOKS,
    report::HOOKS,
    stream::HOOKS,
];

/// Their names, in the same order.
#[rustfmt::skip]
pub(crate) const NAMES: &[&[&str]] = &[
    arrays::NAMES,
    context::NAMES,
    copy::NAMES,
    copy::array::NAMES,
    copy::batch::NAMES,
    external::NAMES,
    graph::NAMES,
    hold::NAMES,
    launch::NAMES,
    memory::NAMES,
    module::NAMES,
    multicast::NAMES,
    nvml::NAMES,
    physical::NAMES,
    pool::NAMES,
    proc_address::NAMES,
    replay::NAMES,
    report::NAMES,
    stream::NAMES,
];
