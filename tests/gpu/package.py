"""Allocates with a Python package until it refuses or has 1 GiB more than the limit.

Prints `given BYTES total BYTES stopped 0|1`. Exit code 3: the package is not there, or sees no card.
"""

import sys

CHUNK = 64 << 20


def torch_way():
    import torch

    torch.cuda.init()
    take = lambda: torch.empty(CHUNK, dtype=torch.uint8, device="cuda")
    return take, torch.cuda.OutOfMemoryError, torch.cuda.mem_get_info()[1]


def cupy_way():
    import cupy

    cupy.cuda.runtime.getDeviceCount()
    take = lambda: cupy.empty(CHUNK, dtype=cupy.uint8)
    return take, cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.memGetInfo()[1]


def jax_way():
    import os

    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp

    card = jax.devices("gpu")[0]
    # What the card's allocator may use at most; a part of what the driver calls free.
    total = (card.memory_stats() or {}).get("bytes_limit", 0)
    take = lambda: jax.device_put(jnp.zeros(CHUNK, dtype=jnp.uint8), card).block_until_ready()
    return take, Exception, total


def numba_way():
    import numpy
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError

    total = cuda.current_context().get_memory_info().total
    take = lambda: cuda.device_array(CHUNK, dtype=numpy.uint8)
    return take, CudaAPIError, total


def main():
    package, limit = sys.argv[1], int(sys.argv[2])
    ways = {"torch": torch_way, "cupy": cupy_way, "jax": jax_way, "numba": numba_way}
    try:
        take, refused, total = ways[package]()
    except Exception as error:  # noqa: BLE001: whatever it is, there is nothing to measure
        print(f"{type(error).__name__}: {error}".splitlines()[0])
        return 3
    held, stopped = [], 0
    while len(held) * CHUNK < limit + (1 << 30):
        try:
            held.append(take())
        except refused as error:
            if "memory" not in str(error).lower():
                raise
            stopped = 1
            break
    print(f"given {len(held) * CHUNK} total {total} stopped {stopped}")
    return 0


sys.exit(main())
