//! A program for the other processor that looks functions up and calls what it was given.
//!
//! Prints one line: the answer of an allocation, the pointer that came with it, and whether ordinary names lead where they
//! led, with `dlsym` and `dlvsym`, and unknown ones nowhere. No startup files: the loader has set up the C library when the
//! entry point is reached.

#![no_std]
#![no_main]

use core::ffi::{CStr, c_char, c_int, c_void};

#[link(name = "c")]
unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    fn printf(format: *const c_char, ...) -> c_int;
    fn exit(code: c_int) -> !;
}

const RTLD_NOW: c_int = 2;
const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;

fn found(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a handle of the loader and a C string.
    unsafe { dlsym(handle, name.as_ptr()) }
}

#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    // SAFETY: C strings; what is called is checked to be there and has that signature.
    unsafe {
        let driver = dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW);
        let alloc = found(driver, c"cuMemAlloc_v2");
        if driver.is_null() || alloc.is_null() {
            printf(c"no driver\n".as_ptr());
            exit(1);
        }
        let alloc = core::mem::transmute::<*mut c_void, extern "C" fn(*mut u64, usize) -> c_int>(alloc);
        let mut pointer = 7_u64;
        let code = alloc(&raw mut pointer, 4096);
        let plain = c_int::from(found(RTLD_NEXT, c"printf") == printf as *mut c_void);
        let versioned = dlvsym(RTLD_NEXT, c"printf".as_ptr(), c"GLIBC_2.17".as_ptr());
        let absent = c_int::from(found(driver, c"cuNoSuchFunction").is_null());
        let versioned = c_int::from(versioned == printf as *mut c_void);
        printf(c"%d %lu %d %d %d\n".as_ptr(), code, pointer, plain, versioned, absent);
        exit(0)
    }
}

#[panic_handler]
fn never(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
