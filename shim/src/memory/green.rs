//! Green contexts: each retains its card's primary context, which is charged, and works with its memory.

use crate::accounting::alloc_map::{AllocMap, Key};
use crate::accounting::contexts::{self, ContextEnd, Notes};
use crate::loader::vendor::{self, Device, SUCCESS};
use crate::memory::address_out::AddressOut;
use crate::memory::context_accounting::{self, Holder, PrimaryRelease};
use crate::sys::KeepErrno;

/// Those that were made here, by handle.
static GREEN: AllocMap<Green> = AllocMap::new();

#[derive(Clone, Copy, Debug)]
struct Green {
    device: i32,
    /// As which it is used.
    context: u64,
}

/// The context as which a green one is used.
fn context_of(green: u64) -> Option<u64> {
    let mut context = 0;
    (vendor::cuCtxFromGreenCtx(&raw mut context, green)? == SUCCESS).then_some(context)
}

/// cuGreenCtxCreate; `destroy` is the vendor's.
pub(crate) fn create(
    device: Device,
    green: AddressOut,
    real: impl Fn() -> i32,
    destroy: fn(u64) -> i32,
) -> i32 {
    let answer = context_accounting::retain(device, (Holder::Green, green), real, destroy);
    if answer != SUCCESS || green.is_null() {
        return answer;
    }
    let _errno = KeepErrno::new();
    let handle = green.read();
    let is_noted = context_of(handle).is_some_and(|context| {
        context_accounting::begins(context);
        context_accounting::join_primary(device, context);
        GREEN.insert(Key(handle), Green { device: device.0, context }).is_ok()
    });
    if !is_noted {
        // The primary context is seen to be gone at its own calls.
        context_accounting::forget_green(device);
    }
    SUCCESS
}

/// cuGreenCtxDestroy.
pub(crate) fn destroy(green: u64, real: impl Fn() -> i32) -> i32 {
    let known = {
        let _errno = KeepErrno::new();
        let known = GREEN.take(Key(green));
        // Before: the driver may give its handles to another at once.
        known.iter().for_each(|known| contexts::part(known.context));
        if let Some(context) = known.map(|known| known.context).or_else(|| context_of(green)) {
            let _told = contexts::handle_going(context, ContextEnd::Comes);
        }
        known
    };
    let answer = match known {
        Some(Green { device, .. }) => context_accounting::let_go(Device(device), PrimaryRelease::Green, real),
        None => real(),
    };
    let _errno = KeepErrno::new();
    if let Some(still) = known.filter(|_| answer != SUCCESS) {
        context_accounting::join_primary(Device(still.device), still.context);
        let _noted = GREEN.insert(Key(green), still);
    }
    if answer == SUCCESS {
        contexts::handle_gone(0, Notes::default());
    }
    answer
}
