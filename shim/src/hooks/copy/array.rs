//! Copies between arrays and memory, and boxes between cards.

use super::{Deep, RateClass, arrived, extent, moved};

stream_hooks! {
    Compute; {}
    cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds: (array: u64, offset: usize, source: u64, bytes: usize)
        => |real, on| moved(RateClass::Array, bytes, on(0), real);
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds: (target: u64, array: u64, offset: usize, bytes: usize)
        => |real, on| moved(RateClass::Array, bytes, on(0), real);
    cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds: (array: u64, offset: usize, source: u64, bytes: usize)
        => |real, on| arrived(RateClass::ToDevice, bytes, on(0), real);
    cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds: (target: u64, array: u64, offset: usize, bytes: usize)
        => |real, on| arrived(RateClass::FromDevice, bytes, on(0), real);
    cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds:
        (target: u64, target_offset: usize, source: u64, source_offset: usize, bytes: usize)
        => |real, on| moved(RateClass::Array, bytes, on(0), real);
    cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz:
        (array: u64, offset: usize, source: u64, bytes: usize, stream: u64)
        => |real, on| moved(RateClass::ToDevice, bytes, on(stream), real);
    cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz:
        (target: u64, array: u64, offset: usize, bytes: usize, stream: u64)
        => |real, on| moved(RateClass::FromDevice, bytes, on(stream), real);
    cuMemcpy3DPeer, cuMemcpy3DPeer_ptds: (copy: *const Deep)
        => |real, on| moved(RateClass::Any, extent(copy), on(0), real);
    cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz: (copy: *const Deep, stream: u64)
        => |real, on| moved(RateClass::Any, extent(copy), on(stream), real);
}
