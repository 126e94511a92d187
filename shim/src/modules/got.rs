//! What is got from a module or library, which may have the driver load it.

use super::{Asking, Object, Watched};
use crate::asked::Asked;
use crate::pools::Place;
use crate::vendor::{self, OUT_OF_MEMORY, SUCCESS};

/// When the driver loads what is got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loads {
    /// With the call, or never.
    AtOnce,
    /// At a launch, perhaps.
    Later,
}

/// Something is got from a module or library, or made ready in it; what was had before takes nothing.
pub(crate) fn get(object: Object, asked: Option<Asked>, place: Option<Place>, real: impl Fn() -> i32) -> i32 {
    get_new(asked, || get_watched(object, (place, Loads::AtOnce), &real), &real)
}

/// A kernel is got from a library, which the driver may load at its first launch: it is made ready now.
pub(crate) fn get_kernel(object: Object, asked: Option<Asked>, place: Place, real: impl Fn() -> i32) -> i32 {
    get_new(asked, || get_watched(object, (Some(place), Loads::Later), &real), &real)
}

fn get_new(asked: Option<Asked>, watched: impl FnOnce() -> i32, real: impl FnOnce() -> i32) -> i32 {
    if asked.is_some_and(Asked::is_known) {
        return real();
    }
    let answer = watched();
    if answer == SUCCESS
        && let Some(asked) = asked
    {
        asked.note();
    }
    answer
}

/// Has the driver load a kernel in the current context. What else is wrong with it is its launch's affair.
fn load(kernel: u64) -> i32 {
    let load = || {
        let mut function = 0;
        match vendor::cuKernelGetFunction(&raw mut function, kernel)? {
            SUCCESS => vendor::cuFuncLoad(function),
            error => Some(error),
        }
    };
    if vendor::relaxed(load) == Some(OUT_OF_MEMORY) { OUT_OF_MEMORY } else { SUCCESS }
}

fn get_watched(object: Object, (place, loads): (Option<Place>, Loads), real: &impl Fn() -> i32) -> i32 {
    let watched = match Watched::begin(Asking::Get(object)) {
        Ok(Some(watched)) => watched,
        Ok(None) => return real(),
        Err(answer) => return answer,
    };
    let place = place.filter(|place| !place.is_null());
    let (before, ledger) = (place.map(Place::before), watched.ledger);
    let mut answer = real();
    if let (SUCCESS, Loads::Later, Some(place)) = (answer, loads, place) {
        answer = load(place.read());
    }
    // Asked for a name that is not there, the driver may have loaded the module all the same.
    let fits = watched.end(object, answer).is_ok();
    if fits && answer == SUCCESS {
        return SUCCESS;
    }
    if let (Some(place), Some(before)) = (place, before) {
        place.put_back(before);
    }
    if answer == SUCCESS { ledger.refuse() } else { answer }
}
