/* Stream-ordered pools under a limit. Commands come on standard input, one a line; each is answered by a line:
   "<code>" or "<code> <number>", and "touched" behind it where an out-parameter changed although the call failed.

     alloc <slot> <bytes>          cuMemAllocAsync on the stream
     from <slot> <bytes> <pool>    cuMemAllocFromPoolAsync
     nonsense <handle> <bytes>     the same, from what is no pool
     free <slot>, freeasync <slot> cuMemFree, cuMemFreeAsync
     pool <pool> <device>          cuMemPoolCreate
     hostpool <pool>               the same in host memory
     poolat <pool> <kind> <number> <allocation>   the same at any location, of any kind of allocation
     destroy <pool>, set <pool>, trim <pool> <keep>, keep <pool> <threshold>
     default <pool> <device>, current <pool> <device>   cuDeviceGetDefaultMemPool, cuMemGetMemPool
     context <0|1>                 none is current from now on, or the first card's
     sync                          cuStreamSynchronize
     info                          cuMemGetInfo: free
     work <nanos>                  a kernel of that length; not waited for
     capture <bytes> [<pool>]      an allocation in a capture, which is dropped
     captureown <bytes> [<pool>]   the same in the thread's default stream, by the functions for that
     graph <slot> <bytes> [<kind> <number>]   a graph that allocates, on the first card or there, and frees, instantiated
     launch <slot>, undo <slot>    cuGraphLaunch, cuGraphExecDestroy
     graphtrim                     cuDeviceGraphMemTrim
     storm <seed> <threads> <rounds> <most bytes>   threads that allocate from and free to the current pool, then all free */
#include "opened.h"

static void *stream;
static u64 slots[256], pools[64];

static void answer(int code, u64 out)
{
    printf("%d%s\n", code, code && out != UNTOUCHED ? " touched" : "");
}

static int pool_new(u64 *pool, unsigned kind, int number, unsigned allocation)
{
    struct { unsigned allocation, handles, kind; int number; u64 rest[9]; } props = {allocation, 0, kind, number, {0}};
    return CALL(cuMemPoolCreate, pool, &props);
}

struct storm {
    u64 seed, rounds, most;
    void *context;
    const char *wrong;
};

static void *storm(void *given)
{
    struct storm *me = given;
    u64 held[16] = {0}, random = me->seed * 0x9e3779b97f4a7c15ull + 1;
    void *own = NULL;
    if (CALL(cuCtxSetCurrent, me->context) || CALL(cuStreamCreate, &own, 1u))
        me->wrong = "setup";
    for (u64 round = 0; round < me->rounds && !me->wrong; round++) {
        random = random * 6364136223846793005ull + 1;
        u64 *slot = &held[(random >> 33) % 16];
        if (*slot) {
            int code = random >> 63 ? CALL(cuMemFree_v2, *slot) : CALL(cuMemFreeAsync, *slot, own);
            if (code)
                me->wrong = "free";
            *slot = 0;
        } else {
            u64 out = UNTOUCHED;
            int code = CALL(cuMemAllocAsync, &out, (size_t)((random >> 20) % me->most + 1), own);
            if (code == 0)
                *slot = out;
            else if (code != 2)
                me->wrong = "allocate";
            else if (out != UNTOUCHED)
                me->wrong = "touched";
        }
        if ((random >> 40) % 16 == 0 && CALL(cuStreamSynchronize, own))
            me->wrong = "synchronise";
    }
    for (int i = 0; i < 16; i++)
        if (held[i] && CALL(cuMemFreeAsync, held[i], own))
            me->wrong = "last free";
    return NULL;
}

static void storms(void *context, u64 seed, u64 threads, u64 rounds, u64 most)
{
    pthread_t running[64];
    struct storm given[64];
    const char *wrong = "0";
    for (u64 i = 0; i < threads && i < 64; i++) {
        given[i] = (struct storm){seed + i, rounds, most, context, NULL};
        pthread_create(&running[i], NULL, storm, &given[i]);
    }
    for (u64 i = 0; i < threads && i < 64; i++) {
        pthread_join(running[i], NULL);
        if (given[i].wrong)
            wrong = given[i].wrong;
    }
    printf("%s\n", wrong);
}

int main(void)
{
    char line[256], word[32];
    void *context = NULL, *function = NULL, *module = NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || CALL(cuInit, 0u) || CALL(cuDevicePrimaryCtxRetain, &context, 0) ||
        CALL(cuCtxSetCurrent, context) || CALL(cuStreamCreate, &stream, 1u)) {
        printf("no driver\n");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        u64 a = 0, b = 0, c = 0, d = 0, out = UNTOUCHED;
        if (sscanf(line, "%31s %lu %lu %lu %lu", word, &a, &b, &c, &d) < 1)
            continue;
        if (!strcmp(word, "alloc") || !strcmp(word, "from")) {
            int code = word[0] == 'a' ? CALL(cuMemAllocAsync, &out, (size_t)b, stream)
                                      : CALL(cuMemAllocFromPoolAsync, &out, (size_t)b, pools[c], stream);
            if (!code)
                slots[a] = out;
            answer(code, out);
        } else if (!strcmp(word, "nonsense")) {
            answer(CALL(cuMemAllocFromPoolAsync, &out, (size_t)b, a, stream), out);
        } else if (!strcmp(word, "free")) {
            answer(CALL(cuMemFree_v2, slots[a]), out);
        } else if (!strcmp(word, "freeasync")) {
            answer(CALL(cuMemFreeAsync, slots[a], stream), out);
        } else if (!strcmp(word, "pool")) {
            answer(pool_new(&pools[a], 1, (int)b, 1), out);
        } else if (!strcmp(word, "hostpool")) {
            answer(pool_new(&pools[a], 2, 0, 1), out);
        } else if (!strcmp(word, "poolat")) {
            answer(pool_new(&pools[a], (unsigned)b, (int)c, (unsigned)d), out);
        } else if (!strcmp(word, "destroy")) {
            answer(CALL(cuMemPoolDestroy, pools[a]), out);
        } else if (!strcmp(word, "set")) {
            answer(CALL(cuDeviceSetMemPool, 0, pools[a]), out);
        } else if (!strcmp(word, "default")) {
            answer(CALL(cuDeviceGetDefaultMemPool, &pools[a], (int)b), out);
        } else if (!strcmp(word, "current")) {
            struct { unsigned kind; int number; } place = {1, (int)b};
            answer(CALL(cuMemGetMemPool, &pools[a], &place, 1u), out);
        } else if (!strcmp(word, "context")) {
            answer(CALL(cuCtxSetCurrent, a ? context : NULL), out);
        } else if (!strcmp(word, "trim")) {
            answer(CALL(cuMemPoolTrimTo, pools[a], (size_t)b), out);
        } else if (!strcmp(word, "keep")) {
            answer(CALL(cuMemPoolSetAttribute, pools[a], 4u, &b), out);
        } else if (!strcmp(word, "sync")) {
            answer(CALL(cuStreamSynchronize, stream), out);
        } else if (!strcmp(word, "info")) {
            size_t left = 0, total = 0;
            int code = CALL(cuMemGetInfo_v2, &left, &total);
            printf("%d %zu\n", code, left);
        } else if (!strcmp(word, "query")) {
            answer(CALL(cuStreamQuery, stream), out);
        } else if (!strcmp(word, "work")) {
            char name[32];
            snprintf(name, sizeof name, "k_%lu", a);
            int code = module ? 0 : CALL(cuModuleLoadData, &module, "image");
            code = code ? code : CALL(cuModuleGetFunction, &function, module, name);
            code = code ? code : CALL(cuLaunchKernel, function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, NULL, NULL);
            answer(code, out);
        } else if (!strcmp(word, "capture")) {
            void *graph = NULL;
            int code = CALL(cuStreamBeginCapture_v2, stream, 0u);
            code = code             ? code
                   : b && pools[b] ? CALL(cuMemAllocFromPoolAsync, &out, (size_t)a, pools[b], stream)
                                   : CALL(cuMemAllocAsync, &out, (size_t)a, stream);
            int end = CALL(cuStreamEndCapture, stream, &graph);
            end = end ? end : CALL(cuGraphDestroy, graph);
            answer(code ? code : end, out);
        } else if (!strcmp(word, "captureown")) {
            void *graph = NULL;
            int code = CALL(cuStreamBeginCapture_v2_ptsz, NULL, 0u);
            code = code             ? code
                   : b && pools[b] ? CALL(cuMemAllocFromPoolAsync_ptsz, &out, (size_t)a, pools[b], NULL)
                                   : CALL(cuMemAllocAsync_ptsz, &out, (size_t)a, NULL);
            int end = CALL(cuStreamEndCapture_ptsz, NULL, &graph);
            end = end ? end : CALL(cuGraphDestroy, graph);
            answer(code ? code : end, out);
        } else if (!strcmp(word, "graph")) {
            struct { unsigned allocation, handles, kind; int number; u64 rest[9]; void *access; u64 accesses, bytes, address; }
                given = {1, 0, 1, 0, {0}, NULL, 0, b, 0};
            if (sscanf(line, "%*s %*s %*s %u %d", &given.kind, &given.number) == 1)
                return 1;
            void *graph = NULL, *node = NULL, *last = NULL;
            int code = CALL(cuGraphCreate, &graph, 0u);
            code = code ? code : CALL(cuGraphAddMemAllocNode, &node, graph, NULL, (size_t)0, &given);
            code = code ? code : CALL(cuGraphAddMemFreeNode, &last, graph, &node, (size_t)1, given.address);
            code = code ? code : CALL(cuGraphInstantiateWithFlags, &out, graph, 0ull);
            if (!code)
                slots[a] = out;
            answer(code, out);
        } else if (!strcmp(word, "launch")) {
            answer(CALL(cuGraphLaunch, slots[a], stream), out);
        } else if (!strcmp(word, "undo")) {
            answer(CALL(cuGraphExecDestroy, slots[a]), out);
        } else if (!strcmp(word, "graphtrim")) {
            answer(CALL(cuDeviceGraphMemTrim, 0), out);
        } else if (!strcmp(word, "storm")) {
            storms(context, a, b, c, d);
        } else {
            printf("what is %s\n", word);
            return 1;
        }
    }
    return 0;
}
