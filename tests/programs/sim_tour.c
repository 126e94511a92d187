/* Walks through the driver API by direct linking: memory of every kind, order, time, graphs. Prints OK, or what failed. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t H;

CUresult cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(H *, int), cuDevicePrimaryCtxRelease_v2(int);
CUresult cuCtxSetCurrent(H), cuMemGetInfo_v2(size_t *, size_t *), cuMemAlloc_v2(H *, size_t), cuMemFree_v2(H);
CUresult cuMemAllocPitch_v2(H *, size_t *, size_t, size_t, unsigned), cuMemAllocManaged(H *, size_t, unsigned);
CUresult cuMemcpyHtoD_v2(H, const void *, size_t), cuMemcpyDtoH_v2(void *, H, size_t), cuMemcpyDtoD_v2(H, H, size_t);
CUresult cuMemsetD32_v2(H, unsigned, size_t), cuMemAllocAsync(H *, size_t, H), cuMemFreeAsync(H, H);
CUresult cuStreamCreate(H *, unsigned), cuStreamSynchronize(H), cuStreamQuery(H), cuStreamDestroy_v2(H);
CUresult cuEventCreate(H *, unsigned), cuEventRecord(H, H), cuEventElapsedTime(float *, H, H), cuEventSynchronize(H);
CUresult cuModuleLoadData(H *, const void *), cuModuleGetFunction(H *, H, const char *), cuModuleUnload(H);
CUresult cuLaunchKernel(H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
CUresult cuStreamBeginCapture_v2(H, int), cuStreamEndCapture(H, H *), cuGraphInstantiateWithFlags(H *, H, uint64_t);
CUresult cuGraphLaunch(H, H), cuGraphExecDestroy(H), cuGraphDestroy(H), cuDeviceGraphMemTrim(int);
CUresult cuLaunchHostFunc(H, void (*)(void *), void *), cuGetErrorName(CUresult, const char **);
CUresult cuMemCreate(H *, size_t, const void *, uint64_t), cuMemRelease(H), cuMemAddressReserve(H *, size_t, size_t, H, uint64_t);
CUresult cuMemMap(H, size_t, size_t, H, uint64_t), cuMemUnmap(H, size_t), cuMemAddressFree(H, size_t);
CUresult cuMemRetainAllocationHandle(H *, H), cuArrayCreate_v2(H *, const void *), cuArrayDestroy(H), cuMemcpyDtoH_v2(void *, H, size_t);
CUresult cuCtxSynchronize(void), cuGraphGetNodes(H, H *, size_t *), cuGraphNodeGetType(H, unsigned *);
CUresult cuMemsetD32Async(H, unsigned, size_t, H);

static int failures;
#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); failures++; } } while (0)
#define OK(call) do { int r = (call); if (r) { const char *n = "?"; cuGetErrorName(r, &n); printf("line %d: %s: %s\n", __LINE__, #call, n); failures++; } } while (0)

static void called(void *flag) { *(volatile int *)flag = 1; }
static size_t used(void) { size_t f, t; OK(cuMemGetInfo_v2(&f, &t)); return t - f; }

static void memory(void) {
    size_t before = used(), pitch;
    H a, b, p, m, v, h, h2, arr;
    uint32_t in[256], out[256];
    OK(cuMemAlloc_v2(&a, 1000));
    CHECK(used() == before + 1024);
    OK(cuMemAlloc_v2(&b, 1 << 20));
    OK(cuMemAllocPitch_v2(&p, &pitch, 100, 10, 4));
    CHECK(pitch == 512 && used() == before + 1024 + (1 << 20) + 5120);
    for (int i = 0; i < 256; i++) in[i] = i * 7;
    OK(cuMemcpyHtoD_v2(b + 4096, in, sizeof in));
    OK(cuMemcpyDtoD_v2(b, b + 4096, sizeof in));
    OK(cuMemcpyDtoH_v2(out, b, sizeof out));
    CHECK(!memcmp(in, out, sizeof in));
    OK(cuMemsetD32_v2(b, 0xabcd1234, 256));
    OK(cuMemcpyDtoH_v2(out, b, sizeof out));
    CHECK(out[0] == 0xabcd1234 && out[255] == 0xabcd1234);
    CHECK(cuMemcpyDtoH_v2(out, a + 900, 200) == 1);
    CHECK(cuMemcpyHtoD_v2(b, (void *)8, 64) == 1);
    CHECK(cuMemFree_v2(a + 1) == 1 && cuMemFree_v2(0xdead000) == 1);
    OK(cuMemAllocManaged(&m, 4096, 1));
    *(uint32_t *)m = 42;
    OK(cuMemcpyDtoH_v2(out, m, 4));
    CHECK(out[0] == 42);
    CHECK(cuMemAlloc_v2(&v, (size_t)200 << 30) == 2);
    OK(cuMemFree_v2(a)); OK(cuMemFree_v2(b)); OK(cuMemFree_v2(p)); OK(cuMemFree_v2(m));
    CHECK(used() == before);
    struct { unsigned kind, types, ltype; int id; void *w; char f[8]; } prop = {1, 0, 1, 0, 0, {0}};
    OK(cuMemCreate(&h, 4 << 20, &prop, 0));
    OK(cuMemAddressReserve(&v, 8 << 20, 0, 0, 0));
    OK(cuMemMap(v, 4 << 20, 0, h, 0));
    OK(cuMemcpyHtoD_v2(v + 100, in, sizeof in));
    OK(cuMemRetainAllocationHandle(&h2, v));
    CHECK(h2 == h);
    OK(cuMemRelease(h)); OK(cuMemRelease(h));
    CHECK(used() == before + (4 << 20));
    OK(cuMemcpyDtoH_v2(out, v + 100, sizeof out));
    CHECK(!memcmp(in, out, sizeof in));
    CHECK(cuMemAddressFree(v, 8 << 20) == 1);
    OK(cuMemUnmap(v, 4 << 20));
    CHECK(used() == before);
    OK(cuMemAddressFree(v, 8 << 20));
    CHECK(cuMemRelease(h) == 1);
    struct { size_t w, h; unsigned format, channels; } flat = {1000, 0, 0x20, 4};
    OK(cuArrayCreate_v2(&arr, &flat));
    /* One row takes the room of eight. */
    CHECK(used() == before + 2 * 65536);
    OK(cuArrayDestroy(arr));
    CHECK(cuArrayDestroy(arr) == 400);
    CHECK(used() == before);
}

static void pools(void) {
    H a, b, s;
    size_t before = used();
    OK(cuStreamCreate(&s, 1));
    OK(cuMemAllocAsync(&a, 1 << 20, s));
    CHECK(used() == before + (32 << 20));
    OK(cuMemAllocAsync(&b, 16 << 20, s));
    CHECK(used() == before + (32 << 20));
    OK(cuMemFreeAsync(a, s)); OK(cuMemFree_v2(b));
    CHECK(used() == before + (32 << 20));
    OK(cuStreamSynchronize(s));
    CHECK(used() == before);
    /* Sizes that no room is large enough for, also once they are whole units. */
    CHECK(cuMemAllocAsync(&a, (size_t)-1, s) == 2 && cuMemAllocAsync(&a, (size_t)-512, s) == 2);
    CHECK(used() == before);
    OK(cuStreamDestroy_v2(s));
}

static void time_passes(void) {
    H m, k, per, par, s, e1, e2, g, x, a, scratch;
    unsigned seven;
    float ms = 0;
    volatile int flag = 0;
    uint64_t length = 3000000;
    void *params[] = {&length};
    OK(cuMemAlloc_v2(&scratch, 512));
    OK(cuMemsetD32_v2(scratch, 3, 16));
    OK(cuModuleLoadData(&m, "any image"));
    OK(cuModuleGetFunction(&k, m, "k_5000000"));
    OK(cuModuleGetFunction(&per, m, "kb_100000"));
    OK(cuModuleGetFunction(&par, m, "kp"));
    OK(cuStreamCreate(&s, 1));
    OK(cuEventCreate(&e1, 0)); OK(cuEventCreate(&e2, 0));
    OK(cuEventRecord(e1, s));
    OK(cuLaunchKernel(k, 1, 1, 1, 32, 1, 1, 0, s, 0, 0));
    OK(cuLaunchKernel(per, 20, 1, 1, 32, 1, 1, 0, s, 0, 0));
    OK(cuLaunchKernel(par, 1, 1, 1, 32, 1, 1, 0, s, params, 0));
    OK(cuEventRecord(e2, s));
    CHECK(cuStreamQuery(s) == 600);
    CHECK(cuEventElapsedTime(&ms, e1, e2) == 600);
    OK(cuLaunchHostFunc(s, called, (void *)&flag));
    OK(cuStreamSynchronize(s));
    CHECK(flag == 1);
    OK(cuEventElapsedTime(&ms, e1, e2));
    CHECK(ms > 9.99f && ms < 10.2f);
    CHECK(cuLaunchKernel(k, 0, 1, 1, 32, 1, 1, 0, s, 0, 0) == 1);
    CHECK(cuLaunchKernel(0x1234, 1, 1, 1, 32, 1, 1, 0, s, 0, 0) == 400);
    OK(cuStreamBeginCapture_v2(s, 0));
    OK(cuLaunchKernel(k, 1, 1, 1, 32, 1, 1, 0, s, 0, 0));
    OK(cuLaunchKernel(k, 1, 1, 1, 32, 1, 1, 0, s, 0, 0));
    OK(cuMemsetD32Async(scratch, 7, 16, s));
    OK(cuMemAllocAsync(&a, 1 << 20, s));
    OK(cuMemFreeAsync(a, s));
    OK(cuStreamEndCapture(s, &g));
    H nodes[8];
    size_t count = 8;
    unsigned kinds[] = {0, 0, 2, 10, 11}, kind;
    OK(cuGraphGetNodes(g, nodes, &count));
    CHECK(count == 5);
    for (size_t i = 0; i < count; i++) { OK(cuGraphNodeGetType(nodes[i], &kind)); CHECK(kind == kinds[i]); }
    size_t before = used();
    OK(cuGraphInstantiateWithFlags(&x, g, 0));
    CHECK(used() == before);
    OK(cuEventRecord(e1, s));
    OK(cuMemcpyDtoH_v2(&seven, scratch, 4));
    CHECK(seven == 3);
    OK(cuGraphLaunch(x, s));
    CHECK(used() == before + (32 << 20));
    OK(cuEventRecord(e2, s));
    OK(cuEventSynchronize(e2));
    OK(cuEventElapsedTime(&ms, e1, e2));
    CHECK(ms > 9.99f && ms < 10.2f);
    OK(cuGraphExecDestroy(x)); OK(cuGraphDestroy(g)); OK(cuDeviceGraphMemTrim(0));
    CHECK(used() == before);
    OK(cuStreamBeginCapture_v2(s, 0));
    CHECK(cuStreamSynchronize(s) == 900);
    CHECK(cuStreamEndCapture(s, &g) == 901);
    OK(cuMemcpyDtoH_v2(&seven, scratch, 4));
    CHECK(seven == 7);
    OK(cuMemFree_v2(scratch));
    OK(cuStreamDestroy_v2(s));
    OK(cuModuleUnload(m));
}

int main(void) {
    int device;
    H context;
    size_t f, t;
    CHECK(cuMemGetInfo_v2(&f, &t) == 3);
    OK(cuInit(0));
    CHECK(cuDeviceGet(&device, 77) == 101);
    OK(cuDeviceGet(&device, 0));
    CHECK(cuMemGetInfo_v2(&f, &t) == 201);
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    memory();
    pools();
    time_passes();
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxRelease_v2(device));
    if (!failures) puts("OK");
    return failures != 0;
}
