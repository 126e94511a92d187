//! The vendor's numbers and functions that several families use.

// UNSAFETY: the vendor's functions are foreign.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

calls! {
    Cuda;
    /// The card of the current context.
    fn cuCtxGetDevice(device: *mut i32);
    /// The current context; null where there is none.
    fn cuCtxGetCurrent(context: *mut usize);
    /// The card's UUID, or that of its MIG instance where the process sees one.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32);
    /// The card's UUID.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: i32);
    /// 1000 × major + 10 × minor.
    fn cuDriverGetVersion(version: *mut i32);
}

/// CUDA_SUCCESS
pub(crate) const SUCCESS: i32 = 0;
/// CUDA_ERROR_OUT_OF_MEMORY
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// CUDA_ERROR_NOT_FOUND
pub(crate) const NOT_FOUND: i32 = 500;
/// NVML_ERROR_FUNCTION_NOT_FOUND
pub(crate) const NVML_FUNCTION_NOT_FOUND: i32 = 13;

/// A card, as this process numbers them (`CUdevice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(pub(crate) i32);

/// The card of the current context, if there is one.
pub(crate) fn current_device() -> Option<Device> {
    let mut device = 0;
    (cuCtxGetDevice(&raw mut device)? == SUCCESS).then_some(Device(device))
}

/// The current context's handle, if there is one.
pub(crate) fn current_context() -> Option<u64> {
    let mut handle = 0;
    if cuCtxGetCurrent(&raw mut handle)? != SUCCESS {
        return None;
    }
    u64::try_from(handle).ok().filter(|handle| *handle != 0)
}

/// The card's UUID: of the MIG instance where the process sees one.
pub(crate) fn uuid(device: Device) -> Option<[u8; 16]> {
    let mut uuid = [0; 16];
    if cuDeviceGetUuid_v2(&raw mut uuid, device.0) == Some(SUCCESS) {
        return Some(uuid);
    }
    (cuDeviceGetUuid(&raw mut uuid, device.0)? == SUCCESS).then_some(uuid)
}

/// The driver's version.
pub(crate) fn driver_version() -> Option<u32> {
    let mut version = 0;
    if cuDriverGetVersion(&raw mut version)? != SUCCESS {
        return None;
    }
    u32::try_from(version).ok()
}
