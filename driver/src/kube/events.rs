//! Events: a bounded queue, one task, one object for equal Events.
//!
//! The sender never waits: a full queue drops the Event and counts it. The first Event of a kind is written at once; its
//! repeats are counted and written at most every ten seconds, as one update of the first object's series. Several are written at
//! the same time: one that the server does not answer, such as behind a webhook of its namespace, delays no other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::kube::Client;
use ::kube::api::{Api, Patch, PatchParams, PostParams};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::mpsc;

use super::backoff::Backoff;
use super::client::Connection;
use super::failure::{ApiCall, code, printable};
use crate::clock;
use crate::ports::{AgentEvent, BoxFuture, ClaimReference, EventObject, EventSeverity, EventSink};

/// Events that wait to be written.
const QUEUE_MAX: usize = 256;
/// Kinds of Events whose repeats are counted; the oldest is forgotten for a new one.
const SERIES_MAX: usize = 1_024;
/// Time between two writes of one series.
const SERIES_PAUSE: Duration = Duration::from_secs(10);
/// Time without a repeat after which an Event is a new one.
const SERIES_AGE: Duration = Duration::from_secs(360);
/// Most Events that are written at the same time; further ones wait in the queue.
const WRITERS: usize = 16;
/// Attempts to write one Event.
const ATTEMPTS_MAX: u32 = 4;
/// Longest duration of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a note that the API takes.
const NOTE_BYTES_MAX: usize = 1_024;
/// Bytes of an object's name that stand in the name of its Event.
const NAME_PART_MAX: usize = 200;
pub(super) const CONTROLLER: &str = "aliquot.dev/agent";
const RESOURCE: &str = "events.events.k8s.io";

/// The queue's end for senders; clones share it. The task ends with the last clone.
#[derive(Clone)]
pub struct EventQueue {
    sender: mpsc::Sender<AgentEvent>,
    dropped: Arc<AtomicU64>,
}

/// The task that writes.
struct EventWriter {
    client: Client,
    node: String,
    dropped: Arc<AtomicU64>,
    series: HashMap<AgentEvent, Series>,
    /// Writes in progress.
    writes: FuturesUnordered<BoxFuture<'static, EndedWrite>>,
}

/// Repeats of one Event.
struct Series {
    namespace: String,
    name: String,
    count: i32,
    written: i32,
    last: Instant,
    last_write: Instant,
    write: WriteState,
}

/// Whether a write of a series is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteState {
    Idle,
    InProgress,
}

/// A write that has ended.
struct EndedWrite {
    event: AgentEvent,
    /// The object's name: a later series of an equal Event has another.
    name: String,
    /// Repeats that it wrote.
    count: i32,
    outcome: EventWriteOutcome,
}

// === impl EventQueue ===

impl EventQueue {
    /// Starts the writing task on the current runtime.
    #[must_use]
    pub fn start(connection: &Connection, node: &str) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = EventWriter {
            client: connection.client.clone(),
            node: node.to_owned(),
            dropped: Arc::clone(&dropped),
            series: HashMap::new(),
            writes: FuturesUnordered::new(),
        };
        tokio::spawn(writer.run(receiver));
        Self { sender, dropped }
    }

    /// Events that were not written: the queue was full, or the server did not take them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl EventSink for EventQueue {
    fn publish(&self, event: AgentEvent) {
        if self.sender.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl EventWriter ===

impl EventWriter {
    async fn run(mut self, mut receiver: mpsc::Receiver<AgentEvent>) {
        loop {
            let pending = self.series.values().any(|series| series.count > series.written);
            let pause = if pending { SERIES_PAUSE } else { SERIES_AGE };
            tokio::select! {
                event = receiver.recv(), if self.writes.len() < WRITERS => match event {
                    Some(event) => self.take(event),
                    None => break,
                },
                Some(ended) = self.writes.next() => self.note(&ended),
                () = tokio::time::sleep(pause) => {}
            }
            self.flush(SERIES_PAUSE);
            let now = clock::now();
            let is_kept = |series: &Series| {
                series.write == WriteState::InProgress || now.duration_since(series.last) < SERIES_AGE
            };
            self.series.retain(|_, series| is_kept(series));
        }
        self.flush(Duration::ZERO);
        while let Some(ended) = self.writes.next().await {
            self.note(&ended);
            self.flush(Duration::ZERO);
        }
    }

    fn take(&mut self, event: AgentEvent) {
        if let Some(series) = self.series.get_mut(&event) {
            series.count = series.count.saturating_add(1);
            series.last = clock::now();
            return;
        }
        if self.series.len() >= SERIES_MAX {
            let idle = self.series.iter().filter(|(_, series)| series.write == WriteState::Idle);
            let oldest = idle.min_by_key(|(_, series)| series.last).map(|(event, _)| event.clone());
            oldest.and_then(|oldest| self.series.remove(&oldest));
        }
        let object = self.object(&event);
        let name = object.metadata.name.clone().unwrap_or_default();
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let now = clock::now();
        let series = Series {
            namespace: namespace.clone(),
            name: name.clone(),
            count: 1,
            written: 0,
            last: now,
            last_write: now,
            write: WriteState::InProgress,
        };
        self.series.insert(event.clone(), series);
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let dropped = Arc::clone(&self.dropped);
        self.writes.push(Box::pin(async move {
            let call = ApiCall { verb: "create", resource: RESOURCE, object: &name };
            let params = PostParams::default();
            let outcome = attempts(&dropped, call, || events.create(&params, &object)).await;
            EndedWrite { event, name, count: 1, outcome }
        }));
    }

    /// Begins to write the series whose last write is older than `age`.
    fn flush(&mut self, age: Duration) {
        let now = clock::now();
        for (event, series) in &mut self.series {
            let old = now.duration_since(series.last_write) >= age;
            if self.writes.len() >= WRITERS {
                return;
            }
            if series.count <= series.written || !old || series.write == WriteState::InProgress {
                continue;
            }
            series.write = WriteState::InProgress;
            let (event, name, count) = (event.clone(), series.name.clone(), series.count);
            let events: Api<Event> = Api::namespaced(self.client.clone(), &series.namespace);
            let dropped = Arc::clone(&self.dropped);
            self.writes.push(Box::pin(async move {
                let call = ApiCall { verb: "patch", resource: RESOURCE, object: &name };
                let observed = EventSeries { count, last_observed_time: MicroTime(stamp()) };
                let patch = Patch::Merge(serde_json::json!({ "series": observed }));
                let params = PatchParams::default();
                let outcome = attempts(&dropped, call, || events.patch(&name, &params, &patch)).await;
                EndedWrite { event, name, count, outcome }
            }));
        }
    }

    fn note(&mut self, ended: &EndedWrite) {
        let Some(series) = self.series.get_mut(&ended.event).filter(|series| series.name == ended.name)
        else {
            return;
        };
        match ended.outcome {
            EventWriteOutcome::Stored => {
                series.write = WriteState::Idle;
                series.written = ended.count;
                series.last_write = clock::now();
            }
            // The server forgets Events after an hour: the next one is a new one.
            EventWriteOutcome::Gone | EventWriteOutcome::GivenUp => {
                self.series.remove(&ended.event);
            }
        }
    }

    fn object(&self, event: &AgentEvent) -> Event {
        let regarding = regarding(&event.about, &self.node);
        let about: String = regarding.name.iter().flat_map(|name| name.chars()).take(NAME_PART_MAX).collect();
        let now = stamp();
        let mut object = Event {
            action: Some(event.reason.to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(cut(printable(&event.message), NOTE_BYTES_MAX)),
            reason: Some(event.reason.to_owned()),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(cut(self.node.clone(), 128)),
            type_: Some(
                match event.severity {
                    EventSeverity::Normal => "Normal",
                    EventSeverity::Warning => "Warning",
                }
                .to_owned(),
            ),
            ..Event::default()
        };
        object.metadata.name =
            Some(format!("{}.{:x}", about.trim_end_matches(['-', '.']), now.as_nanosecond()));
        object.metadata.namespace = Some(regarding.namespace.clone().unwrap_or_else(|| "default".to_owned()));
        object.regarding = Some(regarding);
        object
    }
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventWriteOutcome {
    /// The server has it.
    Stored,
    /// The object or its namespace does not exist.
    Gone,
    /// The server did not take it; it is counted as dropped.
    GivenUp,
}

/// Tries a write several times.
async fn attempts<F, T>(dropped: &AtomicU64, call: ApiCall<'_>, write: impl Fn() -> F) -> EventWriteOutcome
where
    F: Future<Output = Result<T, ::kube::Error>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut last = None;
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            tokio::time::sleep(backoff.delay()).await;
        }
        match tokio::time::timeout(REQUEST_TIMEOUT, write()).await {
            Ok(Ok(_)) => return EventWriteOutcome::Stored,
            Ok(Err(error)) => match code(&error) {
                Some(404) => return EventWriteOutcome::Gone,
                // The answer of an earlier attempt was lost.
                Some(409) if attempt > 0 => return EventWriteOutcome::Stored,
                Some(400..=403 | 405 | 422) => {
                    last = Some(call.failed(&error));
                    break;
                }
                _ => last = Some(call.failed(&error)),
            },
            Err(_elapsed) => last = Some(call.timed_out(REQUEST_TIMEOUT)),
        }
    }
    dropped.fetch_add(1, Ordering::Relaxed);
    if let Some(error) = last {
        tracing::warn!(error = %error, "an Event is dropped");
    }
    EventWriteOutcome::GivenUp
}

fn stamp() -> Timestamp {
    Timestamp::try_from(clock::wall()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn regarding(about: &EventObject, node: &str) -> ObjectReference {
    match about {
        EventObject::Claim(ClaimReference { namespace, name, uid }) => ObjectReference {
            api_version: Some("resource.k8s.io/v1".to_owned()),
            kind: Some("ResourceClaim".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            uid: Some(uid.as_str().to_owned()),
            ..ObjectReference::default()
        },
        // `kubectl describe node` finds Events by the node's name as UID, as the kubelet writes them.
        EventObject::Node => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    }
}

/// A text of at most so many bytes.
fn cut(mut text: String, most: usize) -> String {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
