//! The vendor's compute library, CUDA, as far as a context needs it: the only place that knows it. Loaded when it is needed, by a
//! process that is there for nothing else.

// UNSAFETY: the vendor's functions are C, found by name at run time, and write where pointers say.
#![expect(unsafe_code, reason = "raw calls of the vendor's library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::mem::ManuallyDrop;
use std::path::Path;

use aliquot_core::id::CardUuid;
use libloading::Library;

/// Name by which every program finds it.
const LIBRARY: &str = "libcuda.so.1";
/// The only card that this process is to see.
const FIRST: c_int = 0;
/// CUDA_SUCCESS.
const SUCCESS: c_int = 0;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
type Uuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type AllocatePitch = unsafe extern "C" fn(*mut u64, *mut usize, usize, usize, c_uint) -> c_int;
type AllocateManaged = unsafe extern "C" fn(*mut u64, usize, c_uint) -> c_int;
type Fill = unsafe extern "C" fn(u64, u8, usize) -> c_int;
type Synchronize = unsafe extern "C" fn() -> c_int;
type CreateArray = unsafe extern "C" fn(*mut u64, *const ArrayShape) -> c_int;
type Release = unsafe extern "C" fn(c_int) -> c_int;
type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// Why there is no context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoContext {
    /// The library cannot be loaded.
    #[error("{0}")]
    NotLoaded(String),
    /// It lacks a function.
    #[error("{LIBRARY} has no {0}")]
    NoFunction(&'static str),
    /// It answered with an error.
    #[error("{call}: {name}")]
    Code {
        /// Function.
        call: &'static str,
        /// The vendor's name of the answer.
        name: String,
    },
    /// It shows other cards than that one.
    #[error("found {found}, expected card {expected} alone")]
    OtherCard {
        /// What it shows.
        found: String,
        /// What it is to show.
        expected: CardUuid,
    },
}

/// The primary context of this process on its only card, until dropped.
#[derive(Debug)]
pub struct Context {
    /// Never unloaded: it may have threads of its own.
    library: ManuallyDrop<Library>,
    device: c_int,
    handle: *mut c_void,
}

/// An allocation that is there until the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// `cuMemAlloc` of this many bytes.
    Linear(usize),
    /// `cuMemAllocPitch` of rows: bytes of a row, and rows.
    Pitched(usize, usize),
    /// `cuMemAllocManaged` of this many bytes, written once by the card.
    Managed(usize),
    /// `cuArrayCreate` of 32-bit floats: width and height.
    Array(usize, usize),
}

/// `CUDA_ARRAY_DESCRIPTOR`
#[repr(C)]
struct ArrayShape {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// CU_AD_FORMAT_FLOAT
const FLOAT: c_uint = 0x20;
/// Bytes of an element of pitched rows.
const ELEMENT: c_uint = 4;
/// CU_MEM_ATTACH_GLOBAL
const ATTACH_GLOBAL: c_uint = 1;

// === impl Context ===

impl Context {
    /// Makes it on this card or MIG instance. `CUDA_VISIBLE_DEVICES` of this process names that and nothing else. The library is that
    /// file, or the one that the loader finds.
    ///
    /// # Errors
    /// There is no driver, it shows something else, or it refuses.
    pub fn make(card: &CardUuid, library: Option<&Path>) -> Result<Self, NoContext> {
        // SAFETY: the vendor's library; its constructors are what every program that uses the card runs.
        let library = unsafe { Library::new(library.unwrap_or(Path::new(LIBRARY))) };
        let library = ManuallyDrop::new(library.map_err(|error| NoContext::NotLoaded(error.to_string()))?);
        // SAFETY: the driver's own declaration of this name.
        let init: Init = unsafe { find(&library, "cuInit") }?;
        // SAFETY: no flags are defined but 0.
        check(&library, "cuInit", unsafe { init(0) })?;
        let device = only_device(&library, card)?;
        // SAFETY: the driver's own declaration of this name.
        let retain: Retain = unsafe { find(&library, "cuDevicePrimaryCtxRetain") }?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a place for the handle, and a device that the library gave.
        check(&library, "cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, device) })?;
        Ok(Self { library, device, handle: context })
    }

    /// Allocates device memory, which the process keeps.
    ///
    /// # Errors
    /// The driver refuses, or lacks the function.
    pub fn allocate(&self, probe: Probe) -> Result<(), NoContext> {
        let library = &self.library;
        // SAFETY: the driver's own declaration of this name.
        let set_current: SetCurrent = unsafe { find(library, "cuCtxSetCurrent") }?;
        // SAFETY: a context that is retained.
        check(library, "cuCtxSetCurrent", unsafe { set_current(self.handle) })?;
        let mut made = 0;
        match probe {
            Probe::Linear(bytes) => {
                // SAFETY: the driver's own declaration of this name.
                let allocate: Allocate = unsafe { find(library, "cuMemAlloc_v2") }?;
                // SAFETY: a place for the address.
                check(library, "cuMemAlloc_v2", unsafe { allocate(&raw mut made, bytes) })
            }
            Probe::Pitched(row, rows) => {
                // SAFETY: the driver's own declaration of this name.
                let allocate: AllocatePitch = unsafe { find(library, "cuMemAllocPitch_v2") }?;
                let mut pitch = 0;
                // SAFETY: places for the address and the pitch.
                let answer = unsafe { allocate(&raw mut made, &raw mut pitch, row, rows, ELEMENT) };
                check(library, "cuMemAllocPitch_v2", answer)
            }
            Probe::Managed(bytes) => {
                // SAFETY: the driver's own declaration of this name.
                let allocate: AllocateManaged = unsafe { find(library, "cuMemAllocManaged") }?;
                // SAFETY: a place for the address.
                let answer = unsafe { allocate(&raw mut made, bytes, ATTACH_GLOBAL) };
                check(library, "cuMemAllocManaged", answer)?;
                self.fill(made, bytes)
            }
            Probe::Array(width, height) => {
                let shape = ArrayShape { width, height, format: FLOAT, channels: 1 };
                // SAFETY: the driver's own declaration of this name.
                let create: CreateArray = unsafe { find(library, "cuArrayCreate_v2") }?;
                // SAFETY: a place for the handle, and a description that it reads.
                check(library, "cuArrayCreate_v2", unsafe { create(&raw mut made, &raw const shape) })
            }
        }
    }
}

impl Context {
    /// Has the card write managed memory, which makes it resident there.
    fn fill(&self, address: u64, bytes: usize) -> Result<(), NoContext> {
        let library = &self.library;
        // SAFETY: the driver's own declaration of this name.
        let fill: Fill = unsafe { find(library, "cuMemsetD8_v2") }?;
        // SAFETY: an allocation of so many bytes.
        check(library, "cuMemsetD8_v2", unsafe { fill(address, 0, bytes) })?;
        // SAFETY: the driver's own declaration of this name.
        let synchronize: Synchronize = unsafe { find(library, "cuCtxSynchronize") }?;
        // SAFETY: a context is current.
        check(library, "cuCtxSynchronize", unsafe { synchronize() })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the driver's own declaration of this name.
        if let Ok(release) = unsafe { find::<Release>(&self.library, "cuDevicePrimaryCtxRelease_v2") } {
            // SAFETY: retained once, and released once. What it answers changes nothing: the process ends.
            unsafe { release(self.device) };
        }
    }
}

/// The device that the library shows, if it is the card.
fn only_device(library: &Library, card: &CardUuid) -> Result<c_int, NoContext> {
    let (mut count, mut device, mut uuid) = (0, 0, [0; 16]);
    // SAFETY: the driver's own declaration of this name.
    let get_count: Count = unsafe { find(library, "cuDeviceGetCount") }?;
    // SAFETY: a place for a number.
    check(library, "cuDeviceGetCount", unsafe { get_count(&raw mut count) })?;
    let other = |found: String| Err(NoContext::OtherCard { found, expected: card.clone() });
    if count != 1 {
        return other(format!("{count} cards"));
    }
    // SAFETY: the driver's own declaration of this name.
    let get: Get = unsafe { find(library, "cuDeviceGet") }?;
    // SAFETY: a place for a number, and a number below the count.
    check(library, "cuDeviceGet", unsafe { get(&raw mut device, FIRST) })?;
    // SAFETY: the driver's own declaration of this name.
    let get_uuid: Uuid = unsafe { find(library, "cuDeviceGetUuid_v2") }?;
    // SAFETY: a place for sixteen bytes, and a device that the library gave.
    check(library, "cuDeviceGetUuid_v2", unsafe { get_uuid(&raw mut uuid, device) })?;
    let digits = dashed(&uuid);
    // `GPU-` or `MIG-`, and the sixteen bytes.
    let is_same = card.as_str().split_once('-').is_some_and(|(_, of)| of.eq_ignore_ascii_case(&digits));
    if is_same { Ok(device) } else { other(digits) }
}

/// Sixteen bytes as UUIDs are written.
fn dashed(bytes: &[u8; 16]) -> String {
    let mut text = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a String cannot fail.
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok(), "text takes what is written");
    }
    text
}

/// A function of the library.
///
/// # Safety
/// `F` is the type that the vendor declares for this name.
unsafe fn find<F: Copy>(library: &Library, name: &'static str) -> Result<F, NoContext> {
    // SAFETY: the caller's promise. The pointer does not outlive the library: both are used here alone, while it is loaded.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|function| *function).map_err(|_| NoContext::NoFunction(name))
}

fn check(library: &Library, call: &'static str, code: c_int) -> Result<(), NoContext> {
    if code == SUCCESS { Ok(()) } else { Err(NoContext::Code { call, name: name_of(library, code) }) }
}

/// The driver's name of an answer.
fn name_of(library: &Library, code: c_int) -> String {
    let number = || format!("error {code}");
    // SAFETY: the driver's own declaration of this name.
    let Ok(name) = (unsafe { find::<ErrorName>(library, "cuGetErrorName") }) else { return number() };
    let mut text = std::ptr::null();
    // SAFETY: a place for a pointer.
    if unsafe { name(code, &raw mut text) } != SUCCESS || text.is_null() {
        return number();
    }
    // SAFETY: the driver answered with one of its constant texts.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bytes_are_written_as_the_vendor_writes_them() {
        let bytes = [0xa1, 0x1c, 0x0d, 0xe0, 0x51, 0xa0, 0x4c, 0x4d, 0x80, 0, 0, 0, 0, 0, 0, 0x0f];
        assert_eq!(dashed(&bytes), "a11c0de0-51a0-4c4d-8000-00000000000f");
    }
}
