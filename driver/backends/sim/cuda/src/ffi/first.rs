//! Copies and fills of the first generation: sizes and addresses of 32 bits. What they reach are arrays, the host, and memory of
//! a card that was had by the allocations of that generation, which alone has so low an address here.

use super::copy::{Copy3d, Side3d};
use super::copy::{
    among_arrays, between, flat, go, in_array, into_array, out_of_array, rows, set, to_device, to_host,
};
use super::pointer::In;
use crate::copy::{Copy, End, Fill};
use crate::stream::Wait;
use crate::table::Mode;

/// The flat copy as it was.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FlatCopy {
    source_at: [u32; 2],
    source_kind: u32,
    source_padding: u32,
    source_host: u64,
    source_device: u32,
    source_gap: u32,
    source_array: u64,
    source_pitch: u32,
    target_at: [u32; 2],
    target_kind: u32,
    target_host: u64,
    target_device: u32,
    target_gap: u32,
    target_array: u64,
    target_pitch: u32,
    width: u32,
    height: u32,
}

/// The deep copy as it was.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DeepCopy {
    source: CopySide,
    target: CopySide,
    extent: [u32; 3],
    padding: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CopySide {
    at: [u32; 3],
    level: u32,
    kind: u32,
    padding: u32,
    host: u64,
    device: u32,
    gap: u32,
    array: u64,
    reserved: u64,
    pitch: u32,
    height: u32,
}

const _: () = assert!(size_of::<FlatCopy>() == 96 && core::mem::offset_of!(FlatCopy, target_at) == 44);
const _: () = assert!(size_of::<DeepCopy>() == 144 && size_of::<CopySide>() == 64);

impl CopySide {
    fn wide(&self) -> Side3d {
        let [x, y, z] = self.at.map(u64::from);
        let (level, device) = (u64::from(self.level), u64::from(self.device));
        let (pitch, height) = (u64::from(self.pitch), u64::from(self.height));
        let Self { kind, padding, host, array, reserved, .. } = *self;
        Side3d { x, y, z, level, kind, padding, host, device, array, reserved, pitch, height }
    }
}

impl DeepCopy {
    fn wide(&self) -> Copy3d {
        let [width, height, depth] = self.extent.map(u64::from);
        Copy3d { source: self.source.wide(), target: self.target.wide(), width, height, depth }
    }
}

impl FlatCopy {
    fn wide(&self) -> Copy3d {
        let side = |at: [u32; 2], kind, host, device, array, pitch| CopySide {
            at: [at[0], at[1], 0],
            level: 0,
            kind,
            padding: 0,
            host,
            device,
            gap: 0,
            array,
            reserved: 0,
            pitch,
            height: 0,
        };
        let source = side(
            self.source_at,
            self.source_kind,
            self.source_host,
            self.source_device,
            self.source_array,
            self.source_pitch,
        );
        let target = side(
            self.target_at,
            self.target_kind,
            self.target_host,
            self.target_device,
            self.target_array,
            self.target_pitch,
        );
        DeepCopy { source, target, extent: [self.width, self.height, 1], padding: 0 }.wide()
    }
}

const OLD: Mode = Mode::Legacy;

exports! {
    fn cuMemcpyHtoD(target: u32, source: u64, bytes: u32) {
        go(to_device(target.into(), source, bytes.into()), 0, OLD, Wait::Yes)
    }
    fn cuMemcpyHtoDAsync(target: u32, source: u64, bytes: u32, stream: u64) {
        go(to_device(target.into(), source, bytes.into()), stream, OLD, Wait::No)
    }
    fn cuMemcpyDtoH(target: u64, source: u32, bytes: u32) {
        go(to_host(target, source.into(), bytes.into()), 0, OLD, Wait::Yes)
    }
    fn cuMemcpyDtoHAsync(target: u64, source: u32, bytes: u32, stream: u64) {
        go(to_host(target, source.into(), bytes.into()), stream, OLD, Wait::No)
    }
    fn cuMemcpyDtoD(target: u32, source: u32, bytes: u32) {
        go(between(target.into(), source.into(), bytes.into()), 0, OLD, Wait::No)
    }
    fn cuMemcpyDtoDAsync(target: u32, source: u32, bytes: u32, stream: u64) {
        go(between(target.into(), source.into(), bytes.into()), stream, OLD, Wait::No)
    }
    fn cuMemcpyHtoA(array: u64, offset: u32, source: u64, bytes: u32) {
        go(into_array(array, offset.into(), source, bytes.into()), 0, OLD, Wait::Yes)
    }
    fn cuMemcpyHtoAAsync(array: u64, offset: u32, source: u64, bytes: u32, stream: u64) {
        go(into_array(array, offset.into(), source, bytes.into()), stream, OLD, Wait::No)
    }
    fn cuMemcpyAtoH(target: u64, array: u64, offset: u32, bytes: u32) {
        go(out_of_array(target, array, offset.into(), bytes.into()), 0, OLD, Wait::Yes)
    }
    fn cuMemcpyAtoHAsync(target: u64, array: u64, offset: u32, bytes: u32, stream: u64) {
        go(out_of_array(target, array, offset.into(), bytes.into()), stream, OLD, Wait::No)
    }
    fn cuMemcpyAtoA(target: u64, target_offset: u32, source: u64, source_offset: u32, bytes: u32) {
        let copy = among_arrays((target, target_offset.into()), (source, source_offset.into()), bytes.into());
        go(copy, 0, OLD, Wait::No)
    }
    fn cuMemcpyDtoA(array: u64, offset: u32, source: u32, bytes: u32) {
        let source = End::device(source.into(), bytes.into())?;
        let target = in_array(array, offset.into(), bytes.into())?;
        go(Ok(Copy::plain(target, source, bytes.into())), 0, OLD, Wait::No)
    }
    fn cuMemcpyAtoD(target: u32, array: u64, offset: u32, bytes: u32) {
        let target = End::device(target.into(), bytes.into())?;
        let source = in_array(array, offset.into(), bytes.into())?;
        go(Ok(Copy::plain(target, source, bytes.into())), 0, OLD, Wait::No)
    }
    fn cuMemcpy2D(given: In<FlatCopy>) { rows(&given.get()?.wide(), 0, OLD, Wait::Yes) }
    fn cuMemcpy2DUnaligned(given: In<FlatCopy>) { rows(&given.get()?.wide(), 0, OLD, Wait::Yes) }
    fn cuMemcpy2DAsync(given: In<FlatCopy>, stream: u64) { rows(&given.get()?.wide(), stream, OLD, Wait::No) }
    fn cuMemcpy3D(given: In<DeepCopy>) { rows(&given.get()?.wide(), 0, OLD, Wait::Yes) }
    fn cuMemcpy3DAsync(given: In<DeepCopy>, stream: u64) { rows(&given.get()?.wide(), stream, OLD, Wait::No) }

    fn cuMemsetD8(address: u32, value: u8, count: u32) {
        set(flat(address.into(), 1, value.into(), count.into()), 0, OLD)
    }
    fn cuMemsetD16(address: u32, value: u16, count: u32) {
        set(flat(address.into(), 2, value.into(), count.into()), 0, OLD)
    }
    fn cuMemsetD32(address: u32, value: u32, count: u32) {
        set(flat(address.into(), 4, value, count.into()), 0, OLD)
    }
    fn cuMemsetD2D8(address: u32, pitch: u32, value: u8, width: u32, height: u32) {
        set(deep_fill((address, pitch), 1, value.into(), (width, height)), 0, OLD)
    }
    fn cuMemsetD2D16(address: u32, pitch: u32, value: u16, width: u32, height: u32) {
        set(deep_fill((address, pitch), 2, value.into(), (width, height)), 0, OLD)
    }
    fn cuMemsetD2D32(address: u32, pitch: u32, value: u32, width: u32, height: u32) {
        set(deep_fill((address, pitch), 4, value, (width, height)), 0, OLD)
    }
}

/// A fill of rows, by where the first begins and how far apart they are.
fn deep_fill((address, pitch): (u32, u32), unit: u64, value: u32, (width, height): (u32, u32)) -> Fill {
    let (address, pitch) = (address.into(), pitch.into());
    Fill { address, unit, value, width: width.into(), height: height.into(), pitch }
}
