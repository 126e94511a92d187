//! Executable graphs: a graph as it was, handed in as one piece of work, or in pieces where nodes wait for the host.
//!
//! ```text
//!   instantiate ─▶ (upload) ─▶ launch: what an earlier launch left is freed or in the way ─▶ memory ─▶ work ─▶ what it leaves
//! ```

use super::order::{Order, holds};
use super::store::{GraphMemoryOwner, Need};
use super::{
    Effect, GRAPHS, INVALID_HANDLE, NodeAddresses, Op, Step, WorkKind, graph_holds_memory, holds_memory,
    kind, launched_op, snapshots,
};
use crate::code::{Answer, Code, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::handle::{Registry, Tag};
use crate::process::{self, OurCard, lock};
use crate::stream::Stream;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Flags of instantiation.
const AUTO_FREE: u64 = 1;
const FOR_DEVICE: u64 = 4;

/// What a launch does about allocations of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// It fails while there are any.
    Asks,
    /// It frees them.
    Frees,
}

/// A graph made ready to launch.
struct Exec {
    /// Each node behind those that it comes after.
    steps: Mutex<Vec<Step>>,
    memory: ExecMemory,
    after: After,
    uploaded: AtomicBool,
    /// Shows the graph that this exists.
    _there: Arc<()>,
}

/// What its memory nodes come to.
#[derive(Default)]
struct ExecMemory {
    needs: BTreeMap<usize, Need>,
    /// What a launch leaves allocated, and on which card.
    left: Vec<(usize, Arc<NodeAddresses>)>,
    /// Addresses that other graphs allocated.
    freed: Vec<u64>,
}

/// An allocation that outlived its launch.
struct GraphAllocation {
    exec: u64,
    device: usize,
    room: GraphMemoryOwner,
    place: Arc<NodeAddresses>,
}

static EXECS: Registry<Exec> = Registry::new(Tag::Exec, INVALID_HANDLE);
/// By address.
static LEFT: Mutex<BTreeMap<u64, GraphAllocation>> = Mutex::new(BTreeMap::new());

impl ExecMemory {
    fn of(steps: &[Step]) -> Self {
        let (mut places, mut freed) = (BTreeMap::<u64, (usize, Arc<NodeAddresses>, u64)>::new(), Vec::new());
        let mut open = steps.iter().collect::<Vec<_>>();
        while let Some(step) = open.pop() {
            match &step.op {
                Op::Alloc { device, place, .. } => {
                    places.entry(place.address).or_insert((*device, Arc::clone(place), 0)).2 += 1;
                }
                Op::Free(address) => freed.push(*address),
                Op::Inside(steps) => open.extend(steps),
                _ => {}
            }
        }
        freed.retain(|address| match places.get_mut(address) {
            Some((_, _, count)) => {
                *count -= 1;
                false
            }
            None => true,
        });
        let (mut needs, mut left) = (BTreeMap::<usize, Need>::new(), Vec::new());
        for (device, place, count) in places.into_values() {
            let need = needs.entry(device).or_default();
            need.whole += place.bytes;
            if count > 0 {
                need.left += place.bytes;
                left.push((device, place));
            }
        }
        Self { needs, left, freed }
    }

    fn is_none(&self) -> bool {
        self.needs.is_empty() && self.freed.is_empty()
    }
}

fn card(device: usize) -> Answer<&'static OurCard> {
    process::cards()?.get(device).ok_or(INVALID_DEVICE)
}

/// Whether memory is there from the instantiation on.
fn is_early(ours: &OurCard, need: Need) -> bool {
    let node = ours.card.node();
    node.graph_memory.is_early(need.whole, node.pool_bytes)
}

/// Where an executable graph's memory is when it is launched in this stream.
fn room(ours: &OurCard, exec: u64, need: Need, stream: &Stream) -> GraphMemoryOwner {
    if is_early(ours, need) { GraphMemoryOwner::Own(exec) } else { GraphMemoryOwner::Stream(stream.id) }
}

/// cuGraphInstantiate, all versions.
pub(crate) fn instantiate(handle: u64, flags: u64) -> Answer<u64> {
    process::current()?;
    let graph = GRAPHS.get(handle)?;
    let holds = graph_holds_memory(handle)?;
    if graph.moved.load(Ordering::Relaxed) {
        return Err(INVALID_VALUE);
    }
    let there = Arc::new(());
    if holds {
        let mut ready = lock(&graph.ready);
        if flags & FOR_DEVICE != 0 || ready.upgrade().is_some() {
            return Err(NOT_SUPPORTED);
        }
        *ready = Arc::downgrade(&there);
    }
    let steps = snapshots(handle)?;
    let memory = ExecMemory::of(&steps);
    let after = if flags & AUTO_FREE == 0 { After::Asks } else { After::Frees };
    let (made, exec) = EXECS.add(|_| {
        let (steps, uploaded) = (Mutex::new(steps), AtomicBool::new(false));
        Exec { steps, memory, after, uploaded, _there: there }
    });
    let taken = back(made, &exec);
    if taken.is_err() {
        destroy_exec(made)?;
    }
    taken.map(|()| made)
}

/// Memory that is there from the instantiation on.
fn back(handle: u64, exec: &Exec) -> Answer {
    for (device, need) in &exec.memory.needs {
        let ours = card(*device)?;
        if is_early(ours, *need) {
            ours.pools.graphs.enter(ours, GraphMemoryOwner::Own(handle), handle, *need)?;
            ours.pools.graphs.leave(GraphMemoryOwner::Own(handle), *need, None);
        }
    }
    Ok(())
}

/// cuGraphExecDestroy. What its launches left allocated stays so.
pub(crate) fn destroy_exec(handle: u64) -> Answer {
    let exec = EXECS.remove(handle)?;
    for device in exec.memory.needs.keys() {
        card(*device)?.pools.graphs.unmap(handle);
    }
    Ok(())
}

/// cuGraphExec…NodeSetParams.
pub(crate) fn set_exec_op(exec: u64, node: u64, op: Op) -> Answer {
    let exec = EXECS.get(exec)?;
    let mut steps = lock(&exec.steps);
    let known = steps.iter_mut().find(|step| step.node == node).ok_or(INVALID_VALUE)?;
    if kind(&known.op) != kind(&op) {
        return Err(INVALID_VALUE);
    }
    known.op = op;
    Ok(())
}

/// The graph does not fit the executable one.
pub(crate) const UPDATE_FAILURE: Code = Code(910);

/// cuGraphExecUpdate: takes over the work of a graph of the same make. Memory stays as it was.
pub(crate) fn update(exec: u64, graph: u64) -> Answer {
    let (exec, fresh) = (EXECS.get(exec)?, snapshots(graph)?);
    let mut steps = lock(&exec.steps);
    let same = steps.len() == fresh.len()
        && steps.iter().zip(&fresh).all(|(old, new)| kind(&old.op) == kind(&new.op));
    if !same {
        return Err(UPDATE_FAILURE);
    }
    for (old, new) in steps.iter_mut().zip(fresh) {
        if !holds_memory(&old.op)? {
            old.op = new.op;
        }
    }
    Ok(())
}

/// cuGraphUpload.
pub(crate) fn upload(handle: u64, stream: &Stream) -> Answer {
    let exec = EXECS.get(handle)?;
    if exec.memory.is_none() {
        return exec.upload(stream);
    }
    stream.refuse_in_capture()?;
    enter(handle, &exec, stream)?;
    leave(handle, &exec, stream, Submission::No)?;
    exec.upload(stream)
}

impl Exec {
    /// What takes the driver time with the first upload or launch.
    fn upload(&self, stream: &Stream) -> Answer {
        let nanos = card(stream.device)?.card.node().graph_upload_nanos;
        if nanos > 0 && !self.uploaded.swap(true, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_nanos(nanos));
        }
        Ok(())
    }
}

/// Whether work was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Submission {
    No,
    Yes,
}

fn enter(handle: u64, exec: &Exec, stream: &Stream) -> Answer {
    for (number, (device, need)) in exec.memory.needs.iter().enumerate() {
        let ours = card(*device)?;
        if let Err(error) = ours.pools.graphs.enter(ours, room(ours, handle, *need, stream), handle, *need) {
            for (device, need) in exec.memory.needs.iter().take(number) {
                let ours = card(*device)?;
                ours.pools.graphs.leave(room(ours, handle, *need, stream), *need, None);
            }
            return Err(error);
        }
    }
    Ok(())
}

fn leave(handle: u64, exec: &Exec, stream: &Stream, handed: Submission) -> Answer {
    for (device, need) in &exec.memory.needs {
        let ours = card(*device)?;
        let point = (handed == Submission::Yes).then(|| stream.point());
        ours.pools.graphs.leave(room(ours, handle, *need, stream), *need, point);
    }
    if handed == Submission::Yes {
        let mut all = lock(&LEFT);
        for (device, place) in &exec.memory.left {
            let need = exec.memory.needs.get(device).copied().unwrap_or_default();
            let (device, room) = (*device, room(card(*device)?, handle, need, stream));
            let left = GraphAllocation { exec: handle, device, room, place: Arc::clone(place) };
            all.insert(place.address, left);
        }
    }
    Ok(())
}

/// Frees an allocation that outlived its launch.
pub(crate) fn free_left(address: u64) -> Answer {
    let left = lock(&LEFT).remove(&address).ok_or(INVALID_VALUE)?;
    card(left.device)?.pools.graphs.unpin(left.room, left.place.bytes);
    Ok(())
}

/// What an earlier launch left is freed, or in the way; what other graphs left and this one frees must be there.
fn clear(handle: u64, exec: &Exec) -> Answer {
    let own = {
        let left = lock(&LEFT);
        if exec.memory.freed.iter().any(|address| !left.contains_key(address)) {
            return Err(INVALID_VALUE);
        }
        let own = left.iter().filter(|(_, left)| left.exec == handle);
        own.map(|(address, _)| *address).collect::<Vec<_>>()
    };
    if exec.after == After::Asks && !own.is_empty() {
        return Err(INVALID_VALUE);
    }
    own.into_iter().try_for_each(free_left)
}

fn total(op: &Op) -> u64 {
    match op {
        Op::Work { nanos, .. } => *nanos,
        Op::Inside(steps) => steps.iter().map(|step| total(&step.op)).sum(),
        _ => 0,
    }
}

fn effects(op: &Op, all: &mut Vec<Effect>) {
    match op {
        Op::Work { effect: Some(effect), .. } => all.push(Arc::clone(effect)),
        Op::Inside(steps) => steps.iter().for_each(|step| effects(&step.op, all)),
        _ => {}
    }
}

/// cuGraphLaunch: one piece of work as long as all nodes together, unless nodes wait for the host. Out of memory where the card has not enough for its memory
/// nodes, with nothing done.
pub(crate) fn launch(handle: u64, stream: &Stream) -> Answer {
    let exec = EXECS.get(handle)?;
    if exec.memory.is_none() {
        return run(&exec, stream);
    }
    stream.refuse_in_capture()?;
    clear(handle, &exec)?;
    enter(handle, &exec, stream)?;
    let answer = run(&exec, stream);
    leave(handle, &exec, stream, if answer.is_ok() { Submission::Yes } else { Submission::No })?;
    if answer.is_ok() {
        for address in &exec.memory.freed {
            // Another thread may have freed it first.
            let _freed = free_left(*address);
        }
    }
    answer
}

fn run(exec: &Exec, stream: &Stream) -> Answer {
    let steps = lock(&exec.steps);
    if let Some(capture) = stream.capture() {
        return capture.add(stream.id, launched_op(&steps)?);
    }
    if steps.iter().any(|step| holds(&step.op)) {
        let order = Order::of(&steps);
        drop(steps);
        return stream.line.put(Vec::new(), Box::new(|turn| order.go(turn)));
    }
    let (mut nanos, mut content) = (0_u64, Vec::new());
    for step in &*steps {
        nanos = nanos.saturating_add(total(&step.op));
        effects(&step.op, &mut content);
    }
    drop(steps);
    exec.upload(stream)?;
    let effect: Effect = Arc::new(move || content.iter().try_for_each(|effect| effect()));
    stream.run(WorkKind::Graph, nanos, Some(effect))
}
