//! What is got from a module or library, which may have the driver load it.

use core::ptr::null;

use super::limits::need;
use super::pending_loads::Listed;
use super::{ModuleCall, ModuleRequest, Object};
use crate::accounting::account::{self, Account};
use crate::accounting::contexts;
use crate::loader::vendor::{self, OUT_OF_MEMORY, SUCCESS};
use crate::memory::lazy_load::{LoadKey, LoadSubject};
use crate::memory::pools::AddressOut;

/// Functions of a list that are made ready when it is had. Of a longer one none is: most of them no thread launches, and to
/// load them all may take more than there is.
const LISTED_MAX: usize = 64;

/// When the driver loads what is got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loads {
    /// With the call, or never.
    AtOnce,
    /// At a launch, perhaps.
    Later,
}

/// Something is got from a module or library, or made ready in it; what was had before takes nothing.
pub(crate) fn get(
    object: Object,
    asked: Option<LoadKey>,
    place: Option<AddressOut>,
    real: impl Fn() -> i32,
) -> i32 {
    get_new(asked, || get_watched(object, (place, Loads::AtOnce), &real), &real)
}

/// A function is got, of which the driver makes the local memory at a launch.
pub(crate) fn get_function(
    object: Object,
    asked: Option<LoadKey>,
    place: AddressOut,
    real: impl Fn() -> i32,
) -> i32 {
    let watched = || get_watched(object, (Some(place), Loads::AtOnce), &real);
    get_new(asked, || with_local(place, watched, need), &real)
}

/// A kernel is got from a library, which the driver may load at its first launch: it is made ready now.
pub(crate) fn get_kernel(
    object: Object,
    asked: Option<LoadKey>,
    place: AddressOut,
    real: impl Fn() -> i32,
) -> i32 {
    let watched = || get_watched(object, (Some(place), Loads::Later), &real);
    let new = || {
        let answer = with_local(place, watched, |kernel| function_of(kernel).map_or(SUCCESS, need));
        if answer == SUCCESS && !place.is_null() {
            Listed::Kernels(object).note(place);
            let ready = LoadKey::of_library(LoadSubject::Itself, Object(place.read()), null());
            ready.into_iter().for_each(LoadKey::note);
        }
        answer
    };
    get_new(asked, new, &real)
}

/// A function, or what `function` tells of a kernel, is made ready for launches.
pub(crate) fn make_ready(
    object: Object,
    asked: Option<LoadKey>,
    function: impl Fn() -> Option<u64>,
    real: impl Fn() -> i32,
) -> i32 {
    let ready = || match get_watched(object, (None, Loads::AtOnce), &real) {
        SUCCESS => function().map_or(SUCCESS, need),
        error => error,
    };
    get_new(asked, ready, &real)
}

/// What is got is charged for what it needs at a launch; where that does not fit it is not had.
fn with_local(place: AddressOut, got: impl FnOnce() -> i32, need: impl FnOnce(u64) -> i32) -> i32 {
    if place.is_null() {
        return got();
    }
    let before = place.before();
    let answer = got();
    if answer != SUCCESS {
        return answer;
    }
    let answer = need(place.read());
    if answer != SUCCESS {
        place.put_back(before);
    }
    answer
}

/// A list of functions or kernels is had, with room for so many, of which there are `there`. The driver may load each at its
/// first launch: `load` makes one ready now.
pub(crate) fn get_list(
    (list, room, listed): (AddressOut, u32, Listed),
    there: impl Fn(&mut u32) -> Option<i32>,
    real: impl Fn() -> i32,
    load: impl Fn(u64) -> i32,
) -> i32 {
    let current = contexts::current().map(|current| account::of(current.device));
    let mut all = 0;
    let is_known = there(&mut all) == Some(SUCCESS);
    let count = usize::try_from(all.min(room)).unwrap_or(usize::MAX);
    let is_short = usize::try_from(all).is_ok_and(|all| all <= LISTED_MAX);
    if list.is_null() || !is_known {
        return real();
    }
    let places = || (0..count).map(|at| AddressOut(list.0.wrapping_add(at)));
    if !is_short || matches!(current, None | Some(Account::Uncounted)) {
        let answer = real();
        if answer == SUCCESS {
            places().for_each(|place| listed.note(place));
        }
        return answer;
    }
    let mut before = [0; LISTED_MAX];
    for (word, place) in before.iter_mut().zip(places()) {
        *word = place.before();
    }
    let answer = real();
    if answer != SUCCESS {
        return answer;
    }
    if vendor::relaxed(|| places().all(|place| load(place.read()) != OUT_OF_MEMORY)) {
        if let Listed::Kernels(_) = listed {
            places().for_each(|place| listed.note(place));
        }
        return SUCCESS;
    }
    before.iter().zip(places()).for_each(|(word, place)| place.put_back(*word));
    OUT_OF_MEMORY
}

fn get_new(asked: Option<LoadKey>, watched: impl FnOnce() -> i32, real: impl FnOnce() -> i32) -> i32 {
    if asked.is_some_and(LoadKey::is_known) {
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

/// The function of a kernel in the current context.
pub(crate) fn function_of(kernel: u64) -> Option<u64> {
    let mut function = 0;
    (vendor::relaxed(|| vendor::cuKernelGetFunction(&raw mut function, kernel))? == SUCCESS)
        .then_some(function)
}

/// Has the driver load a kernel in the current context. What else is wrong with it is its launch's affair.
pub(crate) fn load(kernel: u64) -> i32 {
    let load = || {
        let mut function = 0;
        match vendor::cuKernelGetFunction(&raw mut function, kernel)? {
            SUCCESS => vendor::cuFuncLoad(function),
            error => Some(error),
        }
    };
    if vendor::relaxed(load) == Some(OUT_OF_MEMORY) { OUT_OF_MEMORY } else { SUCCESS }
}

fn get_watched(object: Object, (place, loads): (Option<AddressOut>, Loads), real: &impl Fn() -> i32) -> i32 {
    let watched = match ModuleCall::begin(ModuleRequest::Get(object)) {
        Ok(Some(watched)) => watched,
        Ok(None) => return real(),
        Err(answer) => return answer,
    };
    let place = place.filter(|place| !place.is_null());
    let (before, ledger) = (place.map(AddressOut::before), watched.ledger);
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
