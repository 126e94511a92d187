//! Graphs, as far as they take memory.

// UNSAFETY: descriptions of the caller are read.
#![expect(unsafe_code, reason = "the caller's structures are raw")]

use core::ffi::{c_char, c_void};

use crate::graphs::{self, AnyNode, MemoryNode};
use crate::pools::Place;
use crate::vendor::SUCCESS;

hooks! {
    Cuda, Memory;
    fn cuGraphAddMemAllocNode(
        node: *mut u64,
        graph: u64,
        after: *const u64,
        count: usize,
        given: *mut MemoryNode,
    ) {
        let answer = cuGraphAddMemAllocNode::real(node, graph, after, count, given);
        if answer == SUCCESS && !given.is_null() {
            // SAFETY: the driver has read it.
            unsafe { given.read_unaligned() }.added();
        }
        answer
    }
    fn cuGraphAddNode(node: *mut u64, graph: u64, after: *const u64, count: usize, given: *mut AnyNode) {
        let answer = cuGraphAddNode::real(node, graph, after, count, given);
        if answer == SUCCESS && !given.is_null() {
            // SAFETY: the driver has read it.
            unsafe { given.read_unaligned() }.added();
        }
        answer
    }
    fn cuGraphAddNode_v2(
        node: *mut u64,
        graph: u64,
        after: *const u64,
        edges: *const c_void,
        count: usize,
        given: *mut AnyNode,
    ) {
        let answer = cuGraphAddNode_v2::real(node, graph, after, edges, count, given);
        if answer == SUCCESS && !given.is_null() {
            // SAFETY: the driver has read it.
            unsafe { given.read_unaligned() }.added();
        }
        answer
    }
    fn cuGraphInstantiate(exec: *mut u64, graph: u64, failed: *mut u64, log: *mut c_char, size: usize) {
        let real = || cuGraphInstantiate::real(exec, graph, failed, log, size);
        graphs::instantiate(Place(exec), real, destroy)
    }
    fn cuGraphInstantiate_v2(exec: *mut u64, graph: u64, failed: *mut u64, log: *mut c_char, size: usize) {
        let real = || cuGraphInstantiate_v2::real(exec, graph, failed, log, size);
        graphs::instantiate(Place(exec), real, destroy)
    }
    fn cuGraphInstantiateWithFlags(exec: *mut u64, graph: u64, flags: u64) {
        let real = || cuGraphInstantiateWithFlags::real(exec, graph, flags);
        graphs::instantiate(Place(exec), real, destroy)
    }
    fn cuGraphInstantiateWithParams(exec: *mut u64, graph: u64, given: *mut c_void) {
        let real = || cuGraphInstantiateWithParams::real(exec, graph, given);
        graphs::instantiate(Place(exec), real, destroy)
    }
    fn cuGraphInstantiateWithParams_ptsz(exec: *mut u64, graph: u64, given: *mut c_void) {
        let real = || cuGraphInstantiateWithParams_ptsz::real(exec, graph, given);
        graphs::instantiate(Place(exec), real, destroy)
    }
    fn cuGraphUpload(exec: u64, stream: u64) {
        let answer = cuGraphUpload::real(exec, stream);
        graphs::changed();
        answer
    }
    fn cuGraphUpload_ptsz(exec: u64, stream: u64) {
        let answer = cuGraphUpload_ptsz::real(exec, stream);
        graphs::changed();
        answer
    }
    fn cuDeviceGraphMemTrim(device: i32) {
        let answer = cuDeviceGraphMemTrim::real(device);
        graphs::changed();
        answer
    }
}

fn destroy(exec: u64) -> i32 {
    crate::vendor::cuGraphExecDestroy(exec).unwrap_or(SUCCESS)
}
