/* Calls that the driver refuses, each wrong in some way: what it answers, a line a call, and "touched" behind it where an
   out-parameter changed. Sizes are more than any limit. What is no address would end the process if it were read. */
#include "external.h"
#include "opened.h"

#define HUGE (1ull << 38)
#define WILD ((void *)8)
#define JUNK 0x1234567000ull

static u64 out;

/* The answer to a call that has `out` for an out-parameter, if any. */
#define TRY(name, ...) do { \
        out = UNTOUCHED; \
        printf("%s:%d ", #name, __LINE__); \
        fflush(stdout); \
        int code = CALL(name, __VA_ARGS__); \
        printf("%d%s\n", code, out != UNTOUCHED ? " touched" : ""); \
    } while (0)

typedef struct { unsigned allocation, handles, kind; int number; u64 rest[9]; } Props;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } Deep;

static void pools(void)
{
    u64 pool = 0, sizes[] = {1, 1000, HUGE};
    Props props = {1, 0, 1, 0, {0}};
    CALL(cuMemPoolCreate, &pool, &props);
    CALL(cuMemPoolDestroy, pool);
    for (int i = 0; i < 3; i++) {
        TRY(cuMemAllocFromPoolAsync, &out, (size_t)sizes[i], (u64)JUNK, NULL);
        TRY(cuMemAllocFromPoolAsync, &out, (size_t)sizes[i], pool, NULL);
        TRY(cuMemAllocFromPoolAsync_ptsz, &out, (size_t)sizes[i], ~0ull, NULL);
        TRY(cuMemAllocFromPoolAsync, &out, (size_t)sizes[i], NULL, NULL);
    }
}

static void sizes(void)
{
    External unknown = {7, {3}, HUGE, 0, {0}}, flagged = {1, {3}, HUGE, 8, {0}}, none = {1, {3}, 0, 0, {0}};
    External reserved = {1, {3}, HUGE, 0, {0, 1}};
    TRY(cuImportExternalMemory, &out, &unknown);
    TRY(cuImportExternalMemory, &out, &flagged);
    TRY(cuImportExternalMemory, &out, &reserved);
    TRY(cuImportExternalMemory, &out, &none);
    TRY(cuMemAllocManaged, &out, (size_t)HUGE, 0u);
    TRY(cuMemAllocManaged, &out, (size_t)HUGE, 7u);
    u64 pitch = 0;
    TRY(cuMemAllocPitch_v2, &out, &pitch, (size_t)1 << 20, (size_t)1 << 20, 5u);
    Deep shapes[] = {
        {0, 1 << 20, 1 << 20, 0x20, 1, 0},
        {1 << 20, 1 << 20, 1 << 10, 0x20, 0, 0},
        {1 << 20, 1 << 20, 1 << 10, 0x20, 9, 0},
        {1 << 20, 1 << 20, 7, 0x20, 1, 4},
    };
    for (int i = 0; i < 4; i++) {
        TRY(cuArray3DCreate_v2, &out, &shapes[i]);
        TRY(cuMipmappedArrayCreate, &out, &shapes[i], 3u);
    }
    TRY(cuArray3DCreate_v2, NULL, WILD);
    TRY(cuMipmappedArrayCreate, NULL, WILD, 1u);
    Props props = {1, 0, 1, 0, {0}}, nowhere = {1, 0, 77, 0, {0}}, absent = {1, 0, 1, 99, {0}};
    TRY(cuMemCreate, &out, (size_t)HUGE + 512, &props, 0ull);
    TRY(cuMemCreate, &out, (size_t)HUGE, &props, 8ull);
    TRY(cuMemCreate, &out, (size_t)HUGE, &nowhere, 0ull);
    TRY(cuMemCreate, &out, (size_t)HUGE, &absent, 0ull);
    TRY(cuMemCreate, &out, (size_t)0, &props, 0ull);
}

static void names(void)
{
    size_t bytes = 0;
    void *places[] = {WILD, (void *)4095, (void *)-1, (void *)(1ull << 46)};
    for (int i = 0; i < 4; i++) {
        TRY(cuModuleGetFunction, &out, (u64)JUNK, places[i]);
        TRY(cuModuleGetGlobal_v2, &out, &bytes, (u64)JUNK, places[i]);
        TRY(cuLibraryGetKernel, &out, (u64)JUNK, places[i]);
        TRY(cuLibraryGetGlobal, &out, &bytes, (u64)JUNK, places[i]);
        TRY(cuLibraryGetManaged, &out, &bytes, (u64)JUNK, places[i]);
        TRY(cuLibraryGetModule, places[i], (u64)JUNK);
        TRY(cuKernelGetFunction, places[i], (u64)JUNK);
    }
    TRY(cuLibraryGetKernel, &out, (u64)JUNK, NULL);
    TRY(cuModuleGetFunction, &out, (u64)JUNK, "no kernel");
}

static void contexts(void)
{
    TRY(cuDevicePrimaryCtxRetain, WILD, 99);
    TRY(cuCtxCreate, WILD, 0u, 99);
    TRY(cuCtxCreate_v2, WILD, 0u, 99);
    TRY(cuCtxCreate_v3, WILD, WILD, -1, 0u, 0);
    TRY(cuCtxCreate_v4, WILD, WILD, 0u, 0);
    TRY(cuGreenCtxCreate, WILD, NULL, 99, 0u);
    TRY(cuGraphInstantiateWithParams, NULL, (u64)JUNK, WILD);
    TRY(cuGraphInstantiateWithFlags, WILD, (u64)JUNK, 0ull);
}

/* Lists of one page, with more entries than there are in any memory. */
static void lists(void)
{
    static u64 list[512] __attribute__((aligned(4096)));
    u64 stream = JUNK;
    size_t counts[] = {513, 1ull << 40, 1ull << 62, -1ull};
    for (int i = 0; i < 4; i++) {
        size_t count = counts[i];
        TRY(cuMemcpyBatchAsync, list, list, list, count, list, list, count, list, stream);
        TRY(cuMemcpyBatchAsync_v2, list, list, list, count, list, list, count, stream);
        TRY(cuMemcpy3DBatchAsync, count, list, list, 0ull, stream);
        TRY(cuMemPrefetchBatchAsync, list, list, count, list, list, count, 0ull, stream);
        TRY(cuMemDiscardBatchAsync, list, list, count, 0ull, stream);
        TRY(cuMemBatchDecompressAsync, list, count, 0u, list, stream);
        TRY(cuMemBatchDecompressAsync, WILD, count, 0u, list, stream);
        TRY(cuMemMapArrayAsync, list, (unsigned)count, stream);
        TRY(cuMemMapArrayAsync, WILD, (unsigned)count, stream);
    }
}

int main(void)
{
    void *context = NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || CALL(cuInit, 0u) || CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context))
        return 1;
    pools();
    sizes();
    names();
    contexts();
    lists();
    printf("end\n");
    return 0;
}
