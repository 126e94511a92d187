/* Graphs with memory nodes. Commands come on standard input, one a line; each is answered by a line:
   "<code>" or "<code> <number>", and "touched" behind it where an out-parameter changed although the call failed.

     left <slot> <bytes> <flags>           a graph that allocates and frees nothing, instantiated with these flags
     inside <slot> <bytes>                 one that frees what it allocates
     chain <slot> <bytes> <count>          each allocation is freed before the next one is made
     wide <slot> <bytes> <count>           all allocations are there at once, and freed then
     many <slot> <bytes> <count>           the same, by nodes without order
     child <slot> <bytes> <depth>          one that frees what it allocates, moved into a graph with some nodes, that into another one, ...; 0 bytes: none
     captured <slot> <bytes>               an allocation, captured
     beside <slot> <other> <bytes>         a launch of the other one, and an allocation behind it, captured
     upload-at-once <slot> <bytes> <stream>   cuGraphInstantiateWithParams
     freeing <slot> <other>                a graph that frees what the other one allocates
     again <slot>, clone <slot>, embed <slot>, remove <slot>, double <slot>   what the vendor refuses of a graph with memory
                                           nodes: a second instantiation, a copy, a child that is not moved, the removal of a
                                           node, a second free
                                           stream 9 is the thread's default one, by the functions for that
     launch <slot> <stream>, upload <slot> <stream>, undo <slot>, free <slot>, trim
     update <slot> <bytes> <version>       cuGraphExecUpdate, _v2: with the nodes of one that frees what it allocates
     capture-launch <slot> <stream>        a launch into a capture, which is dropped
     crowd <count> <bytes>                 so many of `inside`; how many there were until one was refused, and its code
     renew <stream>                        another stream in its place, with its handle where the driver gives that again
     busy <stream> <nanos>, sync <stream>  a kernel of that length
     alloc <slot> <bytes>, release <slot>  cuMemAlloc, cuMemFree
     info                                  cuMemGetInfo: free
     reset                                 cuDevicePrimaryCtxReset */
#include "opened.h"

enum { SLOTS = 64, STREAMS = 4, OWN = 9, BESIDE = 3 };

typedef struct { unsigned allocation, handles, kind; int number; u64 rest[9]; } Props;
typedef struct { Props pool; void *access; u64 accesses, bytes, address; } Node;
typedef struct { unsigned kind, reserved[3]; u64 body[30]; } Any;
typedef struct { u64 flags; void *stream; void *failed; unsigned result, padding; } Instantiation;

static void *streams[STREAMS], *graphs[SLOTS], *execs[SLOTS], *function;
static u64 addresses[SLOTS], blocks[SLOTS];

static void answer(int code, u64 out)
{
    printf("%d%s\n", code, code && out != UNTOUCHED ? " touched" : "");
}

static int add(void **node, void *graph, void *after, u64 bytes, u64 *address)
{
    Node given = {{1, 0, 1, 0, {0}}, NULL, 0, bytes, 0};
    int code = CALL(cuGraphAddMemAllocNode, node, graph, &after, (size_t)(after != NULL), &given);
    *address = given.address;
    return code;
}

static int add_free(void **node, void *graph, void *after, u64 address)
{
    return CALL(cuGraphAddMemFreeNode, node, graph, &after, (size_t)(after != NULL), address);
}

static int inside(void **graph, u64 bytes, u64 *address)
{
    void *node = NULL, *last = NULL;
    int code = CALL(cuGraphCreate, graph, 0u);
    code = code ? code : add(&node, *graph, NULL, bytes, address);
    return code ? code : add_free(&last, *graph, node, *address);
}

static int chain(void **graph, u64 bytes, u64 count, u64 *address)
{
    void *node = NULL, *last = NULL;
    int code = CALL(cuGraphCreate, graph, 0u);
    while (!code && count--) {
        code = add(&node, *graph, last, bytes, address);
        code = code ? code : add_free(&last, *graph, node, *address);
    }
    return code;
}

static int wide(void **graph, u64 bytes, u64 count, int ordered)
{
    void *nodes[1024], *last = NULL;
    u64 at[1024];
    int code = CALL(cuGraphCreate, graph, 0u);
    for (u64 i = 0; !code && i < count; i++)
        code = add(&nodes[i], *graph, ordered && i ? nodes[i - 1] : NULL, bytes, &at[i]);
    for (u64 i = 0; !code && i < count; i++)
        code = add_free(&last, *graph, ordered ? (i ? last : nodes[count - 1]) : nodes[i], at[i]);
    return code;
}

static int child(void **graph, u64 bytes, u64 depth, u64 *address)
{
    void *whole = NULL, *node = NULL;
    int code = bytes ? inside(graph, bytes, address) : CALL(cuGraphCreate, graph, 0u);
    while (!code && depth--) {
        Any given = {4, {0}, {(u64)*graph, 1}};
        code = CALL(cuGraphCreate, &whole, 0u);
        for (int i = 0; !code && i < BESIDE; i++)
            code = CALL(cuGraphAddEmptyNode, &node, whole, NULL, (size_t)0);
        code = code ? code : CALL(cuGraphAddNode, &node, whole, NULL, (size_t)0, &given);
        *graph = whole;
    }
    return code;
}

static void make(u64 slot, int code, u64 flags)
{
    u64 out = UNTOUCHED;
    code = code ? code : CALL(cuGraphInstantiateWithFlags, &out, graphs[slot], flags);
    if (!code)
        execs[slot] = (void *)out;
    answer(code, out);
}

static void upload_at_once(u64 slot, u64 bytes, u64 stream)
{
    u64 out = UNTOUCHED;
    Instantiation given = {2, stream == OWN ? NULL : streams[stream % STREAMS], NULL, 9, 0};
    int code = inside(&graphs[slot], bytes, &addresses[slot]);
    code = code            ? code
           : stream == OWN ? CALL(cuGraphInstantiateWithParams_ptsz, &out, graphs[slot], &given)
                           : CALL(cuGraphInstantiateWithParams, &out, graphs[slot], &given);
    if (!code)
        execs[slot] = (void *)out;
    answer(code, out);
}

static void refused(const char *word, u64 slot)
{
    u64 out = UNTOUCHED;
    size_t count = 1;
    void *node = NULL, *whole = NULL;
    int code = -1;
    if (!strcmp(word, "again"))
        code = CALL(cuGraphInstantiateWithFlags, &out, graphs[slot], 0ull);
    else if (!strcmp(word, "clone"))
        code = CALL(cuGraphClone, &out, graphs[slot]);
    else if (!strcmp(word, "embed"))
        code = CALL(cuGraphCreate, &whole, 0u) ? -1 : CALL(cuGraphAddChildGraphNode, &out, whole, NULL, (size_t)0, graphs[slot]);
    else if (!strcmp(word, "remove"))
        code = CALL(cuGraphGetNodes, graphs[slot], &node, &count) ? -1 : CALL(cuGraphDestroyNode, node);
    else
        code = add_free((void **)&out, graphs[slot], NULL, addresses[slot]);
    answer(code, out);
}

static void crowd(u64 count, u64 bytes)
{
    u64 made = 0, address = 0;
    int code = 0;
    for (; made < count && !code; made += !code) {
        void *graph = NULL, *exec = NULL;
        code = inside(&graph, bytes, &address);
        code = code ? code : CALL(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
    }
    printf("%lu %d\n", made, code);
}

static int capture_launch(u64 slot, void *stream)
{
    void *graph = NULL;
    int code = CALL(cuStreamBeginCapture_v2, stream, 0u) ? -1 : CALL(cuGraphLaunch, execs[slot], stream);
    CALL(cuStreamEndCapture, stream, &graph);
    return code;
}

static int update(u64 slot, u64 bytes, u64 version)
{
    u64 told[3] = {0}, address = 0;
    void *graph = NULL, *failed = NULL;
    unsigned result = 0;
    int code = inside(&graph, bytes, &address);
    return code           ? code
           : version == 1 ? CALL(cuGraphExecUpdate, execs[slot], graph, &failed, &result)
                          : CALL(cuGraphExecUpdate_v2, execs[slot], graph, told);
}

static int busy(void *stream, u64 nanos)
{
    void *parameters[] = {&nanos};
    return CALL(cuLaunchKernel, function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, parameters, NULL);
}

static void handle(const char *word, u64 a, u64 b, u64 c)
{
    u64 out = UNTOUCHED;
    void *stream = streams[b % STREAMS], *node = NULL;
    size_t left = 0, total = 0;
    if (!strcmp(word, "left")) {
        int code = CALL(cuGraphCreate, &graphs[a], 0u);
        make(a, code ? code : add(&node, graphs[a], NULL, b, &addresses[a]), c);
    } else if (!strcmp(word, "inside"))
        make(a, inside(&graphs[a], b, &addresses[a]), 0);
    else if (!strcmp(word, "chain"))
        make(a, chain(&graphs[a], b, c, &addresses[a]), 0);
    else if (!strcmp(word, "wide") || !strcmp(word, "many"))
        make(a, wide(&graphs[a], b, c, word[0] == 'w'), 0);
    else if (!strcmp(word, "child"))
        make(a, child(&graphs[a], b, c, &addresses[a]), 0);
    else if (!strcmp(word, "captured")) {
        int code = CALL(cuStreamBeginCapture_v2, streams[0], 0u);
        code = code ? code : CALL(cuMemAllocAsync, &addresses[a], (size_t)b, streams[0]);
        make(a, code ? code : CALL(cuStreamEndCapture, streams[0], &graphs[a]), 0);
    } else if (!strcmp(word, "beside")) {
        int code = CALL(cuStreamBeginCapture_v2, streams[0], 0u);
        code = code ? code : CALL(cuGraphLaunch, execs[b], streams[0]);
        code = code ? code : CALL(cuMemAllocAsync, &addresses[a], (size_t)c, streams[0]);
        make(a, code ? code : CALL(cuStreamEndCapture, streams[0], &graphs[a]), 0);
    } else if (!strcmp(word, "freeing")) {
        int code = CALL(cuGraphCreate, &graphs[a], 0u);
        make(a, code ? code : add_free(&node, graphs[a], NULL, addresses[b]), 0);
    } else if (!strcmp(word, "upload-at-once"))
        upload_at_once(a, b, c);
    else if (!strcmp(word, "launch"))
        answer(b == OWN ? CALL(cuGraphLaunch_ptsz, execs[a], NULL) : CALL(cuGraphLaunch, execs[a], stream), out);
    else if (!strcmp(word, "upload"))
        answer(b == OWN ? CALL(cuGraphUpload_ptsz, execs[a], NULL) : CALL(cuGraphUpload, execs[a], stream), out);
    else if (!strcmp(word, "undo"))
        answer(CALL(cuGraphExecDestroy, execs[a]), out);
    else if (!strcmp(word, "free"))
        answer(CALL(cuMemFreeAsync, addresses[a], streams[0]), out);
    else if (!strcmp(word, "update"))
        answer(update(a, b, c), out);
    else if (!strcmp(word, "capture-launch"))
        answer(capture_launch(a, stream), out);
    else if (!strcmp(word, "trim"))
        answer(CALL(cuDeviceGraphMemTrim, 0), out);
    else if (!strcmp(word, "crowd"))
        crowd(a, b);
    else if (!strcmp(word, "renew")) {
        int code = CALL(cuStreamDestroy_v2, streams[a]);
        answer(code ? code : CALL(cuStreamCreate, &streams[a], 1u), out);
    } else if (!strcmp(word, "busy"))
        answer(busy(streams[a], b), out);
    else if (!strcmp(word, "sync"))
        answer(CALL(cuStreamSynchronize, streams[a]), out);
    else if (!strcmp(word, "alloc"))
        answer(CALL(cuMemAlloc_v2, &blocks[a], (size_t)b), out);
    else if (!strcmp(word, "release"))
        answer(CALL(cuMemFree_v2, blocks[a]), out);
    else if (!strcmp(word, "info")) {
        int code = CALL(cuMemGetInfo_v2, &left, &total);
        printf("%d %zu\n", code, left);
    } else if (!strcmp(word, "reset"))
        answer(CALL(cuDevicePrimaryCtxReset_v2, 0), out);
    else
        refused(word, a);
}

int main(void)
{
    char line[256], word[32];
    void *context = NULL, *module = NULL;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || CALL(cuInit, 0u) || CALL(cuDevicePrimaryCtxRetain, &context, 0) || CALL(cuCtxSetCurrent, context) ||
        CALL(cuModuleLoadData, &module, "image") || CALL(cuModuleGetFunction, &function, module, "kp")) {
        printf("no driver\n");
        return 1;
    }
    for (int i = 0; i < STREAMS; i++)
        if (CALL(cuStreamCreate, &streams[i], 1u))
            return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        u64 a = 0, b = 0, c = 0;
        if (sscanf(line, "%31s %lu %lu %lu", word, &a, &b, &c) >= 1)
            handle(word, a, b, c);
    }
    return 0;
}
