//! Real addresses, never through our own exports.
//!
//! The vendor's library is the one that goes by its name (`DT_SONAME`), wherever it was loaded from; of several copies, as
//! `dlmopen` makes them, the first that gave a function. A function of the same name in any other library is that library's
//! affair: whoever asks for it gets it.

// UNSAFETY: the C library's functions are called through addresses found at run time.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::elf::{self, LinkMap, Object};
use crate::hook::Library;
use crate::sys::KeepErrno;

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
    /// The function of this name; null where nobody has it.
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
fn open(name: &CStr) -> *mut c_void {
    let real = DLOPEN.get(c"dlopen");
    if real.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the address of the C library's function.
    let real = unsafe { core::mem::transmute::<*const (), Dlopen>(real) };
    // SAFETY: a C string. Nothing is loaded.
    unsafe { real(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

// === The vendor's libraries ===

const UNKNOWN: u32 = 0;
const WRITING: u32 = 1;
const KNOWN: u32 = 2;

/// The copy of a vendor's library that gave the first function.
struct Copy {
    phase: AtomicU32,
    base: AtomicU64,
    dynamic: AtomicU64,
    /// 1: it is never unloaded.
    kept: AtomicU32,
}

static COPIES: [Copy; 2] = [const { Copy::unknown() }; 2];

impl Copy {
    const fn unknown() -> Self {
        let (phase, kept) = (AtomicU32::new(UNKNOWN), AtomicU32::new(0));
        Self { phase, base: AtomicU64::new(0), dynamic: AtomicU64::new(0), kept }
    }

    fn of(library: Library) -> &'static Self {
        let [cuda, nvml] = &COPIES;
        match library {
            Library::Cuda => cuda,
            Library::Nvml => nvml,
        }
    }

    fn get(&self) -> Option<Object> {
        (self.phase.load(Ordering::Acquire) == KNOWN).then(|| Object {
            base: self.base.load(Ordering::Acquire),
            dynamic: self.dynamic.load(Ordering::Acquire),
        })
    }

    /// The first stays.
    fn remember(&self, object: Object) {
        if self.phase.compare_exchange(UNKNOWN, WRITING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.base.store(object.base, Ordering::Release);
            self.dynamic.store(object.dynamic, Ordering::Release);
            self.phase.store(KNOWN, Ordering::Release);
        }
    }
}

/// How the vendor's library is named, up to its version.
fn stem(library: Library) -> &'static CStr {
    match library {
        Library::Cuda => c"libcuda.so",
        Library::Nvml => c"libnvidia-ml.so",
    }
}

/// The vendor's library, if it is loaded.
fn loaded(library: Library) -> Option<Object> {
    let copy = Copy::of(library);
    copy.get().or_else(|| {
        // Who is linked to it may be a plugin, with which it would go.
        if elf::is_late(stem(library)) {
            keep(library);
        }
        let found = elf::named(stem(library))?;
        copy.remember(found);
        Some(found)
    })
}

/// The vendor's function of this name.
pub(crate) fn vendor(library: Library, name: &CStr) -> Option<*const ()> {
    let _errno = KeepErrno::new();
    loaded(library)?.function(name)
}

/// Whether a function that the loader gave for a name is the vendor's.
pub(crate) fn is_vendors(library: Library, name: &CStr, found: *const ()) -> bool {
    let copy = Copy::of(library);
    if copy.get().is_none_or(|object| object.function(name) != Some(found)) {
        let Some(object) = object_of(found).filter(|object| object.goes_by(stem(library))) else {
            return false;
        };
        copy.remember(object);
    }
    keep(library);
    true
}

/// The library that an address lies in, in whichever namespace of the loader.
fn object_of(address: *const ()) -> Option<Object> {
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

/// Takes a reference to the vendor's library that is never given back: its functions are remembered, and drivers stay. It clears
/// what `dlerror` says, as `dlsym` does anyway, from where it is called; a program that is linked to the library itself keeps it
/// without this, and what was to be told.
pub(crate) fn keep(library: Library) {
    if Copy::of(library).kept.swap(1, Ordering::AcqRel) != 0 {
        return;
    }
    let name = match library {
        Library::Cuda => c"libcuda.so.1",
        Library::Nvml => c"libnvidia-ml.so.1",
    };
    if open(name).is_null() {
        // It goes by another name, or lies in another namespace: then who loaded it keeps it.
        forget_error();
    }
}

/// What lies behind our own export of a name, for a program that found ours.
pub(crate) enum Behind {
    /// The vendor's.
    Vendor,
    /// Another library's: it comes before the vendor's.
    Other(*const ()),
    /// Nothing that the program could have found.
    Nothing,
}

/// What a program would find if we were not there, where it finds our export of a vendor function.
pub(crate) fn behind(library: Library, name: &CStr) -> Behind {
    let _errno = KeepErrno::new();
    let found = dlsym(libc::RTLD_NEXT, name.as_ptr());
    if found.is_null() {
        Behind::Nothing
    } else if is_vendors(library, name, found) {
        Behind::Vendor
    } else {
        Behind::Other(found)
    }
}

/// The same for a linked call, which must leave alone what `dlerror` says: the loader is asked only where our own look at its
/// tables finds another library in between.
pub(crate) fn behind_link(library: Library, name: &CStr) -> Behind {
    let first = elf::behind_here(name);
    if first.is_none() || first == vendor(library, name) {
        return Behind::Vendor;
    }
    let behind = behind(library, name);
    if matches!(behind, Behind::Nothing) {
        forget_error();
    }
    behind
}

/// A vendor function's address, looked up once its library is there.
pub(crate) struct Cached(AtomicPtr<()>);

/// Stands for a function that the vendor's library does not have.
const ABSENT: *mut () = core::ptr::without_provenance_mut(1);

impl Cached {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    #[inline]
    pub(crate) fn get(&self, library: Library, name: &CStr) -> Option<*const ()> {
        let known = self.0.load(Ordering::Acquire);
        if known.is_null() {
            return self.look(library, name);
        }
        (known != ABSENT).then_some(known.cast_const())
    }

    #[cold]
    #[inline(never)]
    fn look(&self, library: Library, name: &CStr) -> Option<*const ()> {
        let found = vendor(library, name);
        // The copy that is remembered stays, so what it lacks it will lack.
        if found.is_some() || Copy::of(library).get().is_some_and(|copy| copy.function(name).is_none()) {
            self.0.store(found.map_or(ABSENT, <*const ()>::cast_mut), Ordering::Release);
        }
        found
    }
}
