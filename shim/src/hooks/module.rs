//! Modules and libraries, and what makes a driver load them.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::{c_char, c_void};

use crate::memory::address_out::AddressOut;
use crate::memory::modules::{self, Image, Object};
use crate::memory::stacks::{self, LocalMemoryOf};

hooks! {
    Cuda, Memory;
    fn cuModuleLoad(module: *mut u64, path: *const c_char) {
        modules::load(AddressOut(module), Image(0), || cuModuleLoad::real(module, path), unload_module)
    }
    fn cuModuleLoadData(module: *mut u64, image: *const c_void) {
        modules::load(AddressOut(module), lies(image), || cuModuleLoadData::real(module, image), unload_module)
    }
    fn cuModuleLoadDataEx(
        module: *mut u64,
        image: *const c_void,
        count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
    ) {
        let real = || cuModuleLoadDataEx::real(module, image, count, options, values);
        modules::load(AddressOut(module), lies(image), real, unload_module)
    }
    fn cuModuleLoadFatBinary(module: *mut u64, image: *const c_void) {
        modules::load(AddressOut(module), lies(image), || cuModuleLoadFatBinary::real(module, image), unload_module)
    }
    fn cuModuleUnload(module: u64) {
        modules::unload(Object(module), || cuModuleUnload::real(module))
    }
    fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) {
        let real = || cuModuleGetFunction::real(function, module, name);
        stacks::got(AddressOut(function), LocalMemoryOf::Function, real)
    }

    fn cuLibraryLoadData(
        library: *mut u64,
        code: *const c_void,
        options: *mut u32,
        values: *mut *mut c_void,
        count: u32,
        library_options: *mut u32,
        library_values: *mut *mut c_void,
        library_count: u32,
    ) {
        let real = || {
            cuLibraryLoadData::real(
                library, code, options, values, count, library_options, library_values, library_count,
            )
        };
        modules::load(AddressOut(library), lies(code), real, unload_library)
    }
    fn cuLibraryLoadFromFile(
        library: *mut u64,
        path: *const c_char,
        options: *mut u32,
        values: *mut *mut c_void,
        count: u32,
        library_options: *mut u32,
        library_values: *mut *mut c_void,
        library_count: u32,
    ) {
        let real = || {
            cuLibraryLoadFromFile::real(
                library, path, options, values, count, library_options, library_values, library_count,
            )
        };
        modules::load(AddressOut(library), Image(0), real, unload_library)
    }
    fn cuLibraryUnload(library: u64) {
        modules::unload(Object(library), || cuLibraryUnload::real(library))
    }
    fn cuLibraryGetKernel(kernel: *mut u64, library: u64, name: *const c_char) {
        let real = || cuLibraryGetKernel::real(kernel, library, name);
        stacks::got(AddressOut(kernel), LocalMemoryOf::Kernel, real)
    }
    fn cuKernelGetFunction(function: *mut u64, kernel: u64) {
        stacks::got(AddressOut(function), LocalMemoryOf::FunctionHere, || cuKernelGetFunction::real(function, kernel))
    }
}

fn lies(image: *const c_void) -> Image {
    Image(u64::try_from(image.expose_provenance()).unwrap_or(0))
}

fn unload_module(module: u64) -> i32 {
    cuModuleUnload::real(module)
}

fn unload_library(library: u64) -> i32 {
    cuLibraryUnload::real(library)
}
