//! One intercepted function: the vendor's own, ours, and which of the two callers get.

// UNSAFETY: addresses of foreign functions are called with the signature that the facts table and the vendor's header give.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::grants::{self, Need};
use crate::loader::library::Library;
use crate::loader::resolve::{self, ExportTarget};

/// An address of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(pub(crate) *const ());

// SAFETY: the address of a function never changes and is only handed on.
unsafe impl Sync for Function {}

/// One intercepted export.
pub struct Hook {
    /// Name of the export.
    pub export: &'static CStr,
    /// The library that has it.
    pub library: Library,
    /// When it is put in place.
    pub need: Need,
    /// Our code.
    pub(crate) body: Function,
    /// What this library exports under the name.
    pub(crate) exported: Function,
    real: AtomicPtr<()>,
    entry: AtomicPtr<()>,
    linked: AtomicPtr<()>,
}

impl core::fmt::Debug for Hook {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Hook").field(&self.export).finish()
    }
}

impl Hook {
    pub(crate) const fn new(
        (library, need): (Library, Need),
        export: &'static CStr,
        body: *const (),
        exported: *const (),
    ) -> Self {
        Self {
            export,
            library,
            need,
            body: Function(body),
            exported: Function(exported),
            real: AtomicPtr::new(core::ptr::null_mut()),
            entry: AtomicPtr::new(core::ptr::null_mut()),
            linked: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The vendor's function; a function that answers "not found" where the vendor's library has none.
    pub(crate) fn real(&self) -> *const () {
        let real = self.real.load(Ordering::Acquire);
        if real.is_null() { self.find_real() } else { real }
    }

    #[cold]
    fn find_real(&self) -> *const () {
        match resolve::vendor(self.library, self.export) {
            Some(real) => {
                self.learn(real);
                real
            }
            None => missing(self.library),
        }
    }

    /// The vendor's function, where it is known without asking.
    pub(crate) fn known(&self) -> Option<*const ()> {
        let real = self.real.load(Ordering::Acquire);
        (!real.is_null()).then_some(real.cast_const())
    }

    /// Remembers where the vendor's function is; the first answer stays.
    pub(crate) fn learn(&self, real: *const ()) {
        // An answer that came first is as good, and callers may hold it already.
        let _first = self.real.compare_exchange(
            core::ptr::null_mut(),
            real.cast_mut(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }

    /// What callers get: our code where a policy wants it, else the vendor's function.
    #[inline]
    pub(crate) fn entry(&self) -> *const () {
        let entry = self.entry.load(Ordering::Acquire);
        if entry.is_null() { self.choose() } else { entry }
    }

    #[cold]
    fn choose(&self) -> *const () {
        let real = self.real();
        let Some(known) = self.known() else { return real };
        // Before our code can run.
        super::listeners::install();
        let entry = if grants::want(self.need) { self.body.0 } else { known };
        self.entry.store(entry.cast_mut(), Ordering::Release);
        entry
    }

    /// What a caller gets that is linked to the function: that of another library, where one lies between us and the vendor's.
    #[inline]
    pub(crate) fn linked(&self) -> *const () {
        let linked = self.linked.load(Ordering::Acquire);
        if linked.is_null() { self.choose_linked() } else { linked }
    }

    #[cold]
    fn choose_linked(&self) -> *const () {
        let entry = self.entry();
        let linked = match resolve::behind_link(self.library, self.export) {
            ExportTarget::Other(other) => other,
            ExportTarget::Vendor | ExportTarget::Nothing if self.known().is_none() => return entry,
            ExportTarget::Vendor | ExportTarget::Nothing => entry,
        };
        self.linked.store(linked.cast_mut(), Ordering::Release);
        linked
    }
}

/// Answers that the function is not there, in the vendor's way, whatever the arguments.
fn missing(library: Library) -> *const () {
    extern "C" fn cuda() -> i32 {
        crate::loader::vendor::NOT_FOUND
    }
    extern "C" fn nvml() -> i32 {
        crate::loader::vendor::NVML_FUNCTION_NOT_FOUND
    }
    match library {
        Library::Cuda => cuda as *const (),
        Library::Nvml => nvml as *const (),
    }
}

/// Hooks of one family: `fn export(arguments) { answer }`, with the vendor's signature. Inside, `export::real(…)` is the
/// vendor's function. The family's `HOOKS` and `NAMES` go into the table of [`crate::hooks::symbols`].
macro_rules! hooks {
    ($library:ident, $need:ident; $( fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $body:block )*) => {
        $(
            #[expect(non_snake_case, reason = "the vendor's name")]
            pub(crate) mod $name {
                use super::*;

                pub(crate) static HOOK: $crate::hooks::hook::Hook = $crate::hooks::hook::Hook::new(
                    ($crate::loader::library::Library::$library, $crate::grants::Need::$need),
                    c_name!($name),
                    hooked as *const (),
                    $name as *const (),
                );

                type Real = unsafe extern "C" fn($($ty),*) -> i32;

                /// The vendor's function.
                #[expect(clippy::too_many_arguments, clippy::allow_attributes, reason = "the vendor's signature")]
                #[allow(dead_code, unfulfilled_lint_expectations, reason = "not every hook calls through")]
                pub(crate) fn real($($arg: $ty),*) -> i32 {
                    // SAFETY: the address of a function of this signature, by the facts table.
                    let real = unsafe { core::mem::transmute::<*const (), Real>(HOOK.real()) };
                    // SAFETY: the arguments are the caller's, which keeps the vendor's contract, or ours, which keep it.
                    unsafe { real($($arg),*) }
                }

                #[expect(clippy::allow_attributes, reason = "not every signature is long")]
                #[allow(clippy::too_many_arguments, reason = "the vendor's signature")]
                extern "C" fn hooked($($arg: $ty),*) -> i32 $body

                #[expect(clippy::allow_attributes, reason = "not every signature is long")]
                #[allow(clippy::too_many_arguments, reason = "the vendor's signature")]
                #[cfg_attr(panic = "abort", unsafe(no_mangle))]
                pub(crate) extern "C" fn $name($($arg: $ty),*) -> i32 {
                    // SAFETY: the address of our or the vendor's function of this signature.
                    let linked = unsafe { core::mem::transmute::<*const (), Real>(HOOK.linked()) };
                    // SAFETY: the caller's arguments, handed on as they are.
                    unsafe { linked($($arg),*) }
                }
            }
        )*

        /// The hooks of this family.
        pub(crate) static HOOKS: &[&$crate::hooks::hook::Hook] = &[$(&$name::HOOK),*];

        /// Their names, in the same order.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Hooks of functions that exist for both default streams: `legacy, per_thread: (arguments) => |real, on| answer`. In `answer`
/// `real` is the vendor's call, and `on` a stream as this form of the function means it. Hooks of other functions of the
/// family come before them, in braces.
macro_rules! stream_hooks {
    ($need:ident; { $($others:tt)* } $( $legacy:ident, $thread:ident :
        ( $($arg:ident : $ty:ty),* ) => |$real:ident, $on:ident| $answer:expr; )*) => {
        hooks! {
            Cuda, $need;
            $($others)*
            $(
                fn $legacy($($arg: $ty),*) {
                    let ($real, $on) = (|| $legacy::real($($arg),*), $crate::loader::vendor::Target::legacy);
                    $answer
                }
                fn $thread($($arg: $ty),*) {
                    let ($real, $on) = (|| $thread::real($($arg),*), $crate::loader::vendor::Target::per_thread);
                    $answer
                }
            )*
        }
    };
}
