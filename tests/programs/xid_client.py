"""nvidia-ml-py in a program that uses the card itself: its second allocation meets an Xid, its third the loss of the card, by the
plan of faults. NVML tells of both, and the allocations answer as without limits."""
import ctypes

import pynvml as nvml

cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
events = nvml.nvmlEventSetCreate()
nvml.nvmlDeviceRegisterEvents(card, nvml.nvmlEventTypeXidCriticalError, events)


def take():
    return cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 20))


def error(call, *arguments):
    try:
        raise SystemExit(f"{call.__name__}: {call(*arguments)}")
    except nvml.NVMLError as refused:
        return refused.value


assert take() == 0 and error(nvml.nvmlEventSetWait_v2, events, 0) == nvml.NVML_ERROR_TIMEOUT
assert take() == 0, "the call goes on"
event = nvml.nvmlEventSetWait_v2(events, 60000)
assert (event.eventType, event.eventData) == (nvml.nvmlEventTypeXidCriticalError, 31), event
assert nvml.nvmlDeviceGetUUID(event.device) == nvml.nvmlDeviceGetUUID(card)
assert take() == 46, "the card is lost"
assert error(nvml.nvmlEventSetWait_v2, events, 60000) == nvml.NVML_ERROR_GPU_IS_LOST
assert error(nvml.nvmlDeviceGetMemoryInfo, card) == nvml.NVML_ERROR_GPU_IS_LOST
nvml.nvmlEventSetFree(events)
nvml.nvmlShutdown()
print("OK")
