//! `dlsym` and `dlvsym`: the caller gets what the loader gives, except where that is a function we stand in for.
//!
//! Both leave by a jump to the C library's function with the caller's registers and return address as they were, so that
//! `RTLD_NEXT` means what the caller meant, and a failure is told by `dlerror` in the loader's words. Only a name that we know is
//! looked up from here:
//!
//! | the loader finds | the caller gets |
//! |---|---|
//! | the vendor's function | our hook where a policy needs it, else the function itself |
//! | our own export, as in RTLD_DEFAULT | what lies behind us: the same for the vendor's, another library's own, or nothing |
//! | a function of this name in a library that is not the vendor's | that function |
//! | nothing | nothing |
//! | the C library's `dlsym` or `dlvsym` | ours, except a library behind us that has its own and will be called by ours |

// UNSAFETY: naked functions and foreign names.
#![expect(unsafe_code, reason = "the caller's registers and names are raw")]

use core::ffi::{CStr, c_char, c_void};

use crate::grants;
use crate::hooks::hook::Hook;
use crate::hooks::symbols;
use crate::loader::library::Library;
use crate::loader::resolve::{self, ExportTarget};
use crate::sys::KeepErrno;
use crate::sys::c_library;
use crate::sys::elf::{self, Caller};

/// What a look-up comes to, in two registers.
#[repr(C)]
pub(crate) struct Verdict {
    /// The caller's answer, or where to jump.
    address: *const (),
    /// 1: `address` is the answer; 0: jump there.
    answer: usize,
}

/// No function: what a call answers where the C library has none.
extern "C" fn nothing() -> *const () {
    core::ptr::null()
}

fn jump(real: *const ()) -> Verdict {
    let address = if real.is_null() { nothing as *const () } else { real };
    Verdict { address, answer: 0 }
}

/// What a name is to us.
enum NameClass {
    /// Nothing.
    Foreign,
    /// A function we stand in for.
    Hooked(&'static Hook),
    /// It looks like a vendor's and has no hook.
    Vendors(Library),
    /// `dlsym`
    Plain,
    /// `dlvsym`
    Versioned,
}

/// A look-up, as the program made it.
#[derive(Clone, Copy)]
struct Question<'a> {
    handle: *mut c_void,
    name: &'a CStr,
    /// `None`: dlsym.
    version: Option<*const c_char>,
    /// Where the caller goes on.
    caller: u64,
}

impl NameClass {
    fn about(name: &CStr) -> Self {
        let library = match name.to_bytes() {
            b"dlsym" => return Self::Plain,
            b"dlvsym" => return Self::Versioned,
            [b'c', b'u', ..] => Library::Cuda,
            [b'n', b'v', b'm', b'l', ..] => Library::Nvml,
            _ => return Self::Foreign,
        };
        symbols::hook(name.to_bytes()).map_or(Self::Vendors(library), Self::Hooked)
    }
}

impl Question<'_> {
    /// What the loader says, asked from here: not what it would say to the caller where that is the question (RTLD_NEXT).
    fn ask(self) -> *const () {
        match self.version {
            None => c_library::dlsym(self.handle, self.name.as_ptr()),
            Some(version) => c_library::dlvsym(self.handle, self.name.as_ptr(), version),
        }
    }

    /// What the caller gets for a function we stand in for; `None`: what the loader gives.
    fn hooked(self, hook: &'static Hook) -> Option<*const ()> {
        let found = if self.handle == libc::RTLD_NEXT { self.next(hook)? } else { self.ask() };
        if found.is_null() {
            return None;
        }
        if found == hook.exported.0 {
            // As in RTLD_DEFAULT. Without us the caller had found what lies behind us, or nothing.
            return Some(match resolve::behind(hook.library, hook.export) {
                ExportTarget::Vendor => hook.entry(),
                ExportTarget::Other(other) => other,
                ExportTarget::Nothing
                    if self.is_late() && resolve::vendor(hook.library, hook.export).is_some() =>
                {
                    // The caller finds it: nothing is to be told.
                    c_library::forget_error();
                    hook.entry()
                }
                ExportTarget::Nothing => {
                    if self.handle != libc::RTLD_NEXT {
                        c_library::tell_missing(self.name);
                    }
                    core::ptr::null()
                }
            });
        }
        if !resolve::is_vendors(hook.library, hook.export, found) {
            return None;
        }
        hook.learn(found);
        Some(hook.entry())
    }

    /// What comes next behind the caller; `None`: the loader knows better. It takes the caller from where it was called, so it
    /// cannot be asked from here, and its tables are read instead.
    fn next(self, hook: &'static Hook) -> Option<*const ()> {
        let first = elf::behind(self.caller, self.name);
        let other = first.filter(|first| resolve::vendor(hook.library, hook.export) != Some(*first));
        let stands = |address: *const ()| elf::caller(address.addr() as u64, self.name);
        if elf::caller(self.caller, self.name) == Caller::Before {
            // Another library's function between the caller and us is what the loader gives; else it gives ours.
            let between = other.is_some_and(|other| stands(other) == Caller::Before);
            return (!between).then_some(hook.exported.0);
        }
        // The loader gives only what all may see; asked for what lies behind us it shows whether the vendor's is.
        let seen = || !matches!(resolve::behind(hook.library, hook.export), ExportTarget::Nothing);
        first.filter(|_| other.is_none() && (self.is_late() || seen()))
    }

    /// Whether the caller may see a vendor's library that the program does not, having loaded it.
    fn is_late(self) -> bool {
        elf::caller(self.caller, self.name) == Caller::Late
    }

    /// Ours in place of the C library's own look-up, so that no library that keeps its address goes past us; but never for
    /// a library behind us that has a look-up itself: ours calls that one.
    fn look_up(self, real: *const (), ours: *const ()) -> Option<*const ()> {
        if elf::caller(self.caller, self.name) == Caller::Rival {
            return None;
        }
        let found = if self.handle == libc::RTLD_NEXT { real } else { self.ask() };
        (!found.is_null() && found == real).then_some(ours)
    }

    /// Counts a vendor's function that no table knows.
    fn note(self, library: Library) {
        let known = symbols::knows(library, self.name.to_bytes());
        if !known && resolve::vendor(library, self.name).is_some() {
            resolve::keep(library);
            grants::count_unknown();
        }
    }

    fn decide(self, real: *const ()) -> Verdict {
        let _errno = KeepErrno::new();
        let answer = match NameClass::about(self.name) {
            NameClass::Foreign => None,
            NameClass::Hooked(hook) => self.hooked(hook),
            NameClass::Vendors(library) => {
                self.note(library);
                None
            }
            NameClass::Plain => self.look_up(c_library::DLSYM.get(c"dlsym"), dlsym as *const ()),
            NameClass::Versioned => self.look_up(c_library::DLVSYM.get(c"dlvsym"), dlvsym as *const ()),
        };
        answer.map_or(jump(real), |address| Verdict { address, answer: 1 })
    }
}

extern "C" fn decide(handle: *mut c_void, name: *const c_char, caller: u64) -> Verdict {
    let real = c_library::DLSYM.get(c"dlsym");
    if name.is_null() {
        return jump(real);
    }
    // SAFETY: a C string, by the contract of dlsym.
    let name = unsafe { elf::text(name) };
    Question { handle, name, version: None, caller }.decide(real)
}

extern "C" fn decide_versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: u64,
) -> Verdict {
    let real = c_library::DLVSYM.get(c"dlvsym");
    if name.is_null() || version.is_null() {
        return jump(real);
    }
    // SAFETY: a C string, by the contract of dlvsym.
    let name = unsafe { elf::text(name) };
    Question { handle, name, version: Some(version), caller }.decide(real)
}

macro_rules! look_up {
    ($name:ident, $decide:ident, $caller_x86:literal, $caller_arm:literal, $($arg:ident : $ty:ty),*) => {
        /// The C library's function of this name, seen through the hook table.
        ///
        /// # Safety
        /// As for the C library's.
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                // Where the caller goes on.
                concat!("mov ", $caller_x86, ", [rsp + 24]"),
                "call {decide}",
                "mov rcx, rdx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rcx, rcx",
                "jnz 2f",
                "jmp rax",
                "2: ret",
                decide = sym $decide,
            )
        }

        /// The C library's function of this name, seen through the hook table.
        ///
        /// # Safety
        /// As for the C library's.
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        #[unsafe(naked)]
        #[cfg(target_arch = "aarch64")]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                // Where the caller goes on.
                concat!("mov ", $caller_arm, ", x30"),
                "bl {decide}",
                "mov x16, x0",
                "mov x17, x1",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                "cbnz x17, 2f",
                "br x16",
                "2: mov x0, x16",
                "ret",
                decide = sym $decide,
            )
        }
    };
}

look_up!(dlsym, decide, "rdx", "x2", _handle: *mut c_void, _name: *const c_char);
look_up!(
    dlvsym,
    decide_versioned,
    "rcx",
    "x3",
    _handle: *mut c_void,
    _name: *const c_char,
    _version: *const c_char
);
