"""Unmodified clients under the shim. Arguments: which one, and the limit of card 0 in bytes. Each sees the grant, is stopped at
it with the vendor's error, and works on below it."""
import sys

which, limit = sys.argv[1], int(sys.argv[2])

if which == "nvml":
    import pynvml as nvml

    nvml.nvmlInit()
    card, other = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlDeviceGetHandleByIndex(1)
    first = nvml.nvmlDeviceGetMemoryInfo(card)
    second = nvml.nvmlDeviceGetMemoryInfo(card, version=nvml.nvmlMemory_v2)
    assert (first.total, first.free, first.used) == (limit, limit, 0), first
    assert (second.total, second.free, second.used, second.reserved) == (limit, limit, 0, 0), second
    assert nvml.nvmlDeviceGetMemoryInfo(other).free == 0
    assert nvml.nvmlDeviceGetComputeRunningProcesses(card) == []
    nvml.nvmlShutdown()

if which in ("gpustat", "nvitop", "work"):
    import ctypes
    import os

    # This process uses the card; somebody else does, too.
    cuda, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 30)) == 0
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    used = limit - free.value
    assert total.value == limit and used > 1 << 30, (free, total)

if which == "work":
    import time

    import pynvml as nvml

    # A kernel that never ends here, beside somebody else's: half of the card, which is 62.5 percent of the share of 80.
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"k_600000000000") == 0
    assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    nvml.nvmlInit()
    card, calls = nvml.nvmlDeviceGetHandleByIndex(0), ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
    end = time.monotonic() + 60
    for call in calls:
        told = []
        while not (told and 60 <= told[0][1] <= 65):
            assert time.monotonic() < end, (call, told)
            time.sleep(0.01)
            told = [(one.pid, one.smUtil) for one in getattr(nvml, call)(card, 0)]
            assert [pid for pid, _ in told] == [os.getpid()], (call, told)
    # The card's own use is the card's: why one waits is no secret.
    assert nvml.nvmlDeviceGetUtilizationRates(card).gpu == 100
    _, samples = nvml.nvmlDeviceGetSamples(card, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert samples[-1].sampleValue.uiVal == 100, samples[-1]
    nvml.nvmlShutdown()

if which == "gpustat":
    from gpustat import new_query

    card, other = new_query().gpus[:2]
    assert (card.memory_total, card.memory_used) == (limit >> 20, used >> 20), card
    assert [(one["pid"], one["gpu_memory_usage"]) for one in card.processes] == [(os.getpid(), used >> 20)], card.processes
    assert other.memory_free == 0 and not other.processes, other

if which == "nvitop":
    from nvitop import Device

    card, other = Device(0), Device(1)
    assert (card.memory_total(), card.memory_free(), card.memory_used()) == (limit, free.value, used)
    assert {pid: one.gpu_memory() for pid, one in card.processes().items()} == {os.getpid(): used}, card.processes()
    assert other.memory_free() == 0 and other.processes() == {}, other

if which == "cuda":
    from cuda.bindings import driver

    def ok(answer):
        code, *rest = answer
        assert code == driver.CUresult.CUDA_SUCCESS, code
        return rest[0] if len(rest) == 1 else tuple(rest)

    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    context = ok(driver.cuCtxCreate(None, 0, device))
    free, total = ok(driver.cuMemGetInfo())
    assert total == limit == ok(driver.cuDeviceTotalMem(device)) and free <= limit, (free, total)
    code, _ = driver.cuMemAlloc(free + 512)
    assert code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, code
    pointer = ok(driver.cuMemAlloc(free))
    assert ok(driver.cuMemGetInfo())[0] == 0
    ok(driver.cuMemFree(pointer))
    assert ok(driver.cuMemGetInfo()) == (free, total)

if which == "numba":
    import numpy as np
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError

    @cuda.jit
    def add(a, b):
        i = cuda.grid(1)
        if i < b.size:
            b[i] += a[i]

    host = np.arange(4096, dtype=np.float32)
    there, out = cuda.to_device(host), cuda.to_device(host)
    add[16, 256](there, out)
    cuda.synchronize()
    assert (there.copy_to_host() == host).all()
    free, total = cuda.current_context().get_memory_info()
    assert total == limit and 0 < free < limit, (free, total)
    try:
        cuda.device_array(free + (64 << 20), dtype=np.uint8)
        raise SystemExit("more than the grant")
    except CudaAPIError as error:
        assert "OUT_OF_MEMORY" in str(error), error
    held = cuda.device_array(free // 2, dtype=np.uint8)
    assert cuda.current_context().get_memory_info()[0] <= free - free // 2
    del held

print("OK")
