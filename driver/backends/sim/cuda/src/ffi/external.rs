//! Memory of other interfaces.

use super::memory::Array3dDescriptor;
use super::pointer::{In, Out};
use crate::code::{Answer, INVALID_VALUE};
use crate::external;

/// The vendor's description of what is imported.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ExternalHandle {
    kind: u32,
    padding: u32,
    /// A descriptor in the first word.
    handle: [i32; 4],
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

/// The vendor's description of a buffer.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ExternalBuffer {
    offset: u64,
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

/// The vendor's description of a mipmapped array.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ExternalArray {
    offset: u64,
    shape: Array3dDescriptor,
    levels: u32,
    reserved: [u32; 16],
}

const _: () = assert!(size_of::<ExternalHandle>() == 104 && size_of::<ExternalBuffer>() == 88);
const _: () = assert!(size_of::<ExternalArray>() == 120);

/// What the vendor reserves is zero.
fn check_reserved(reserved: [u32; 16]) -> Answer {
    if reserved == [0; 16] { Ok(()) } else { Err(INVALID_VALUE) }
}

exports! {
    fn cuImportExternalMemory(object: Out<u64>, given: In<ExternalHandle>) {
        object.check()?;
        let ExternalHandle { kind, handle: [descriptor, ..], bytes, flags, reserved, .. } = given.get()?;
        check_reserved(reserved)?;
        object.set(external::import(kind, descriptor, bytes, flags)?)
    }
    fn cuExternalMemoryGetMappedBuffer(address: Out<u64>, object: u64, given: In<ExternalBuffer>) {
        address.check()?;
        let ExternalBuffer { offset, bytes, flags, reserved } = given.get()?;
        check_reserved(reserved)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        address.set(external::map_buffer(object, offset, bytes)?)
    }
    fn cuExternalMemoryGetMappedMipmappedArray(array: Out<u64>, object: u64, given: In<ExternalArray>) {
        array.check()?;
        let ExternalArray { offset, shape, levels, reserved } = given.get()?;
        check_reserved(reserved)?;
        array.set(external::map_array(object, shape.shape(), levels, offset)?)
    }
    fn cuDestroyExternalMemory(object: u64) { external::destroy(object) }
}
