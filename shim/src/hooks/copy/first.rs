//! The first generation: addresses, sizes and descriptions of 32 bits. A program of today reaches arrays and the host with
//! them, and nothing else: no card of 64 bits has memory at so low an address.

use super::{DEFAULT, Extent, RateClass, arrived, extent, moved};
use crate::loader::vendor::Target;

/// A copy of rows: the head, which tells where, and the extent.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Flat {
    places: [u32; 21],
    width: u32,
    height: u32,
    padding: u32,
}

/// A copy of layers of rows.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Deep {
    places: [u32; 32],
    width: u32,
    height: u32,
    depth: u32,
    padding: u32,
}

const _: () = assert!(size_of::<Flat>() == 96 && size_of::<Deep>() == 144);
const _: () = assert!(core::mem::offset_of!(Flat, width) == 84 && core::mem::offset_of!(Deep, width) == 128);

impl Extent for Flat {
    fn bytes(self) -> usize {
        wide(self.width).saturating_mul(wide(self.height))
    }
}

impl Extent for Deep {
    fn bytes(self) -> usize {
        wide(self.width).saturating_mul(wide(self.height)).saturating_mul(wide(self.depth))
    }
}

fn wide(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

hooks! {
    Cuda, Compute;
    fn cuMemcpyHtoD(target: u32, source: u64, bytes: u32) {
        arrived(RateClass::ToDevice, wide(bytes), DEFAULT, || cuMemcpyHtoD::real(target, source, bytes))
    }
    fn cuMemcpyDtoH(target: u64, source: u32, bytes: u32) {
        arrived(RateClass::FromDevice, wide(bytes), DEFAULT, || cuMemcpyDtoH::real(target, source, bytes))
    }
    fn cuMemcpyDtoD(target: u32, source: u32, bytes: u32) {
        arrived(RateClass::Inside, wide(bytes), DEFAULT, || cuMemcpyDtoD::real(target, source, bytes))
    }
    fn cuMemcpyDtoA(array: u64, offset: u32, source: u32, bytes: u32) {
        arrived(RateClass::Array, wide(bytes), DEFAULT, || cuMemcpyDtoA::real(array, offset, source, bytes))
    }
    fn cuMemcpyAtoD(target: u32, array: u64, offset: u32, bytes: u32) {
        arrived(RateClass::Array, wide(bytes), DEFAULT, || cuMemcpyAtoD::real(target, array, offset, bytes))
    }
    fn cuMemcpyHtoA(array: u64, offset: u32, source: u64, bytes: u32) {
        arrived(RateClass::ToDevice, wide(bytes), DEFAULT, || cuMemcpyHtoA::real(array, offset, source, bytes))
    }
    fn cuMemcpyAtoH(target: u64, array: u64, offset: u32, bytes: u32) {
        arrived(RateClass::FromDevice, wide(bytes), DEFAULT, || cuMemcpyAtoH::real(target, array, offset, bytes))
    }
    fn cuMemcpyAtoA(target: u64, target_offset: u32, source: u64, source_offset: u32, bytes: u32) {
        arrived(RateClass::Array, wide(bytes), DEFAULT, || cuMemcpyAtoA::real(target, target_offset, source, source_offset, bytes))
    }
    fn cuMemcpyHtoAAsync(array: u64, offset: u32, source: u64, bytes: u32, stream: u64) {
        moved(RateClass::ToDevice, wide(bytes), Target::legacy(stream), || cuMemcpyHtoAAsync::real(array, offset, source, bytes, stream))
    }
    fn cuMemcpyAtoHAsync(target: u64, array: u64, offset: u32, bytes: u32, stream: u64) {
        moved(RateClass::FromDevice, wide(bytes), Target::legacy(stream), || cuMemcpyAtoHAsync::real(target, array, offset, bytes, stream))
    }
    fn cuMemcpyHtoDAsync(target: u32, source: u64, bytes: u32, stream: u64) {
        moved(RateClass::ToDevice, wide(bytes), Target::legacy(stream), || cuMemcpyHtoDAsync::real(target, source, bytes, stream))
    }
    fn cuMemcpyDtoHAsync(target: u64, source: u32, bytes: u32, stream: u64) {
        moved(RateClass::FromDevice, wide(bytes), Target::legacy(stream), || cuMemcpyDtoHAsync::real(target, source, bytes, stream))
    }
    fn cuMemcpyDtoDAsync(target: u32, source: u32, bytes: u32, stream: u64) {
        moved(RateClass::Inside, wide(bytes), Target::legacy(stream), || cuMemcpyDtoDAsync::real(target, source, bytes, stream))
    }
    fn cuMemcpy2D(copy: *const Flat) {
        arrived(RateClass::Any, extent(copy), DEFAULT, || cuMemcpy2D::real(copy))
    }
    fn cuMemcpy2DUnaligned(copy: *const Flat) {
        arrived(RateClass::Any, extent(copy), DEFAULT, || cuMemcpy2DUnaligned::real(copy))
    }
    fn cuMemcpy3D(copy: *const Deep) {
        arrived(RateClass::Any, extent(copy), DEFAULT, || cuMemcpy3D::real(copy))
    }
    fn cuMemcpy2DAsync(copy: *const Flat, stream: u64) {
        moved(RateClass::Any, extent(copy), Target::legacy(stream), || cuMemcpy2DAsync::real(copy, stream))
    }
    fn cuMemcpy3DAsync(copy: *const Deep, stream: u64) {
        moved(RateClass::Any, extent(copy), Target::legacy(stream), || cuMemcpy3DAsync::real(copy, stream))
    }
    fn cuMemsetD8(address: u32, value: u8, count: u32) {
        moved(RateClass::Set, wide(count), DEFAULT, || cuMemsetD8::real(address, value, count))
    }
    fn cuMemsetD2D8(address: u32, pitch: u32, value: u8, width: u32, height: u32) {
        moved(RateClass::Set, wide(width).saturating_mul(wide(height)), DEFAULT, || cuMemsetD2D8::real(address, pitch, value, width, height))
    }
    fn cuMemsetD16(address: u32, value: u16, count: u32) {
        moved(RateClass::Set, wide(count).saturating_mul(2), DEFAULT, || cuMemsetD16::real(address, value, count))
    }
    fn cuMemsetD2D16(address: u32, pitch: u32, value: u16, width: u32, height: u32) {
        moved(RateClass::Set, wide(width).saturating_mul(wide(height)).saturating_mul(2), DEFAULT, || cuMemsetD2D16::real(address, pitch, value, width, height))
    }
    fn cuMemsetD32(address: u32, value: u32, count: u32) {
        moved(RateClass::Set, wide(count).saturating_mul(4), DEFAULT, || cuMemsetD32::real(address, value, count))
    }
    fn cuMemsetD2D32(address: u32, pitch: u32, value: u32, width: u32, height: u32) {
        moved(RateClass::Set, wide(width).saturating_mul(wide(height)).saturating_mul(4), DEFAULT, || cuMemsetD2D32::real(address, pitch, value, width, height))
    }
}
