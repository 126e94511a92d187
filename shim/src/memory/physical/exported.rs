//! Physical memory that others may have: what is exported goes to a slot of its own, what is imported is held there.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::{ChargedSlot, NEXT, Number, RECORDS, Record, SharingScope, note, uncharged};
use crate::accounting::account::Bytes;
use crate::memory::ipc_memory::{self, DescriptorMark};

impl Number {
    /// Another process may have it from now on.
    pub(crate) fn share(self) {
        RECORDS.update(self.key(), |record| record.reach = SharingScope::Shared);
    }

    /// An object or an array may hold it from now on, and nothing tells how long. Another process's stays imported for good.
    pub(crate) fn bind(self) {
        RECORDS.update(self.key(), |record| {
            record.reach = SharingScope::Shared;
            let more = u32::from(record.bytes.0 == 0);
            record.holds = record.holds.saturating_add(more);
            record.live = record.live.saturating_add(more);
        });
    }
}

/// cuMulticastBindMem, cuMulticastBindAddr, and those of logical endpoints.
pub(crate) fn bind(memory: impl Iterator<Item = Number>, call: impl FnOnce() -> i32) -> i32 {
    memory.for_each(Number::bind);
    call()
}

/// An allocation of which others may have a range, charged already: its one hold is that it is not freed.
pub(crate) fn range_exported(bytes: Bytes, grant: u32) -> Option<Number> {
    let number = Number(NEXT.fetch_add(1, Ordering::Relaxed));
    // No handle names it.
    let (reach, books) = (SharingScope::Shared, ChargedSlot::Own);
    let record = Record { bytes, grant, handle: 0, holds: 1, live: 1, reach, books };
    RECORDS.insert(number.key(), record).ok().map(|_new| number)
}

impl ipc_memory::Entry for Number {
    fn set_apart(&self) -> bool {
        let moved = RECORDS.update(self.key(), |record| {
            let is_ours = record.books == ChargedSlot::Own;
            record.books = ChargedSlot::Apart;
            is_ours
        });
        moved == Some(true)
    }

    fn join(&self) -> bool {
        RECORDS.update(self.key(), |record| record.books = ChargedSlot::Own).is_some()
    }

    fn is_apart(&self) -> bool {
        RECORDS.get(self.key()).is_some_and(|record| record.books == ChargedSlot::Apart)
    }
}

/// cuMemExportToShareableHandle, which has answered a descriptor. An error: no process may have it.
pub(crate) fn exported_as(handle: u64, descriptor: c_int) -> Result<(), i32> {
    let number = Number::of(handle);
    let Some(record) = RECORDS.get(number.key()).filter(|record| record.bytes.0 > 0) else { return Ok(()) };
    match record.books {
        ChargedSlot::Own => {
            ipc_memory::lend_physical(&number, number.lent(), (record.bytes, record.grant), descriptor)
        }
        ChargedSlot::Apart => ipc_memory::mark_again(number.lent(), descriptor),
    }
}

/// cuMemImportFromShareableHandle: memory that this process holds, under its name; or what its maker pays for, as long as that
/// lives.
pub(crate) fn import(
    mark: Option<DescriptorMark>,
    call: impl FnOnce() -> Result<u64, i32>,
) -> Result<u64, i32> {
    let hold = ipc_memory::importing(mark)?;
    let unneeded = |is_there| hold.into_iter().for_each(|hold| hold.unneeded(is_there));
    let handle = call().inspect_err(|_| unneeded(false))?;
    match (Number::of(handle).hold(), hold) {
        (Ok(number), _) if number != Number::NONE => {
            number.name(handle);
            unneeded(true);
        }
        (_, Some(hold)) => {
            let (reach, books) = (SharingScope::Shared, ChargedSlot::Own);
            let (bytes, grant) = (Bytes(0), hold.grant());
            let record = Record { bytes, grant, handle, holds: 1, live: 1, reach, books };
            // Without a place for it it stays imported.
            if let Ok(number) = note(record) {
                ipc_memory::imported(number.lent(), hold);
            }
        }
        (_, None) => uncharged(handle),
    }
    Ok(handle)
}
