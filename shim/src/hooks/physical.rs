//! Physical memory and its mappings: `cuMemCreate`, `cuMemRelease`, `cuMemMap`, `cuMemUnmap`, `cuMemRetainAllocationHandle`.

// UNSAFETY: out-parameters and a structure of the caller.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use crate::account::{self, Bytes};
use crate::physical;
use crate::vendor::{Device, SUCCESS};

/// The head of the vendor's `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location_type: u32,
    /// The card's number; of a locality domain, in its lowest byte.
    location: i32,
}

/// CU_MEM_LOCATION_TYPE_DEVICE
const DEVICE: u32 = 1;
/// CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN
const LOCALITY_DOMAIN: u32 = 6;

hooks! {
    Cuda, Memory;
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) {
        let device = if handle.is_null() { None } else { device_of(properties) };
        let Some(device) = device else {
            return cuMemCreate::real(handle, bytes, properties, flags);
        };
        let make = || {
            let mut made = 0;
            match cuMemCreate::real(&raw mut made, bytes, properties, flags) {
                SUCCESS => Ok(made),
                error => Err(error),
            }
        };
        let size = Bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
        answer(handle, physical::create(account::of(device), size, make, cuMemRelease::real))
    }
    fn cuMemRelease(handle: u64) {
        physical::release(handle, || cuMemRelease::real(handle))
    }
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut u8) {
        if handle.is_null() {
            return cuMemRetainAllocationHandle::real(handle, address);
        }
        let call = || {
            let mut found = 0;
            match cuMemRetainAllocationHandle::real(&raw mut found, address) {
                SUCCESS => Ok(found),
                error => Err(error),
            }
        };
        answer(handle, physical::retain(u64::try_from(address.addr()).unwrap_or(0), call))
    }
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let range = (address, u64::try_from(bytes).unwrap_or(u64::MAX));
        let call = || cuMemMap::real(address, bytes, offset, handle, flags);
        physical::map(range, handle, call, || cuMemUnmap::real(address, bytes))
    }
    fn cuMemUnmap(address: u64, bytes: usize) {
        let size = u64::try_from(bytes).unwrap_or(u64::MAX);
        physical::unmap(address, size, || cuMemUnmap::real(address, bytes))
    }
}

/// The card that pays; `None`: none does, or the driver will refuse.
fn device_of(properties: *const Properties) -> Option<Device> {
    if properties.is_null() {
        return None;
    }
    // SAFETY: a structure of the caller, which begins like this in every version.
    let properties = unsafe { properties.read() };
    match properties.location_type {
        DEVICE => Some(Device(properties.location)),
        LOCALITY_DOMAIN => Some(Device(properties.location & 0xff)),
        _ => None,
    }
}

fn answer(place: *mut u64, made: Result<u64, i32>) -> i32 {
    match made {
        Ok(handle) => {
            // SAFETY: the caller's place, which the vendor would write, too.
            unsafe { place.write(handle) };
            SUCCESS
        }
        Err(error) => error,
    }
}
