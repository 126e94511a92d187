//! Usage accounting of this process: reserved bytes in the region, process slots, contexts, and tables of what is charged.

pub(crate) mod account;
pub(crate) mod alloc_map;
pub(crate) mod contexts;
pub(crate) mod credit;
pub(crate) mod life;
pub(crate) mod listeners;
pub(crate) mod liveness;
pub(crate) mod pages;
