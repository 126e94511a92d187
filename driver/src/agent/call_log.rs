//! One number for each call of the kubelet, on every line that the agent logs for it.
//!
//! ```text
//!  NodePrepareResources, two claims ─▶ call{id=7 operation="prepare"} ─┬▶ task of the first claim  ─▶ thread of the node's call
//!                                                                      └▶ task of the second claim ─▶ …
//! ```
//! Numbers begin with 1 at each start of the agent. A task that outlives its call keeps the call's number; the kubelet's next
//! call for the same claim has another one.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Span;

use super::metrics::Operation;

/// Gives calls their numbers.
#[derive(Debug, Default)]
pub(super) struct CallLog(AtomicU64);

// === impl CallLog ===

impl CallLog {
    /// The span of a call that has just arrived with so many claims; everything done for the call runs within it.
    pub(super) fn begins(&self, operation: Operation, claims: usize) -> Span {
        let id = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        // Of the highest level, so that a filter that hides lines of lower ones leaves the number on the others.
        let span = tracing::error_span!("call", id, operation = operation.word());
        span.in_scope(|| tracing::debug!(claims, "received"));
        span
    }
}

/// The function, as it is to run on another thread: within the span of the caller.
pub(super) fn within_call<T>(run: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = Span::current();
    move || span.in_scope(run)
}
