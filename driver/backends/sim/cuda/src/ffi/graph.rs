//! Graphs.

use super::copy::Copy3d;
use super::launch::first_parameter;
use super::memory::PoolProps;
use super::pointer::{In, Out};
use super::word::batch;
use crate::code::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::graph::{self, Op, Ownership, WorkKind};
use crate::launch::{self, Grid};
use crate::location::Location;
use crate::process;
use crate::stream::{self, Stream};
use std::sync::Arc;

/// The vendor's kernel node: what all its versions begin with.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelNode {
    function: u64,
    grid: Grid,
    padding: u32,
    parameters: u64,
    extra: u64,
}

/// The vendor's memory node.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocNode {
    pool: PoolProps,
    pool_rest: [u8; 72],
    access: u64,
    access_count: u64,
    bytes: u64,
    address: u64,
}

/// The vendor's fill node: what all its versions begin with.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FillNode {
    address: u64,
    pitch: u64,
    value: u32,
    unit: u32,
    width: u64,
    height: u64,
}

/// The vendor's host node.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct HostNode {
    function: Option<extern "C" fn(u64)>,
    data: u64,
}

/// The vendor's node of words.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WordsNode {
    context: u64,
    count: u32,
    padding: u32,
    described: u64,
    flags: u32,
    more_padding: u32,
}

/// The vendor's node of any kind: its type, then what belongs to that type.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AnyNode {
    kind: u32,
    reserved: [u32; 3],
    body: [u64; 30],
}

/// The vendor's instantiation parameters.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InstantiateParams {
    flags: u64,
    upload_stream: u64,
    failed_node: u64,
    result: u32,
    padding: u32,
}

/// The vendor's answer to an update, second version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UpdateInfo {
    result: u32,
    padding: u32,
    node: u64,
    from: u64,
}

const _: () = assert!(size_of::<KernelNode>() == 56 && size_of::<AllocNode>() == 120);
const _: () =
    assert!(size_of::<AnyNode>() == 256 && size_of::<FillNode>() == 40 && size_of::<WordsNode>() == 32);

/// Where the address stands in a memory node of any kind: behind the type, at the end of the vendor's structure.
const ALLOC_ADDRESS_WORD: usize = (16 + 112) / 8;

/// A flag of instantiation.
const UPLOAD: u64 = 2;

fn kernel_op(node: &KernelNode) -> Answer<Op> {
    let first = || first_parameter(In::at(node.parameters), In::at(node.extra));
    Ok(Op::Work {
        what: WorkKind::Kernel,
        nanos: launch::nanos(node.function, &node.grid, &first)?,
        effect: None,
    })
}

fn copy_op(given: &Copy3d) -> Answer<Op> {
    let node = process::current_card()?.card.node();
    let Some(copy) = given.parse()? else { return Ok(Op::Empty) };
    let nanos = node.copy_nanos(copy.width * copy.height * copy.depth);
    Ok(Op::Work { what: WorkKind::Copy, nanos, effect: Some(Arc::new(move || copy.perform())) })
}

fn fill_op(node: &FillNode) -> Answer<Op> {
    let fill = crate::copy::Fill {
        address: node.address,
        unit: u64::from(node.unit),
        value: node.value,
        width: node.width,
        height: node.height,
        pitch: node.pitch,
    };
    let nanos = process::current_card()?.card.node().copy_nanos(fill.bytes()?);
    Ok(Op::Work { what: WorkKind::Fill, nanos, effect: Some(fill.effect()?) })
}

fn host_op(node: &HostNode) -> Answer<Op> {
    let (function, data) = (node.function.ok_or(INVALID_VALUE)?, node.data);
    let effect = move || {
        function(data);
        Ok(())
    };
    Ok(Op::Host(Arc::new(effect)))
}

fn words_op(node: &WordsNode) -> Answer<Op> {
    Ok(Op::Words(batch(In::at(node.described), node.count, node.flags)?))
}

/// An allocation inside a capture becomes a node of memory.
pub(crate) fn capture_alloc(stream: &Stream, device: usize, bytes: u64) -> Answer<u64> {
    let capture = stream.capture().ok_or(INVALID_VALUE)?;
    capture.add_alloc(stream.id, Location::of_card(device)?, bytes)
}

fn add(node: Out<u64>, graph: u64, after: In<u64>, count: usize, op: Op) -> Answer {
    node.check()?;
    node.set(graph::add(graph, &after.list(count)?, op)?)
}

fn add_alloc(
    node: Out<u64>,
    graph: u64,
    after: (In<u64>, usize),
    given: &AllocNode,
    address: (Out<u64>, usize),
) -> Answer {
    node.check()?;
    let after = after.0.list(after.1)?;
    let (made, at) = graph::add_alloc(graph, &after, given.pool.location, given.bytes)?;
    address.0.set_at(address.1, at)?;
    node.set(made)
}

/// What a node of any kind does, except memory nodes: their addresses depend on their position in the graph.
fn any_op(given: In<AnyNode>) -> Answer<Op> {
    let node = given.get()?;
    let body = given.address() + 16;
    match node.kind {
        0 => kernel_op(&In::<KernelNode>::at(body).get()?),
        // Flags and a context come first.
        1 => copy_op(&In::<Copy3d>::at(body + 16).get()?),
        2 => fill_op(&In::<FillNode>::at(body).get()?),
        3 => host_op(&In::<HostNode>::at(body).get()?),
        4 => {
            let ownership = match node.body[1] & u64::from(u32::MAX) {
                0 => Ownership::Clone,
                1 => Ownership::Move,
                _ => return Err(INVALID_VALUE),
            };
            graph::child_op(node.body[0], ownership)
        }
        5 => Ok(Op::Empty),
        12 => words_op(&In::<WordsNode>::at(body).get()?),
        _ => Err(NOT_SUPPORTED),
    }
}

fn add_any(node: Out<u64>, graph: u64, after: (In<u64>, usize), given: Out<AnyNode>) -> Answer {
    let wanted = given.get()?;
    let body = given.reader().address() + 16;
    let op = match wanted.kind {
        10 => {
            let alloc = In::<AllocNode>::at(body).get()?;
            return add_alloc(node, graph, after, &alloc, (given.cast(), ALLOC_ADDRESS_WORD));
        }
        11 => graph::free_op(graph, wanted.body[0])?,
        _ => any_op(given.reader())?,
    };
    add(node, graph, after.0, after.1, op)
}

fn list(found: &[u64], target: Out<u64>, count: Out<usize>) -> Answer {
    if target.is_null() {
        return count.set(found.len());
    }
    let room = count.get()?;
    for (index, node) in found.iter().take(room).enumerate() {
        target.set_at(index, *node)?;
    }
    count.set(found.len().min(room))
}

exports! {
    fn cuGraphCreate(graph: Out<u64>, _flags: u32) {
        graph.check()?;
        graph.set(graph::create()?)
    }
    fn cuGraphDestroy(graph: u64) { graph::destroy(graph) }
    fn cuGraphClone(copy: Out<u64>, graph: u64) {
        copy.check()?;
        copy.set(graph::duplicate(graph)?)
    }
    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) { list(&graph::nodes(graph)?, nodes, count) }
    fn cuGraphGetRootNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        list(&graph::roots(graph)?, nodes, count)
    }
    fn cuGraphNodeGetType(node: u64, kind: Out<u32>) { kind.set(graph::node_kind(node)?) }
    fn cuGraphDestroyNode(node: u64) { graph::destroy_node(node) }

    fn cuGraphAddKernelNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, given: In<KernelNode>) {
        add(node, graph, after, count, kernel_op(&given.get()?)?)
    }
    fn cuGraphAddKernelNode_v2(node: Out<u64>, graph: u64, after: In<u64>, count: usize, given: In<KernelNode>) {
        add(node, graph, after, count, kernel_op(&given.get()?)?)
    }
    fn cuGraphKernelNodeSetParams(node: u64, given: In<KernelNode>) {
        graph::set_op(node, kernel_op(&given.get()?)?)
    }
    fn cuGraphKernelNodeSetParams_v2(node: u64, given: In<KernelNode>) {
        graph::set_op(node, kernel_op(&given.get()?)?)
    }
    fn cuGraphAddMemcpyNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, given: In<Copy3d>, _context: u64) {
        add(node, graph, after, count, copy_op(&given.get()?)?)
    }
    fn cuGraphAddMemsetNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, given: In<FillNode>, _context: u64) {
        add(node, graph, after, count, fill_op(&given.get()?)?)
    }
    fn cuGraphAddHostNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, given: In<HostNode>) {
        add(node, graph, after, count, host_op(&given.get()?)?)
    }
    fn cuGraphHostNodeSetParams(node: u64, given: In<HostNode>) { graph::set_op(node, host_op(&given.get()?)?) }
    fn cuGraphExecHostNodeSetParams(exec: u64, node: u64, given: In<HostNode>) {
        graph::set_exec_op(exec, node, host_op(&given.get()?)?)
    }
    fn cuGraphAddBatchMemOpNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, given: In<WordsNode>) {
        add(node, graph, after, count, words_op(&given.get()?)?)
    }
    fn cuGraphBatchMemOpNodeSetParams(node: u64, given: In<WordsNode>) {
        graph::set_op(node, words_op(&given.get()?)?)
    }
    fn cuGraphExecBatchMemOpNodeSetParams(exec: u64, node: u64, given: In<WordsNode>) {
        graph::set_exec_op(exec, node, words_op(&given.get()?)?)
    }
    fn cuGraphAddChildGraphNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, child: u64) {
        add(node, graph, after, count, graph::child_op(child, Ownership::Clone)?)
    }
    fn cuGraphAddEmptyNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize) {
        add(node, graph, after, count, Op::Empty)
    }
    fn cuGraphAddMemAllocNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, given: Out<AllocNode>) {
        add_alloc(node, graph, (after, count), &given.get()?, (given.cast(), ALLOC_ADDRESS_WORD - 2))
    }
    fn cuGraphMemAllocNodeGetParams(node: u64, told: Out<AllocNode>) {
        let (location, bytes, address) = graph::alloc_of(node)?;
        let pool = PoolProps { kind: 1, handle_types: 0, location };
        told.set(AllocNode { pool, pool_rest: [0; 72], access: 0, access_count: 0, bytes, address })
    }
    fn cuGraphAddMemFreeNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, address: u64) {
        add(node, graph, after, count, graph::free_op(graph, address)?)
    }
    fn cuGraphMemFreeNodeGetParams(node: u64, address: Out<u64>) { address.set(graph::freed_of(node)?) }
    fn cuGraphChildGraphNodeGetGraph(node: u64, graph: Out<u64>) { graph.set(graph::child_of(node)?) }
    fn cuGraphAddNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, given: Out<AnyNode>) {
        add_any(node, graph, (after, count), given)
    }
    fn cuGraphAddNode_v2(
        node: Out<u64>, graph: u64, after: In<u64>, _edges: In<u8>, count: usize, given: Out<AnyNode>
    ) {
        add_any(node, graph, (after, count), given)
    }
    fn cuGraphAddNode_v3(
        node: Out<u64>, graph: u64, after: In<u64>, _edges: In<u8>, count: usize, given: Out<AnyNode>
    ) {
        add_any(node, graph, (after, count), given)
    }
    fn cuGraphNodeSetParams(node: u64, given: In<AnyNode>) { graph::set_op(node, any_op(given)?) }
    fn cuGraphNodeSetParams_v2(node: u64, given: In<AnyNode>) { graph::set_op(node, any_op(given)?) }

    fn cuGraphInstantiate(exec: Out<u64>, graph: u64, _failed: Out<u64>, _log: Out<u8>, _size: usize) {
        exec.check()?;
        exec.set(graph::instantiate(graph, 0)?)
    }
    fn cuGraphInstantiate_v2(exec: Out<u64>, graph: u64, _failed: Out<u64>, _log: Out<u8>, _size: usize) {
        exec.check()?;
        exec.set(graph::instantiate(graph, 0)?)
    }
    fn cuGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, flags: u64) {
        exec.check()?;
        exec.set(graph::instantiate(graph, flags)?)
    }
    fn cuGraphExecDestroy(exec: u64) { graph::destroy_exec(exec) }
    fn cuGraphExecKernelNodeSetParams(exec: u64, node: u64, given: In<KernelNode>) {
        graph::set_exec_op(exec, node, kernel_op(&given.get()?)?)
    }
    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, given: In<KernelNode>) {
        graph::set_exec_op(exec, node, kernel_op(&given.get()?)?)
    }
    fn cuGraphExecNodeSetParams(exec: u64, node: u64, given: In<AnyNode>) {
        graph::set_exec_op(exec, node, any_op(given)?)
    }
    fn cuGraphExecUpdate(exec: u64, graph: u64, failed: Out<u64>, result: Out<u32>) {
        let updated = graph::update(exec, graph);
        failed.set_if_wanted(0);
        result.set(u32::from(updated.is_err()))?;
        updated
    }
    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, info: Out<UpdateInfo>) {
        let updated = graph::update(exec, graph);
        info.set(UpdateInfo { result: u32::from(updated.is_err()), padding: 0, node: 0, from: 0 })?;
        updated
    }
}

streamed! {
    fn cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz |mode| (
        exec: Out<u64>, graph: u64, given: Out<InstantiateParams>
    ) {
        exec.check()?;
        let mut told = given.get()?;
        let stream = stream::find(told.upload_stream, mode)?;
        let made = graph::instantiate(graph, told.flags).and_then(|made| {
            if told.flags & UPLOAD == 0 {
                return Ok(made);
            }
            let uploaded = graph::upload(made, &stream);
            if uploaded.is_err() {
                graph::destroy_exec(made)?;
            }
            uploaded.map(|()| made)
        });
        (told.failed_node, told.result) = (0, u32::from(made.is_err()));
        given.set(told)?;
        exec.set(made?)
    }
    fn cuGraphUpload, cuGraphUpload_ptsz |mode| (exec: u64, stream: u64) {
        graph::upload(exec, &*stream::find(stream, mode)?)
    }
    fn cuGraphLaunch, cuGraphLaunch_ptsz |mode| (exec: u64, stream: u64) {
        graph::launch(exec, &*stream::find(stream, mode)?)
    }
}
