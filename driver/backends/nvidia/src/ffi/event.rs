//! Events of a card: a set with one card in it, and the wait on that set. It calls the vendor's functions
//! directly: sets of `nvml-wrapper` borrow the library, so they cannot move to a thread, and its events lack
//! the instance.

// UNSAFETY: the vendor's functions are C, and write where pointers say.
#![expect(unsafe_code, reason = "raw calls of the vendor's library, and a handle that goes to a thread")]

use std::mem::MaybeUninit;
use std::ptr;

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use super::{Fault, Library, TIMEOUT, answered, function};

/// nvmlEventTypeXidCriticalError. Memory errors are reported as Xids as well, and once is enough.
const XID: u64 = 0x8;
/// In the place of an instance's number: the whole card.
const NO_INSTANCE: u32 = u32::MAX;

/// An event of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) xid: u64,
    /// Number of the GPU instance; `None`: the whole card.
    pub(crate) instance: Option<u32>,
}

/// A set of events with one card in it. It is freed by [`Library::unwatch`], and else with the library.
#[derive(Debug)]
pub(crate) struct EventSet(nvmlEventSet_t);

// SAFETY: a handle, which is never followed here; the library says of all its functions that threads may call them.
unsafe impl Send for EventSet {}

// === impl Library ===

impl Library {
    /// Watches a card for Xids from now on.
    pub(crate) fn watch(&self, uuid: &str) -> Result<EventSet, Fault> {
        let device = self.0.device_by_uuid(uuid)?;
        let raw = self.raw(&device);
        let (create, register) =
            (function!(raw.lib, nvmlEventSetCreate)?, function!(raw.lib, nvmlDeviceRegisterEvents)?);
        // Without it there is no use in a set.
        function!(raw.lib, nvmlEventSetWait_v2)?;
        let mut set: nvmlEventSet_t = ptr::null_mut();
        // SAFETY: a place for one handle.
        answered(unsafe { create(&raw mut set) })?;
        let set = EventSet(set);
        // SAFETY: handles of this library, which it gave just now.
        match answered(unsafe { register(raw.device, XID, set.0) }) {
            Ok(()) => Ok(set),
            Err(fault) => {
                self.unwatch(&set);
                Err(fault)
            }
        }
    }

    /// The next Xid; `None`: none came for so long, or what came is none.
    pub(crate) fn next_event(&self, set: &EventSet, millis: u32) -> Result<Option<Event>, Fault> {
        let wait = function!(self.0.lib(), nvmlEventSetWait_v2)?;
        let mut data = MaybeUninit::<nvmlEventData_t>::zeroed();
        // SAFETY: a live handle of this library, as only its holder frees it; a place for one event.
        let code = unsafe { wait(set.0, data.as_mut_ptr(), millis) };
        if code == TIMEOUT {
            return Ok(None);
        }
        answered(code)?;
        // SAFETY: integers and a handle, of which every value is one; written by the library, or zero.
        let data = unsafe { data.assume_init() };
        let instance = Some(data.gpuInstanceId).filter(|id| *id != NO_INSTANCE);
        Ok((data.eventType == XID).then_some(Event { xid: data.eventData, instance }))
    }

    /// Frees a set without waiters.
    pub(crate) fn unwatch(&self, set: &EventSet) {
        let Ok(free) = function!(self.0.lib(), nvmlEventSetFree) else { return };
        // SAFETY: a handle of this library; it is unused after this.
        let _freed = unsafe { free(set.0) };
    }
}
