//! Waits for work and questions whether it is done: what is done by then is billed. And what begins and ends captures.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use aliquot_enforce::pace::WaitScope;

use crate::compute::captures;
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
    fn cuCtxSynchronize() { host_wait::wait(WaitScope::OnAll, cuCtxSynchronize::real) }
    fn cuCtxSynchronize_v2(context: u64) { host_wait::wait_in(context, || cuCtxSynchronize_v2::real(context)) }
    fn cuEventSynchronize(event: u64) { host_wait::wait_for_event(|| cuEventSynchronize::real(event)) }
    fn cuStreamSynchronize(stream: u64) {
        host_wait::wait(WaitScope::On(on(stream).lane()), || cuStreamSynchronize::real(stream))
    }
    fn cuStreamSynchronize_ptsz(stream: u64) {
        host_wait::wait(WaitScope::On(on_thread(stream).lane()), || cuStreamSynchronize_ptsz::real(stream))
    }
    fn cuEventQuery(event: u64) { host_wait::ask_event(|| cuEventQuery::real(event)) }
    fn cuStreamQuery(stream: u64) { host_wait::ask(on(stream), || cuStreamQuery::real(stream)) }
    fn cuStreamQuery_ptsz(stream: u64) { host_wait::ask(on_thread(stream), || cuStreamQuery_ptsz::real(stream)) }

    fn cuStreamDestroy(stream: u64) { destroyed(stream, || cuStreamDestroy::real(stream)) }
    fn cuStreamDestroy_v2(stream: u64) { destroyed(stream, || cuStreamDestroy_v2::real(stream)) }

    fn cuStreamBeginCapture(stream: u64) {
        captures::begin(on(stream), || cuStreamBeginCapture::real(stream))
    }
    fn cuStreamBeginCapture_ptsz(stream: u64) {
        captures::begin(on_thread(stream), || cuStreamBeginCapture_ptsz::real(stream))
    }
    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) {
        captures::begin(on(stream), || cuStreamBeginCapture_v2::real(stream, mode))
    }
    fn cuStreamBeginCapture_v2_ptsz(stream: u64, mode: u32) {
        captures::begin(on_thread(stream), || cuStreamBeginCapture_v2_ptsz::real(stream, mode))
    }
    fn cuStreamBeginCaptureToGraph(
        stream: u64, graph: u64, dependencies: usize, data: usize, count: usize, mode: u32
    ) {
        let real = || cuStreamBeginCaptureToGraph::real(stream, graph, dependencies, data, count, mode);
        captures::begin(on(stream), real)
    }
    fn cuStreamBeginCaptureToGraph_ptsz(
        stream: u64, graph: u64, dependencies: usize, data: usize, count: usize, mode: u32
    ) {
        let real = || cuStreamBeginCaptureToGraph_ptsz::real(stream, graph, dependencies, data, count, mode);
        captures::begin(on_thread(stream), real)
    }
    fn cuStreamBeginRecaptureToGraph(stream: u64, mode: u32, graph: u64, callback: usize, data: usize) {
        let real = || cuStreamBeginRecaptureToGraph::real(stream, mode, graph, callback, data);
        captures::begin(on(stream), real)
    }
    fn cuStreamBeginRecaptureToGraph_ptsz(stream: u64, mode: u32, graph: u64, callback: usize, data: usize) {
        let real = || cuStreamBeginRecaptureToGraph_ptsz::real(stream, mode, graph, callback, data);
        captures::begin(on_thread(stream), real)
    }
    fn cuStreamEndCapture(stream: u64, graph: *mut u64) {
        captures::end(on(stream), || cuStreamEndCapture::real(stream, graph))
    }
    fn cuStreamEndCapture_ptsz(stream: u64, graph: *mut u64) {
        captures::end(on_thread(stream), || cuStreamEndCapture_ptsz::real(stream, graph))
    }
    fn cuStreamBeginCaptureToCig(stream: u64, given: usize) {
        captures::begin_foreign(on(stream), || cuStreamBeginCaptureToCig::real(stream, given))
    }
    fn cuStreamBeginCaptureToCig_ptsz(stream: u64, given: usize) {
        captures::begin_foreign(on_thread(stream), || cuStreamBeginCaptureToCig_ptsz::real(stream, given))
    }
    fn cuStreamEndCaptureToCig(stream: u64) {
        captures::end_foreign(on(stream), || cuStreamEndCaptureToCig::real(stream))
    }
    fn cuStreamEndCaptureToCig_ptsz(stream: u64) {
        captures::end_foreign(on_thread(stream), || cuStreamEndCaptureToCig_ptsz::real(stream))
    }
}

fn destroyed(stream: u64, real: impl FnOnce() -> i32) -> i32 {
    host_wait::stream_going(on(stream));
    captures::destroy(on(stream), real)
}
