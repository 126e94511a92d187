//! Modules and libraries, and what makes a driver load them.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::{c_char, c_void};
use core::ptr::null;

use crate::loader::vendor::{self, SUCCESS};
use crate::memory::lazy_load::{LoadKey, LoadSubject};
use crate::memory::modules::{self, Image, Listed, Object};
use crate::memory::pools::AddressOut;

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
        let asked = LoadKey::of_module(LoadSubject::Function, Object(module), name);
        modules::get_function(Object(module), asked, AddressOut(function), real)
    }
    fn cuModuleGetGlobal(address: *mut u32, bytes: *mut u32, module: u64, name: *const c_char) {
        let asked = LoadKey::of_module(LoadSubject::Variable, Object(module), name);
        modules::get(Object(module), asked, None, || cuModuleGetGlobal::real(address, bytes, module, name))
    }
    fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: u64, name: *const c_char) {
        let real = || cuModuleGetGlobal_v2::real(address, bytes, module, name);
        let asked = LoadKey::of_module(LoadSubject::Variable, Object(module), name);
        modules::get(Object(module), asked, Some(AddressOut(address)), real)
    }
    fn cuModuleGetTexRef(reference: *mut u64, module: u64, name: *const c_char) {
        let real = || cuModuleGetTexRef::real(reference, module, name);
        let asked = LoadKey::of_module(LoadSubject::Texture, Object(module), name);
        modules::get(Object(module), asked, Some(AddressOut(reference)), real)
    }
    fn cuModuleGetSurfRef(reference: *mut u64, module: u64, name: *const c_char) {
        let real = || cuModuleGetSurfRef::real(reference, module, name);
        let asked = LoadKey::of_module(LoadSubject::Surface, Object(module), name);
        modules::get(Object(module), asked, Some(AddressOut(reference)), real)
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
        let asked = LoadKey::of_library(LoadSubject::Function, Object(library), name);
        modules::get_kernel(Object(library), asked, AddressOut(kernel), real)
    }
    fn cuLibraryGetModule(module: *mut u64, library: u64) {
        let asked = LoadKey::of_library(LoadSubject::Itself, Object(library), null());
        modules::get(Object(library), asked, Some(AddressOut(module)), || cuLibraryGetModule::real(module, library))
    }
    fn cuLibraryGetGlobal(address: *mut u64, bytes: *mut usize, library: u64, name: *const c_char) {
        let real = || cuLibraryGetGlobal::real(address, bytes, library, name);
        let asked = LoadKey::of_library(LoadSubject::Variable, Object(library), name);
        modules::get(Object(library), asked, Some(AddressOut(address)), real)
    }
    fn cuLibraryGetManaged(address: *mut u64, bytes: *mut usize, library: u64, name: *const c_char) {
        let real = || cuLibraryGetManaged::real(address, bytes, library, name);
        let asked = LoadKey::of_library(LoadSubject::Variable, Object(library), name);
        modules::get(Object(library), asked, Some(AddressOut(address)), real)
    }
    fn cuLibraryGetUnifiedFunction(address: *mut u64, library: u64, name: *const c_char) {
        let real = || cuLibraryGetUnifiedFunction::real(address, library, name);
        let asked = LoadKey::of_library(LoadSubject::Unified, Object(library), name);
        modules::get(Object(library), asked, Some(AddressOut(address)), real)
    }
    fn cuKernelGetFunction(function: *mut u64, kernel: u64) {
        let asked = LoadKey::of_library(LoadSubject::Itself, Object(kernel), null());
        if asked.is_some_and(LoadKey::is_known) {
            return cuKernelGetFunction::real(function, kernel);
        }
        let mut library = 0;
        let known = vendor::cuKernelGetLibrary(&raw mut library, kernel) == Some(SUCCESS);
        let object = Object(if known { library } else { kernel });
        modules::get_function(object, asked, AddressOut(function), || cuKernelGetFunction::real(function, kernel))
    }
    fn cuFuncLoad(function: u64) {
        load_function(function)
    }
    fn cuModuleEnumerateFunctions(functions: *mut u64, room: u32, module: u64) {
        let there = |count: &mut u32| vendor::cuModuleGetFunctionCount(count, module);
        let real = || cuModuleEnumerateFunctions::real(functions, room, module);
        modules::get_list((AddressOut(functions), room, Listed::Functions(Object(module))), there, real, load_function)
    }
    fn cuLibraryEnumerateKernels(kernels: *mut u64, room: u32, library: u64) {
        let there = |count: &mut u32| vendor::cuLibraryGetKernelCount(count, library);
        let load = |kernel| {
            let asked = LoadKey::of_library(LoadSubject::Itself, Object(kernel), null());
            let function = || modules::function_of(kernel);
            modules::make_ready(Object(library), asked, function, || modules::load_kernel(kernel))
        };
        let real = || cuLibraryEnumerateKernels::real(kernels, room, library);
        modules::get_list((AddressOut(kernels), room, Listed::Kernels(Object(library))), there, real, load)
    }
}

fn load_function(function: u64) -> i32 {
    let asked = LoadKey::of_module(LoadSubject::Itself, Object(function), null());
    if asked.is_some_and(LoadKey::is_known) {
        return cuFuncLoad::real(function);
    }
    let mut module = 0;
    let known = vendor::cuFuncGetModule(&raw mut module, function) == Some(SUCCESS);
    let object = Object(if known { module } else { function });
    modules::make_ready(object, asked, || Some(function), || cuFuncLoad::real(function))
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
