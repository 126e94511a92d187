//! Events of accounting for the folders above it: accounting calls through this table and knows none of them.
//!
//! ```text
//!   first hook in place ─▶ install ─▶ a pressure, a context's first use or end, a slot that is looked at ─▶ the listeners
//! ```

// UNSAFETY: the installed table is read through its address.
#![expect(unsafe_code, reason = "the table is read through its address")]

use core::sync::atomic::{AtomicPtr, Ordering};

use super::account::{Bytes, Ledger};
use super::alloc_map::Tie;
use super::contexts::ContextEnd;
use crate::grants::Usage;
use crate::loader::vendor::Device;

/// Listeners of a context's end.
pub(crate) const CONTEXT_LISTENERS: usize = 5;

/// What a listener found at the beginning of a context's end, given back to it at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note(pub(crate) u32);

/// What is in a context that ends. Each step may be of interest.
pub(crate) trait OnContextEnd: Sync {
    /// A context of this handle is about to end, or has.
    fn going(&self, _handle: u64, _end: ContextEnd) -> Note {
        Note::default()
    }

    /// It ended.
    fn gone(&self, _handle: u64, _note: Note) {}

    /// What is allocated under this number is about to end.
    fn number_going(&self, _tie: Tie) {}

    /// It did not.
    fn number_stays(&self, _tie: Tie) {}

    /// It ended.
    fn number_gone(&self, _tie: Tie) {}
}

/// The folders above, as accounting calls them.
pub(crate) struct Listeners {
    /// Memory is short: what is only kept, or was freed without notice, goes back.
    pub(crate) on_pressure: &'static [fn(Ledger)],
    /// A context ends; the steps are taken in this order.
    pub(crate) on_context_end: [&'static dyn OnContextEnd; CONTEXT_LISTENERS],
    /// A context allocates for the first time.
    pub(crate) on_context_use: fn(Device, u64),
    /// Whether any process holds the memory of a slot, which has this number and owner word.
    pub(crate) is_memory_held: fn((Usage, i32), usize, u64) -> bool,
    /// This process takes a slot anew: `join` gets the bytes of each allocation whose own slot was taken away.
    pub(crate) on_new_slot: fn(Ledger, &dyn Fn(Bytes)),
}

static INSTALLED: AtomicPtr<Listeners> = AtomicPtr::new(core::ptr::null_mut());

/// Installs the table; all callers give the same one.
pub(crate) fn install(listeners: &'static Listeners) {
    INSTALLED.store(core::ptr::from_ref(listeners).cast_mut(), Ordering::Release);
}

/// The table; `None` before any hook is in place, when nothing is charged.
pub(crate) fn listeners() -> Option<&'static Listeners> {
    // SAFETY: null, or a reference to a static.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }
}

/// The listeners of a context's end, in order.
pub(crate) fn on_context_end() -> impl Iterator<Item = &'static dyn OnContextEnd> {
    listeners().into_iter().flat_map(|listeners| listeners.on_context_end)
}
