//! A card that is closed to this process: whatever would take memory of it is refused, and the vendor is not asked.
//!
//! A card of which the driver tells no UUID is closed, too. Mostly the driver is not initialised then, or has no such card, and
//! its own error is the right answer: there it is asked, and what it makes all the same is unmade.

use crate::loader::vendor::{self, Device, OUT_OF_MEMORY, SUCCESS};
use crate::memory::address_out::AddressOut;
use crate::sys::KeepErrno;

/// The answer of a call that would take memory of a closed card.
#[cold]
pub(crate) fn refuse<T>(
    device: Device,
    make: impl FnOnce() -> Result<T, i32>,
    unmake: impl FnOnce(T) -> i32,
) -> i32 {
    if vendor::uuid(device).is_some() {
        return OUT_OF_MEMORY;
    }
    match make() {
        Ok(made) => {
            let _errno = KeepErrno::new();
            // There is no other way back.
            let _answer = unmake(made);
            OUT_OF_MEMORY
        }
        Err(error) => error,
    }
}

/// The same, where the vendor writes a handle, which is not null's.
#[cold]
pub(crate) fn refuse_handle(
    device: Device,
    place: AddressOut,
    real: impl FnOnce() -> i32,
    unmake: impl FnOnce(u64) -> i32,
) -> i32 {
    let before = place.before();
    let make = || match real() {
        SUCCESS => Ok(place.read()),
        error => Err(error),
    };
    refuse(device, make, |handle| {
        place.write(before);
        unmake(handle)
    })
}
