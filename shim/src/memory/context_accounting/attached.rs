//! Contexts of cuCtxAttach and cuCtxDetach, which count references.

use super::{CONTEXTS, withdraw};
use crate::accounting::account::Ledger;
use crate::accounting::alloc_map::{AllocEntry, AllocMap, Key};
use crate::accounting::contexts::{self, ContextEnd};
use crate::loader::vendor::SUCCESS;
use crate::memory::address_out::AddressOut;
use crate::memory::pools;
use crate::sys::KeepErrno;

/// References to contexts of the program's own beyond the first, by handle.
static ATTACHED: AllocMap<u32> = AllocMap::new();

/// One more reference to the current context.
pub(crate) fn attach(context: AddressOut, real: impl Fn() -> i32) -> i32 {
    let answer = real();
    if answer == SUCCESS && !context.is_null() {
        let key = Key(context.read());
        if ATTACHED.update(key, |count| *count = count.saturating_add(1)).is_none() {
            let _first = ATTACHED.insert(key, 1);
        }
    }
    answer
}

/// One reference less; with the last one the context is gone.
pub(crate) fn detach(handle: u64, real: impl Fn() -> i32) -> i32 {
    let more = ATTACHED.update(Key(handle), |count| {
        let more = *count > 0;
        *count = count.saturating_sub(1);
        more
    });
    if more != Some(true) {
        return destroy(handle, real);
    }
    let answer = real();
    if answer != SUCCESS {
        let _back = ATTACHED.update(Key(handle), |count| *count = count.saturating_add(1));
    }
    answer
}

/// A context of the program's own is destroyed: everything in it goes. Always forwarded.
pub(crate) fn destroy(handle: u64, real: impl Fn() -> i32) -> i32 {
    let held = CONTEXTS.take(Key(handle));
    let _moving = held.and_then(AllocEntry::ledger).map(Ledger::moving);
    let going = contexts::going(handle, ContextEnd::Comes);
    let answer = real();
    let _errno = KeepErrno::new();
    if answer == SUCCESS {
        going.gone();
        let _references = ATTACHED.take(Key(handle));
    } else {
        going.stays();
    }
    if let Some(held) = held {
        // Without its place the driver's account has it.
        if answer == SUCCESS || CONTEXTS.insert(Key(handle), held).is_err() {
            withdraw(held);
        }
    }
    pools::refresh();
    answer
}
