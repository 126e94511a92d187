/* A driver for one thread that answers at once and does nothing, as libcuda.so.1: what a call through the shim costs more is the
   shim's own. It counts the calls that it gets. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { POOLS = 64, CONTEXT_GONE = 201, BAD = 1, BAD_DEVICE = 101, RESERVED = 5, USED = 7, LAZY = 2 };

static uint64_t calls, next_address = 0x7f0000000000, held[POOLS];
/* Freed ones, of one size; the last one is given out first. */
static uint64_t freed[1 << 20];
static size_t freed_count;
static unsigned pools = 1;
static int a_context, a_module, active;
static void *current;

/* How often this driver was asked for anything. */
uint64_t bare_calls(void) { return calls; }

#define ENTRY(name, ...) int name(__VA_ARGS__) { calls++;

ENTRY(cuInit, unsigned flags) return flags ? BAD : 0; }
ENTRY(cuDriverGetVersion, int *version) return *version = 13050, 0; }
ENTRY(cuDeviceGetCount, int *count) return *count = 1, 0; }
ENTRY(cuDeviceGetUuid_v2, unsigned char *uuid, int device)
    for (int at = 0; at < 16; at++)
        uuid[at] = at;
    return device ? BAD_DEVICE : 0;
}
ENTRY(cuDeviceGetUuid, unsigned char *uuid, int device) return cuDeviceGetUuid_v2(uuid, device); }
ENTRY(cuDevicePrimaryCtxRetain, void **context, int device) return active = 1, *context = &a_context, device ? BAD_DEVICE : 0; }
ENTRY(cuDevicePrimaryCtxGetState, int device, unsigned *flags, int *is_active)
    *flags = 0;
    *is_active = active;
    return device ? BAD_DEVICE : 0;
}
ENTRY(cuCtxSetCurrent, void *context) return current = context, 0; }
ENTRY(cuCtxGetCurrent, void **context) return *context = current, 0; }
ENTRY(cuCtxGetDevice, int *device) return *device = 0, current ? 0 : CONTEXT_GONE; }

ENTRY(cuMemAlloc_v2, uint64_t *address, size_t bytes)
    if (freed_count > 0) {
        *address = freed[--freed_count];
        return 0;
    }
    *address = next_address;
    next_address += (bytes + 511) / 512 * 512;
    return bytes ? 0 : BAD;
}
ENTRY(cuMemFree_v2, uint64_t address)
    if (freed_count < sizeof freed / sizeof *freed)
        freed[freed_count++] = address;
    return address ? 0 : BAD;
}
ENTRY(cuMemGetInfo_v2, size_t *free_bytes, size_t *total)
    *free_bytes = *total = (size_t)80 << 30;
    return 0;
}

/* A pool takes 32 MiB with its first block, and keeps them. Its handle is the address of what it holds. */
static uint64_t *pool_of(uint64_t handle)
{
    uint64_t *pool = (uint64_t *)(uintptr_t)handle;
    return pool >= held && pool < held + pools ? pool : NULL;
}
ENTRY(cuDeviceGetDefaultMemPool, uint64_t *pool, int device) return *pool = (uintptr_t)held, device ? BAD_DEVICE : 0; }
ENTRY(cuDeviceGetMemPool, uint64_t *pool, int device) return *pool = (uintptr_t)held, device ? BAD_DEVICE : 0; }
ENTRY(cuMemPoolCreate, uint64_t *pool, const void *props)
    if (pools == POOLS || !props)
        return BAD;
    *pool = (uintptr_t)&held[pools++];
    return 0;
}
ENTRY(cuMemPoolGetAttribute, uint64_t handle, unsigned attribute, uint64_t *value)
    uint64_t *pool = pool_of(handle);
    if (!pool || (attribute != RESERVED && attribute != USED))
        return BAD;
    *value = attribute == RESERVED ? *pool : 0;
    return 0;
}
/* As in a real driver, no export goes through another: that would lead through the shim once more. */
static int from_pool(uint64_t *address, size_t bytes, uint64_t handle)
{
    uint64_t *pool = pool_of(handle);
    if (!pool || !bytes)
        return BAD;
    *pool = 32 << 20;
    *address = 0x7e0000000000;
    return 0;
}
ENTRY(cuMemAllocFromPoolAsync, uint64_t *address, size_t bytes, uint64_t handle, void *stream)
    return (void)stream, from_pool(address, bytes, handle);
}
ENTRY(cuMemAllocAsync, uint64_t *address, size_t bytes, void *stream)
    return (void)stream, from_pool(address, bytes, (uintptr_t)held);
}
ENTRY(cuMemFreeAsync, uint64_t address, void *stream) return (void)stream, address ? 0 : BAD; }
ENTRY(cuStreamIsCapturing, void *stream, int *status) return (void)stream, *status = 0, 0; }

ENTRY(cuModuleGetLoadingMode, int *mode) return *mode = LAZY, 0; }
ENTRY(cuModuleLoadData, void **module, const void *image) return *module = &a_module, image ? 0 : BAD; }
ENTRY(cuModuleGetFunction, void **function, void *module, const char *name)
    *function = (char *)module + 16;
    return *name ? 0 : 500;
}
ENTRY(cuGraphLaunch, void *graph, void *stream) return (void)stream, graph ? 0 : BAD; }
