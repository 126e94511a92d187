//! The vendor's numbers and functions that several families use.

// UNSAFETY: the vendor's functions are foreign.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::ffi::c_void;

calls! {
    Cuda;
    /// The card of the current context.
    fn cuCtxGetDevice(device: *mut i32);
    /// Of any context; from 13.0 on.
    fn cuCtxGetDevice_v2(device: *mut i32, context: u64);
    /// The current context; null where there is none.
    fn cuCtxGetCurrent(context: *mut usize);
    /// A number that no other context of the process ever has; from 12.0 on.
    fn cuCtxGetId(context: usize, id: *mut u64);
    /// The card's UUID, or that of its MIG instance where the process sees one.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32);
    /// The card's UUID.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: i32);
    /// 1000 × major + 10 × minor.
    fn cuDriverGetVersion(version: *mut i32);
    /// The card of a stream; from 12.8 on.
    fn cuStreamGetDevice(stream: u64, device: *mut i32);
    /// The context of a stream.
    fn cuStreamGetCtx(stream: u64, context: *mut u64);
    fn cuCtxPushCurrent_v2(context: u64);
    fn cuCtxPopCurrent_v2(context: *mut u64);
    /// Whether a stream is captured: 0 it is not, 1 it is, 2 the capture is spoilt.
    fn cuStreamIsCapturing(stream: u64, status: *mut u32);
    fn cuStreamIsCapturing_ptsz(stream: u64, status: *mut u32);
    /// Exchanges what this thread may do while it captures.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32);
    /// The context of a green one.
    fn cuCtxFromGreenCtx(context: *mut u64, green: u64);
    fn cuDeviceGetAttribute(value: *mut i32, attribute: u32, device: i32);
    /// Cards that the process sees.
    fn cuDeviceGetCount(count: *mut i32);
    fn cuEventCreate(event: *mut u64, flags: u32);
    fn cuEventRecord(event: u64, stream: u64);
    fn cuEventRecord_ptsz(event: u64, stream: u64);
    fn cuEventQuery(event: u64);
    fn cuStreamQuery(stream: u64);
    fn cuStreamQuery_ptsz(stream: u64);
    fn cuEventDestroy_v2(event: u64);
    /// Milliseconds from one event to the other.
    fn cuEventElapsedTime(millis: *mut f32, start: u64, end: u64);
    fn cuDeviceGetDefaultMemPool(pool: *mut u64, device: i32);
    fn cuDeviceGetMemPool(pool: *mut u64, device: i32);
    fn cuDeviceSetMemPool(device: i32, pool: u64);
    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: *mut u64);
    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: *mut u64);
    fn cuMemPoolTrimTo(pool: u64, keep: usize);
    fn cuMemPoolDestroy(pool: u64);
    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: *mut u64);
    fn cuDeviceGraphMemTrim(device: i32);
    fn cuGraphExecDestroy(exec: u64);
    /// Brings an executable graph to its card, as its first launch would.
    fn cuGraphUpload(exec: u64, stream: u64);
    fn cuGraphUpload_ptsz(exec: u64, stream: u64);
    fn cuGraphDestroyNode(node: u64);
    fn cuGraphChildGraphNodeGetGraph(node: u64, graph: *mut u64);
    /// A number that no other stream of the process ever has; from 12.0 on.
    fn cuStreamGetId(stream: u64, id: *mut u64);
    fn cuStreamGetId_ptsz(stream: u64, id: *mut u64);
    /// As many nodes as there is room for; without room, how many there are.
    fn cuGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize);
    fn cuGraphNodeGetType(node: u64, kind: *mut u32);
    fn cuGraphMemAllocNodeGetParams(node: u64, parameters: *mut MemoryNodeParameters);
    fn cuGraphMemFreeNodeGetParams(node: u64, address: *mut u64);
    /// Free and total memory of the current context's card.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: i32);
    fn cuDevicePrimaryCtxRelease_v2(device: i32);
    fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32);
    fn cuCtxGetLimit(value: *mut usize, limit: u32);
    fn cuFuncGetAttribute(value: *mut i32, attribute: u32, function: u64);
    /// From 12.0 on.
    fn cuKernelGetAttribute(value: *mut i32, attribute: u32, kernel: u64, device: i32);
}

calls! {
    Nvml;
    /// The card's UUID as text, or that of a MIG instance.
    fn nvmlDeviceGetUUID(device: *mut c_void, uuid: *mut u8, length: u32);
    /// Of the handle of a MIG device alone.
    fn nvmlDeviceGetGpuInstanceId(device: *mut c_void, id: *mut u32);
    fn nvmlDeviceGetComputeInstanceId(device: *mut c_void, id: *mut u32);
}

/// The vendor's description of a memory node.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryNodeParameters {
    allocation: u32,
    handle_types: u32,
    pub(crate) location_kind: u32,
    pub(crate) location: i32,
    rest: [u64; 9],
    access: u64,
    access_count: u64,
    pub(crate) bytes: u64,
    pub(crate) address: u64,
}

const _: () = assert!(size_of::<MemoryNodeParameters>() == 120);

impl MemoryNodeParameters {
    pub(crate) const EMPTY: Self = Self {
        allocation: 0,
        handle_types: 0,
        location_kind: 0,
        location: 0,
        rest: [0; 9],
        access: 0,
        access_count: 0,
        bytes: 0,
        address: 0,
    };
}

/// CUDA_SUCCESS
pub(crate) const SUCCESS: i32 = 0;
/// CUDA_ERROR_INVALID_VALUE
pub(crate) const INVALID_VALUE: i32 = 1;
/// CUDA_ERROR_OUT_OF_MEMORY
pub(crate) const OUT_OF_MEMORY: i32 = 2;
/// CUDA_ERROR_NOT_SUPPORTED
pub(crate) const NOT_SUPPORTED: i32 = 801;
/// CUDA_ERROR_NOT_PERMITTED
pub(crate) const NOT_PERMITTED: i32 = 800;
/// CUDA_ERROR_NOT_READY
pub(crate) const NOT_READY: i32 = 600;
/// CUDA_ERROR_NOT_FOUND
pub(crate) const NOT_FOUND: i32 = 500;
/// NVML_ERROR_FUNCTION_NOT_FOUND
pub(crate) const NVML_FUNCTION_NOT_FOUND: i32 = 13;

/// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, and so on: what is asked about pools, in bytes.
pub(crate) const POOL_THRESHOLD: u32 = 4;
pub(crate) const POOL_RESERVED: u32 = 5;
pub(crate) const POOL_USED: u32 = 7;
/// The same, 32-bit numbers, from 13.0 on.
pub(crate) const POOL_ALLOCATION: u32 = 9;
pub(crate) const POOL_LOCATION: u32 = 11;
pub(crate) const POOL_LOCATION_KIND: u32 = 12;
/// CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
pub(crate) const GRAPHS_RESERVED: u32 = 2;
/// CU_MEM_LOCATION_TYPE_DEVICE, HOST, INVISIBLE, which is another machine's card, and DEVICE_LOCALITY_DOMAIN.
const LOCATION_DEVICE: u32 = 1;
const LOCATION_HOST: u32 = 2;
const LOCATION_INVISIBLE: u32 = 5;
const LOCATION_DOMAIN: u32 = 6;
/// CU_MEM_ALLOCATION_TYPE_MANAGED
pub(crate) const ALLOCATION_MANAGED: u32 = 2;
/// CU_EVENT_DISABLE_TIMING
pub(crate) const EVENT_WITHOUT_TIME: u32 = 2;
/// CU_STREAM_CAPTURE_MODE_RELAXED
pub(crate) const CAPTURE_RELAXED: u32 = 2;
/// Handles below this name default streams.
const STREAMS: u64 = 3;

/// Which default stream an ABI means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamMode {
    /// The one that waits for the others.
    Legacy,
    /// The calling thread's.
    PerThread,
}

/// Stream of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The stream as the caller named it.
    pub(crate) stream: u64,
    /// Which default stream the call means.
    pub(crate) mode: StreamMode,
}

impl Target {
    /// A stream of a call that means the legacy default stream by 0.
    pub(crate) const fn legacy(stream: u64) -> Self {
        Self { stream, mode: StreamMode::Legacy }
    }

    /// A stream of a call that means the thread's own default stream by 0.
    pub(crate) const fn per_thread(stream: u64) -> Self {
        Self { stream, mode: StreamMode::PerThread }
    }

    /// The stream by a name that is the same from whichever call.
    pub(crate) const fn lane(self) -> u64 {
        match (self.stream, self.mode) {
            (0, StreamMode::Legacy) => 1,
            (0, StreamMode::PerThread) => 2,
            (stream, _) => stream,
        }
    }
}

/// A card, as this process numbers them (`CUdevice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(pub(crate) i32);

/// The card of the current context, if there is one.
pub(crate) fn current_device() -> Option<Device> {
    let mut device = 0;
    (cuCtxGetDevice(&raw mut device)? == SUCCESS).then_some(Device(device))
}

/// The card that has memory of such a location; `None`: none of this machine's. Of none, and of a kind that is not known, it
/// is the current card, or the first.
#[inline(never)]
pub(crate) fn card_of(kind: u32, number: i32) -> Option<Device> {
    match kind {
        LOCATION_DEVICE => Some(Device(number)),
        // The card's number is the first byte.
        LOCATION_DOMAIN => Some(Device(number & 0xff)),
        LOCATION_HOST..=LOCATION_INVISIBLE => None,
        _ => Some(current_or_first()),
    }
}

/// The card of the current context, or the first.
pub(crate) fn current_or_first() -> Device {
    current_device().unwrap_or(Device(0))
}

/// The current context's handle, if there is one.
pub(crate) fn current_context() -> Option<u64> {
    let mut handle = 0;
    if cuCtxGetCurrent(&raw mut handle)? != SUCCESS {
        return None;
    }
    u64::try_from(handle).ok().filter(|handle| *handle != 0)
}

/// What tells the current context from one that had its handle before; `None`: the driver does not say.
pub(crate) fn current_id() -> Option<u64> {
    let mut id = 0;
    (cuCtxGetId(0, &raw mut id)? == SUCCESS).then_some(id).filter(|id| *id != 0)
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

/// While it lives a context is current; then the one that was.
pub(crate) struct CurrentContext {
    is_pushed: bool,
}

impl CurrentContext {
    /// `None`: it cannot be made current.
    pub(crate) fn of(context: u64, current: Option<u64>) -> Option<Self> {
        let is_pushed = current != Some(context);
        if is_pushed && cuCtxPushCurrent_v2(context)? != SUCCESS {
            return None;
        }
        Some(Self { is_pushed })
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = 0;
            let _popped = cuCtxPopCurrent_v2(&raw mut popped);
        }
    }
}

/// Does something with a context current, and puts back the one that was.
pub(crate) fn with_context<R>(context: u64, inside: impl FnOnce() -> Option<R>) -> Option<R> {
    let _inside = CurrentContext::of(context, current_context())?;
    inside()
}

/// Does something that a capture of this thread would forbid, or be spoilt by.
pub(crate) fn relaxed<R>(inside: impl FnOnce() -> R) -> R {
    let mut mode = CAPTURE_RELAXED;
    let exchanged = cuThreadExchangeStreamCaptureMode(&raw mut mode) == Some(SUCCESS);
    let answer = inside();
    if exchanged {
        let _back = cuThreadExchangeStreamCaptureMode(&raw mut mode);
    }
    answer
}

/// Whether a stream is none of the default ones, which are the current context's.
#[inline]
pub(crate) const fn is_named(stream: u64) -> bool {
    stream >= STREAMS
}

/// The card of a stream.
pub(crate) fn device_of(stream: u64) -> Option<Device> {
    if !is_named(stream) {
        return current_device();
    }
    let mut device = 0;
    if cuStreamGetDevice(stream, &raw mut device) == Some(SUCCESS) {
        return Some(Device(device));
    }
    with_context(context_of(stream)?, current_device)
}

/// The card of a context.
pub(crate) fn device_of_context(context: u64) -> Option<Device> {
    let mut device = 0;
    if cuCtxGetDevice_v2(&raw mut device, context) == Some(SUCCESS) {
        return Some(Device(device));
    }
    with_context(context, current_device)
}

/// The context of a stream with a name.
pub(crate) fn context_of(stream: u64) -> Option<u64> {
    let mut context = 0;
    (cuStreamGetCtx(stream, &raw mut context)? == SUCCESS).then_some(context).filter(|context| *context != 0)
}

/// What tells a stream from one that had its handle before; `None`: the driver does not say.
pub(crate) fn stream_id(stream: u64, mode: StreamMode) -> Option<u64> {
    let mut id = 0;
    let answer = match mode {
        StreamMode::Legacy => cuStreamGetId(stream, &raw mut id),
        StreamMode::PerThread => cuStreamGetId_ptsz(stream, &raw mut id),
    };
    (answer? == SUCCESS).then(|| id.wrapping_add(1))
}

/// Whether all is done that was put into a stream, as far as the driver tells.
pub(crate) fn is_at_rest(stream: u64, mode: StreamMode) -> bool {
    let answer = relaxed(|| match mode {
        StreamMode::Legacy => cuStreamQuery(stream),
        StreamMode::PerThread => cuStreamQuery_ptsz(stream),
    });
    answer == Some(SUCCESS)
}

/// Whether work on a stream is written down instead of done.
pub(crate) fn is_capturing(stream: u64, mode: StreamMode) -> bool {
    let mut status = 0;
    let answer = match mode {
        StreamMode::Legacy => cuStreamIsCapturing(stream, &raw mut status),
        StreamMode::PerThread => cuStreamIsCapturing_ptsz(stream, &raw mut status),
    };
    answer == Some(SUCCESS) && status != 0
}

/// All cards that the process sees.
pub(crate) fn devices() -> impl Iterator<Item = Device> {
    let mut count = 0;
    let told = cuDeviceGetCount(&raw mut count) == Some(SUCCESS);
    (0..if told { count } else { 0 }).map(Device)
}

/// The pool that a card's allocations come from.
pub(crate) fn current_pool(device: Device) -> Option<u64> {
    let mut pool = 0;
    (cuDeviceGetMemPool(&raw mut pool, device.0)? == SUCCESS).then_some(pool)
}

/// The pool that a card has of its own.
pub(crate) fn default_pool(device: Device) -> Option<u64> {
    let mut pool = 0;
    (cuDeviceGetDefaultMemPool(&raw mut pool, device.0)? == SUCCESS).then_some(pool)
}
