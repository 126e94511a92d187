//! Waits for work and questions whether it is done: what is done by then is billed. And what begins and ends captures.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use aliquot_enforce::pace::WaitScope;

use crate::compute::captures;
use crate::compute::pacing::host_wait;
use crate::loader::vendor::Target;

stream_hooks! {
    Compute;
    {
        fn cuCtxSynchronize() { host_wait::wait(WaitScope::OnAll, cuCtxSynchronize::real) }
        fn cuCtxSynchronize_v2(context: u64) { host_wait::wait_in(context, || cuCtxSynchronize_v2::real(context)) }
        fn cuEventSynchronize(event: u64) { host_wait::wait_for_event(|| cuEventSynchronize::real(event)) }
        fn cuEventQuery(event: u64) { host_wait::ask_event(|| cuEventQuery::real(event)) }
        fn cuStreamDestroy(stream: u64) { destroyed(stream, || cuStreamDestroy::real(stream)) }
        fn cuStreamDestroy_v2(stream: u64) { destroyed(stream, || cuStreamDestroy_v2::real(stream)) }
    }
    cuStreamSynchronize, cuStreamSynchronize_ptsz: (stream: u64)
        => |real, on| host_wait::wait(WaitScope::On(on(stream).lane()), real);
    cuStreamQuery, cuStreamQuery_ptsz: (stream: u64)
        => |real, on| host_wait::ask(on(stream), real);
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz: (stream: u64)
        => |real, on| captures::begin(on(stream), real);
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz: (stream: u64, mode: u32)
        => |real, on| captures::begin(on(stream), real);
    cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz:
        (stream: u64, graph: u64, dependencies: usize, data: usize, count: usize, mode: u32)
        => |real, on| captures::begin(on(stream), real);
    cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz:
        (stream: u64, mode: u32, graph: u64, callback: usize, data: usize)
        => |real, on| captures::begin(on(stream), real);
    cuStreamEndCapture, cuStreamEndCapture_ptsz: (stream: u64, graph: *mut u64)
        => |real, on| captures::end(on(stream), real);
    cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig_ptsz: (stream: u64, given: usize)
        => |real, on| captures::begin_foreign(on(stream), real);
    cuStreamEndCaptureToCig, cuStreamEndCaptureToCig_ptsz: (stream: u64)
        => |real, on| captures::end_foreign(on(stream), real);
}

fn destroyed(stream: u64, real: impl FnOnce() -> i32) -> i32 {
    host_wait::stream_going(Target::legacy(stream));
    captures::destroy(Target::legacy(stream), real)
}
