//! Real addresses, never through our own exports.

// UNSAFETY: the C library's functions are called through addresses found at run time.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::elf;
use crate::hook::Library;
use crate::sys::KeepErrno;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// A function of the C library, found past our exports. Kept in statics that assembly reads, too.
pub(crate) struct Real(AtomicPtr<()>);

/// The C library's `dlsym`.
pub(crate) static DLSYM: Real = Real(AtomicPtr::new(core::ptr::null_mut()));
/// The C library's `dlvsym`.
pub(crate) static DLVSYM: Real = Real(AtomicPtr::new(core::ptr::null_mut()));
static DLOPEN: Real = Real(AtomicPtr::new(core::ptr::null_mut()));

impl Real {
    /// The function of this name; null where nobody has it.
    pub(crate) fn get(&self, name: &CStr) -> *const () {
        let real = self.0.load(Ordering::Acquire);
        if !real.is_null() {
            return real;
        }
        let found = elf::find(name).unwrap_or(core::ptr::null());
        self.0.store(found.cast_mut(), Ordering::Release);
        found
    }
}

/// The C library's `dlsym`, as a call from here.
pub(crate) fn dlsym(handle: *mut c_void, name: *const c_char) -> *const () {
    let real = DLSYM.get(c"dlsym");
    if real.is_null() {
        return core::ptr::null();
    }
    // SAFETY: the address of the C library's function.
    let real = unsafe { core::mem::transmute::<*const (), Dlsym>(real) };
    // SAFETY: a caller's or our own handle and C string.
    unsafe { real(handle, name) }.cast_const().cast()
}

/// The C library's `dlvsym`, as a call from here.
pub(crate) fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *const () {
    let real = DLVSYM.get(c"dlvsym");
    if real.is_null() {
        return core::ptr::null();
    }
    // SAFETY: the address of the C library's function.
    let real = unsafe { core::mem::transmute::<*const (), Dlvsym>(real) };
    // SAFETY: a caller's handle and C strings.
    unsafe { real(handle, name, version) }.cast_const().cast()
}

/// A handle of the vendor's library, if it is loaded.
fn loaded(library: Library) -> *mut c_void {
    let name = match library {
        Library::Cuda => c"libcuda.so.1",
        Library::Nvml => c"libnvidia-ml.so.1",
    };
    let real = DLOPEN.get(c"dlopen");
    if real.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the address of the C library's function.
    let real = unsafe { core::mem::transmute::<*const (), Dlopen>(real) };
    // SAFETY: a C string. Nothing is loaded; the reference that this takes keeps the library for good, as drivers stay.
    unsafe { real(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// The vendor's function of this name: in its library where that is loaded, else wherever the loader finds one behind us.
pub(crate) fn vendor(library: Library, name: &CStr) -> Option<*const ()> {
    let _errno = KeepErrno::new();
    let handle = loaded(library);
    let found =
        if handle.is_null() { dlsym(libc::RTLD_NEXT, name.as_ptr()) } else { dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A vendor function's address, looked up once it is there.
pub(crate) struct Cached(AtomicPtr<()>);

impl Cached {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    pub(crate) fn get(&self, library: Library, name: &CStr) -> Option<*const ()> {
        let known = self.0.load(Ordering::Acquire);
        if !known.is_null() {
            return Some(known);
        }
        let found = vendor(library, name)?;
        self.0.store(found.cast_mut(), Ordering::Release);
        Some(found)
    }
}
