//! What accounting notifies: the folders above it, in the order in which they act.

use crate::accounting::alloc_map::Tie;
use crate::accounting::listeners::{self, Listeners, OnContextEnd};
use crate::compute::{captures, pacing};
use crate::memory::{
    context_accounting, deferred_free, external, graphs, ipc_memory, modules, plain, pools, ranges, stacks,
};

static LISTENERS: Listeners = Listeners {
    on_pressure: &[
        |_| deferred_free::settle(),
        context_accounting::find_ended,
        pools::trim_kept,
        graphs::give_back,
    ],
    on_context_end: [
        &captures::InContexts,
        &pacing::InContexts,
        &deferred_free::InContexts,
        &MemoryInContexts,
        &graphs::InContexts,
    ],
    on_context_use: context_accounting::noticed,
    is_memory_held: ipc_memory::is_held,
    on_new_slot: ipc_memory::each_without_slot,
};

/// What a context holds, family by family.
struct MemoryInContexts;

impl OnContextEnd for MemoryInContexts {
    fn number_gone(&self, tie: Tie) {
        modules::context_ended(tie);
        stacks::context_ended(tie);
        deferred_free::context_ended(tie);
        ipc_memory::context_ended(tie);
        external::context_ended(tie);
        ranges::context_ended(tie);
        plain::context_ended(tie);
    }
}

/// Before any hook is in place.
pub(super) fn install() {
    listeners::install(&LISTENERS);
}
