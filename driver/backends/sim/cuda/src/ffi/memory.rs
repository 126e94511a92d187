//! Allocations of every kind, pools, virtual memory management, IPC, and questions about pointers.

use super::pointer::{In, Out};
use crate::array::{self, ARRAYS, MIPMAPPED, Shape};
use crate::code::{Answer, INVALID_VALUE};
use crate::location::Location;
use crate::memory::{self, Origin, Payer};
use crate::pool::{self, POOLS};
use crate::process;
use crate::sparse::{self, ArrayRegion, Behind};
use crate::stream;
use crate::vmm::{self, Properties};
use aliquot_sim_device::MemoryKind;

/// The vendor's description of a physical allocation: the head of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: u64,
    flags: [u8; 8],
}

/// The vendor's description of a pool: the head of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
}

/// The vendor's flat array.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayDescriptor {
    width: u64,
    height: u64,
    format: u32,
    channels: u32,
}

/// The vendor's deep array.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Array3dDescriptor {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
    padding: u32,
}

/// The vendor's answer about an array's memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Requirements {
    bytes: u64,
    alignment: u64,
    reserved: [u32; 4],
}

/// The vendor's part of a sparse array, and what is to be behind it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayMapInfo {
    resource_type: u32,
    array: u64,
    subresource_type: u32,
    padding: u32,
    /// Level, layer, offsets, extents; in a tail the layer, then offset and size as 64-bit numbers.
    place: [u32; 8],
    operation: u32,
    handle_type: u32,
    handle: u64,
    offset: u64,
    device_mask: u32,
    flags: u32,
    reserved: [u32; 2],
}

const _: () = assert!(size_of::<ArrayMapInfo>() == 96);
const _: () = assert!(size_of::<AllocationProp>() == 32 && size_of::<Array3dDescriptor>() == 40);

impl ArrayMapInfo {
    fn part(&self) -> ArrayRegion {
        let [level, layer, x, y, z, width, height, depth] = self.place;
        if self.subresource_type == 0 {
            let from = [x, y, z].map(u64::from);
            let extent = [width, height.max(1), depth.max(1)].map(u64::from);
            let to = [from[0] + extent[0], from[1] + extent[1], from[2] + extent[2]];
            return ArrayRegion { array: self.array, of: [0, level, layer], from, to };
        }
        let wide = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let (from, bytes) = (wide(x, y), wide(z, width));
        let to = [from.saturating_add(bytes), 1, 1];
        ArrayRegion { array: self.array, of: [1, 0, level], from: [from, 0, 0], to }
    }

    /// CU_MEM_OPERATION_TYPE_MAP is 1, UNMAP is 2.
    fn behind(&self) -> Answer<Behind> {
        match (self.operation, self.handle_type) {
            (1, 0) => Ok(Behind::Physical { handle: self.handle, offset: self.offset }),
            (2, _) => Ok(Behind::Nothing),
            _ => Err(INVALID_VALUE),
        }
    }
}

impl Array3dDescriptor {
    pub(crate) fn shape(self) -> Shape {
        let (format, channels, flags) = (self.format, self.channels, self.flags);
        Shape { width: self.width, height: self.height, depth: self.depth, format, channels, flags }
    }

    fn of(shape: Shape) -> Self {
        let (format, channels, flags) = (shape.format, shape.channels, shape.flags);
        Self {
            width: shape.width,
            height: shape.height,
            depth: shape.depth,
            format,
            channels,
            flags,
            padding: 0,
        }
    }
}

fn properties(prop: In<AllocationProp>) -> Answer<Properties> {
    let prop = prop.get()?;
    // CU_MEM_ALLOCATION_TYPE_PINNED is the one there is.
    if prop.kind != 1 {
        return Err(INVALID_VALUE);
    }
    Ok(Properties { location: prop.location, handle_types: prop.handle_types })
}

fn requirements_of(answer: Out<Requirements>, found: (u64, u64)) -> Answer {
    answer.set(Requirements { bytes: found.0, alignment: found.1, reserved: [0; 4] })
}

exports! {
    fn cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) {
        let (left, all) = memory::info()?;
        free.set_if_wanted(left);
        total.set_if_wanted(all);
        Ok(())
    }
    fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) {
        let (left, all) = memory::info()?;
        let short = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        free.set_if_wanted(short(left));
        total.set_if_wanted(short(all));
        Ok(())
    }
    fn cuMemAlloc_v2(address: Out<u64>, bytes: u64) {
        address.check()?;
        address.set(memory::allocate(MemoryKind::Plain, bytes)?)
    }
    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<u64>, width: u64, height: u64, element: u32) {
        address.check()?;
        pitch.check()?;
        if !matches!(element, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let (found, apart) = memory::allocate_pitch(width, height)?;
        address.set(found)?;
        pitch.set(apart)
    }
    fn cuMemAllocManaged(address: Out<u64>, bytes: u64, flags: u32) {
        address.check()?;
        if !matches!(flags, 1 | 2) {
            return Err(INVALID_VALUE);
        }
        address.set(memory::allocate(MemoryKind::Managed, bytes)?)
    }
    fn cuMemFree_v2(address: u64) {
        process::cards()?;
        memory::free(address)
    }
    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<u64>, address: u64) {
        process::cards()?;
        let found = memory::find(address).ok_or(INVALID_VALUE)?;
        base.set_if_wanted(found.address);
        bytes.set_if_wanted(found.bytes);
        Ok(())
    }

    fn cuMemAllocHost_v2(address: Out<u64>, bytes: u64) {
        address.check()?;
        address.set(memory::allocate_host(bytes)?)
    }
    fn cuMemHostAlloc(address: Out<u64>, bytes: u64, _flags: u32) {
        address.check()?;
        address.set(memory::allocate_host(bytes)?)
    }
    fn cuMemFreeHost(address: u64) {
        process::cards()?;
        memory::forget_host(address, Origin::Made)
    }
    fn cuMemHostRegister_v2(address: u64, bytes: u64, _flags: u32) { memory::register_host(address, bytes) }
    fn cuMemHostUnregister(address: u64) {
        process::cards()?;
        memory::forget_host(address, Origin::Registered)
    }
    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, host: u64, _flags: u32) {
        process::cards()?;
        memory::find_host(host).ok_or(INVALID_VALUE)?;
        device.set(host)
    }
    fn cuMemHostGetFlags(flags: Out<u32>, host: u64) {
        process::cards()?;
        memory::find_host(host).ok_or(INVALID_VALUE)?;
        flags.set(0)
    }

    fn cuMemPoolCreate(pool: Out<u64>, props: In<PoolProps>) {
        pool.check()?;
        let props = props.get()?;
        pool.set(pool::create(props.kind, props.location)?)
    }
    fn cuMemPoolDestroy(pool: u64) { pool::destroy(pool) }
    fn cuMemPoolTrimTo(pool: u64, keep: u64) { POOLS.get(pool)?.trim_to(keep) }
    fn cuMemPoolGetAttribute(pool: u64, number: u32, value: Out<u64>) {
        let found = POOLS.get(pool)?.attribute(number)?;
        if pool::attribute_is_short(number) {
            return value.cast::<u32>().set(u32::try_from(found).unwrap_or(u32::MAX));
        }
        value.set(found)
    }
    fn cuMemPoolSetAttribute(pool: u64, number: u32, value: In<u64>) {
        let pool = POOLS.get(pool)?;
        let given = if pool::attribute_is_short(number) {
            u64::from(In::<u32>::at(value.address()).get()?)
        } else {
            value.get()?
        };
        pool.set_attribute(number, given)
    }
    fn cuMemPoolSetAccess(pool: u64, _access: In<u8>, _count: usize) { POOLS.get(pool).map(|_| ()) }
    fn cuMemPoolGetAccess(flags: Out<u32>, pool: u64, _location: In<u8>) {
        POOLS.get(pool)?;
        flags.set(3)
    }

    fn cuMemGetAllocationGranularity(bytes: Out<u64>, prop: In<AllocationProp>, _option: u32) {
        process::cards()?;
        bytes.set(vmm::granularity(properties(prop)?)?)
    }
    fn cuMemCreate(handle: Out<u64>, bytes: u64, prop: In<AllocationProp>, flags: u64) {
        handle.check()?;
        handle.set(vmm::create(bytes, properties(prop)?, flags)?)
    }
    fn cuMemRelease(handle: u64) { vmm::release(handle) }
    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) {
        handle.check()?;
        handle.set(vmm::retain(address)?)
    }
    fn cuMemGetAllocationPropertiesFromHandle(prop: Out<AllocationProp>, handle: u64) {
        let found = vmm::properties(handle)?;
        let Properties { location, handle_types } = found;
        prop.set(AllocationProp { kind: 1, handle_types, location, windows: 0, flags: [0; 8] })
    }
    fn cuMemExportToShareableHandle(shareable: Out<i32>, handle: u64, kind: u32, flags: u64) {
        shareable.check()?;
        if flags != 0 { return Err(INVALID_VALUE); }
        shareable.set(vmm::export(handle, kind)?)
    }
    fn cuMemImportFromShareableHandle(handle: Out<u64>, shareable: u64, kind: u32) {
        handle.check()?;
        handle.set(vmm::import(i32::try_from(shareable).map_err(|_| INVALID_VALUE)?, kind)?)
    }
    fn cuMemAddressReserve(address: Out<u64>, bytes: u64, alignment: u64, _wish: u64, _flags: u64) {
        address.check()?;
        address.set(vmm::reserve(bytes, alignment)?)
    }
    fn cuMemAddressFree(address: u64, bytes: u64) { vmm::unreserve(address, bytes) }
    fn cuMemMap(address: u64, bytes: u64, offset: u64, handle: u64, _flags: u64) {
        vmm::map(address, bytes, offset, handle)
    }
    fn cuMemUnmap(address: u64, bytes: u64) { vmm::unmap(address, bytes) }
    fn cuMemSetAccess(address: u64, bytes: u64, _access: In<u8>, _count: usize) {
        vmm::check_mapped(address, bytes)
    }
    fn cuMemGetAccess(flags: Out<u64>, _location: In<u8>, address: u64) {
        let found = memory::find(address).ok_or(INVALID_VALUE)?;
        vmm::check_mapped(found.address, found.bytes)?;
        flags.set(3)
    }

    fn cuArrayCreate_v2(array: Out<u64>, descriptor: In<ArrayDescriptor>) {
        array.check()?;
        let given = descriptor.get()?;
        let (format, channels) = (given.format, given.channels);
        let shape = Shape { width: given.width, height: given.height, depth: 0, format, channels, flags: 0 };
        array.set(array::create_array(shape)?)
    }
    fn cuArray3DCreate_v2(array: Out<u64>, descriptor: In<Array3dDescriptor>) {
        array.check()?;
        array.set(array::create_array(descriptor.get()?.shape())?)
    }
    fn cuArrayGetDescriptor_v2(descriptor: Out<ArrayDescriptor>, array: u64) {
        let shape = ARRAYS.get(array)?.shape;
        let (format, channels) = (shape.format, shape.channels);
        descriptor.set(ArrayDescriptor { width: shape.width, height: shape.height, format, channels })
    }
    fn cuArray3DGetDescriptor_v2(descriptor: Out<Array3dDescriptor>, array: u64) {
        descriptor.set(Array3dDescriptor::of(ARRAYS.get(array)?.shape))
    }
    fn cuArrayDestroy(array: u64) { array::destroy(array, &ARRAYS) }
    fn cuArrayGetMemoryRequirements(answer: Out<Requirements>, array: u64, _device: i32) {
        requirements_of(answer, array::requirements(array, &ARRAYS)?)
    }
    fn cuMipmappedArrayCreate(array: Out<u64>, descriptor: In<Array3dDescriptor>, levels: u32) {
        array.check()?;
        array.set(array::create_mipmapped(descriptor.get()?.shape(), levels)?)
    }
    fn cuMipmappedArrayDestroy(array: u64) { array::destroy(array, &MIPMAPPED) }
    fn cuMipmappedArrayGetMemoryRequirements(answer: Out<Requirements>, array: u64, _device: i32) {
        requirements_of(answer, array::requirements(array, &MIPMAPPED)?)
    }

    fn cuIpcGetMemHandle(handle: Out<[u8; 64]>, address: u64) {
        handle.check()?;
        handle.set(crate::ipc::export(address)?)
    }
    fn cuIpcOpenMemHandle(address: Out<u64>, handle: IpcHandle, _flags: u32) {
        address.check()?;
        address.set(crate::ipc::open(&handle.bytes)?)
    }
    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: IpcHandle, _flags: u32) {
        address.check()?;
        address.set(crate::ipc::open(&handle.bytes)?)
    }
    fn cuIpcCloseMemHandle(address: u64) { crate::ipc::close(address) }

    fn cuPointerGetAttribute(value: Out<u64>, number: u32, address: u64) {
        process::cards()?;
        value.check()?;
        write_attribute(value, number, address)
    }
    fn cuPointerGetAttributes(count: u32, numbers: In<u32>, values: In<Out<u64>>, address: u64) {
        process::cards()?;
        for index in 0..usize::try_from(count).map_err(|_| INVALID_VALUE)? {
            let (number, value) = (numbers.get_at(index)?, values.get_at(index)?);
            if write_attribute(value, number, address).is_err() {
                // What is not known of a pointer reads as nothing.
                clear_attribute(value, number)?;
            }
        }
        Ok(())
    }
    fn cuPointerSetAttribute(_value: In<u8>, number: u32, address: u64) {
        process::cards()?;
        // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: copies here are done when the call returns.
        if number != 6 { return Err(INVALID_VALUE); }
        memory::find(address).map(|_| ()).ok_or(INVALID_VALUE)
    }
}

streamed! {
    fn cuMemAllocAsync, cuMemAllocAsync_ptsz |mode| (address: Out<u64>, bytes: u64, stream: u64) {
        address.check()?;
        let stream = stream::find(stream, mode)?;
        let ours = process::card_of(&stream)?;
        if stream.capture().is_some() {
            return address.set(super::graph::capture_alloc(&stream, stream.device, bytes)?);
        }
        let pool = ours.pools.current_handle(stream.device);
        address.set(memory::allocate_from(pool, process::home(stream.context), bytes)?)
    }
    fn cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz |mode| (
        address: Out<u64>, bytes: u64, pool: u64, stream: u64
    ) {
        address.check()?;
        let stream = stream::find(stream, mode)?;
        if stream.capture().is_some() {
            return address.set(super::graph::capture_alloc(&stream, POOLS.get(pool)?.device, bytes)?);
        }
        address.set(memory::allocate_from(pool, process::home(stream.context), bytes)?)
    }
    fn cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz |mode| (parts: In<ArrayMapInfo>, count: u32, stream: u64) {
        stream::find(stream, mode)?;
        let count = usize::try_from(count).map_err(|_| INVALID_VALUE)?;
        parts.list(count)?.into_iter().try_for_each(|given| sparse::change(given.part(), given.behind()?))
    }
    fn cuMemFreeAsync, cuMemFreeAsync_ptsz |mode| (address: u64, stream: u64) {
        let stream = stream::find(stream, mode)?;
        if let Some(capture) = stream.capture() {
            return capture.add_free(stream.id, address);
        }
        memory::free_in_order(address, &stream)
    }
}

/// An IPC handle, which the vendor's call takes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle {
    bytes: [u8; 64],
}

/// Attributes that are 32-bit numbers.
const SHORT: [u32; 8] = [2, 6, 8, 9, 10, 13, 15, 16];

fn clear_attribute(value: Out<u64>, number: u32) -> Answer {
    match number {
        // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: none.
        9 => value.cast::<i32>().set(-2),
        short if SHORT.contains(&short) => value.cast::<u32>().set(0),
        _ => value.set(0),
    }
}

fn write_attribute(value: Out<u64>, number: u32, address: u64) -> Answer {
    if let Some(found) = memory::find(address) {
        let managed = matches!(found.payer, Payer::Card(MemoryKind::Managed, _));
        let pool = if let Payer::Pool(_, _, handle) = found.payer { handle } else { 0 };
        let short = |number: u32| value.cast::<u32>().set(number);
        return match number {
            1 => value.set(found.context),
            2 => short(2),
            3 => value.set(address),
            4 if managed => value.set(address),
            6 | 10 | 15 => short(0),
            7 => value.set(found.id),
            8 => short(u32::from(managed)),
            9 => short(u32::try_from(found.device).unwrap_or(0)),
            11 => value.set(found.address),
            12 => value.set(found.bytes),
            13 => short(1),
            14 => value.set(0),
            16 => short(3),
            17 if pool != 0 => value.set(pool),
            _ => Err(INVALID_VALUE),
        };
    }
    let (start, bytes) = memory::find_host(address).ok_or(INVALID_VALUE)?;
    match number {
        1 => value.set(process::current_handle()?),
        2 => value.cast::<u32>().set(1),
        3 | 4 => value.set(address),
        8 => value.cast::<u32>().set(0),
        9 => value.cast::<u32>().set(0),
        11 => value.set(start),
        12 => value.set(bytes),
        13 => value.cast::<u32>().set(1),
        _ => Err(INVALID_VALUE),
    }
}
