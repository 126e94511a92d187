"""The vendor's CUDA runtime library, given as the first argument, unmodified: what its first calls return."""
import ctypes
import sys

runtime = ctypes.CDLL(sys.argv[1])
count, free, total = ctypes.c_int(-1), ctypes.c_size_t(), ctypes.c_size_t()
codes = [runtime.cudaGetDeviceCount(ctypes.byref(count)), runtime.cudaSetDevice(0)]
codes.append(runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
print(*codes)
