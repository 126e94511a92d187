//! `cuGetProcAddress`: the driver answers first; where its answer is a function we stand in for, the caller gets ours.
//!
//! Which ABI the answer is, is told by the address itself: it is compared with the exports of the symbol's ABIs. Only where
//! it is none of them (a driver that hands out inner addresses) the vendor's rule of versions decides. A version newer than
//! the facts know is then passed on as it is and counted: a wrong ABI would do more harm than an unknown one.

// UNSAFETY: the caller's out-parameter is read and written.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::grants;
use crate::hooks::symbols::{self, Mode};
use crate::loader::library::Library;
use crate::loader::resolve;
use crate::loader::vendor::{self, SUCCESS};
use crate::sys::KeepErrno;

/// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
const PER_THREAD: u64 = 2;

hooks! {
    Cuda, Grant;
    fn cuGetProcAddress(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64) {
        let answer = cuGetProcAddress::real(symbol, found, version, flags);
        if answer == SUCCESS {
            substitute(symbol, found, version, flags);
        }
        answer
    }
    fn cuGetProcAddress_v2(
        symbol: *const c_char,
        found: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut c_int,
    ) {
        let answer = cuGetProcAddress_v2::real(symbol, found, version, flags, status);
        if answer == SUCCESS {
            substitute(symbol, found, version, flags);
        }
        answer
    }
}

fn substitute(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64) {
    let _errno = KeepErrno::new();
    if symbol.is_null() || found.is_null() {
        return;
    }
    // SAFETY: the driver accepted both, so they are a C string and a place for an address.
    let (symbol, given) = unsafe { (CStr::from_ptr(symbol).to_bytes(), *found) };
    if given.is_null() {
        return;
    }
    let mode = if flags & PER_THREAD != 0 { Mode::PerThread } else { Mode::Legacy };
    let Some(entry) = stand_in(symbol, given.cast_const().cast(), u32::try_from(version).unwrap_or(0), mode)
    else {
        return;
    };
    // SAFETY: not null: the caller's out-parameter, which the driver has just written.
    unsafe { *found = entry.cast_mut().cast() };
}

/// What the caller gets in place of `given`; `None`: `given` itself.
fn stand_in(symbol: &[u8], given: *const (), version: u32, mode: Mode) -> Option<*const ()> {
    let abis = symbols::abis(Library::Cuda, symbol);
    if abis.is_empty() {
        grants::count_unknown();
        return None;
    }
    let mut hooks = abis.iter().filter_map(|fact| symbols::hook(fact.export.text().as_bytes())).peekable();
    hooks.peek()?;
    if let Some(hook) = hooks.find(|hook| hook.real() == given) {
        return Some(hook.entry());
    }
    if abis.iter().any(|fact| exported(fact.export.text()) == Some(given)) {
        return None;
    }
    if version > symbols::NEWEST {
        grants::count_unknown();
        return None;
    }
    let version = version.min(vendor::driver_version().unwrap_or(symbols::NEWEST));
    let hook = symbols::hook(symbols::by_rule(symbol, version, mode)?.export.text().as_bytes())?;
    hook.learn(given);
    Some(hook.entry())
}

/// The vendor's export of a name.
fn exported(export: &str) -> Option<*const ()> {
    let mut name = [0_u8; 96];
    name.get_mut(..export.len())?.copy_from_slice(export.as_bytes());
    resolve::vendor(Library::Cuda, CStr::from_bytes_until_nul(&name).ok()?)
}
