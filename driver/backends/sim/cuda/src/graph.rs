//! Graphs: nodes written down, added up at instantiation, and handed in as one piece of work.

use crate::code::{Answer, Code, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE};
use crate::handle::{Registry, Tag};
use crate::memory;
use crate::process::{self, lock};
use crate::stream::Stream;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What work does to content.
pub(crate) type Effect = Arc<dyn Fn() -> Answer + Send + Sync>;

/// What a node does.
#[derive(Clone)]
pub(crate) enum Op {
    /// Device time, and perhaps content.
    Work { what: What, nanos: u64, effect: Option<Effect> },
    /// Memory on a card.
    Alloc { device: usize, bytes: u64, place: Arc<Place> },
    /// Memory of such a node given back within the graph.
    Free,
    /// A function on the host.
    Host(Effect),
    /// Another graph, as it was.
    Child(Vec<Op>),
    /// Order only.
    Empty,
}

/// Addresses that a memory node stands for, for as long as the node or a copy of it is anywhere.
pub(crate) struct Place(u64);

impl Place {
    pub(crate) fn address(&self) -> u64 {
        self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        memory::release_of_graph(self.0);
    }
}

/// What takes device time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Fill,
    /// A graph, launched while another is captured.
    Graph,
    /// Nothing but its place in the order.
    Order,
}

/// The vendor's numbers of node types.
fn kind(op: &Op) -> u32 {
    match op {
        Op::Work { what: What::Kernel, .. } => 0,
        Op::Work { what: What::Copy, .. } => 1,
        Op::Work { what: What::Fill, .. } => 2,
        Op::Host(_) => 3,
        Op::Child(_) | Op::Work { what: What::Graph, .. } => 4,
        Op::Empty | Op::Work { what: What::Order, .. } => 5,
        Op::Alloc { .. } => 10,
        Op::Free => 11,
    }
}

struct Node {
    graph: u64,
    op: Mutex<Op>,
    after: Vec<u64>,
}

/// A graph: its nodes in the order they came.
struct Graph {
    nodes: Mutex<Vec<u64>>,
}

/// A graph made ready to launch.
struct Exec {
    ops: Mutex<BTreeMap<u64, Op>>,
    /// Memory reserved for it, by card.
    memory: BTreeMap<usize, u64>,
}

static GRAPHS: Registry<Graph> = Registry::new(Tag::Graph, INVALID_VALUE);
static NODES: Registry<Node> = Registry::new(Tag::Node, INVALID_VALUE);
static EXECS: Registry<Exec> = Registry::new(Tag::Exec, INVALID_HANDLE);

/// cuGraphCreate.
pub(crate) fn create() -> Answer<u64> {
    process::cards()?;
    Ok(GRAPHS.add(|_| Graph { nodes: Mutex::default() }).0)
}

/// cuGraphDestroy.
pub(crate) fn destroy(handle: u64) -> Answer {
    let graph = GRAPHS.remove(handle)?;
    for node in std::mem::take(&mut *lock(&graph.nodes)) {
        NODES.forget(node);
    }
    Ok(())
}

/// cuGraphAdd…Node.
pub(crate) fn add(handle: u64, after: &[u64], op: Op) -> Answer<u64> {
    let graph = GRAPHS.get(handle)?;
    for node in after {
        if NODES.get(*node)?.graph != handle {
            return Err(INVALID_VALUE);
        }
    }
    let (node, _) = NODES.add(|_| Node { graph: handle, op: Mutex::new(op), after: after.to_vec() });
    lock(&graph.nodes).push(node);
    Ok(node)
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

/// cuGraphDestroyNode.
pub(crate) fn destroy_node(handle: u64) -> Answer {
    let node = NODES.remove(handle)?;
    lock(&GRAPHS.get(node.graph)?.nodes).retain(|other| *other != handle);
    Ok(())
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

/// cuGraphAddMemAllocNode: the address that it will have.
pub(crate) fn alloc_op(device: i32, bytes: u64) -> Answer<(Op, u64)> {
    process::card(device)?;
    let device = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let address = memory::place_for_graph(device, bytes)?;
    Ok((Op::Alloc { device, bytes, place: Arc::new(Place(address)) }, address))
}

/// cuGraphMemAllocNodeGetParams: card, bytes and address.
pub(crate) fn alloc_of(node: u64) -> Answer<(i32, u64, u64)> {
    match &*lock(&NODES.get(node)?.op) {
        Op::Alloc { device, bytes, place } => {
            Ok((i32::try_from(*device).map_err(|_| INVALID_DEVICE)?, *bytes, place.address()))
        }
        _ => Err(INVALID_VALUE),
    }
}

/// The work of a graph as another graph's node.
pub(crate) fn child_op(handle: u64) -> Answer<Op> {
    let nodes = nodes(handle)?;
    let ops = nodes.iter().map(|node| Ok(lock(&NODES.get(*node)?.op).clone()));
    Ok(Op::Child(ops.collect::<Answer<_>>()?))
}

/// cuGraphClone.
pub(crate) fn duplicate(handle: u64) -> Answer<u64> {
    let originals = nodes(handle)?;
    let copy = create()?;
    let mut fresh = BTreeMap::new();
    for original in originals {
        let node = NODES.get(original)?;
        let after = node.after.iter().filter_map(|other| fresh.get(other).copied()).collect::<Vec<_>>();
        let op = lock(&node.op).clone();
        fresh.insert(original, add(copy, &after, op)?);
    }
    Ok(copy)
}

fn needs(op: &Op, memory: &mut BTreeMap<usize, u64>) {
    match op {
        Op::Alloc { device, bytes, .. } => *memory.entry(*device).or_default() += bytes,
        Op::Child(ops) => ops.iter().for_each(|op| needs(op, memory)),
        _ => {}
    }
}

/// cuGraphInstantiate, all versions. Memory nodes are charged here, all at the same time.
pub(crate) fn instantiate(handle: u64) -> Answer<u64> {
    process::current()?;
    let mut ops = BTreeMap::new();
    let mut memory = BTreeMap::new();
    for node in nodes(handle)? {
        let op = lock(&NODES.get(node)?.op).clone();
        needs(&op, &mut memory);
        ops.insert(node, op);
    }
    let mut taken = Vec::new();
    for (device, bytes) in &memory {
        let ours = process::cards()?.get(*device).ok_or(INVALID_DEVICE)?;
        if let Err(error) = ours.pools.graph_take(ours, *bytes) {
            give_back(taken);
            return Err(error);
        }
        taken.push((*device, *bytes));
    }
    Ok(EXECS.add(|_| Exec { ops: Mutex::new(ops), memory }).0)
}

fn give_back(taken: impl IntoIterator<Item = (usize, u64)>) {
    for (device, bytes) in taken {
        if let Some(ours) = process::cards().ok().and_then(|cards| cards.get(device)) {
            ours.pools.graph_give(bytes);
        }
    }
}

/// cuGraphExecDestroy.
pub(crate) fn destroy_exec(handle: u64) -> Answer {
    let exec = EXECS.remove(handle)?;
    give_back(exec.memory.clone());
    Ok(())
}

/// cuGraphExec…NodeSetParams.
pub(crate) fn set_exec_op(exec: u64, node: u64, op: Op) -> Answer {
    let exec = EXECS.get(exec)?;
    let mut ops = lock(&exec.ops);
    let known = ops.get_mut(&node).ok_or(INVALID_VALUE)?;
    if kind(known) != kind(&op) {
        return Err(INVALID_VALUE);
    }
    *known = op;
    Ok(())
}

/// The graph does not fit the executable one.
pub(crate) const UPDATE_FAILURE: Code = Code(910);

/// cuGraphExecUpdate: takes over the work of a graph of the same make.
pub(crate) fn update(exec: u64, graph: u64) -> Answer {
    let (exec, nodes) = (EXECS.get(exec)?, nodes(graph)?);
    let mut ops = lock(&exec.ops);
    let fresh = nodes.iter().map(|node| Ok((*node, lock(&NODES.get(*node)?.op).clone())));
    let fresh = fresh.collect::<Answer<Vec<_>>>()?;
    let same =
        ops.len() == fresh.len() && ops.values().zip(&fresh).all(|(old, (_, new))| kind(old) == kind(new));
    if !same {
        return Err(UPDATE_FAILURE);
    }
    for (old, (_, new)) in ops.values_mut().zip(fresh) {
        if !matches!(old, Op::Alloc { .. }) {
            *old = new;
        }
    }
    Ok(())
}

/// Checks an executable graph's handle.
pub(crate) fn check_exec(handle: u64) -> Answer {
    EXECS.get(handle).map(|_| ())
}

fn total(op: &Op) -> u64 {
    match op {
        Op::Work { nanos, .. } => *nanos,
        Op::Child(ops) => ops.iter().map(total).sum(),
        _ => 0,
    }
}

fn effects(op: &Op, all: &mut Vec<Effect>) {
    match op {
        Op::Work { effect: Some(effect), .. } => all.push(Arc::clone(effect)),
        Op::Host(effect) => all.push(Arc::clone(effect)),
        Op::Child(ops) => ops.iter().for_each(|op| effects(op, all)),
        _ => {}
    }
}

/// cuGraphLaunch: one piece of work as long as all nodes together.
pub(crate) fn launch(handle: u64, stream: &Stream) -> Answer {
    let exec = EXECS.get(handle)?;
    let (mut nanos, mut content, mut hosts) = (0_u64, Vec::new(), Vec::new());
    for op in lock(&exec.ops).values() {
        nanos = nanos.saturating_add(total(op));
        if matches!(op, Op::Host(_)) {
            effects(op, &mut hosts);
        } else {
            effects(op, &mut content);
        }
    }
    let effect: Effect = Arc::new(move || content.iter().try_for_each(|effect| effect()));
    stream.run(What::Graph, nanos, Some(effect))?;
    if !hosts.is_empty() && stream.capture().is_none() {
        stream.call_host(move || {
            for host in &hosts {
                if host().is_err() {
                    return;
                }
            }
        })?;
    }
    Ok(())
}

/// A capture that goes on: a graph that grows, and where each stream of it is.
pub(crate) struct Capture {
    graph: u64,
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
            graph: GRAPHS.add(|_| Graph { nodes: Mutex::default() }).0,
            origin,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            invalid: AtomicBool::new(false),
            ends: Mutex::default(),
        }
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

    /// It ends without anybody who could have the graph.
    pub(crate) fn discard(&self) -> Answer {
        destroy(self.graph)
    }

    /// The graph, which is the caller's from now on.
    pub(crate) fn into_graph(self: Arc<Self>) -> u64 {
        self.graph
    }
}
