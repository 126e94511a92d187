//! Streams and events.

use super::pointer::{In, Out};
use crate::code::{Answer, Code};
use crate::event::{self, EVENTS};
use crate::graph::{Capture, Op};
use crate::stream::{self, Stream};
use std::sync::Arc;

/// A function of the caller, with what it is given.
type HostFn = extern "C" fn(u64);
/// The same as cuStreamAddCallback takes it.
type Callback = extern "C" fn(u64, u32, u64);

/// Whether a stream is in a capture, by the vendor's numbers.
fn status(capture: Option<&Arc<Capture>>) -> u32 {
    match capture {
        None => 0,
        Some(capture) if capture.is_invalid() => 2,
        Some(_) => 1,
    }
}

fn capture_info(
    stream: &Stream,
    told: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
) -> Answer<Option<Arc<Capture>>> {
    let capture = stream.capture();
    told.set(status(capture.as_ref()))?;
    if let Some(capture) = &capture {
        id.set_if_wanted(capture.id);
        graph.set_if_wanted(capture.graph());
    }
    Ok(capture)
}

/// The nodes that the stream's next work comes behind; they stay in place until this thread's next query.
fn ends(stream: &Stream, capture: Option<&Arc<Capture>>, list: Out<u64>, count: Out<usize>) {
    thread_local! {
        static ENDS: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let found = capture.map(|capture| capture.ends(stream.id)).unwrap_or_default();
    count.set_if_wanted(found.len());
    let at = ENDS.with_borrow_mut(|ends| {
        *ends = found;
        ends.as_ptr().expose_provenance()
    });
    list.set_if_wanted(u64::try_from(at).unwrap_or(0));
}

fn host(stream: &Stream, function: HostFn, data: u64) -> Answer {
    if let Some(capture) = stream.capture() {
        let effect = move || {
            function(data);
            Ok(())
        };
        return capture.add(stream.id, Op::Host(Arc::new(effect)));
    }
    stream.call_host(move || function(data))
}

exports! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) {
        stream.check()?;
        stream.set(stream::create(flags, 0)?)
    }
    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) {
        stream.check()?;
        stream.set(stream::create(flags, priority)?)
    }
    fn cuStreamDestroy(stream: u64) { stream::destroy(stream) }
    fn cuStreamDestroy_v2(stream: u64) { stream::destroy(stream) }
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        // Captures of one thread never hinder another here, whatever the mode.
        thread_local! { static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) }; }
        let asked = mode.get()?;
        mode.set(MODE.replace(asked))
    }

    fn cuEventCreate(event: Out<u64>, flags: u32) {
        event.check()?;
        event.set(event::create(flags)?)
    }
    fn cuEventDestroy(event: u64) { EVENTS.remove(event).map(|_| ()) }
    fn cuEventDestroy_v2(event: u64) { EVENTS.remove(event).map(|_| ()) }
    fn cuEventQuery(event: u64) { EVENTS.get(event)?.query() }
    fn cuEventSynchronize(event: u64) { EVENTS.get(event)?.sync() }
    fn cuEventElapsedTime(millis: Out<f32>, start: u64, end: u64) {
        millis.set(EVENTS.get(start)?.elapsed(&*EVENTS.get(end)?)?)
    }
    fn cuEventElapsedTime_v2(millis: Out<f32>, start: u64, end: u64) {
        millis.set(EVENTS.get(start)?.elapsed(&*EVENTS.get(end)?)?)
    }
}

streamed! {
    fn cuStreamSynchronize, cuStreamSynchronize_ptsz |mode| (stream: u64) { stream::find(stream, mode)?.sync() }
    fn cuStreamQuery, cuStreamQuery_ptsz |mode| (stream: u64) { stream::find(stream, mode)?.query() }
    fn cuStreamGetPriority, cuStreamGetPriority_ptsz |mode| (stream: u64, priority: Out<i32>) {
        priority.set(stream::find(stream, mode)?.priority)
    }
    fn cuStreamGetFlags, cuStreamGetFlags_ptsz |mode| (stream: u64, flags: Out<u32>) {
        flags.set(stream::find(stream, mode)?.flags)
    }
    fn cuStreamGetId, cuStreamGetId_ptsz |mode| (stream: u64, id: Out<u64>) {
        id.set(stream::find(stream, mode)?.id)
    }
    fn cuStreamGetDevice, cuStreamGetDevice_ptsz |mode| (stream: u64, device: Out<i32>) {
        device.set(i32::try_from(stream::find(stream, mode)?.device).unwrap_or(0))
    }
    fn cuStreamGetCtx, cuStreamGetCtx_ptsz |mode| (stream: u64, context: Out<u64>) {
        context.set(stream::find(stream, mode)?.context)
    }
    fn cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz |mode| (stream: u64, context: Out<u64>, green: Out<u64>) {
        context.set(stream::find(stream, mode)?.context)?;
        green.set_if_wanted(0);
        Ok(())
    }
    fn cuStreamWaitEvent, cuStreamWaitEvent_ptsz |mode| (stream: u64, event: u64, _flags: u32) {
        stream::wait_event(&*stream::find(stream, mode)?, &*EVENTS.get(event)?)
    }
    fn cuEventRecord, cuEventRecord_ptsz |mode| (event: u64, stream: u64) {
        EVENTS.get(event)?.record(&*stream::find(stream, mode)?)
    }
    fn cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz |mode| (event: u64, stream: u64, _flags: u32) {
        EVENTS.get(event)?.record(&*stream::find(stream, mode)?)
    }
    fn cuLaunchHostFunc, cuLaunchHostFunc_ptsz |mode| (stream: u64, function: HostFn, data: u64) {
        host(&*stream::find(stream, mode)?, function, data)
    }
    fn cuLaunchHostFunc_v2, cuLaunchHostFunc_v2_ptsz |mode| (stream: u64, function: HostFn, data: u64, _sync: u32) {
        host(&*stream::find(stream, mode)?, function, data)
    }
    fn cuStreamAddCallback, cuStreamAddCallback_ptsz |mode| (
        stream: u64, function: Callback, data: u64, _flags: u32
    ) {
        let found = stream::find(stream, mode)?;
        if found.capture().is_some() {
            return Err(Code(900));
        }
        found.call_host(move || function(stream, 0, data))
    }

    fn cuStreamBeginCapture, cuStreamBeginCapture_ptsz |mode| (stream: u64) {
        stream::begin_capture(&*stream::find(stream, mode)?, |origin| Ok(Capture::new(origin)))
    }
    fn cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz |mode| (stream: u64, _kind: u32) {
        stream::begin_capture(&*stream::find(stream, mode)?, |origin| Ok(Capture::new(origin)))
    }
    fn cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz |mode| (
        stream: u64, graph: u64, after: In<u64>, _edges: In<u8>, count: usize, _kind: u32
    ) {
        let after = after.list(count)?;
        stream::begin_capture(&*stream::find(stream, mode)?, |origin| Capture::into(graph, after, origin))
    }
    fn cuStreamEndCapture, cuStreamEndCapture_ptsz |mode| (stream: u64, graph: Out<u64>) {
        graph.check()?;
        let ended = stream::end_capture(&*stream::find(stream, mode)?);
        graph.set(ended.unwrap_or(0))?;
        ended.map(|_| ())
    }
    fn cuStreamIsCapturing, cuStreamIsCapturing_ptsz |mode| (stream: u64, told: Out<u32>) {
        told.set(status(stream::find(stream, mode)?.capture().as_ref()))
    }
    fn cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz |mode| (stream: u64, told: Out<u32>, id: Out<u64>) {
        let nowhere = Out::none();
        capture_info(&*stream::find(stream, mode)?, told, id, nowhere).map(|_| ())
    }
    fn cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz |mode| (
        stream: u64, told: Out<u32>, id: Out<u64>, graph: Out<u64>, list: Out<u64>, count: Out<usize>
    ) {
        let stream = stream::find(stream, mode)?;
        let capture = capture_info(&stream, told, id, graph)?;
        ends(&stream, capture.as_ref(), list, count);
        Ok(())
    }
    fn cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz |mode| (
        stream: u64, told: Out<u32>, id: Out<u64>, graph: Out<u64>, list: Out<u64>, edges: Out<u64>,
        count: Out<usize>
    ) {
        let stream = stream::find(stream, mode)?;
        let capture = capture_info(&stream, told, id, graph)?;
        ends(&stream, capture.as_ref(), list, count);
        // No edge has any data.
        edges.set_if_wanted(0);
        Ok(())
    }
}
