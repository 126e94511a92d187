/* Launches as fast as it can for some time; says "ok" and how many launches it made.
   usage: shim_share KIND NANOSECONDS BLOCKS MILLISECONDS [CARD CURRENT]
   CARD has the streams; CURRENT is the card of the current context during launches, or "none". */
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "copies.h"

typedef void *Handle;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(Handle *, int), cuCtxSetCurrent(Handle);
extern int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
extern int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
extern int cuLaunchKernel_ptsz(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
extern int cuLaunchCooperativeKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **);
typedef struct {
    unsigned gx, gy, gz, bx, by, bz, shared;
    Handle stream;
    void *attributes;
    unsigned count;
} Config;
extern int cuLaunchKernelEx(const Config *, Handle, void **, void **);
extern int cuStreamCreate(Handle *, unsigned), cuStreamSynchronize(Handle), cuCtxSynchronize(void);
extern int cuStreamBeginCapture_v2(Handle, unsigned), cuStreamEndCapture(Handle, Handle *);
extern int cuGraphInstantiateWithFlags(Handle *, Handle, unsigned long long), cuGraphLaunch(Handle, Handle);
extern int cuMemcpyHtoD_v2(uint64_t, const void *, size_t), cuMemcpyDtoH_v2(void *, uint64_t, size_t);
extern int cuMemsetD8Async(uint64_t, unsigned char, size_t, Handle);
extern int cuMemcpyAsync(uint64_t, uint64_t, size_t, Handle), cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, Handle);
extern int cuMemcpyPeerAsync(uint64_t, Handle, uint64_t, Handle, size_t, Handle);
extern int cuMemAllocManaged(uint64_t *, size_t, unsigned), cuMemPrefetchAsync(uint64_t, size_t, int, Handle);
extern int cuLibraryLoadData(Handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
extern int cuLibraryGetKernel(Handle *, Handle, const char *);
typedef struct {
    size_t x, y;
    unsigned kind;
    const void *host;
    uint64_t device;
    Handle array;
    size_t pitch;
} Side;
typedef struct {
    Side source, target;
    size_t width, height;
} Rows;
extern int cuMemcpy2DAsync_v2(const Rows *, Handle);

enum { STREAMS = 4, NODES = 8 };

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static Handle context, function, streams[STREAMS], graph, executable;
static int card;
static unsigned blocks;
static uint64_t length, buffer, second, managed, number;
static size_t bytes;
static Ground on;

/* One launch each, of a form that the name says. */
static int plain(void)
{
    void *parameters[] = { &length };
    return cuLaunchKernel(function, blocks, 1, 1, 64, 1, 1, 0, streams[0], parameters, NULL);
}

static int per_thread(void)
{
    void *parameters[] = { &length };
    return cuLaunchKernel_ptsz(function, blocks, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL);
}

static int legacy(void)
{
    void *parameters[] = { &length };
    return cuLaunchKernel(function, blocks, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL);
}

static int described(void)
{
    void *parameters[] = { &length };
    Config config = { blocks, 1, 1, 64, 1, 1, 0, streams[1], NULL, 0 };
    return cuLaunchKernelEx(&config, function, parameters, NULL);
}

static int cooperative(void)
{
    void *parameters[] = { &length };
    return cuLaunchCooperativeKernel(function, blocks, 1, 1, 64, 1, 1, 0, streams[2], parameters);
}

static int graphs(void) { return cuGraphLaunch(executable, streams[0]); }

static int sets(void) { return cuMemsetD8Async(buffer, 1, bytes, streams[3]); }

/* Copies, rows and prefetches that name their stream. */
static int moves(void)
{
    const Rows rows = { { .kind = 2, .device = buffer }, { .kind = 2, .device = second }, bytes, 1 };
    switch (number % 5) {
    case 0: return cuMemcpyAsync(second, buffer, bytes, streams[0]);
    case 1: return cuMemcpyDtoDAsync_v2(second, buffer, bytes, streams[1]);
    case 2: return cuMemcpyPeerAsync(second, context, buffer, context, bytes, streams[2]);
    case 3: return cuMemcpy2DAsync_v2(&rows, streams[3]);
    default: return cuMemPrefetchAsync(managed, bytes, card, streams[0]);
    }
}

/* Half of them to the card and back to the host, each of which the program waits for. */
static int copies(void)
{
    static char content[1 << 16];
    return number % 2 ? cuMemcpyHtoD_v2(buffer, content, bytes) : cuMemcpyDtoH_v2(content, buffer, bytes);
}

static int arrays(void) { return between_arrays(&on, number); }

static int batches(void) { return in_batches(&on, number); }

/* Four streams, lengths from a tenth to three times, grids of two sizes. */
static int mixed(void)
{
    static const uint64_t tenths[] = { 1, 30, 4, 10, 2 };
    uint64_t one = length * tenths[number % 5] / 10;
    void *parameters[] = { &one };
    unsigned grid = 1 + (unsigned)(number % 5) * blocks;
    return cuLaunchKernel(function, grid, 1, 1, 64, 1, 1, 0, streams[number % STREAMS], parameters, NULL);
}

static int synchronous(void)
{
    int answer = plain();
    return answer ? answer : cuStreamSynchronize(streams[0]);
}

static void capture(void)
{
    Handle one;
    uint64_t whole = length;
    length = whole / NODES;
    CHECK(cuStreamBeginCapture_v2(streams[0], 0) == 0);
    /* A launch that is only written down does not wait, however little the share is. */
    uint64_t begun = now();
    for (int node = 0; node < NODES; node++)
        CHECK(plain() == 0);
    CHECK(now() - begun < 1000000000u);
    CHECK(cuStreamEndCapture(streams[0], &one) == 0);
    CHECK(cuGraphInstantiateWithFlags(&executable, one, 0) == 0);
    graph = one;
    length = whole;
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        int (*launch)(void);
    } kinds[] = { { "plain", plain }, { "per_thread", per_thread }, { "legacy", legacy }, { "described", described },
        { "cooperative", cooperative }, { "graph", graphs }, { "set", sets }, { "move", moves }, { "copy", copies }, { "mixed", mixed }, { "synchronous", synchronous },
        { "array", arrays }, { "batch", batches } };
    CHECK(count == 5 || count == 7);
    length = strtoull(words[2], NULL, 10);
    blocks = (unsigned)strtoul(words[3], NULL, 10);
    uint64_t time = strtoull(words[4], NULL, 10) * 1000000u;
    int (*launch)(void) = NULL;
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        if (strcmp(words[1], kinds[kind].name) == 0)
            launch = kinds[kind].launch;
    CHECK(launch);

    Handle module, other = NULL;
    card = count == 7 ? atoi(words[5]) : 0;
    CHECK(cuInit(0) == 0);
    if (count == 7 && strcmp(words[6], "none") != 0)
        CHECK(cuDevicePrimaryCtxRetain(&other, atoi(words[6])) == 0);
    CHECK(cuDevicePrimaryCtxRetain(&context, card) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuModuleLoadData(&module, "image") == 0 && cuModuleGetFunction(&function, module, "kp") == 0);
    for (int stream = 0; stream < STREAMS; stream++)
        CHECK(cuStreamCreate(&streams[stream], 1) == 0);
    if (launch == graphs)
        capture();
    if (launch == sets || launch == copies || launch == moves) {
        /* The card of this test moves ten bytes a microsecond. */
        bytes = length / 100;
        CHECK(cuMemAlloc_v2(&buffer, bytes) == 0 && cuMemAlloc_v2(&second, bytes) == 0);
        CHECK(cuMemAllocManaged(&managed, bytes, 1) == 0);
    }
    if (launch == arrays || launch == batches) {
        on = (Ground){ .bytes = length / 100, .stream = streams[1] };
        on.host = malloc(on.bytes);
        CHECK(on.host && ground(&on) == 0);
    }
    if (count == 7) {
        /* A kernel without a context: that is the stream's. */
        CHECK(cuLibraryLoadData(&module, "image", NULL, NULL, 0, NULL, NULL, 0) == 0);
        CHECK(cuLibraryGetKernel(&function, module, "kp") == 0 && cuCtxSetCurrent(other) == 0);
    }
    for (uint64_t until = now() + time; now() < until; number++)
        CHECK(launch() == 0);
    printf("ok %llu\n", (unsigned long long)number);
    return 0;
}
