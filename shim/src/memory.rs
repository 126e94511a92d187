//! What each family of memory calls is charged, and until when.

pub(crate) mod address_out;
pub(crate) mod admission_gate;
pub(crate) mod closed;
pub(crate) mod context_accounting;
pub(crate) mod deferred_free;
pub(crate) mod external;
pub(crate) mod free_memory_delta;
pub(crate) mod graphs;
pub(crate) mod green;
pub(crate) mod image;
pub(crate) mod ipc_memory;
pub(crate) mod meter;
pub(crate) mod modules;
pub(crate) mod physical;
pub(crate) mod plain;
pub(crate) mod pools;
pub(crate) mod ranges;
pub(crate) mod sizes;
pub(crate) mod stacks;
