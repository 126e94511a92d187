/* Content that goes every way there is and comes back as it was; what is wrong is refused. Prints OK, or what failed. */
#include "check.h"
#include "copies.h"

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuStreamCreate(void **, unsigned);
int cuMemcpyHtoD_v2(H, const void *, size_t), cuMemcpyDtoH_v2(void *, H, size_t);

enum { BYTES = 4096 };
static char host[BYTES], before[BYTES];

static void fresh(int seed)
{
    for (size_t at = 0; at < BYTES; at++)
        host[at] = before[at] = (char)(at * 31 + seed * 7 + at / 251);
}

/* A wrong entry is told, and nothing of the batch is done. */
static void refusals(const Ground *on)
{
    size_t sizes[] = { 64, BYTES }, first[] = { 0, 2 }, failed = 99;
    H to[] = { on->buffers[1], on->buffers[1] }, from[] = { on->buffers[0], on->buffers[0] + 64 };
    Attributes attributes[2] = { { 1, { 0 }, 0 }, { 1, { 0 }, 0 } };
    CHECK(cuMemcpyBatchAsync(to, from, sizes, 2, attributes, first, 1, &failed, on->stream) == 1 && failed == 1);
    sizes[1] = 64;
    CHECK(cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, first, 2, on->stream) == 1);
    CHECK(cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, first, 3, on->stream) == 1);
    CHECK(cuMemcpyBatchAsync_v2(to, from, sizes, 2, NULL, first, 1, on->stream) == 1);
    CHECK(cuMemcpyBatchAsync_v2(to, from, NULL, (size_t)1 << 60, attributes, first, 1, on->stream) == 1);
    CHECK(cuMemcpyBatchAsync_v2(NULL, from, sizes, (size_t)1 << 60, attributes, first, 1, on->stream) == 1);
    CHECK(cuMemcpyBatchAsync_v2(to, from, sizes, 0, attributes, first, 0, on->stream) == 1);
    CHECK(cuMemcpyBatchAsync_v2(to, from, sizes, 2, attributes, first, 1, NULL) == 1);
    CHECK(cuMemcpy3DBatchAsync_v2((size_t)1 << 60, NULL, 0, on->stream) == 1);
    CHECK(cuMemcpy3DWithAttributesAsync(NULL, 0, on->stream) == 1);
    CHECK(cuMemcpyAtoA_v2(on->arrays[0], 1, on->arrays[1], 0, BYTES) == 1);
    CHECK(cuMemcpy3DPeer(NULL) == 1);
    unsigned long long place = 1;
    CHECK(cuMemPrefetchBatchAsync(to, sizes, 2, &place, first, 1, 0, on->stream) == 0);
    CHECK(cuMemDiscardBatchAsync(to, sizes, 2, 0, on->stream) == 0);
    to[1] = 8;
    CHECK(cuMemDiscardBatchAsync(to, sizes, 2, 0, on->stream) == 1);
}

int main(void)
{
    static Ground on = { .host = host, .bytes = BYTES };
    void *context;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuStreamCreate(&on.stream, 0) == 0 && ground(&on) == 0);
    for (uint64_t call = 0; call < 16; call++) {
        if (call % 8 == 0)
            fresh((int)call);
        CHECK(between_arrays(&on, call) == 0);
        if (call % 8 == 5) {
            CHECK(memcmp(host, before, BYTES) == 0);
            fresh((int)call);
        }
    }
    CHECK(memcmp(host, before, BYTES) == 0);
    for (uint64_t call = 0; call < 16; call++) {
        if (call % 8 == 0) {
            fresh(40 + (int)call);
            CHECK(cuMemcpyHtoD_v2(on.buffers[0], host, BYTES) == 0);
        }
        CHECK(in_batches(&on, call) == 0);
    }
    memset(host, 0, BYTES);
    CHECK(cuMemcpyDtoH_v2(host, on.buffers[0], BYTES) == 0 && memcmp(host, before, BYTES) == 0);
    memset(host, 0, BYTES);
    CHECK(cuMemcpyAtoH_v2(host, on.arrays[1], 0, BYTES) == 0 && memcmp(host, before, BYTES) == 0);
    refusals(&on);
    puts("OK");
    return 0;
}
