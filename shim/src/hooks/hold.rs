//! Calls after which a stream waits for something that the card does not do.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use crate::compute::pacing::host_wait;
use crate::loader::vendor::{StreamMode, Target};

const fn on(stream: u64) -> Target {
    Target { stream, mode: StreamMode::Legacy }
}

const fn on_thread(stream: u64) -> Target {
    Target { stream, mode: StreamMode::PerThread }
}

hooks! {
    Cuda, Compute;
    fn cuLaunchHostFunc(stream: u64, function: usize, data: usize) {
        host_wait::holds(on(stream));
        cuLaunchHostFunc::real(stream, function, data)
    }
    fn cuLaunchHostFunc_ptsz(stream: u64, function: usize, data: usize) {
        host_wait::holds(on_thread(stream));
        cuLaunchHostFunc_ptsz::real(stream, function, data)
    }
    fn cuLaunchHostFunc_v2(stream: u64, function: usize, data: usize, sync: u32) {
        host_wait::holds(on(stream));
        cuLaunchHostFunc_v2::real(stream, function, data, sync)
    }
    fn cuLaunchHostFunc_v2_ptsz(stream: u64, function: usize, data: usize, sync: u32) {
        host_wait::holds(on_thread(stream));
        cuLaunchHostFunc_v2_ptsz::real(stream, function, data, sync)
    }
    fn cuStreamAddCallback(stream: u64, function: usize, data: usize, flags: u32) {
        host_wait::holds(on(stream));
        cuStreamAddCallback::real(stream, function, data, flags)
    }
    fn cuStreamAddCallback_ptsz(stream: u64, function: usize, data: usize, flags: u32) {
        host_wait::holds(on_thread(stream));
        cuStreamAddCallback_ptsz::real(stream, function, data, flags)
    }
    fn cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32) {
        host_wait::holds(on(stream));
        cuStreamWaitValue32_v2::real(stream, address, value, flags)
    }
    fn cuStreamWaitValue32_v2_ptsz(stream: u64, address: u64, value: u32, flags: u32) {
        host_wait::holds(on_thread(stream));
        cuStreamWaitValue32_v2_ptsz::real(stream, address, value, flags)
    }
    fn cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32) {
        host_wait::holds(on(stream));
        cuStreamWaitValue64_v2::real(stream, address, value, flags)
    }
    fn cuStreamWaitValue64_v2_ptsz(stream: u64, address: u64, value: u64, flags: u32) {
        host_wait::holds(on_thread(stream));
        cuStreamWaitValue64_v2_ptsz::real(stream, address, value, flags)
    }
    fn cuStreamBatchMemOp_v2(stream: u64, count: u32, list: usize, flags: u32) {
        host_wait::holds(on(stream));
        cuStreamBatchMemOp_v2::real(stream, count, list, flags)
    }
    fn cuStreamBatchMemOp_v2_ptsz(stream: u64, count: u32, list: usize, flags: u32) {
        host_wait::holds(on_thread(stream));
        cuStreamBatchMemOp_v2_ptsz::real(stream, count, list, flags)
    }
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) {
        host_wait::follows(on(stream));
        cuStreamWaitEvent::real(stream, event, flags)
    }
    fn cuStreamWaitEvent_ptsz(stream: u64, event: u64, flags: u32) {
        host_wait::follows(on_thread(stream));
        cuStreamWaitEvent_ptsz::real(stream, event, flags)
    }
}
