//! What accounting notifies: the folders above it, in the order in which they act.

use crate::accounting::listeners::{self, Listeners};
use crate::compute::{captures, pacing};
use crate::memory::{context_accounting, deferred_free, graphs, ipc_memory, plain, pools};

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
        &plain::InContexts,
        &graphs::InContexts,
    ],
    on_context_use: context_accounting::noticed,
    is_memory_held: ipc_memory::is_held,
    on_new_slot: ipc_memory::each_without_slot,
};

/// Before any hook is in place.
pub(super) fn install() {
    listeners::install(&LISTENERS);
}
