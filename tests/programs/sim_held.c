/* What waits for the host, and what waits behind it. One scene a run, named by the argument. Prints OK, or where it stopped.
 *
 *   order legacy threads waited destroyed words errors writes batch graph branches captured memory event cards ended quiet
 *   frees    memory of cuMemAlloc freed in a held stream, where it is back when the stream is there
 *   at_once  the same where it is back when the call returns
 *   stay     holds a stream until it is killed */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t H;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(H *, int), cuCtxSetCurrent(H), cuCtxSynchronize(void), cuCtxCreate_v2(H *, unsigned, int);
int cuCtxDestroy_v2(H), cuMemGetInfo_v2(size_t *, size_t *), cuMemAlloc_v2(H *, size_t), cuMemAllocManaged(H *, size_t, unsigned);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemsetD32_v2(H, unsigned, size_t), cuMemsetD32Async(H, unsigned, size_t, H);
int cuMemcpyDtoHAsync_v2(void *, H, size_t, H), cuMemcpyHtoDAsync_v2(H, const void *, size_t, H), cuMemcpyDtoH_v2(void *, H, size_t);
int cuStreamCreate(H *, unsigned), cuStreamSynchronize(H), cuStreamQuery(H), cuStreamDestroy_v2(H), cuStreamWaitEvent(H, H, unsigned);
int cuEventCreate(H *, unsigned), cuEventRecord(H, H), cuEventElapsedTime(float *, H, H), cuEventSynchronize(H), cuEventQuery(H);
int cuModuleLoadData(H *, const void *), cuModuleGetFunction(H *, H, const char *);
int cuLaunchKernel(H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
int cuLaunchHostFunc(H, void (*)(void *), void *), cuStreamAddCallback(H, void (*)(H, int, void *), void *, unsigned);
int cuStreamWaitValue32_v2(H, H, uint32_t, unsigned), cuStreamWaitValue64_v2(H, H, uint64_t, unsigned);
int cuStreamWriteValue32_v2(H, H, uint32_t, unsigned), cuStreamWriteValue64_v2(H, H, uint64_t, unsigned);
int cuStreamBatchMemOp_v2(H, unsigned, void *, unsigned), cuDeviceGraphMemTrim(int), cuMemHostRegister_v2(void *, size_t, unsigned);
int cuStreamBeginCapture_v2(H, int), cuStreamEndCapture(H, H *), cuGraphCreate(H *, unsigned), cuGraphInstantiateWithFlags(H *, H, uint64_t);
int cuGraphLaunch(H, H), cuGraphGetNodes(H, H *, size_t *), cuGraphNodeGetType(H, unsigned *), cuGraphAddEmptyNode(H *, H, const H *, size_t);
int cuGraphAddHostNode(H *, H, const H *, size_t, const void *), cuGraphAddBatchMemOpNode(H *, H, const H *, size_t, const void *);
int cuGraphAddKernelNode(H *, H, const H *, size_t, const void *), cuGraphAddChildGraphNode(H *, H, const H *, size_t, H);
int cuMemAllocAsync(H *, size_t, H), cuMemFreeAsync(H, H);

enum { NOT_READY = 600, APART = 1, LEGACY = 1, PER_THREAD = 2 };

static H module, kernel, device;
static volatile uint32_t *pinned;

/* A function on the host that ends when it is let go. */
struct gate { volatile int entered, open, left; };
static void pass(void *data) {
    struct gate *gate = data;
    gate->entered = 1;
    while (!gate->open) usleep(200);
    gate->left = 1;
}
static void pass_back(H stream, int code, void *data) { (void)stream; (void)code; pass(data); }
static void entered(struct gate *gate) { while (!gate->entered) usleep(200); }
static void mark(void *flag) { *(volatile uint32_t *)flag += 1; }

static H stream(unsigned flags) { H s; CHECK(cuStreamCreate(&s, flags) == 0); return s; }
static H event(void) { H e; CHECK(cuEventCreate(&e, 0) == 0); return e; }
static H recorded(H s) { H e = event(); CHECK(cuEventRecord(e, s) == 0); return e; }
static int launch(H s) { return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, s, 0, 0); }
static size_t used(void) { size_t f, t; CHECK(cuMemGetInfo_v2(&f, &t) == 0); return t - f; }

/* Threads beside the only one that the program has. */
static int threads(void) {
    int count = -1;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Behind a function nothing goes on: not work, not a copy, not an event; beside it everything does. */
static void order(void) {
    H held = stream(APART), beside = stream(APART), before, first, second;
    struct gate gate = {0};
    float millis;
    CHECK(cuMemsetD32_v2(device, 7, 1) == 0 && cuCtxSynchronize() == 0);
    pinned[0] = 0;
    before = recorded(held);
    CHECK(cuLaunchHostFunc(held, pass, &gate) == 0);
    CHECK(cuMemcpyDtoHAsync_v2((void *)pinned, device, 4, held) == 0);
    first = recorded(held);
    CHECK(launch(held) == 0 && launch(held) == 0);
    second = recorded(held);
    entered(&gate);
    CHECK(launch(beside) == 0 && cuStreamSynchronize(beside) == 0);
    CHECK(cuStreamQuery(held) == NOT_READY && cuEventQuery(first) == NOT_READY && cuEventQuery(second) == NOT_READY);
    CHECK(cuEventElapsedTime(&millis, before, second) == NOT_READY && pinned[0] == 0);
    usleep(30000);
    gate.open = 1;
    CHECK(cuStreamSynchronize(held) == 0 && gate.left && pinned[0] == 7);
    CHECK(cuStreamQuery(held) == 0 && cuEventQuery(second) == 0);
    /* An event behind what was held has the time at which that ended, and work its own after it. */
    CHECK(cuEventElapsedTime(&millis, before, first) == 0 && millis >= 30.0f);
    CHECK(cuEventElapsedTime(&millis, first, second) == 0 && millis >= 1.99f);
    struct gate back = {0};
    CHECK(cuStreamAddCallback(held, pass_back, &back, 0) == 0 && launch(held) == 0);
    entered(&back);
    CHECK(cuStreamQuery(held) == NOT_READY);
    back.open = 1;
    CHECK(cuStreamSynchronize(held) == 0);
}

/* The legacy stream waits for all that are not apart, and they for it. */
static void legacy(void) {
    H one = stream(0), other = stream(0), apart = stream(APART);
    struct gate gate = {0}, own = {0};
    CHECK(cuLaunchHostFunc(one, pass, &gate) == 0);
    entered(&gate);
    CHECK(launch(other) == 0 && cuStreamSynchronize(other) == 0);
    CHECK(cuStreamQuery(LEGACY) == NOT_READY);
    CHECK(launch(0) == 0 && launch(other) == 0 && launch(PER_THREAD) == 0);
    H behind = recorded(other);
    CHECK(launch(apart) == 0 && cuStreamSynchronize(apart) == 0);
    CHECK(cuStreamQuery(0) == NOT_READY && cuStreamQuery(other) == NOT_READY && cuStreamQuery(PER_THREAD) == NOT_READY);
    CHECK(cuEventQuery(behind) == NOT_READY);
    gate.open = 1;
    CHECK(cuEventSynchronize(behind) == 0 && cuStreamSynchronize(PER_THREAD) == 0 && cuStreamQuery(0) == 0);
    CHECK(cuLaunchHostFunc(0, pass, &own) == 0 && launch(one) == 0 && launch(apart) == 0);
    entered(&own);
    CHECK(cuStreamSynchronize(apart) == 0 && cuStreamQuery(one) == NOT_READY);
    own.open = 1;
    CHECK(cuStreamSynchronize(one) == 0 && cuStreamQuery(0) == 0);
}

/* Many threads put work behind a function of one stream; a line is as long as the card's queue, and no longer. */
static H crowded;
static void *crowd(void *context) {
    CHECK(cuCtxSetCurrent(*(H *)context) == 0);
    for (int i = 0; i < 40; i++) CHECK(cuLaunchHostFunc(crowded, mark, (void *)&pinned[8]) == 0);
    return 0;
}
static void in_threads(H context) {
    struct gate gate = {0};
    pthread_t all[8];
    crowded = stream(APART);
    pinned[8] = 0;
    CHECK(cuLaunchHostFunc(crowded, pass, &gate) == 0);
    entered(&gate);
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&all[i], 0, crowd, &context) == 0);
    /* The node of the test has room for 64: later calls wait for a place. */
    usleep(20000);
    CHECK(pinned[8] == 0);
    gate.open = 1;
    for (int i = 0; i < 8; i++) CHECK(pthread_join(all[i], 0) == 0);
    CHECK(cuStreamSynchronize(crowded) == 0 && pinned[8] == 320);
}

static void *opener(void *gate) {
    usleep(30000);
    ((struct gate *)gate)->open = 1;
    return 0;
}

/* A wait for a context waits for all held work in it. */
static void waited(H context) {
    H streams[4] = {0, PER_THREAD, stream(0), stream(APART)};
    for (int i = 0; i < 4; i++) {
        struct gate gate = {0};
        pthread_t thread;
        CHECK(cuLaunchHostFunc(streams[i], pass, &gate) == 0 && launch(streams[i]) == 0);
        if (i == 3) CHECK(cuStreamDestroy_v2(streams[i]) == 0);
        CHECK(pthread_create(&thread, 0, opener, &gate) == 0);
        CHECK(cuCtxSynchronize() == 0 && gate.left);
        CHECK(pthread_join(thread, 0) == 0);
    }
    (void)context;
}

/* What is in a stream that is destroyed is still done, in its order. */
static void destroyed(void) {
    H held = stream(0), after;
    struct gate gate = {0};
    pinned[0] = 0;
    CHECK(cuLaunchHostFunc(held, pass, &gate) == 0 && cuLaunchHostFunc(held, mark, (void *)pinned) == 0);
    after = recorded(held);
    CHECK(cuStreamDestroy_v2(held) == 0);
    entered(&gate);
    CHECK(launch(0) == 0 && cuStreamQuery(0) == NOT_READY && cuEventQuery(after) == NOT_READY && pinned[0] == 0);
    gate.open = 1;
    CHECK(cuEventSynchronize(after) == 0 && pinned[0] == 1 && cuStreamSynchronize(0) == 0);
}

/* Each way to wait for a word, of the host and of the card: held until it is there. */
static void words(void) {
    struct { unsigned flags; int wide; uint64_t value, not_yet, there; } ways[] = {
        {0, 0, 5, 4, 9}, {0, 0, 2, 0xfffffff0, 3}, {0, 0, 0xfffffffe, 0xfffffff0, 4}, {1, 0, 6, 7, 6}, {2, 0, 12, 3, 8},
        {3, 0, 0xfffffff0, 0xf, 0xe}, {0, 1, 1ull << 40, (1ull << 40) - 1, 1ull << 41}, {1, 1, 1ull << 33, 0, 1ull << 33},
        {2, 1, 1ull << 50, 7, 1ull << 50}, {3, 1, ~1ull, 1, 0},
    };
    H held = stream(APART), other = stream(APART);
    volatile uint64_t *word = (volatile uint64_t *)&pinned[16];
    static uint64_t own[8];
    CHECK(cuMemHostRegister_v2(own, sizeof own, 0) == 0);
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        uint64_t not_yet = ways[i].not_yet, there = ways[i].there;
        for (int where = 0; where < 3; where++) {
            H at = where == 0 ? (H)(uintptr_t)word : where == 1 ? device + 64 : (H)(uintptr_t)own;
            *word = own[0] = not_yet;
            word[1] = not_yet, word[2] = there;
            CHECK(cuMemcpyHtoDAsync_v2(device + 64, (void *)&word[1], 8, other) == 0 && cuStreamSynchronize(other) == 0);
            CHECK((ways[i].wide ? cuStreamWaitValue64_v2(held, at, ways[i].value, ways[i].flags)
                                : cuStreamWaitValue32_v2(held, at, (uint32_t)ways[i].value, ways[i].flags)) == 0);
            H behind = recorded(held);
            usleep(2000);
            CHECK(cuEventQuery(behind) == NOT_READY && cuStreamQuery(held) == NOT_READY);
            if (where == 0) *word = there;
            else if (where == 2) *(volatile uint64_t *)own = there;
            else CHECK(cuMemcpyHtoDAsync_v2(device + 64, (void *)&word[2], 8, other) == 0);
            CHECK(cuEventSynchronize(behind) == 0 && cuStreamQuery(held) == 0);
        }
    }
    /* Where it is there already nothing is held. */
    CHECK(cuStreamWaitValue32_v2(held, (H)(uintptr_t)word, 0, 3) == 0 && cuStreamQuery(held) == 0);
}

static void errors(void) {
    H s = stream(APART), managed, word = (H)(uintptr_t)pinned;
    uint64_t one[6] = {1, word, 0, 0, 0, 0}, bad[6] = {77, word, 0, 0, 0, 0};
    CHECK(cuMemAllocManaged(&managed, 4096, 1) == 0);
    CHECK(cuStreamWaitValue32_v2(s, word + 2, 0, 0) == 1 && cuStreamWaitValue64_v2(s, word + 4, 0, 0) == 1);
    CHECK(cuStreamWaitValue32_v2(s, managed, 0, 0) == 1 && cuStreamWriteValue32_v2(s, 0xdead0000, 0, 0) == 1);
    CHECK(cuStreamWaitValue32_v2(s, word, 0, 4) == 1 && cuStreamWaitValue32_v2(s, word, 0, 1u << 30) == 801);
    CHECK(cuStreamWriteValue32_v2(s, word, 0, 2) == 1 && cuStreamWaitValue32_v2(0x1234, word, 0, 0) == 400);
    CHECK(cuStreamBatchMemOp_v2(s, 0, one, 0) == 1 && cuStreamBatchMemOp_v2(s, 257, one, 0) == 1);
    CHECK(cuStreamBatchMemOp_v2(s, 1, one, 1) == 1 && cuStreamBatchMemOp_v2(s, 1, bad, 0) == 1);
    CHECK(cuStreamQuery(s) == 0 && threads() == 0);
}

/* A word is written when the stream is there, and not before. */
static void writes(void) {
    H s = stream(APART), before;
    pinned[0] = 0;
    for (int i = 0; i < 20; i++) CHECK(launch(s) == 0);
    before = recorded(s);
    CHECK(cuStreamWriteValue32_v2(s, (H)(uintptr_t)pinned, 1, 0) == 0);
    CHECK(cuStreamWriteValue64_v2(s, (H)(uintptr_t)(pinned + 2), 1ull << 40 | 3, 1) == 0 && launch(s) == 0);
    while (!pinned[0]) usleep(100);
    CHECK(cuEventQuery(before) == 0);
    CHECK(cuStreamSynchronize(s) == 0 && *(volatile uint64_t *)(pinned + 2) == (1ull << 40 | 3));
}

/* One call with several: each waits for the one before it. */
static void batch(void) {
    H s = stream(APART), a = (H)(uintptr_t)pinned, b = a + 64;
    uint64_t all[4][6] = {{1, a, 1, 0}, {2, b, 5, 0}, {6}, {4, a + 8, 1, 1}};
    pinned[0] = pinned[2] = pinned[3] = pinned[16] = 0;
    CHECK(cuStreamBatchMemOp_v2(s, 4, all, 0) == 0);
    usleep(5000);
    CHECK(pinned[16] == 0);
    pinned[0] = 1;
    while (pinned[16] != 5) usleep(100);
    CHECK(cuStreamQuery(s) == NOT_READY);
    pinned[2] = 1;
    CHECK(cuStreamSynchronize(s) == 0);
}

struct host { void (*function)(void *); void *data; };
struct words { H context; unsigned count; void *all; unsigned flags; };
struct kernel { H function; unsigned grid[3], block[3], shared; void **parameters, **extra; };

static H ready(H graph) { H x; CHECK(cuGraphInstantiateWithFlags(&x, graph, 0) == 0); return x; }

/* Nodes come in their order, also behind functions, in graphs inside the graph and again at each launch. */
static void graph(void) {
    H s = stream(APART), g, inner, nodes[6];
    struct gate gate = {0};
    struct host first = {pass, &gate}, last = {mark, (void *)pinned};
    uint64_t check[2][6] = {{1, (H)(uintptr_t)pinned, 1, 1}, {2, (H)(uintptr_t)(pinned + 1), 1, 0}};
    struct words words = {0, 2, check, 0};
    struct kernel k = {kernel, {1, 1, 1}, {32, 1, 1}, 0, 0, 0};
    pinned[0] = pinned[1] = 0;
    CHECK(cuGraphCreate(&g, 0) == 0 && cuGraphCreate(&inner, 0) == 0);
    CHECK(cuGraphAddKernelNode(&nodes[0], inner, 0, 0, &k) == 0);
    CHECK(cuGraphAddHostNode(&nodes[1], inner, &nodes[0], 1, &last) == 0);
    CHECK(cuGraphAddHostNode(&nodes[2], g, 0, 0, &first) == 0);
    CHECK(cuGraphAddChildGraphNode(&nodes[3], g, &nodes[2], 1, inner) == 0);
    CHECK(cuGraphAddBatchMemOpNode(&nodes[4], g, &nodes[3], 1, &words) == 0);
    CHECK(cuGraphAddKernelNode(&nodes[5], g, &nodes[4], 1, &k) == 0);
    H x = ready(g), begun = recorded(s), e;
    float millis;
    CHECK(cuGraphLaunch(x, s) == 0);
    e = recorded(s);
    entered(&gate);
    CHECK(cuStreamQuery(s) == NOT_READY && pinned[0] == 0);
    usleep(20000);
    gate.open = 1;
    CHECK(cuStreamSynchronize(s) == 0 && pinned[0] == 1 && pinned[1] == 1);
    CHECK(cuEventElapsedTime(&millis, begun, e) == 0 && millis >= 21.99f);
    pinned[0] = pinned[1] = 0;
    CHECK(cuGraphLaunch(x, s) == 0 && cuStreamSynchronize(s) == 0 && pinned[0] == 1 && pinned[1] == 1);
}

/* A branch that waits for a word holds no branch that writes it, whichever came first. */
static void branches(void) {
    H s = stream(APART), g, nodes[5];
    uint64_t wait[1][6] = {{1, (H)(uintptr_t)pinned, 1, 1}}, write[1][6] = {{2, (H)(uintptr_t)pinned, 1, 0}};
    uint64_t other[1][6] = {{1, (H)(uintptr_t)(pinned + 1), 1, 1}};
    struct words waits = {0, 1, wait, 0}, writing = {0, 1, write, 0}, others = {0, 1, other, 0};
    struct host set = {mark, (void *)(pinned + 1)};
    struct kernel k = {kernel, {1, 1, 1}, {32, 1, 1}, 0, 0, 0};
    pinned[0] = pinned[1] = 0;
    CHECK(cuGraphCreate(&g, 0) == 0 && cuGraphAddBatchMemOpNode(&nodes[0], g, 0, 0, &waits) == 0);
    CHECK(cuGraphAddBatchMemOpNode(&nodes[1], g, 0, 0, &others) == 0);
    CHECK(cuGraphAddKernelNode(&nodes[2], g, 0, 0, &k) == 0 && cuGraphAddHostNode(&nodes[3], g, &nodes[2], 1, &set) == 0);
    CHECK(cuGraphAddBatchMemOpNode(&nodes[4], g, &nodes[1], 1, &writing) == 0);
    CHECK(cuGraphLaunch(ready(g), s) == 0 && cuStreamSynchronize(s) == 0 && pinned[0] == 1 && pinned[1] == 1);
}

/* Functions and words that are captured become nodes, and a graph with such nodes a graph inside. */
static void captured(void) {
    H s = stream(APART), g, outer, x, nodes[8];
    size_t count = 8;
    unsigned type;
    pinned[0] = pinned[1] = pinned[2] = 0;
    CHECK(cuStreamBeginCapture_v2(s, 0) == 0);
    CHECK(cuStreamWaitValue32_v2(s, (H)(uintptr_t)pinned, 1, 0) == 0);
    CHECK(cuLaunchHostFunc(s, mark, (void *)(pinned + 1)) == 0);
    CHECK(cuStreamWriteValue32_v2(s, (H)(uintptr_t)(pinned + 2), 1, 0) == 0);
    CHECK(cuStreamAddCallback(s, pass_back, 0, 0) == 900);
    CHECK(cuStreamEndCapture(s, &g) == 0 && cuGraphGetNodes(g, nodes, &count) == 0 && count == 3);
    CHECK(cuGraphNodeGetType(nodes[0], &type) == 0 && type == 12 && cuGraphNodeGetType(nodes[1], &type) == 0 && type == 3);
    usleep(2000);
    CHECK(pinned[1] == 0 && cuStreamQuery(s) == 0);
    x = ready(g);
    CHECK(cuStreamBeginCapture_v2(s, 0) == 0 && cuGraphLaunch(x, s) == 0 && cuStreamEndCapture(s, &outer) == 0);
    CHECK(cuGraphLaunch(ready(outer), s) == 0);
    usleep(2000);
    CHECK(pinned[1] == 0 && pinned[2] == 0 && cuStreamQuery(s) == NOT_READY);
    pinned[0] = 1;
    CHECK(cuStreamSynchronize(s) == 0 && pinned[1] == 1 && pinned[2] == 1);
}

/* Memory of a graph that is held is in use until its launch is done. */
static void memory(void) {
    H s = stream(APART), g, x, a;
    struct gate gate = {0};
    CHECK(cuStreamBeginCapture_v2(s, 0) == 0 && cuMemAllocAsync(&a, 40 << 20, s) == 0 && cuMemFreeAsync(a, s) == 0);
    CHECK(cuStreamEndCapture(s, &g) == 0);
    x = ready(g);
    size_t before = used();
    CHECK(cuLaunchHostFunc(s, pass, &gate) == 0 && cuGraphLaunch(x, s) == 0);
    entered(&gate);
    size_t during = used();
    CHECK(during > before && cuDeviceGraphMemTrim(0) == 0 && used() == during);
    gate.open = 1;
    CHECK(cuStreamSynchronize(s) == 0 && cuDeviceGraphMemTrim(0) == 0 && used() == before);
}

/* Memory that is freed in the order of a stream: back at the end of the stream, of a wait or of an event, or without any query. */
static void frees(int later) {
    H s = stream(APART), other = stream(APART), a, b, c;
    size_t before = used();
    struct gate gate = {0}, again = {0};
    CHECK(cuMemAlloc_v2(&a, 8 << 20) == 0 && cuMemAlloc_v2(&b, 8 << 20) == 0 && cuMemAlloc_v2(&c, 8 << 20) == 0);
    CHECK(cuMemFreeAsync(a, s) == 0 && used() == before + (16 << 20));
    CHECK(cuLaunchHostFunc(s, pass, &gate) == 0 && cuMemFreeAsync(b, s) == 0 && cuMemFreeAsync(b, s) == 1);
    entered(&gate);
    CHECK(cuStreamSynchronize(other) == 0 && used() == before + (later ? 16 << 20 : 8 << 20));
    CHECK(cuMemFreeAsync(c, other) == 0 && used() == before + (later ? 8 << 20 : 0));
    gate.open = 1;
    CHECK(cuStreamSynchronize(s) == 0 && used() == before);
    CHECK(cuMemAlloc_v2(&a, 8 << 20) == 0 && cuLaunchHostFunc(s, pass, &again) == 0 && cuMemFreeAsync(a, s) == 0);
    H behind = recorded(s);
    again.open = 1;
    CHECK(cuEventSynchronize(behind) == 0 && used() == before);
    while (threads()) usleep(500);
}

/* A stream that waits for an event behind held work waits with it. */
static void of_event(void) {
    H held = stream(APART), other = stream(APART), third = stream(APART);
    struct gate gate = {0};
    CHECK(cuLaunchHostFunc(held, pass, &gate) == 0 && launch(held) == 0);
    H behind = recorded(held);
    CHECK(cuStreamWaitEvent(other, behind, 0) == 0 && launch(other) == 0);
    H then = recorded(other);
    CHECK(cuStreamWaitEvent(third, then, 0) == 0);
    entered(&gate);
    CHECK(cuStreamQuery(other) == NOT_READY && cuStreamQuery(third) == NOT_READY);
    /* Recorded anew it is another moment; a wait from before waits for the first. */
    CHECK(cuEventRecord(behind, stream(APART)) == 0 && cuEventQuery(behind) == 0 && cuStreamQuery(other) == NOT_READY);
    gate.open = 1;
    CHECK(cuStreamSynchronize(third) == 0 && cuStreamQuery(other) == 0 && cuStreamQuery(held) == 0);
}

/* One card waits for another. */
static void cards(H first) {
    H second, there, here = stream(APART), done;
    CHECK(cuDevicePrimaryCtxRetain(&second, 1) == 0 && cuCtxSetCurrent(second) == 0);
    there = stream(APART);
    struct gate gate = {0};
    CHECK(cuLaunchHostFunc(there, pass, &gate) == 0);
    H behind = recorded(there);
    CHECK(cuCtxSetCurrent(first) == 0 && cuStreamWaitEvent(here, behind, 0) == 0 && launch(here) == 0);
    done = recorded(here);
    entered(&gate);
    CHECK(cuEventQuery(done) == NOT_READY);
    gate.open = 1;
    CHECK(cuStreamSynchronize(here) == 0 && cuEventQuery(behind) == 0);
}

/* A context that ends takes along what is held in it. */
static void ended(H first) {
    H context, s, word;
    pinned[0] = pinned[1] = 0;
    word = (H)(uintptr_t)pinned;
    CHECK(cuCtxCreate_v2(&context, 0, 0) == 0);
    s = stream(0);
    CHECK(cuStreamWaitValue32_v2(s, word, 1, 1) == 0 && launch(s) == 0 && launch(0) == 0);
    CHECK(cuLaunchHostFunc(s, mark, (void *)(pinned + 1)) == 0 && cuStreamQuery(s) == NOT_READY);
    CHECK(cuCtxDestroy_v2(context) == 0 && cuCtxSetCurrent(first) == 0);
    while (threads()) usleep(500);
    pinned[0] = 1;
    CHECK(pinned[1] == 0 && launch(0) == 0 && cuCtxSynchronize() == 0);
}

/* A process without held work has no thread; one with it has a thread for each held stream, and none after it. */
static void quiet(void) {
    H s = stream(0), e;
    for (int i = 0; i < 50; i++) CHECK(launch(i % 2 ? s : 0) == 0);
    e = recorded(s);
    CHECK(cuStreamWaitEvent(0, e, 0) == 0 && threads() == 0);
    CHECK(cuMemsetD32Async(device, 1, 16, s) == 0 && cuCtxSynchronize() == 0 && threads() == 0);
    struct gate gate = {0};
    CHECK(cuLaunchHostFunc(s, pass, &gate) == 0);
    for (int i = 0; i < 50; i++) CHECK(cuLaunchHostFunc(s, mark, (void *)pinned) == 0 && launch(s) == 0);
    CHECK(threads() == 1);
    gate.open = 1;
    CHECK(cuStreamSynchronize(s) == 0);
    while (threads()) usleep(500);
}

int main(int count, char **arguments) {
    const char *scene = count > 1 ? arguments[1] : "";
    H context;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuModuleLoadData(&module, "any image") == 0 && cuModuleGetFunction(&kernel, module, "k_1000000") == 0);
    CHECK(cuMemAlloc_v2(&device, 4096) == 0 && cuMemHostAlloc((void **)&pinned, 4096, 0) == 0);
    if (!strcmp(scene, "order")) order();
    else if (!strcmp(scene, "legacy")) legacy();
    else if (!strcmp(scene, "threads")) in_threads(context);
    else if (!strcmp(scene, "waited")) waited(context);
    else if (!strcmp(scene, "destroyed")) destroyed();
    else if (!strcmp(scene, "words")) words();
    else if (!strcmp(scene, "errors")) errors();
    else if (!strcmp(scene, "writes")) writes();
    else if (!strcmp(scene, "batch")) batch();
    else if (!strcmp(scene, "graph")) graph();
    else if (!strcmp(scene, "branches")) branches();
    else if (!strcmp(scene, "captured")) captured();
    else if (!strcmp(scene, "memory")) memory();
    else if (!strcmp(scene, "frees")) frees(1);
    else if (!strcmp(scene, "at_once")) frees(0);
    else if (!strcmp(scene, "event")) of_event();
    else if (!strcmp(scene, "cards")) cards(context);
    else if (!strcmp(scene, "ended")) ended(context);
    else if (!strcmp(scene, "quiet")) quiet();
    else if (!strcmp(scene, "stay")) {
        H s = stream(APART);
        CHECK(cuStreamWaitValue32_v2(s, (H)(uintptr_t)pinned, 1, 0) == 0);
        for (int i = 0; i < 100; i++) CHECK(launch(s) == 0);
        printf("ready\n");
        fflush(stdout);
        for (;;) pause();
    } else CHECK(!"a scene that is known");
    printf("OK\n");
    return 0;
}
