"""numba-cuda, unmodified: a kernel compiled here, arrays there and back, a stream, memory information."""
import numpy as np
from numba import cuda


@cuda.jit
def add(a, b, c):
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


device = cuda.get_current_device()
assert b"H100" in device.name if isinstance(device.name, bytes) else "H100" in device.name, device.name
stream = cuda.stream()
host = np.arange(4096, dtype=np.float32)
there = cuda.to_device(host, stream=stream)
other = cuda.to_device(host)
out = cuda.device_array(4096, dtype=np.float32)
add[16, 256, stream](there, other, out)
stream.synchronize()
assert (there.copy_to_host() == host).all()
free, total = cuda.current_context().get_memory_info()
assert 0 < free < total, (free, total)
before = free
big = cuda.device_array(1 << 30, dtype=np.uint8)
free, _ = cuda.current_context().get_memory_info()
assert before - free == 1 << 30, before - free
start, end = cuda.event(), cuda.event()
start.record(stream)
for _ in range(50):
    add[16, 256, stream](there, other, out)
end.record(stream)
end.synchronize()
# At least the kernels' own length: what this program waits for the processor between two launches comes on top.
assert 0.09 < cuda.event_elapsed_time(start, end) < 60_000, cuda.event_elapsed_time(start, end)
print("OK")
