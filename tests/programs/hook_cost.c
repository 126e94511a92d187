/* What one call costs: the quickest of 200 batches, each short enough to pass between two turns of other programs, in
   nanoseconds; or, in 0 rounds, how many calls the driver gets for it, once it was made before.
   usage: hook_cost WHAT COUNT ROUNDS
     alloc     an allocation and its free, with COUNT live
     replace   a free of any of COUNT and an allocation in its place
     pooled    an allocation and its free in the order of a stream, beside COUNT pools that hold memory
     info, nvml, freeasync, graph, function, lookup
               cuMemGetInfo, nvmlDeviceGetMemoryInfo, cuMemFreeAsync, cuGraphLaunch, cuModuleGetFunction of a function that was had
               before, dlsym of a hooked name: with a context, a module, a pool that holds nothing, and COUNT that hold memory */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { unsigned long total, free, used; } Memory;

extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t);
extern int cuMemGetInfo_v2(size_t *, size_t *), cuGraphLaunch(void *, void *);
extern int cuMemAllocAsync(uint64_t *, size_t, void *), cuMemFreeAsync(uint64_t, void *);
extern int cuMemPoolCreate(uint64_t *, const void *), cuMemAllocFromPoolAsync(uint64_t *, size_t, uint64_t, void *);
extern int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
extern uint64_t bare_calls(void);

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static uint64_t *live;
static size_t count;
static uint64_t state = 0x9e3779b97f4a7c15;
static void *module, *cuda;
static int (*told)(void *, Memory *);

static int prepare_live(void)
{
    live = calloc(count + 1, sizeof *live);
    for (size_t at = 0; at < count; at++)
        if (cuMemAlloc_v2(&live[at], 4096))
            return 1;
    return 0;
}

static int prepare_pools(void)
{
    struct { unsigned allocation, handles, kind; int number; uint64_t rest[9]; } props = {1, 0, 1, 0, {0}};
    uint64_t pool = 0, block = 0;
    void *function = NULL;
    if (cuMemPoolCreate(&pool, &props) || cuModuleLoadData(&module, "image") || cuModuleGetFunction(&function, module, "kernel"))
        return 1;
    for (size_t at = 0; at < count; at++)
        if (cuMemPoolCreate(&pool, &props) || cuMemAllocFromPoolAsync(&block, 1, pool, NULL))
            return 1;
    return 0;
}

static int prepare_nvml(void)
{
    Memory memory;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library)
        told = (int (*)(void *, Memory *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    return !cuda || !told || told(&state, &memory);
}

static int alloc(void)
{
    uint64_t made = 0;
    int wrong = cuMemAlloc_v2(&made, 4096);
    return wrong | cuMemFree_v2(made);
}

static int replace(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t *place = &live[(state >> 33) % count];
    int wrong = cuMemFree_v2(*place);
    return wrong | cuMemAlloc_v2(place, 4096);
}

static int pooled(void)
{
    uint64_t made = 0;
    int wrong = cuMemAllocAsync(&made, 4096, NULL);
    return wrong | cuMemFreeAsync(made, NULL);
}

static int info(void)
{
    size_t left, total;
    return cuMemGetInfo_v2(&left, &total) | (left > total);
}

static int nvml(void)
{
    Memory memory;
    return told(&state, &memory) | (memory.free > memory.total);
}

static int freeasync(void) { return cuMemFreeAsync(0x7e0000000000, NULL); }
static int graph(void) { return cuGraphLaunch(&state, NULL); }
static int lookup(void) { return !dlsym(cuda, "cuMemGetInfo_v2"); }

static int function(void)
{
    void *found;
    return cuModuleGetFunction(&found, module, "kernel");
}

static const struct { const char *name; int (*once)(void); } WAYS[] = {
    {"alloc", alloc}, {"replace", replace}, {"pooled", pooled}, {"info", info}, {"nvml", nvml},
    {"freeasync", freeasync}, {"graph", graph}, {"function", function}, {"lookup", lookup},
};

int main(int arguments_count, char **arguments)
{
    void *context = NULL;
    double best = 1e30;
    if (arguments_count < 4 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    int (*once)(void) = NULL;
    for (size_t at = 0; at < sizeof WAYS / sizeof *WAYS; at++)
        if (!strcmp(WAYS[at].name, arguments[1]))
            once = WAYS[at].once;
    count = strtoull(arguments[2], NULL, 10);
    size_t rounds = strtoull(arguments[3], NULL, 10);
    int is_plain = once == alloc || once == replace;
    if (!once || (is_plain ? prepare_live() : prepare_pools() || prepare_nvml()))
        return 1;
    int wrong = once();
    if (rounds == 0) {
        uint64_t before = bare_calls();
        wrong |= once();
        printf("%lu\n", bare_calls() - before);
        return wrong != 0;
    }
    for (int batch = 0; batch < 200; batch++) {
        double begun = now();
        for (size_t at = 0; at < rounds; at++)
            wrong |= once();
        double took = (now() - begun) / rounds;
        best = took < best ? took : best;
    }
    printf("%.2f\n", best);
    return wrong != 0;
}
