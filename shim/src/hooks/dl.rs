//! `dlsym` and `dlvsym`: the caller gets what the loader gives, except where that is a function we stand in for.
//!
//! Both leave by a jump to the C library's function with the caller's registers and return address as they were, so that
//! `RTLD_NEXT` means what the caller meant; only a name that we know is looked up from here.

// UNSAFETY: naked functions and foreign names.
#![expect(unsafe_code, reason = "the caller's registers and names are raw")]

use core::ffi::{CStr, c_char, c_void};

use crate::hook::Hook;
use crate::{resolve, symbols};

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

/// The hook of a name that a program asks for; only the vendors' names are looked at twice.
fn ours(name: *const c_char) -> Option<&'static Hook> {
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string, by the contract of dlsym.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if name.starts_with(b"cu") || name.starts_with(b"nvml") { symbols::hook(name) } else { None }
}

/// What the caller gets for a hook, where the loader found `found` for its name; null: nothing.
fn stand_in(hook: &'static Hook, found: *const ()) -> *const () {
    if found != hook.exported.0 {
        hook.learn(found);
        return hook.entry();
    }
    // The loader found our own export, as in RTLD_DEFAULT: without it the caller had found the vendor's, or nothing.
    if hook.known().is_none() && resolve::vendor(hook.library, hook.export).is_none() {
        return core::ptr::null();
    }
    hook.entry()
}

extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> Verdict {
    let real = resolve::DLSYM.get(c"dlsym");
    let Some(hook) = ours(name) else { return jump(real) };
    let found = resolve::dlsym(handle, name);
    if found.is_null() {
        return jump(real);
    }
    Verdict { address: stand_in(hook, found), answer: 1 }
}

extern "C" fn decide_versioned(handle: *mut c_void, name: *const c_char, version: *const c_char) -> Verdict {
    let real = resolve::DLVSYM.get(c"dlvsym");
    let Some(hook) = ours(name) else { return jump(real) };
    let found = resolve::dlvsym(handle, name, version);
    if found.is_null() {
        return jump(real);
    }
    Verdict { address: stand_in(hook, found), answer: 1 }
}

macro_rules! look_up {
    ($name:ident, $decide:ident, $($arg:ident : $ty:ty),*) => {
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

look_up!(dlsym, decide, _handle: *mut c_void, _name: *const c_char);
look_up!(dlvsym, decide_versioned, _handle: *mut c_void, _name: *const c_char, _version: *const c_char);
