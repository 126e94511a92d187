//! Functions of the C library, never through our own exports.

// UNSAFETY: the C library's functions are called through addresses found at run time.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::sys::elf::{self, LinkMap, Object};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Dlerror = unsafe extern "C" fn() -> *const c_char;
type Dladdr1 = unsafe extern "C" fn(*const c_void, *mut libc::Dl_info, *mut *const LinkMap, c_int) -> c_int;

/// RTLD_DL_LINKMAP
const WITH_LINK_MAP: c_int = 2;

/// A function of the C library, found past our exports. Kept in statics that assembly reads, too.
pub(crate) struct Real(AtomicPtr<()>);

/// The C library's `dlsym`, or that of a library that is preloaded behind us.
pub(crate) static DLSYM: Real = Real(AtomicPtr::new(core::ptr::null_mut()));
/// The same for `dlvsym`.
pub(crate) static DLVSYM: Real = Real(AtomicPtr::new(core::ptr::null_mut()));
/// The same for `dl_iterate_phdr`.
pub(crate) static WALK: Real = Real(AtomicPtr::new(core::ptr::null_mut()));
/// What tells the time: processes share words of it, and none of them may have one of its own, as libraries give programs.
pub(crate) static CLOCK: Real = Real(AtomicPtr::new(core::ptr::null_mut()));
static DLOPEN: Real = Real(AtomicPtr::new(core::ptr::null_mut()));
static DLADDR1: Real = Real(AtomicPtr::new(core::ptr::null_mut()));
static DLERROR: Real = Real(AtomicPtr::new(core::ptr::null_mut()));

impl Real {
    /// The function of this name; null where no process has it.
    pub(crate) fn get(&self, name: &CStr) -> *const () {
        let real = self.0.load(Ordering::Acquire);
        if !real.is_null() {
            return real;
        }
        self.learn(elf::behind_us(name))
    }

    /// The C library's own function of this name, though another library stands in for it; null where it has none.
    #[inline]
    pub(crate) fn own(&self, name: &CStr) -> *const () {
        let real = self.0.load(Ordering::Acquire);
        if real.is_null() { self.find_own(name) } else { real }
    }

    #[cold]
    fn find_own(&self, name: &CStr) -> *const () {
        self.learn(elf::of_c_library(name))
    }

    fn learn(&self, found: Option<*const ()>) -> *const () {
        let found = found.unwrap_or(core::ptr::null());
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

/// Takes away what a look-up of ours that found nothing has left to be told; whether there was anything.
pub(crate) fn forget_error() -> bool {
    let real = DLERROR.get(c"dlerror");
    if real.is_null() {
        return false;
    }
    // SAFETY: the address of the C library's function.
    let real = unsafe { core::mem::transmute::<*const (), Dlerror>(real) };
    // SAFETY: it may always be called.
    unsafe { !real().is_null() }
}

/// Makes `dlerror` tell of a name that was looked for behind us and is not there. Before glibc 2.24 the loader keeps silent about
/// that (sourceware bug 19509), and a program that found nothing takes for granted that there is something to tell.
pub(crate) fn tell_missing(name: &CStr) {
    if forget_error() {
        dlsym(libc::RTLD_NEXT, name.as_ptr());
        return;
    }
    // The C library has no function of a vendor.
    let library = open(c"libc.so.6");
    if !library.is_null() {
        dlsym(library, name.as_ptr());
    }
}

/// A library that is loaded; null where it is not. The reference is never given back.
pub(crate) fn open(name: &CStr) -> *mut c_void {
    let real = DLOPEN.get(c"dlopen");
    if real.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the address of the C library's function.
    let real = unsafe { core::mem::transmute::<*const (), Dlopen>(real) };
    // SAFETY: a C string. Nothing is loaded.
    unsafe { real(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// The library that an address lies in, in whichever namespace of the loader.
pub(crate) fn object_of(address: *const ()) -> Option<Object> {
    let real = DLADDR1.get(c"dladdr1");
    if real.is_null() {
        return None;
    }
    // SAFETY: the address of the C library's function.
    let real = unsafe { core::mem::transmute::<*const (), Dladdr1>(real) };
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let mut map = core::ptr::null::<LinkMap>();
    // SAFETY: any address may be asked about; two places for the answer.
    let answer = unsafe { real(address.cast(), info.as_mut_ptr(), &raw mut map, WITH_LINK_MAP) };
    // SAFETY: the caller has just got a function of the library, so it is loaded and stays so while the caller asks.
    (answer != 0 && !map.is_null()).then(|| unsafe { Object::of(map) })
}
