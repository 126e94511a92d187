//! Graphs, as far as they take memory.

// UNSAFETY: descriptions of the caller are read.
#![expect(unsafe_code, reason = "the caller's structures are raw")]

use core::ffi::{c_char, c_void};

use crate::accounting::account::{self, Account};
use crate::loader::vendor::Target;
use crate::loader::vendor::{self, Device, SUCCESS, StreamMode};
use crate::memory::address_out::AddressOut;
use crate::memory::closed;
use crate::memory::graphs::{self, AnyNode, Described, MemoryNode, WORDS_MAX};

hooks! {
    // As for physical memory: closed cards are looked at whatever the grants limit.
    Cuda, Use;
    fn cuGraphAddMemAllocNode(
        node: *mut u64,
        graph: u64,
        after: *const u64,
        count: usize,
        given: *mut MemoryNode,
    ) {
        add(node, given, |node, given| cuGraphAddMemAllocNode::real(node, graph, after, count, given))
    }
    fn cuGraphAddNode(node: *mut u64, graph: u64, after: *const u64, count: usize, given: *mut AnyNode) {
        add(node, given, |node, given| cuGraphAddNode::real(node, graph, after, count, given))
    }
    fn cuGraphAddNode_v2(
        node: *mut u64,
        graph: u64,
        after: *const u64,
        edges: *const c_void,
        count: usize,
        given: *mut AnyNode,
    ) {
        add(node, given, |node, given| cuGraphAddNode_v2::real(node, graph, after, edges, count, given))
    }
    fn cuGraphAddNode_v3(
        node: *mut u64,
        graph: u64,
        after: *const u64,
        edges: *const c_void,
        count: usize,
        given: *mut AnyNode,
    ) {
        add(node, given, |node, given| cuGraphAddNode_v3::real(node, graph, after, edges, count, given))
    }
    fn cuGraphInstantiate(exec: *mut u64, graph: u64, failed: *mut u64, log: *mut c_char, size: usize) {
        let real = || cuGraphInstantiate::real(exec, graph, failed, log, size);
        graphs::instantiate((AddressOut(exec), graph), None, &real, destroy)
    }
    fn cuGraphInstantiate_v2(exec: *mut u64, graph: u64, failed: *mut u64, log: *mut c_char, size: usize) {
        let real = || cuGraphInstantiate_v2::real(exec, graph, failed, log, size);
        graphs::instantiate((AddressOut(exec), graph), None, &real, destroy)
    }
    fn cuGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: u64) {
        let real = || cuGraphInstantiateWithFlags::real(exec, graph, flags);
        graphs::instantiate((AddressOut(exec), graph), None, &real, destroy)
    }
    fn cuGraphInstantiateWithParams(exec: *mut u64, graph: u64, given: *mut Instantiation) {
        let real = || cuGraphInstantiateWithParams::real(exec, graph, given);
        graphs::instantiate((AddressOut(exec), graph), uploaded(exec, given, StreamMode::Legacy), &real, destroy)
    }
    fn cuGraphInstantiateWithParams_ptsz(exec: *mut u64, graph: u64, given: *mut Instantiation) {
        let real = || cuGraphInstantiateWithParams_ptsz::real(exec, graph, given);
        graphs::instantiate((AddressOut(exec), graph), uploaded(exec, given, StreamMode::PerThread), &real, destroy)
    }
    fn cuGraphUpload(exec: u64, stream: u64) {
        let target = Target { stream, mode: StreamMode::Legacy };
        graphs::upload(exec, target, || cuGraphUpload::real(exec, stream))
    }
    fn cuGraphUpload_ptsz(exec: u64, stream: u64) {
        let target = Target { stream, mode: StreamMode::PerThread };
        graphs::upload(exec, target, || cuGraphUpload_ptsz::real(exec, stream))
    }
    fn cuGraphExecUpdate(exec: u64, graph: u64, failed: *mut u64, result: *mut u32) {
        graphs::update(exec, graph, || cuGraphExecUpdate::real(exec, graph, failed, result))
    }
    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, told: *mut c_void) {
        graphs::update(exec, graph, || cuGraphExecUpdate_v2::real(exec, graph, told))
    }
    fn cuGraphExecDestroy(exec: u64) { graphs::destroy(exec, || cuGraphExecDestroy::real(exec)) }
    fn cuDeviceGraphMemTrim(device: i32) {
        graphs::trim_for_program(Device(device), || cuDeviceGraphMemTrim::real(device))
    }
}

/// The vendor's description of an instantiation: the head of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Instantiation {
    flags: u64,
    stream: u64,
}

/// CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
const UPLOAD: u64 = 2;

/// Where a graph is uploaded when it is instantiated.
fn uploaded(exec: *mut u64, given: *const Instantiation, mode: StreamMode) -> Option<Target> {
    if exec.is_null() || given.is_null() {
        return None;
    }
    // SAFETY: the caller's description, which the driver reads, too.
    let given = unsafe { given.read_unaligned() };
    (given.flags & UPLOAD != 0).then_some(Target { stream: given.stream, mode })
}

/// A graph gets a node, which may be one of memory.
fn add<N: Described>(node: *mut u64, given: *mut N, real: impl Fn(*mut u64, *mut N) -> i32) -> i32 {
    if node.is_null() || given.is_null() {
        return real(node, given);
    }
    // SAFETY: the caller's description, which the driver reads, too.
    let Some(device) = unsafe { given.read_unaligned() }.device() else { return real(node, given) };
    match account::of(device) {
        Account::Uncounted => real(node, given),
        Account::Counted(ledger) => {
            graphs::watch(ledger);
            real(node, given)
        }
        Account::Closed => {
            // The driver writes into a description: it gets one of ours.
            let mut copy = [0_u64; WORDS_MAX];
            let words = N::WORDS.min(WORDS_MAX);
            let (from, to) = (given.cast::<u8>(), copy.as_mut_ptr().cast::<u8>());
            // SAFETY: so long is the vendor's structure, and ours no shorter.
            unsafe { core::ptr::copy_nonoverlapping(from, to, words * 8) };
            let make = || {
                let mut made = 0;
                match real(&raw mut made, copy.as_mut_ptr().cast()) {
                    SUCCESS => Ok(made),
                    error => Err(error),
                }
            };
            closed::refuse(device, make, |made| vendor::cuGraphDestroyNode(made).unwrap_or(SUCCESS))
        }
    }
}

fn destroy(exec: u64) -> i32 {
    vendor::cuGraphExecDestroy(exec).unwrap_or(SUCCESS)
}
