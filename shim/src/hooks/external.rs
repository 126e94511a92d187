//! Memory of other interfaces to the card: Vulkan, OpenGL, video.

// UNSAFETY: out-parameters and a structure of the caller.
#![expect(unsafe_code, reason = "out-parameters are raw")]

use core::ffi::c_void;

use super::arrays::cuMipmappedArrayDestroy;
use super::memory::cuMemFree_v2;
use super::physical::{answer, made};
use crate::accounting::account::Bytes;
use crate::memory::external::{self, Mapping};

/// The vendor's `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Described {
    kind: u32,
    handle: [u64; 2],
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}

const _: () = assert!(size_of::<Described>() == 104 && core::mem::offset_of!(Described, bytes) == 24);

/// CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, NVSCIBUF and DMABUF_FD: those of Linux.
const KINDS: [u32; 3] = [1, 8, 9];
/// CUDA_EXTERNAL_MEMORY_DEDICATED
const FLAGS: u32 = 1;

impl Described {
    /// Whether there may be such memory. Else the driver is asked first: what it refuses is not refused for its size.
    fn is_known(&self) -> bool {
        KINDS.contains(&self.kind) && self.bytes != 0 && self.flags & !FLAGS == 0 && self.reserved == [0; 16]
    }
}

hooks! {
    Cuda, Memory;
    fn cuImportExternalMemory(object: *mut u64, described: *const Described) {
        if object.is_null() || described.is_null() {
            return cuImportExternalMemory::real(object, described);
        }
        // SAFETY: a structure of the caller, which the driver reads, too.
        let given = unsafe { described.read_unaligned() };
        let bytes = Bytes(given.bytes);
        let call = || made(|object| cuImportExternalMemory::real(object, described));
        let first = if given.is_known() { bytes } else { Bytes(0) };
        answer(object, external::import((first, bytes), call, cuDestroyExternalMemory::real))
    }
    fn cuDestroyExternalMemory(object: u64) {
        external::destroy(object, || cuDestroyExternalMemory::real(object))
    }
    fn cuExternalMemoryGetMappedBuffer(address: *mut u64, object: u64, described: *const c_void) {
        if address.is_null() {
            return cuExternalMemoryGetMappedBuffer::real(address, object, described);
        }
        let call = || made(|address| cuExternalMemoryGetMappedBuffer::real(address, object, described));
        answer(address, external::map(Mapping::Buffer, object, call, cuMemFree_v2::real))
    }
    fn cuExternalMemoryGetMappedMipmappedArray(array: *mut u64, object: u64, described: *const c_void) {
        if array.is_null() {
            return cuExternalMemoryGetMappedMipmappedArray::real(array, object, described);
        }
        let call = || made(|array| cuExternalMemoryGetMappedMipmappedArray::real(array, object, described));
        answer(array, external::map(Mapping::Array, object, call, cuMipmappedArrayDestroy::real))
    }
}
