//! Streams: order of work, capture, and waiting.
//!
//! A card runs the work of a process in submission order, so order between streams holds by itself. A stream
//! keeps the mark behind its last work; a wait for the stream waits for that mark. Work that waits for the
//! host, and all behind it, is submitted later ([`crate::line`]). Priorities are kept and change no order.

use crate::code::{Answer, CAPTURE_INVALIDATED, CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, NOT_READY};
use crate::code::{INVALID_HANDLE, INVALID_VALUE};
use crate::event::Event;
use crate::graph::{Capture, Effect, Op, WorkKind};
use crate::handle::{Registry, Tag};
use crate::line::{self, Line, Point, Role, Turn};
use crate::memory;
use crate::process::{self, lock};
use crate::table::Mode;
use aliquot_sim_device::StreamHandles;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Whether a call returns before its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It does.
    No,
    /// It does not.
    Yes,
}

/// A flag of cuStreamCreate: the stream has nothing to do with the legacy one.
pub(crate) const NON_BLOCKING: u32 = 1;
/// Handles that name a default stream.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) id: u64,
    /// Its work in order.
    pub(crate) line: Arc<Line>,
    /// What is to be done when it is somewhere, and holds nothing of it.
    aside: OnceLock<Arc<Line>>,
    capture: Mutex<Option<Arc<Capture>>>,
}

static STREAMS: Registry<Stream> = Registry::new(Tag::Stream, INVALID_HANDLE);

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Stream {
    /// A context's legacy stream.
    pub(crate) fn standard(context: u64, device: usize, joined: Arc<AtomicU64>) -> Self {
        Self::new(context, device, joined, Role::Legacy, (0, 0))
    }

    fn new(context: u64, device: usize, joined: Arc<AtomicU64>, role: Role, given: (u32, i32)) -> Self {
        Self {
            context,
            device,
            flags: given.0,
            priority: given.1,
            id: next_id(),
            line: Arc::new(Line::new(context, device, joined, role)),
            aside: OnceLock::new(),
            capture: Mutex::default(),
        }
    }

    /// The point behind everything that this stream waits for.
    pub(crate) fn point(&self) -> Point {
        self.line.point()
    }

    /// A line that follows this stream's and that nothing waits for but the context.
    pub(crate) fn aside(&self) -> &Arc<Line> {
        self.aside.get_or_init(|| Arc::new(Line::new(self.context, self.device, Arc::default(), Role::Apart)))
    }

    /// The capture it is in.
    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.capture).clone()
    }

    /// Enters a capture, or leaves it.
    pub(crate) fn set_capture(&self, capture: Option<Arc<Capture>>) {
        *lock(&self.capture) = capture;
    }

    /// Hands work in: `nanos` of device time, and what it does to content. In a capture it is written down only.
    pub(crate) fn run(&self, what: WorkKind, nanos: u64, effect: Option<Effect>) -> Answer {
        if let Some(capture) = self.capture() {
            return capture.add(self.id, Op::Work { what, nanos, effect });
        }
        self.line.work(nanos, effect.map(|effect| move || effect()))
    }

    /// Waits, where the call is a synchronous one.
    pub(crate) fn after(&self, wait: Wait) -> Answer {
        match wait {
            Wait::No => Ok(()),
            Wait::Yes if self.capture().is_some() => Ok(()),
            Wait::Yes => self.sync(),
        }
    }

    /// Waits until everything in it is done.
    pub(crate) fn sync(&self) -> Answer {
        self.refuse_in_capture()?;
        let ours = process::cards()?.get(self.device).ok_or(INVALID_HANDLE)?;
        let seat = ours.seat()?;
        self.point().wait()?;
        ours.well()?;
        memory::settle_freed();
        ours.pools.settle(seat);
        Ok(())
    }

    /// Whether everything in it is done; [`NOT_READY`] otherwise.
    pub(crate) fn query(&self) -> Answer {
        self.refuse_in_capture()?;
        let ours = process::cards()?.get(self.device).ok_or(INVALID_HANDLE)?;
        if !self.point().is_done(ours.seat()?) {
            return Err(NOT_READY);
        }
        memory::settle_freed();
        Ok(())
    }

    /// What a capture cannot hold spoils it.
    pub(crate) fn refuse_in_capture(&self) -> Answer {
        match self.capture() {
            None => Ok(()),
            Some(capture) => {
                capture.invalidate();
                Err(CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Calls `function` when what is in the stream now is done; what follows waits for its end.
    pub(crate) fn call_host(&self, function: impl FnOnce() + Send + 'static) -> Answer {
        let held = |turn: &Turn<'_>| {
            turn.wait(turn.before);
            function();
            turn.before
        };
        self.line.put(Vec::new(), Box::new(held))
    }
}

/// The stream a handle names, for a call of `mode`.
pub(crate) fn find(handle: u64, mode: Mode) -> Answer<Arc<Stream>> {
    let per_thread = match handle {
        0 => mode == Mode::PerThread,
        LEGACY => false,
        PER_THREAD => true,
        other => return STREAMS.get(other),
    };
    let context = process::current()?;
    if !per_thread {
        return Ok(Arc::clone(&context.legacy));
    }
    let mut streams = lock(&context.of_threads);
    let make = || {
        let joined = Arc::clone(&context.joined);
        Arc::new(Stream::new(context.handle, context.device, joined, Role::Blocking, (0, 0)))
    };
    Ok(Arc::clone(streams.entry(process::thread_number()).or_insert_with(make)))
}

/// A stream that is no default one.
pub(crate) fn named(handle: u64) -> Answer<Arc<Stream>> {
    STREAMS.get(handle)
}

/// cuStreamCreate.
pub(crate) fn create(flags: u32, priority: i32) -> Answer<u64> {
    if flags > NON_BLOCKING {
        return Err(INVALID_VALUE);
    }
    let context = process::current()?;
    if context.card()?.card.node().stream_handles == StreamHandles::Again {
        STREAMS.reuse();
    }
    let given = (flags, priority.clamp(PRIORITIES.1, PRIORITIES.0));
    let joined = Arc::clone(&context.joined);
    let role = if flags & NON_BLOCKING == 0 { Role::Blocking } else { Role::Apart };
    let make = |_| Stream::new(context.handle, context.device, joined, role, given);
    Ok(STREAMS.add(make).0)
}

/// Least and greatest priority.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

/// cuStreamDestroy: what is in it still runs. A capture that began on it ends with it and leaves no graph; from one that it
/// merely joined it is gone, and what it did there stays.
pub(crate) fn destroy(handle: u64) -> Answer {
    process::cards()?;
    let stream = STREAMS.remove(handle)?;
    if let Some(capture) = stream.capture().filter(|capture| capture.origin() == stream.id) {
        let_out(&capture);
        capture.discard()?;
    }
    Ok(())
}

/// All streams of a capture leave it.
fn let_out(capture: &Arc<Capture>) {
    for (_, other) in STREAMS.select(|other| other.capture().is_some_and(|own| Arc::ptr_eq(&own, capture))) {
        other.set_capture(None);
    }
}

/// The streams of a context that have handles.
fn all_of(context: u64) -> Vec<(u64, Arc<Stream>)> {
    STREAMS.select(|stream| stream.context == context)
}

/// A context goes.
pub(crate) fn destroy_all_of(context: u64) {
    for (handle, _) in all_of(context) {
        // Another thread may have been faster.
        let _gone = destroy(handle);
    }
    line::end_all_of(context);
}

/// A context is waited for: what a capture of it cannot hold spoils that.
pub(crate) fn refuse_in_captures_of(context: u64) -> Answer {
    all_of(context).into_iter().try_for_each(|(_, stream)| stream.refuse_in_capture())
}

/// cuStreamWaitEvent: an event of a capture brings the stream into it.
pub(crate) fn wait_event(stream: &Stream, event: &Event) -> Answer {
    if let Some((capture, from)) = event.captured() {
        capture.fork(from, stream.id);
        stream.set_capture(Some(capture));
        return Ok(());
    }
    if stream.capture().is_some() {
        return Ok(());
    }
    event.point().map_or(Ok(()), |point| stream.line.follow(point))
}

/// cuStreamBeginCapture, of what is made for the stream's number.
pub(crate) fn begin_capture(stream: &Stream, make: impl FnOnce(u64) -> Answer<Capture>) -> Answer {
    if stream.line.role() == Role::Legacy {
        return Err(CAPTURE_UNSUPPORTED);
    }
    if stream.capture().is_some() {
        return Err(INVALID_VALUE);
    }
    stream.set_capture(Some(Arc::new(make(stream.id)?)));
    Ok(())
}

/// cuStreamEndCapture: the graph.
pub(crate) fn end_capture(stream: &Stream) -> Answer<u64> {
    let capture = stream.capture().ok_or(INVALID_VALUE)?;
    if capture.origin() != stream.id {
        return Err(CAPTURE_UNMATCHED);
    }
    stream.set_capture(None);
    let_out(&capture);
    if capture.is_invalid() { Err(CAPTURE_INVALIDATED) } else { Ok(capture.into_graph()) }
}
