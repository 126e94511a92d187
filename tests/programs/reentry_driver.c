/* A driver with calls that calls of the same thread may interrupt, as libcuda.so.1: no lock, no heap. Its blocks lie side by
   side, so that accounting by address keeps them in one place. How many blocks are out is `blocks_out`. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 512, BLOCKS = 64, FULL = 2, BAD = 1, BAD_DEVICE = 101 };
static const uint64_t first = 0x7f0000000000;
static uint64_t taken;
static int a_context;
static __thread void *current;

int blocks_out(void) { return __builtin_popcountll(__atomic_load_n(&taken, __ATOMIC_SEQ_CST)); }

int cuInit(unsigned flags) { return flags ? BAD : 0; }
int cuDriverGetVersion(int *version) { return *version = 13050, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    for (int at = 0; at < 16; at++)
        uuid[at] = (unsigned char)at;
    return device ? BAD_DEVICE : 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &a_context, device ? BAD_DEVICE : 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *flags = 0, *active = 1, device ? BAD_DEVICE : 0; }
int cuCtxSetCurrent(void *context) { return current = context, 0; }
int cuCtxGetCurrent(void **context) { return *context = current, 0; }
int cuCtxGetDevice(int *device) { return *device = 0, current ? 0 : 201; }
int cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = *total = (size_t)80 << 30, 0; }

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    uint64_t seen = __atomic_load_n(&taken, __ATOMIC_SEQ_CST), bit;
    if (bytes == 0 || bytes > BLOCK)
        return BAD;
    do {
        if (!~seen)
            return FULL;
        bit = ~seen & (seen + 1);
    } while (!__atomic_compare_exchange_n(&taken, &seen, seen | bit, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    *address = first + BLOCK * (uint64_t)__builtin_ctzll(bit);
    return 0;
}

int cuMemFree_v2(uint64_t address)
{
    uint64_t at = (address - first) / BLOCK;
    if (address < first || at >= BLOCKS)
        return BAD;
    uint64_t bit = (uint64_t)1 << at;
    return __atomic_fetch_and(&taken, ~bit, __ATOMIC_SEQ_CST) & bit ? 0 : BAD;
}
