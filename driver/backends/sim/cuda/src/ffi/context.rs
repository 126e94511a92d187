//! Contexts, primary and own.

use super::pointer::{In, Out, Text};
use crate::boundary::enter;
use crate::code::{INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, PRIMARY_CONTEXT_ACTIVE};
use crate::event::EVENTS;
use crate::process::{self, lock};
use crate::stacks;
use crate::stream::PRIORITIES;
use crate::vmm;

/// Limits a context has, by the vendor's numbers, with what they are at first.
const STACK_SIZE: u32 = 0;
const LIMITS: [usize; 8] = [stacks::FIRST, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0];

/// What cuGetExportTable gives. Runtime libraries get their primary context by such a table, past every export; the vendor's
/// tables are its own, so this one has a name of ours.
#[repr(C)]
pub(crate) struct InnerTable {
    bytes: usize,
    reserved: usize,
    /// In the third place, where the runtime's table has it, too.
    primary_context: extern "C" fn(Out<u64>, i32) -> u32,
    /// Events that this process has: an aid of tests.
    events: extern "C" fn() -> u64,
    /// Memory as another interface to the card makes it, and a descriptor of it: descriptor, bytes, card.
    make_elsewhere: extern "C" fn(Out<i32>, u64, i32) -> u32,
    /// Lets the primary context go, past every export, as it was had.
    release_primary: extern "C" fn(i32) -> u32,
    /// Ends it.
    reset_primary: extern "C" fn(i32) -> u32,
}

impl InnerTable {
    pub(crate) const ID: [u8; 16] = *b"aliquot-sim-ctx\x01";
    pub(crate) const TABLE: &'static Self = &Self {
        bytes: size_of::<Self>(),
        reserved: 0,
        primary_context: inner_primary_context,
        events,
        make_elsewhere,
        release_primary: inner_release_primary,
        reset_primary: inner_reset_primary,
    };
}

extern "C" fn make_elsewhere(descriptor: Out<i32>, bytes: u64, device: i32) -> u32 {
    enter("cuGetExportTable", || {
        descriptor.check()?;
        descriptor.set(vmm::make_elsewhere(bytes, device)?)
    })
}

extern "C" fn events() -> u64 {
    u64::try_from(EVENTS.count()).unwrap_or(u64::MAX)
}

extern "C" fn inner_primary_context(context: Out<u64>, device: i32) -> u32 {
    enter("cuGetExportTable", || {
        context.check()?;
        context.set(process::primary_retain(device)?)
    })
}

extern "C" fn inner_release_primary(device: i32) -> u32 {
    enter("cuGetExportTable", || process::primary_release(device))
}

extern "C" fn inner_reset_primary(device: i32) -> u32 {
    enter("cuGetExportTable", || process::primary_reset(device))
}

exports! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) {
        context.check()?;
        context.set(process::primary_retain(device)?)
    }
    fn cuDevicePrimaryCtxRelease(device: i32) { process::primary_release(device) }
    fn cuDevicePrimaryCtxRelease_v2(device: i32) { process::primary_release(device) }
    fn cuDevicePrimaryCtxReset(device: i32) { process::primary_reset(device) }
    fn cuDevicePrimaryCtxReset_v2(device: i32) { process::primary_reset(device) }
    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        if process::primary_state(device)?.1 != 0 {
            return Err(PRIMARY_CONTEXT_ACTIVE);
        }
        process::primary_set_flags(device, flags)
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) { process::primary_set_flags(device, flags) }
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let state = process::primary_state(device)?;
        flags.set(state.0)?;
        active.set(state.1)
    }

    fn cuCtxCreate(context: Out<u64>, flags: u32, device: i32) {
        context.check()?;
        context.set(process::context_create(device, flags)?)
    }
    fn cuCtxCreate_v2(context: Out<u64>, flags: u32, device: i32) {
        context.check()?;
        context.set(process::context_create(device, flags)?)
    }
    fn cuCtxCreate_v3(context: Out<u64>, _affinity: In<u8>, affinities: i32, flags: u32, device: i32) {
        context.check()?;
        if affinities != 0 {
            return Err(NOT_SUPPORTED);
        }
        context.set(process::context_create(device, flags)?)
    }
    fn cuCtxCreate_v4(context: Out<u64>, parameters: In<u8>, flags: u32, device: i32) {
        context.check()?;
        if !parameters.is_null() {
            return Err(NOT_SUPPORTED);
        }
        context.set(process::context_create(device, flags)?)
    }
    fn cuCtxAttach(context: Out<u64>, flags: u32) {
        context.check()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        context.set(process::context_attach()?)
    }
    fn cuCtxDetach(context: u64) { process::context_detach(context) }
    fn cuCtxDestroy(context: u64) { process::context_destroy(context) }
    fn cuCtxDestroy_v2(context: u64) { process::context_destroy(context) }

    fn cuCtxGetCurrent(context: Out<u64>) { context.set(process::current_handle()?) }
    fn cuCtxSetCurrent(context: u64) { process::set_current(context) }
    fn cuCtxPushCurrent(context: u64) { process::push_current(context) }
    fn cuCtxPushCurrent_v2(context: u64) { process::push_current(context) }
    fn cuCtxPopCurrent(context: Out<u64>) {
        let popped = process::pop_current()?;
        context.set_if_wanted(popped);
        Ok(())
    }
    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        let popped = process::pop_current()?;
        context.set_if_wanted(popped);
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.set(i32::try_from(process::current()?.device).map_err(|_| INVALID_CONTEXT)?)
    }
    fn cuCtxGetDevice_v2(device: Out<i32>, context: u64) {
        let context = process::context_or_current(context)?;
        device.set(i32::try_from(context.device).map_err(|_| INVALID_CONTEXT)?)
    }
    fn cuCtxSynchronize() {
        let context = process::current()?;
        process::synchronize(&context)
    }
    fn cuCtxSynchronize_v2(context: u64) {
        let context = process::context_or_current(context)?;
        process::synchronize(&context)
    }
    fn cuCtxGetFlags(flags: Out<u32>) { flags.set(process::current()?.flags) }
    fn cuCtxGetId(context: u64, id: Out<u64>) { id.set(process::context_or_current(context)?.handle) }
    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) {
        process::context_or_current(context)?;
        version.set(3020)
    }
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        process::current()?;
        least.set_if_wanted(PRIORITIES.0);
        greatest.set_if_wanted(PRIORITIES.1);
        Ok(())
    }
    fn cuCtxGetLimit(value: Out<usize>, number: u32) {
        let context = process::current()?;
        let first = usize::try_from(number).ok().and_then(|number| LIMITS.get(number)).ok_or(INVALID_VALUE)?;
        let set = lock(&context.limits).get(&number).copied();
        value.set(set.unwrap_or(*first))
    }
    fn cuCtxSetLimit(number: u32, value: usize) {
        let context = process::current()?;
        usize::try_from(number).ok().and_then(|number| LIMITS.get(number)).ok_or(INVALID_VALUE)?;
        let mut value = value;
        if number == STACK_SIZE {
            value = context.card()?.card.node().stack_limits.of(value);
            stacks::set(&context, value)?;
        }
        lock(&context.limits).insert(number, value);
        Ok(())
    }
    fn cuCtxGetCacheConfig(config: Out<u32>) {
        process::current()?;
        config.set(0)
    }
    fn cuCtxSetCacheConfig(_config: u32) { process::current().map(|_| ()) }
    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        process::current()?;
        config.set(0)
    }
    fn cuCtxSetSharedMemConfig(_config: u32) { process::current().map(|_| ()) }

    // No tool profiles here. The first of these has no effect since CUDA 12.
    fn cuProfilerInitialize(_configuration: Text, _output: Text, _mode: u32) { Err(NOT_SUPPORTED) }
    fn cuProfilerStart() { process::current().map(|_| ()) }
    fn cuProfilerStop() { process::current().map(|_| ()) }
}
