//! Addresses of the vendor's functions, never through our own exports.
//!
//! The vendor's library is the one that goes by its name (`DT_SONAME`), wherever it was loaded from; of several copies, as
//! `dlmopen` makes them, the first that gave a function. A function of the same name in any other library is that library's
//! affair: the caller that asks for it gets it.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::loader::library::Library;
use crate::sys::KeepErrno;
use crate::sys::c_library::{dlsym, forget_error, object_of, open};
use crate::sys::elf::{self, Object};

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
        // A caller that is linked to it may be a plugin, with which it would go.
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
        // It goes by another name, or lies in another namespace: then the library that loaded it keeps it.
        forget_error();
    }
}

/// What lies behind our own export of a name, for a program that found ours.
pub(crate) enum ExportTarget {
    /// The vendor's.
    Vendor,
    /// Another library's: it comes before the vendor's.
    Other(*const ()),
    /// Nothing that the program could have found.
    Nothing,
}

/// What a program would find if we were not there, where it finds our export of a vendor function.
pub(crate) fn behind(library: Library, name: &CStr) -> ExportTarget {
    let _errno = KeepErrno::new();
    let found = dlsym(libc::RTLD_NEXT, name.as_ptr());
    if found.is_null() {
        ExportTarget::Nothing
    } else if is_vendors(library, name, found) {
        ExportTarget::Vendor
    } else {
        ExportTarget::Other(found)
    }
}

/// The same for a linked call, which must leave alone what `dlerror` says: the loader is asked only where our own look at its
/// tables finds another library in between.
pub(crate) fn behind_link(library: Library, name: &CStr) -> ExportTarget {
    let first = elf::behind_here(name);
    if first.is_none() || first == vendor(library, name) {
        return ExportTarget::Vendor;
    }
    let behind = behind(library, name);
    if matches!(behind, ExportTarget::Nothing) {
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
