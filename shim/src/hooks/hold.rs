//! Calls after which a stream waits for something that the card does not do.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use crate::compute::pacing::host_wait;
use crate::loader::vendor::Target;

stream_hooks! {
    Compute; {}
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz: (stream: u64, function: usize, data: usize)
        => |real, on| holds(on(stream), real);
    cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz:
        (stream: u64, function: usize, data: usize, sync: u32)
        => |real, on| holds(on(stream), real);
    cuStreamAddCallback, cuStreamAddCallback_ptsz:
        (stream: u64, function: usize, data: usize, flags: u32)
        => |real, on| holds(on(stream), real);
    cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz:
        (stream: u64, address: u64, value: u32, flags: u32)
        => |real, on| holds(on(stream), real);
    cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz:
        (stream: u64, address: u64, value: u64, flags: u32)
        => |real, on| holds(on(stream), real);
    cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz:
        (stream: u64, count: u32, list: usize, flags: u32)
        => |real, on| holds(on(stream), real);
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz: (stream: u64, event: u64, flags: u32)
        => |real, on| follows(on(stream), real);
}

fn holds(target: Target, real: impl FnOnce() -> i32) -> i32 {
    host_wait::holds(target);
    real()
}

fn follows(target: Target, real: impl FnOnce() -> i32) -> i32 {
    host_wait::follows(target);
    real()
}
