//! Copies between arrays and memory, and boxes between cards.

use super::{DEFAULT, Deep, RateClass, THREAD, arrived, extent, moved, on, on_thread};

hooks! {
    Cuda, Compute;
    fn cuMemcpyDtoA_v2(array: u64, offset: usize, source: u64, bytes: usize) {
        moved(RateClass::Array, bytes, DEFAULT, || cuMemcpyDtoA_v2::real(array, offset, source, bytes))
    }
    fn cuMemcpyDtoA_v2_ptds(array: u64, offset: usize, source: u64, bytes: usize) {
        moved(RateClass::Array, bytes, THREAD, || cuMemcpyDtoA_v2_ptds::real(array, offset, source, bytes))
    }
    fn cuMemcpyAtoD_v2(target: u64, array: u64, offset: usize, bytes: usize) {
        moved(RateClass::Array, bytes, DEFAULT, || cuMemcpyAtoD_v2::real(target, array, offset, bytes))
    }
    fn cuMemcpyAtoD_v2_ptds(target: u64, array: u64, offset: usize, bytes: usize) {
        moved(RateClass::Array, bytes, THREAD, || cuMemcpyAtoD_v2_ptds::real(target, array, offset, bytes))
    }
    fn cuMemcpyHtoA_v2(array: u64, offset: usize, source: u64, bytes: usize) {
        arrived(RateClass::ToDevice, bytes, DEFAULT, || cuMemcpyHtoA_v2::real(array, offset, source, bytes))
    }
    fn cuMemcpyHtoA_v2_ptds(array: u64, offset: usize, source: u64, bytes: usize) {
        arrived(RateClass::ToDevice, bytes, THREAD, || cuMemcpyHtoA_v2_ptds::real(array, offset, source, bytes))
    }
    fn cuMemcpyAtoH_v2(target: u64, array: u64, offset: usize, bytes: usize) {
        arrived(RateClass::FromDevice, bytes, DEFAULT, || cuMemcpyAtoH_v2::real(target, array, offset, bytes))
    }
    fn cuMemcpyAtoH_v2_ptds(target: u64, array: u64, offset: usize, bytes: usize) {
        arrived(RateClass::FromDevice, bytes, THREAD, || cuMemcpyAtoH_v2_ptds::real(target, array, offset, bytes))
    }
    fn cuMemcpyAtoA_v2(target: u64, target_offset: usize, source: u64, source_offset: usize, bytes: usize) {
        moved(RateClass::Array, bytes, DEFAULT, || cuMemcpyAtoA_v2::real(target, target_offset, source, source_offset, bytes))
    }
    fn cuMemcpyAtoA_v2_ptds(target: u64, target_offset: usize, source: u64, source_offset: usize, bytes: usize) {
        moved(RateClass::Array, bytes, THREAD, || cuMemcpyAtoA_v2_ptds::real(target, target_offset, source, source_offset, bytes))
    }
    fn cuMemcpyHtoAAsync_v2(array: u64, offset: usize, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::ToDevice, bytes, on(stream), || cuMemcpyHtoAAsync_v2::real(array, offset, source, bytes, stream))
    }
    fn cuMemcpyHtoAAsync_v2_ptsz(array: u64, offset: usize, source: u64, bytes: usize, stream: u64) {
        moved(RateClass::ToDevice, bytes, on_thread(stream), || cuMemcpyHtoAAsync_v2_ptsz::real(array, offset, source, bytes, stream))
    }
    fn cuMemcpyAtoHAsync_v2(target: u64, array: u64, offset: usize, bytes: usize, stream: u64) {
        moved(RateClass::FromDevice, bytes, on(stream), || cuMemcpyAtoHAsync_v2::real(target, array, offset, bytes, stream))
    }
    fn cuMemcpyAtoHAsync_v2_ptsz(target: u64, array: u64, offset: usize, bytes: usize, stream: u64) {
        moved(RateClass::FromDevice, bytes, on_thread(stream), || cuMemcpyAtoHAsync_v2_ptsz::real(target, array, offset, bytes, stream))
    }
    fn cuMemcpy3DPeer(copy: *const Deep) {
        moved(RateClass::Any, extent(copy), DEFAULT, || cuMemcpy3DPeer::real(copy))
    }
    fn cuMemcpy3DPeer_ptds(copy: *const Deep) {
        moved(RateClass::Any, extent(copy), THREAD, || cuMemcpy3DPeer_ptds::real(copy))
    }
    fn cuMemcpy3DPeerAsync(copy: *const Deep, stream: u64) {
        moved(RateClass::Any, extent(copy), on(stream), || cuMemcpy3DPeerAsync::real(copy, stream))
    }
    fn cuMemcpy3DPeerAsync_ptsz(copy: *const Deep, stream: u64) {
        moved(RateClass::Any, extent(copy), on_thread(stream), || cuMemcpy3DPeerAsync_ptsz::real(copy, stream))
    }
}
