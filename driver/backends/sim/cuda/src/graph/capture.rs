//! Work of streams that is written down as a graph.

use super::{Op, add, add_alloc, belong, create_for_capture, destroy, free_op};
use crate::code::Answer;
use crate::location::Location;
use crate::process::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A capture that goes on: a graph that grows, and where each stream of it is.
pub(crate) struct Capture {
    graph: u64,
    /// Whether that is the caller's own.
    is_given: bool,
    origin: u64,
    pub(crate) id: u64,
    invalid: AtomicBool,
    ends: Mutex<BTreeMap<u64, Vec<u64>>>,
}

impl Capture {
    /// A new one, begun on the stream of this number.
    pub(crate) fn new(origin: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            graph: create_for_capture(),
            is_given: false,
            origin,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            invalid: AtomicBool::new(false),
            ends: Mutex::default(),
        }
    }

    /// The same into a graph that is there, behind these nodes of it.
    pub(crate) fn into(graph: u64, after: Vec<u64>, origin: u64) -> Answer<Self> {
        belong(graph, &after)?;
        let fresh = Self::new(origin);
        destroy(fresh.graph)?;
        let ends = Mutex::new(BTreeMap::from([(origin, after)]));
        Ok(Self { graph, is_given: true, ends, ..fresh })
    }

    /// The stream on which it began.
    pub(crate) fn origin(&self) -> u64 {
        self.origin
    }

    /// The graph so far.
    pub(crate) fn graph(&self) -> u64 {
        self.graph
    }

    /// Writes a stream's next work down.
    pub(crate) fn add(&self, stream: u64, op: Op) -> Answer {
        let mut ends = lock(&self.ends);
        let after = ends.get(&stream).cloned().unwrap_or_default();
        let node = add(self.graph, &after, op)?;
        ends.insert(stream, vec![node]);
        Ok(())
    }

    /// Writes an allocation down; its address.
    pub(crate) fn add_alloc(&self, stream: u64, location: Location, bytes: u64) -> Answer<u64> {
        let mut ends = lock(&self.ends);
        let after = ends.get(&stream).cloned().unwrap_or_default();
        let (node, address) = add_alloc(self.graph, &after, location, bytes)?;
        ends.insert(stream, vec![node]);
        Ok(address)
    }

    /// Writes down that one is freed.
    pub(crate) fn add_free(&self, stream: u64, address: u64) -> Answer {
        self.add(stream, free_op(self.graph, address)?)
    }

    /// Stream `to` goes on where `from` is.
    pub(crate) fn fork(&self, from: u64, to: u64) {
        let mut ends = lock(&self.ends);
        let mut joined = ends.get(&to).cloned().unwrap_or_default();
        joined.extend(ends.get(&from).cloned().unwrap_or_default());
        joined.sort_unstable();
        joined.dedup();
        ends.insert(to, joined);
    }

    /// Where a stream is.
    pub(crate) fn ends(&self, stream: u64) -> Vec<u64> {
        lock(&self.ends).get(&stream).cloned().unwrap_or_default()
    }

    /// Something was done that a capture cannot hold.
    pub(crate) fn invalidate(&self) {
        self.invalid.store(true, Ordering::Relaxed);
    }

    /// Whether that was so.
    pub(crate) fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::Relaxed)
    }

    /// Ends the capture without a caller to take the graph; a graph that the caller gave stays.
    pub(crate) fn discard(&self) -> Answer {
        if self.is_given { Ok(()) } else { destroy(self.graph) }
    }

    /// The graph, which is the caller's from now on.
    pub(crate) fn into_graph(self: Arc<Self>) -> u64 {
        self.graph
    }
}
