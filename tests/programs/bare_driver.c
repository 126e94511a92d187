/* A driver for one thread that answers at once and does nothing, as libcuda.so.1: what a call through the shim costs more is the shim's own. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint64_t next_address = 0x7f0000000000;
/* Freed ones, of one size; the last one is given out first. */
static uint64_t freed[1 << 20];
static size_t freed_count;
static int a_context;
static void *current;

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { return *version = 13050, 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    for (int at = 0; at < 16; at++)
        uuid[at] = at;
    return device ? 101 : 0;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &a_context, device ? 101 : 0; }
int cuCtxSetCurrent(void *context) { return current = context, 0; }
int cuCtxGetCurrent(void **context) { return *context = current, 0; }
int cuCtxGetDevice(int *device) { return *device = 0, current ? 0 : 201; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    if (freed_count > 0) {
        *address = freed[--freed_count];
        return 0;
    }
    *address = next_address;
    next_address += (bytes + 511) / 512 * 512;
    return bytes ? 0 : 1;
}
int cuMemFree_v2(uint64_t address)
{
    if (freed_count < sizeof freed / sizeof *freed)
        freed[freed_count++] = address;
    return address ? 0 : 1;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = (size_t)80 << 30;
    return 0;
}
