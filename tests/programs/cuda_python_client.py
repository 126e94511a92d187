"""cuda-bindings, unmodified: the driver API from Python, with a kernel of a told length."""
from cuda.bindings import driver


def ok(answer):
    code, *rest = answer
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return rest[0] if len(rest) == 1 else tuple(rest)


ok(driver.cuInit(0))
assert ok(driver.cuDriverGetVersion()) == 13050
assert ok(driver.cuDeviceGetCount()) == 2
device = ok(driver.cuDeviceGet(0))
assert b"H100" in ok(driver.cuDeviceGetName(64, device))
assert ok(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)) == 132
context = ok(driver.cuCtxCreate(None, 0, device))
free, total = ok(driver.cuMemGetInfo())
pointer = ok(driver.cuMemAlloc(1 << 20))
assert ok(driver.cuMemGetInfo())[0] == free - (1 << 20)
sent = bytes(range(256)) * 16
ok(driver.cuMemcpyHtoD(pointer, sent, len(sent)))
got = bytearray(len(sent))
ok(driver.cuMemcpyDtoH(got, pointer, len(got)))
assert bytes(got) == sent
module = ok(driver.cuModuleLoadData(b"any image\0"))
kernel = ok(driver.cuModuleGetFunction(module, b"k_20000000"))
stream = ok(driver.cuStreamCreate(0))
start, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
ok(driver.cuEventRecord(start, stream))
ok(driver.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
ok(driver.cuEventRecord(end, stream))
assert driver.cuStreamQuery(stream)[0] == driver.CUresult.CUDA_ERROR_NOT_READY
ok(driver.cuStreamSynchronize(stream))
# The events are as late as the machine is busy.
assert 19.5 < ok(driver.cuEventElapsedTime(start, end)) < 2_000
refused, _ = driver.cuMemAlloc(total)
assert refused == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
ok(driver.cuMemFree(pointer))
ok(driver.cuCtxDestroy(context))
print("OK")
