//! Graphs: nodes written down. [`exec`] makes them ready and hands them in as one piece of work, or where nodes wait for the host
//! as [`order`] says, [`capture`] writes work of streams down as nodes, [`store`] has the memory of memory nodes.
//!
//! A memory node has its addresses from the moment it is made: those of an allocation that is freed before it in the same
//! graph, or new ones. Memory comes behind them as `node.toml` says.

mod capture;
mod exec;
mod order;
mod store;

pub(crate) use capture::Capture;
pub(crate) use exec::{destroy_exec, free_left, instantiate, launch, set_exec_op, update, upload};
pub(crate) use store::Store;

use crate::code::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::handle::{Registry, Tag};
use crate::heap::BIG_PAGE;
use crate::location::Location;
use crate::memory;
use crate::process::{self, lock};
use crate::word::Batch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// What work does to content.
pub(crate) type Effect = Arc<dyn Fn() -> Answer + Send + Sync>;

/// What a node does.
#[derive(Clone)]
pub(crate) enum Op {
    /// Device time, and perhaps content.
    Work { what: WorkKind, nanos: u64, effect: Option<Effect> },
    /// Memory on a card, which was named like this.
    Alloc { device: usize, location: Location, bytes: u64, place: Arc<NodeAddresses> },
    /// Memory of such a node given back, by its address.
    Free(u64),
    /// A function on the host.
    Host(Effect),
    /// Words that are waited for, or written.
    Words(Batch),
    /// Another graph.
    Child(Arc<EmbeddedGraph>),
    /// Another graph as it was when this one was made ready.
    Inside(Vec<Step>),
    /// Order only.
    Empty,
}

/// A node as it was when its graph was made ready.
#[derive(Clone)]
pub(crate) struct Step {
    node: u64,
    op: Op,
    /// The nodes before it.
    after: Vec<u64>,
}

/// Addresses that memory nodes stand for, for as long as one of them, or what it allocated, is anywhere.
pub(crate) struct NodeAddresses {
    address: u64,
    /// Whole pages.
    bytes: u64,
}

impl NodeAddresses {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for NodeAddresses {
    fn drop(&mut self) {
        memory::release_of_graph(self.address);
    }
}

/// A graph that belongs to a node of another one.
pub(crate) struct EmbeddedGraph(u64);

impl Drop for EmbeddedGraph {
    fn drop(&mut self) {
        discard(self.0);
    }
}

/// How a graph becomes part of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// A copy does.
    Clone,
    /// It does itself.
    Move,
}

/// What takes device time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Fill,
    /// A graph. Launched into a capture it is a child of the one that is captured.
    Graph,
    /// Nothing but its place in the order.
    Order,
}

/// The vendor's numbers of node types.
fn kind(op: &Op) -> u32 {
    match op {
        Op::Work { what: WorkKind::Kernel, .. } => 0,
        Op::Work { what: WorkKind::Copy, .. } => 1,
        Op::Work { what: WorkKind::Fill, .. } => 2,
        Op::Host(_) => 3,
        Op::Child(_) | Op::Inside(_) => 4,
        Op::Empty | Op::Work { what: WorkKind::Graph | WorkKind::Order, .. } => 5,
        Op::Alloc { .. } => 10,
        Op::Free(_) => 11,
        Op::Words(_) => 12,
    }
}

struct Node {
    graph: u64,
    op: Mutex<Op>,
    after: Vec<u64>,
}

/// A graph: its nodes in the order they came.
#[derive(Default)]
struct Graph {
    nodes: Mutex<Vec<u64>>,
    /// Whether it belongs to a node.
    moved: AtomicBool,
    /// The executable graph that was made of it, as long as that is there.
    ready: Mutex<Weak<()>>,
}

static GRAPHS: Registry<Graph> = Registry::new(Tag::Graph, INVALID_VALUE);
static NODES: Registry<Node> = Registry::new(Tag::Node, INVALID_VALUE);

/// cuGraphCreate.
pub(crate) fn create() -> Answer<u64> {
    process::cards()?;
    Ok(create_for_capture())
}

fn create_for_capture() -> u64 {
    GRAPHS.add(|_| Graph::default()).0
}

/// cuGraphDestroy.
pub(crate) fn destroy(handle: u64) -> Answer {
    if GRAPHS.get(handle)?.moved.load(Ordering::Relaxed) {
        return Err(INVALID_VALUE);
    }
    discard(handle);
    Ok(())
}

fn discard(handle: u64) {
    let Ok(graph) = GRAPHS.remove(handle) else { return };
    for node in std::mem::take(&mut *lock(&graph.nodes)) {
        NODES.forget(node);
    }
}

/// Fails unless these are nodes of this graph.
fn belong(handle: u64, nodes: &[u64]) -> Answer {
    GRAPHS.get(handle)?;
    nodes
        .iter()
        .try_for_each(|node| if NODES.get(*node)?.graph == handle { Ok(()) } else { Err(INVALID_VALUE) })
}

/// cuGraphAdd…Node.
pub(crate) fn add(handle: u64, after: &[u64], op: Op) -> Answer<u64> {
    let graph = GRAPHS.get(handle)?;
    if graph.moved.load(Ordering::Relaxed) && holds_memory(&op)? {
        return Err(NOT_SUPPORTED);
    }
    belong(handle, after)?;
    let (node, _) = NODES.add(|_| Node { graph: handle, op: Mutex::new(op), after: after.to_vec() });
    lock(&graph.nodes).push(node);
    Ok(node)
}

fn op_of(node: u64) -> Answer<Op> {
    Ok(lock(&NODES.get(node)?.op).clone())
}

/// A node's work is another from now on; graphs that are instantiated keep theirs.
pub(crate) fn set_op(node: u64, op: Op) -> Answer {
    *lock(&NODES.get(node)?.op) = op;
    Ok(())
}

/// cuGraphNodeGetType.
pub(crate) fn node_kind(node: u64) -> Answer<u32> {
    Ok(kind(&lock(&NODES.get(node)?.op)))
}

/// cuGraphDestroyNode. A graph with memory nodes keeps all it has.
pub(crate) fn destroy_node(handle: u64) -> Answer {
    let graph = NODES.get(handle)?.graph;
    if graph_holds_memory(graph)? {
        return Err(NOT_SUPPORTED);
    }
    lock(&GRAPHS.get(graph)?.nodes).retain(|other| *other != handle);
    NODES.remove(handle).map(|_| ())
}

/// cuGraphGetNodes.
pub(crate) fn nodes(handle: u64) -> Answer<Vec<u64>> {
    Ok(lock(&GRAPHS.get(handle)?.nodes).clone())
}

/// cuGraphGetRootNodes.
pub(crate) fn roots(handle: u64) -> Answer<Vec<u64>> {
    let mut all = nodes(handle)?;
    all.retain(|node| NODES.get(*node).is_ok_and(|node| node.after.is_empty()));
    Ok(all)
}

/// Nodes, and all that come before them.
fn ancestors(nodes: &[u64]) -> Answer<BTreeSet<u64>> {
    let (mut found, mut open) = (BTreeSet::new(), nodes.to_vec());
    while let Some(node) = open.pop() {
        if found.insert(node) {
            open.extend(&NODES.get(node)?.after);
        }
    }
    Ok(found)
}

/// cuGraphAddMemAllocNode: the node, and the address that it will have.
pub(crate) fn add_alloc(handle: u64, after: &[u64], location: Location, bytes: u64) -> Answer<(u64, u64)> {
    let device = location.card()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let pages = bytes.checked_next_multiple_of(BIG_PAGE).ok_or(OUT_OF_MEMORY)?;
    let place = match freed_before(handle, after, device, pages)? {
        Some(place) => place,
        None => Arc::new(NodeAddresses { address: memory::place_for_graph(device, pages)?, bytes: pages }),
    };
    let address = place.address;
    Ok((add(handle, after, Op::Alloc { device, location, bytes, place })?, address))
}

/// The smallest place of the graph that is large enough and of which everything is freed before a node behind `after` is reached.
fn freed_before(handle: u64, after: &[u64], device: usize, bytes: u64) -> Answer<Option<Arc<NodeAddresses>>> {
    if after.is_empty() {
        return Ok(None);
    }
    let before = ancestors(after)?;
    let mut places = BTreeMap::<u64, (Arc<NodeAddresses>, u64)>::new();
    let mut freed = BTreeMap::<u64, u64>::new();
    for node in nodes(handle)? {
        match op_of(node)? {
            Op::Alloc { device: other, place, .. } if other == device && place.bytes >= bytes => {
                places.entry(place.address).or_insert((place, 0)).1 += 1;
            }
            Op::Free(address) if before.contains(&node) => *freed.entry(address).or_default() += 1,
            _ => {}
        }
    }
    let free = places.into_values().filter(|(place, count)| freed.get(&place.address) == Some(count));
    Ok(free.map(|(place, _)| place).min_by_key(|place| place.bytes))
}

/// cuGraphAddMemFreeNode: of an allocation of this graph, once, or of another one's.
pub(crate) fn free_op(handle: u64, address: u64) -> Answer<Op> {
    let (mut allocated, mut freed) = (0, 0);
    for node in nodes(handle)? {
        match op_of(node)? {
            Op::Alloc { place, .. } if place.address == address => allocated += 1,
            Op::Free(other) if other == address => freed += 1,
            _ => {}
        }
    }
    if allocated > freed || allocated == 0 && freed == 0 && memory::is_of_graph(address) {
        Ok(Op::Free(address))
    } else {
        Err(INVALID_VALUE)
    }
}

/// cuGraphMemAllocNodeGetParams: the requested place, bytes and address.
pub(crate) fn alloc_of(node: u64) -> Answer<(Location, u64, u64)> {
    match &*lock(&NODES.get(node)?.op) {
        Op::Alloc { location, bytes, place, .. } => Ok((*location, *bytes, place.address())),
        _ => Err(INVALID_VALUE),
    }
}

/// cuGraphMemFreeNodeGetParams: the address.
pub(crate) fn freed_of(node: u64) -> Answer<u64> {
    match &*lock(&NODES.get(node)?.op) {
        Op::Free(address) => Ok(*address),
        _ => Err(INVALID_VALUE),
    }
}

fn holds_memory(op: &Op) -> Answer<bool> {
    match op {
        Op::Alloc { .. } | Op::Free(_) => Ok(true),
        Op::Child(child) => graph_holds_memory(child.0),
        Op::Inside(steps) => steps.iter().try_fold(false, |any, step| Ok(any || holds_memory(&step.op)?)),
        _ => Ok(false),
    }
}

fn graph_holds_memory(handle: u64) -> Answer<bool> {
    nodes(handle)?.into_iter().try_fold(false, |any, node| Ok(any || holds_memory(&op_of(node)?)?))
}

/// A graph as another graph's node. One with memory nodes has to be moved.
pub(crate) fn child_op(handle: u64, ownership: Ownership) -> Answer<Op> {
    match ownership {
        Ownership::Clone => Ok(Op::Child(Arc::new(EmbeddedGraph(duplicate(handle)?)))),
        Ownership::Move if GRAPHS.get(handle)?.moved.swap(true, Ordering::Relaxed) => Err(INVALID_VALUE),
        Ownership::Move => Ok(Op::Child(Arc::new(EmbeddedGraph(handle)))),
    }
}

/// What a launch is where it is captured: a node with a graph of its own, of the nodes that the executable graph has now.
fn launched_op(steps: &[Step]) -> Answer<Op> {
    let handle = create()?;
    // From here on dropping `embedded` destroys it.
    let embedded = Arc::new(EmbeddedGraph(handle));
    let mut fresh = BTreeMap::new();
    for step in steps {
        let after = step.after.iter().filter_map(|node| fresh.get(node).copied()).collect::<Vec<_>>();
        let op = match &step.op {
            Op::Inside(steps) => launched_op(steps)?,
            op => op.clone(),
        };
        fresh.insert(step.node, add(handle, &after, op)?);
    }
    Ok(Op::Child(embedded))
}

/// cuGraphChildGraphNodeGetGraph.
pub(crate) fn child_of(node: u64) -> Answer<u64> {
    match &*lock(&NODES.get(node)?.op) {
        Op::Child(child) => Ok(child.0),
        _ => Err(INVALID_VALUE),
    }
}

/// cuGraphClone, which graphs with memory nodes refuse.
pub(crate) fn duplicate(handle: u64) -> Answer<u64> {
    if graph_holds_memory(handle)? {
        return Err(NOT_SUPPORTED);
    }
    let originals = nodes(handle)?;
    let copy = create()?;
    let mut fresh = BTreeMap::new();
    for original in originals {
        let node = NODES.get(original)?;
        let after = node.after.iter().filter_map(|other| fresh.get(other).copied()).collect::<Vec<_>>();
        let op = match op_of(original)? {
            Op::Child(child) => child_op(child.0, Ownership::Clone)?,
            op => op,
        };
        fresh.insert(original, add(copy, &after, op)?);
    }
    Ok(copy)
}

/// A node, with its work and all that of graphs inside it, as it is now.
fn snapshot(node: u64) -> Answer<Step> {
    let after = NODES.get(node)?.after.clone();
    let op = match op_of(node)? {
        Op::Child(child) => Op::Inside(snapshots(child.0)?),
        op => op,
    };
    Ok(Step { node, op, after })
}

/// All nodes of a graph, each behind those that it comes after.
fn snapshots(handle: u64) -> Answer<Vec<Step>> {
    nodes(handle)?.into_iter().map(snapshot).collect()
}
