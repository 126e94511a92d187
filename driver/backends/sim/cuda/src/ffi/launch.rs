//! Modules, libraries, kernels, launches.

use super::pointer::{In, Out, Text};
use crate::code::{Answer, INVALID_VALUE, NOT_FOUND};
use crate::image::{Image, Other};
use crate::launch::{self, Grid};
use crate::module::{self, FUNCTIONS, Function};
use crate::process;
use crate::stream;
use crate::table::Mode;
use std::collections::BTreeSet;
use std::ffi::c_char;

/// The vendor's launch description.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    grid: Grid,
    padding: u32,
    stream: u64,
    attributes: u64,
    attribute_count: u32,
}

const _: () = assert!(size_of::<Grid>() == 28 && size_of::<LaunchConfig>() == 56);

/// The vendor's launch on one of several cards.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchParams {
    function: u64,
    grid: Grid,
    stream: u64,
    parameters: In<u64>,
}

const _: () = assert!(size_of::<LaunchParams>() == 56);

/// Ends of the buffer description that `extra` may be, by the vendor's numbers.
const EXTRA_BUFFER: u64 = 1;

/// The first parameter: behind the first of the pointers, or at the head of the buffer that `extra` names.
pub(crate) fn first_parameter(parameters: In<u64>, extra: In<u64>) -> Answer<u64> {
    if !parameters.is_null() {
        return In::<u64>::at(parameters.get()?).get();
    }
    let mut index = 0;
    while !extra.is_null() {
        match extra.get_at(index)? {
            EXTRA_BUFFER => return In::<u64>::at(extra.get_at(index + 1)?).get(),
            0 => break,
            _ => index += 2,
        }
    }
    Err(INVALID_VALUE)
}

fn image_at(image: In<u8>) -> Answer<Image> {
    image.get()?;
    Image::of_memory(&|from, count| In::<u8>::at(image.address().wrapping_add(from)).list(count))
}

fn launch(function: u64, grid: &Grid, stream: u64, mode: Mode, parameters: (In<u64>, In<u64>)) -> Answer {
    process::cards()?;
    launch::launch(function, grid, stream, mode, &|| first_parameter(parameters.0, parameters.1))
}

/// One launch a card, of equal grids, in streams that have names.
fn launch_on_several(launches: &[LaunchParams]) -> Answer {
    let mut cards = BTreeSet::new();
    for one in launches {
        let is_next = cards.insert(stream::named(one.stream)?.device);
        if !is_next || launches.iter().any(|other| other.grid != one.grid) {
            return Err(INVALID_VALUE);
        }
    }
    launches.iter().try_for_each(|one| {
        launch(one.function, &one.grid, one.stream, Mode::Legacy, (one.parameters, In::at(0)))
    })
}

fn listed(places: Out<u64>, handle: u64, room: u32) -> Answer {
    places.check()?;
    module::functions(handle, room)?.into_iter().enumerate().try_for_each(|(at, one)| places.set_at(at, one))
}

fn other(place: Out<u64>, handle: u64, kind: Other, name: Text) -> Answer {
    place.check()?;
    module::check(handle)?;
    place.set(module::other(handle, kind, &name.get()?)?)
}

/// What a kernel says under the vendor's number of an attribute.
fn attribute(number: u32, kernel: &Function) -> Answer<i32> {
    match number {
        0 => Ok(1024),
        1 | 2 | 7 => Ok(0),
        3 => Ok(i32::try_from(kernel.local.0).unwrap_or(i32::MAX)),
        4 => Ok(32),
        5 | 6 => Ok(90),
        8 => Ok(49_152),
        9 => Ok(-1),
        10..=15 => Ok(0),
        _ => Err(INVALID_VALUE),
    }
}

/// Blocks of so many threads that a multiprocessor holds.
fn resident(threads: i32) -> Answer<i32> {
    if threads <= 0 {
        return Err(INVALID_VALUE);
    }
    Ok((2048 / threads.max(64)).min(32))
}

exports! {
    fn cuLaunchCooperativeKernelMultiDevice(list: In<LaunchParams>, count: u32, _flags: u32) {
        let count = usize::try_from(count).map_err(|_| INVALID_VALUE)?;
        if !(1..=process::cards()?.len()).contains(&count) {
            return Err(INVALID_VALUE);
        }
        launch_on_several(&list.list(count)?)
    }
    fn cuModuleLoad(handle: Out<u64>, path: Text) {
        handle.check()?;
        handle.set(module::load(Image::of_file(&path.get()?)?)?)
    }
    fn cuModuleLoadData(handle: Out<u64>, image: In<u8>) {
        handle.check()?;
        handle.set(module::load(image_at(image)?)?)
    }
    fn cuModuleLoadDataEx(handle: Out<u64>, image: In<u8>, _count: u32, _options: In<u32>, _values: In<u64>) {
        handle.check()?;
        handle.set(module::load(image_at(image)?)?)
    }
    fn cuModuleLoadFatBinary(handle: Out<u64>, image: In<u8>) {
        handle.check()?;
        handle.set(module::load(image_at(image)?)?)
    }
    fn cuModuleUnload(handle: u64) { module::unload(handle) }
    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        let eager = std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|mode| mode == "EAGER");
        mode.set(if eager { 1 } else { 2 })
    }
    fn cuModuleGetFunction(function: Out<u64>, handle: u64, name: Text) {
        function.check()?;
        module::check(handle)?;
        function.set(module::function(handle, name.get()?)?)
    }
    fn cuModuleGetFunctionCount(count: Out<u32>, handle: u64) {
        module::check(handle)?;
        count.set(module::function_count(handle)?)
    }
    fn cuModuleEnumerateFunctions(functions: Out<u64>, room: u32, handle: u64) {
        module::check(handle)?;
        listed(functions, handle, room)
    }
    fn cuModuleGetGlobal(_address: Out<u32>, _bytes: Out<u32>, handle: u64, name: Text) {
        module::check(handle)?;
        name.get()?;
        Err(NOT_FOUND)
    }
    fn cuModuleGetGlobal_v2(_address: Out<u64>, _bytes: Out<u64>, handle: u64, name: Text) {
        module::check(handle)?;
        name.get()?;
        Err(NOT_FOUND)
    }

    fn cuModuleGetTexRef(reference: Out<u64>, handle: u64, name: Text) {
        other(reference, handle, Other::Texture, name)
    }
    fn cuModuleGetSurfRef(reference: Out<u64>, handle: u64, name: Text) {
        other(reference, handle, Other::Surface, name)
    }
    fn cuLibraryGetUnifiedFunction(address: Out<u64>, handle: u64, name: Text) {
        other(address, handle, Other::Unified, name)
    }

    fn cuLibraryLoadData(
        handle: Out<u64>, image: In<u8>, _options: In<u32>, _values: In<u64>, _count: u32,
        _library_options: In<u32>, _library_values: In<u64>, _library_count: u32
    ) {
        handle.check()?;
        handle.set(module::load_library(image_at(image)?)?)
    }
    fn cuLibraryLoadFromFile(
        handle: Out<u64>, path: Text, _options: In<u32>, _values: In<u64>, _count: u32,
        _library_options: In<u32>, _library_values: In<u64>, _library_count: u32
    ) {
        handle.check()?;
        handle.set(module::load_library(Image::of_file(&path.get()?)?)?)
    }
    fn cuLibraryUnload(handle: u64) { module::unload(handle) }
    fn cuLibraryGetKernel(kernel: Out<u64>, handle: u64, name: Text) {
        kernel.check()?;
        module::check(handle)?;
        kernel.set(module::function(handle, name.get()?)?)
    }
    fn cuLibraryGetKernelCount(count: Out<u32>, handle: u64) {
        module::check(handle)?;
        count.set(module::function_count(handle)?)
    }
    fn cuLibraryEnumerateKernels(kernels: Out<u64>, room: u32, handle: u64) {
        module::check(handle)?;
        listed(kernels, handle, room)
    }
    fn cuLibraryGetModule(found: Out<u64>, handle: u64) {
        module::check(handle)?;
        found.set(handle)
    }
    fn cuLibraryGetGlobal(_address: Out<u64>, _bytes: Out<u64>, handle: u64, name: Text) {
        module::check(handle)?;
        name.get()?;
        Err(NOT_FOUND)
    }
    fn cuLibraryGetManaged(_address: Out<u64>, _bytes: Out<u64>, handle: u64, name: Text) {
        module::check(handle)?;
        name.get()?;
        Err(NOT_FOUND)
    }
    fn cuKernelGetFunction(function: Out<u64>, kernel: u64) {
        function.check()?;
        module::load_function(kernel)?;
        function.set(kernel)
    }
    fn cuKernelGetLibrary(library: Out<u64>, kernel: u64) { library.set(FUNCTIONS.get(kernel)?.module) }
    fn cuKernelGetName(name: Out<*const c_char>, kernel: u64) {
        name.set(FUNCTIONS.get(kernel)?.name.as_ptr())
    }
    fn cuKernelGetAttribute(value: Out<i32>, number: u32, kernel: u64, _device: i32) {
        value.set(attribute(number, &*FUNCTIONS.get(kernel)?)?)
    }
    fn cuKernelSetAttribute(number: u32, _value: i32, kernel: u64, _device: i32) {
        attribute(number, &*FUNCTIONS.get(kernel)?).map(|_| ())
    }
    fn cuKernelSetCacheConfig(kernel: u64, _config: u32, _device: i32) { FUNCTIONS.get(kernel).map(|_| ()) }
    fn cuFuncGetModule(found: Out<u64>, function: u64) { found.set(FUNCTIONS.get(function)?.module) }
    fn cuFuncGetName(name: Out<*const c_char>, function: u64) {
        name.set(FUNCTIONS.get(function)?.name.as_ptr())
    }
    fn cuFuncGetAttribute(value: Out<i32>, number: u32, function: u64) {
        value.set(attribute(number, &*FUNCTIONS.get(function)?)?)
    }
    fn cuFuncSetAttribute(function: u64, number: u32, _value: i32) {
        attribute(number, &*FUNCTIONS.get(function)?).map(|_| ())
    }
    fn cuFuncSetCacheConfig(function: u64, _config: u32) { FUNCTIONS.get(function).map(|_| ()) }
    fn cuFuncSetSharedMemConfig(function: u64, _config: u32) { FUNCTIONS.get(function).map(|_| ()) }
    fn cuFuncIsLoaded(state: Out<u32>, function: u64) {
        state.set(u32::from(module::is_loaded(function)?))
    }
    fn cuFuncLoad(function: u64) { module::load_function(function) }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: u64, threads: i32, _shared: usize) {
        FUNCTIONS.get(function)?;
        blocks.set(resident(threads)?)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: u64, threads: i32, _shared: usize, _flags: u32
    ) {
        FUNCTIONS.get(function)?;
        blocks.set(resident(threads)?)
    }
    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, threads: Out<i32>, function: u64, _shared_of: u64, _shared: usize, limit: i32
    ) {
        FUNCTIONS.get(function)?;
        let chosen = if limit > 0 { limit.min(1024) } else { 1024 };
        let sms = process::current_card()?.card.facts().sms;
        threads.set(chosen)?;
        grid.set(i32::try_from(sms).unwrap_or(1) * resident(chosen)?)
    }
}

streamed! {
    fn cuLaunchKernel, cuLaunchKernel_ptsz |mode| (
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: u64, parameters: In<u64>, extra: In<u64>
    ) {
        let (blocks, threads) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let grid = Grid { blocks, threads, shared_bytes };
        launch(function, &grid, stream, mode, (parameters, extra))
    }
    fn cuLaunchKernelEx, cuLaunchKernelEx_ptsz |mode| (
        config: In<LaunchConfig>, function: u64, parameters: In<u64>, extra: In<u64>
    ) {
        let config = config.get()?;
        launch(function, &config.grid, config.stream, mode, (parameters, extra))
    }
    fn cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz |mode| (
        function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: u64, parameters: In<u64>
    ) {
        let (blocks, threads) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let grid = Grid { blocks, threads, shared_bytes };
        launch(function, &grid, stream, mode, (parameters, In::at(0)))
    }
}
