//! Copies and fills.

use super::pointer::In;
use crate::array::ARRAYS;
use crate::code::{Answer, INVALID_VALUE};
use crate::copy::{self, Copy, End, Fill};
use crate::graph::WorkKind;
use crate::stream::{self, Wait};
use crate::table::Mode;

/// The vendor's flat copy.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy2d {
    source: Side2d,
    target: Side2d,
    width: u64,
    height: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Side2d {
    x: u64,
    y: u64,
    kind: u32,
    padding: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: u64,
}

/// The vendor's deep copy.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3d {
    pub(super) source: Side3d,
    pub(super) target: Side3d,
    pub(super) width: u64,
    pub(super) height: u64,
    pub(super) depth: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Side3d {
    pub(super) x: u64,
    pub(super) y: u64,
    pub(super) z: u64,
    pub(super) level: u64,
    pub(super) kind: u32,
    pub(super) padding: u32,
    pub(super) host: u64,
    pub(super) device: u64,
    pub(super) array: u64,
    pub(super) reserved: u64,
    pub(super) pitch: u64,
    pub(super) height: u64,
}

const _: () = assert!(size_of::<Copy2d>() == 128 && size_of::<Copy3d>() == 200);

/// Where a side of a copy is, and the distances of its rows and slices.
fn side(given: &Side3d, extent: (u64, u64, u64)) -> Answer<(End, (u64, u64))> {
    let (width, height, depth) = extent;
    let span = |pitch: u64, slice: u64| -> Option<u64> {
        let rows = height.checked_sub(1)?.checked_mul(pitch)?;
        depth.checked_sub(1)?.checked_mul(slice)?.checked_add(rows)?.checked_add(width)
    };
    let at = |pitch: u64, slice: u64| -> Option<u64> {
        let rows = given.y.checked_mul(pitch)?;
        given.z.checked_mul(slice)?.checked_add(rows)?.checked_add(given.x)
    };
    let pitch = if given.pitch == 0 { width } else { given.pitch };
    let slice = pitch.checked_mul(given.height.max(height)).ok_or(INVALID_VALUE)?;
    let (offset, bytes) = (at(pitch, slice).ok_or(INVALID_VALUE)?, span(pitch, slice).ok_or(INVALID_VALUE)?);
    let plain = |address: u64| address.checked_add(offset).ok_or(INVALID_VALUE);
    let end = match given.kind {
        1 => End::Host(plain(given.host)?),
        2 => End::device(plain(given.device)?, bytes)?,
        4 => End::of(plain(given.device)?, bytes)?,
        3 => {
            let shape = ARRAYS.get(given.array)?.shape;
            let row = shape.width.checked_mul(shape.element()?).ok_or(INVALID_VALUE)?;
            let slice = row.checked_mul(shape.height.max(1)).ok_or(INVALID_VALUE)?;
            let inside = given.x + width <= row
                && given.y + height <= shape.height.max(1)
                && given.z + depth <= shape.depth.max(1);
            if !inside {
                return Err(INVALID_VALUE);
            }
            return Ok((End::array(given.array, at(row, slice).ok_or(INVALID_VALUE)?)?, (row, slice)));
        }
        _ => return Err(INVALID_VALUE),
    };
    Ok((end, (pitch, slice)))
}

impl Side2d {
    fn deep(&self) -> Side3d {
        let (x, y, kind, host, device) = (self.x, self.y, self.kind, self.host, self.device);
        let (array, pitch) = (self.array, self.pitch);
        Side3d { x, y, z: 0, level: 0, kind, padding: 0, host, device, array, reserved: 0, pitch, height: 0 }
    }
}

impl Copy3d {
    /// The copy it describes; nothing to copy is `None`.
    pub(crate) fn parse(&self) -> Answer<Option<Copy>> {
        let extent = (self.width, self.height, self.depth);
        if extent.0 == 0 || extent.1 == 0 || extent.2 == 0 {
            return Ok(None);
        }
        let (source, source_pitch) = side(&self.source, extent)?;
        let (target, target_pitch) = side(&self.target, extent)?;
        let (width, height, depth) = extent;
        Ok(Some(Copy { target, source, width, height, depth, target_pitch, source_pitch }))
    }
}

impl Copy2d {
    fn deep(&self) -> Copy3d {
        let (source, target) = (self.source.deep(), self.target.deep());
        Copy3d { source, target, width: self.width, height: self.height, depth: 1 }
    }
}

/// A copy in the default stream of `mode`, or in the stream given.
pub(super) fn go(copy: Answer<Copy>, stream: u64, mode: Mode, wait: Wait) -> Answer {
    let stream = stream::find(stream, mode)?;
    copy::copy(&stream, copy?, wait)
}

pub(super) fn rows(given: &Copy3d, stream: u64, mode: Mode, wait: Wait) -> Answer {
    match given.parse()? {
        Some(copy) => go(Ok(copy), stream, mode, wait),
        None => stream::find(stream, mode).map(|_| ()),
    }
}

pub(super) fn unified(target: u64, source: u64, bytes: u64) -> Answer<Copy> {
    Ok(Copy::plain(End::of(target, bytes)?, End::of(source, bytes)?, bytes))
}

pub(super) fn to_device(target: u64, source: u64, bytes: u64) -> Answer<Copy> {
    Ok(Copy::plain(End::device(target, bytes)?, End::of(source, bytes)?, bytes))
}

pub(super) fn to_host(target: u64, source: u64, bytes: u64) -> Answer<Copy> {
    Ok(Copy::plain(End::of(target, bytes)?, End::device(source, bytes)?, bytes))
}

pub(super) fn between(target: u64, source: u64, bytes: u64) -> Answer<Copy> {
    Ok(Copy::plain(End::device(target, bytes)?, End::device(source, bytes)?, bytes))
}

/// A flat range of an array.
pub(super) fn in_array(array: u64, offset: u64, bytes: u64) -> Answer<End> {
    let shape = ARRAYS.get(array)?.shape;
    let rows = shape.height.max(1).saturating_mul(shape.depth.max(1));
    let size = shape.width.saturating_mul(shape.element()?).saturating_mul(rows);
    if offset.checked_add(bytes).is_none_or(|end| end > size) {
        return Err(INVALID_VALUE);
    }
    End::array(array, offset)
}

pub(super) fn into_array(array: u64, offset: u64, source: u64, bytes: u64) -> Answer<Copy> {
    Ok(Copy::plain(in_array(array, offset, bytes)?, End::Host(source), bytes))
}

pub(super) fn out_of_array(target: u64, array: u64, offset: u64, bytes: u64) -> Answer<Copy> {
    Ok(Copy::plain(End::Host(target), in_array(array, offset, bytes)?, bytes))
}

/// Each array with where in it.
pub(super) fn among_arrays(target: (u64, u64), source: (u64, u64), bytes: u64) -> Answer<Copy> {
    Ok(Copy::plain(in_array(target.0, target.1, bytes)?, in_array(source.0, source.1, bytes)?, bytes))
}

pub(super) fn set(fill: Fill, stream: u64, mode: Mode) -> Answer {
    let stream = stream::find(stream, mode)?;
    copy::fill(&stream, fill)
}

pub(super) fn flat(address: u64, unit: u64, value: u32, width: u64) -> Fill {
    Fill { address, unit, value, width, height: 1, pitch: 0 }
}

streamed! {
    fn cuMemcpy, cuMemcpy_ptds |mode| (target: u64, source: u64, bytes: u64) {
        go(unified(target, source, bytes), 0, mode, Wait::Yes)
    }
    fn cuMemcpyAsync, cuMemcpyAsync_ptsz |mode| (target: u64, source: u64, bytes: u64, stream: u64) {
        go(unified(target, source, bytes), stream, mode, Wait::No)
    }
    fn cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds |mode| (target: u64, source: u64, bytes: u64) {
        go(to_device(target, source, bytes), 0, mode, Wait::Yes)
    }
    fn cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz |mode| (target: u64, source: u64, bytes: u64, stream: u64) {
        go(to_device(target, source, bytes), stream, mode, Wait::No)
    }
    fn cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds |mode| (target: u64, source: u64, bytes: u64) {
        go(to_host(target, source, bytes), 0, mode, Wait::Yes)
    }
    fn cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz |mode| (target: u64, source: u64, bytes: u64, stream: u64) {
        go(to_host(target, source, bytes), stream, mode, Wait::No)
    }
    fn cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds |mode| (target: u64, source: u64, bytes: u64) {
        go(between(target, source, bytes), 0, mode, Wait::No)
    }
    fn cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz |mode| (target: u64, source: u64, bytes: u64, stream: u64) {
        go(between(target, source, bytes), stream, mode, Wait::No)
    }
    fn cuMemcpyPeer, cuMemcpyPeer_ptds |mode| (target: u64, _to: u64, source: u64, _from: u64, bytes: u64) {
        go(between(target, source, bytes), 0, mode, Wait::No)
    }
    fn cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz |mode| (
        target: u64, _to: u64, source: u64, _from: u64, bytes: u64, stream: u64
    ) {
        go(between(target, source, bytes), stream, mode, Wait::No)
    }
    fn cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds |mode| (array: u64, offset: u64, source: u64, bytes: u64) {
        go(into_array(array, offset, source, bytes), 0, mode, Wait::Yes)
    }
    fn cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz |mode| (
        array: u64, offset: u64, source: u64, bytes: u64, stream: u64
    ) {
        go(into_array(array, offset, source, bytes), stream, mode, Wait::No)
    }
    fn cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds |mode| (target: u64, array: u64, offset: u64, bytes: u64) {
        go(out_of_array(target, array, offset, bytes), 0, mode, Wait::Yes)
    }
    fn cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz |mode| (
        target: u64, array: u64, offset: u64, bytes: u64, stream: u64
    ) {
        go(out_of_array(target, array, offset, bytes), stream, mode, Wait::No)
    }
    fn cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds |mode| (array: u64, offset: u64, source: u64, bytes: u64) {
        let source = End::device(source, bytes)?;
        go(Ok(Copy::plain(in_array(array, offset, bytes)?, source, bytes)), 0, mode, Wait::No)
    }
    fn cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds |mode| (target: u64, array: u64, offset: u64, bytes: u64) {
        let target = End::device(target, bytes)?;
        go(Ok(Copy::plain(target, in_array(array, offset, bytes)?, bytes)), 0, mode, Wait::No)
    }
    fn cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds |mode| (
        target: u64, target_offset: u64, source: u64, source_offset: u64, bytes: u64
    ) {
        go(among_arrays((target, target_offset), (source, source_offset), bytes), 0, mode, Wait::No)
    }
    fn cuMemcpy2D_v2, cuMemcpy2D_v2_ptds |mode| (given: In<Copy2d>) {
        rows(&given.get()?.deep(), 0, mode, Wait::Yes)
    }
    fn cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds |mode| (given: In<Copy2d>) {
        rows(&given.get()?.deep(), 0, mode, Wait::Yes)
    }
    fn cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz |mode| (given: In<Copy2d>, stream: u64) {
        rows(&given.get()?.deep(), stream, mode, Wait::No)
    }
    fn cuMemcpy3D_v2, cuMemcpy3D_v2_ptds |mode| (given: In<Copy3d>) {
        rows(&given.get()?, 0, mode, Wait::Yes)
    }
    fn cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz |mode| (given: In<Copy3d>, stream: u64) {
        rows(&given.get()?, stream, mode, Wait::No)
    }
    fn cuMemcpy3DPeer, cuMemcpy3DPeer_ptds |mode| (given: In<Copy3d>) {
        rows(&given.get()?, 0, mode, Wait::No)
    }
    fn cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz |mode| (given: In<Copy3d>, stream: u64) {
        rows(&given.get()?, stream, mode, Wait::No)
    }

    fn cuMemsetD8_v2, cuMemsetD8_v2_ptds |mode| (address: u64, value: u8, count: u64) {
        set(flat(address, 1, u32::from(value), count), 0, mode)
    }
    fn cuMemsetD16_v2, cuMemsetD16_v2_ptds |mode| (address: u64, value: u16, count: u64) {
        set(flat(address, 2, u32::from(value), count), 0, mode)
    }
    fn cuMemsetD32_v2, cuMemsetD32_v2_ptds |mode| (address: u64, value: u32, count: u64) {
        set(flat(address, 4, value, count), 0, mode)
    }
    fn cuMemsetD8Async, cuMemsetD8Async_ptsz |mode| (address: u64, value: u8, count: u64, stream: u64) {
        set(flat(address, 1, u32::from(value), count), stream, mode)
    }
    fn cuMemsetD16Async, cuMemsetD16Async_ptsz |mode| (address: u64, value: u16, count: u64, stream: u64) {
        set(flat(address, 2, u32::from(value), count), stream, mode)
    }
    fn cuMemsetD32Async, cuMemsetD32Async_ptsz |mode| (address: u64, value: u32, count: u64, stream: u64) {
        set(flat(address, 4, value, count), stream, mode)
    }
    fn cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds |mode| (address: u64, pitch: u64, value: u8, width: u64, height: u64) {
        set(Fill { address, unit: 1, value: u32::from(value), width, height, pitch }, 0, mode)
    }
    fn cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds |mode| (address: u64, pitch: u64, value: u16, width: u64, height: u64) {
        set(Fill { address, unit: 2, value: u32::from(value), width, height, pitch }, 0, mode)
    }
    fn cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds |mode| (address: u64, pitch: u64, value: u32, width: u64, height: u64) {
        set(Fill { address, unit: 4, value, width, height, pitch }, 0, mode)
    }
    fn cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz |mode| (
        address: u64, pitch: u64, value: u8, width: u64, height: u64, stream: u64
    ) {
        set(Fill { address, unit: 1, value: u32::from(value), width, height, pitch }, stream, mode)
    }
    fn cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz |mode| (
        address: u64, pitch: u64, value: u16, width: u64, height: u64, stream: u64
    ) {
        set(Fill { address, unit: 2, value: u32::from(value), width, height, pitch }, stream, mode)
    }
    fn cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz |mode| (
        address: u64, pitch: u64, value: u32, width: u64, height: u64, stream: u64
    ) {
        set(Fill { address, unit: 4, value, width, height, pitch }, stream, mode)
    }
    fn cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz |mode| (address: u64, bytes: u64, _device: i32, stream: u64) {
        crate::memory::range(address, bytes)?;
        stream::find(stream, mode)?.run(WorkKind::Order, 0, None)
    }
    fn cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz |mode| (
        address: u64, bytes: u64, _location: u64, _flags: u32, stream: u64
    ) {
        crate::memory::range(address, bytes)?;
        stream::find(stream, mode)?.run(WorkKind::Order, 0, None)
    }
}

exports! {
    fn cuMemAdvise(address: u64, bytes: u64, _advice: u32, _device: i32) {
        crate::memory::range(address, bytes).map(|_| ())
    }
    fn cuMemAdvise_v2(address: u64, bytes: u64, _advice: u32, _location: u64) {
        crate::memory::range(address, bytes).map(|_| ())
    }
}
