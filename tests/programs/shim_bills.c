/* Work that is hard to bill, for some time; says "ok" and how many kernels it launched.
   usage: shim_bills SCENE NANOSECONDS MILLISECONDS */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

typedef void *Handle;
extern int cuInit(unsigned), cuGetExportTable(const void **, const void *);
extern int cuDevicePrimaryCtxRetain(Handle *, int), cuCtxSetCurrent(Handle), cuCtxCreate_v2(Handle *, unsigned, int);
extern int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
extern int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
extern int cuStreamCreate(Handle *, unsigned), cuStreamSynchronize(Handle), cuStreamDestroy_v2(Handle), cuCtxSynchronize(void);
extern int cuStreamBeginCapture_v2(Handle, unsigned), cuStreamEndCapture(Handle, Handle *), cuStreamQuery(Handle);
extern int cuStreamBeginCapture_v2_ptsz(Handle, unsigned), cuStreamEndCapture_ptsz(Handle, Handle *);
extern int cuStreamBeginCaptureToGraph(Handle, Handle, const Handle *, const void *, size_t, unsigned), cuGraphCreate(Handle *, unsigned);
extern int cuStreamBeginCaptureToGraph_ptsz(Handle, Handle, const Handle *, const void *, size_t, unsigned);
typedef struct {
    Handle function;
    unsigned grid[3], block[3], shared;
    Handle stream;
    void **parameters;
} OnCard;
extern int cuLaunchCooperativeKernelMultiDevice(OnCard *, unsigned, unsigned);
extern int cuLaunchKernel_ptsz(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
extern int cuStreamWaitEvent(Handle, Handle, unsigned), cuGraphGetNodes(Handle, Handle *, size_t *), cuCtxDestroy_v2(Handle);
extern int cuMemAlloc_v2(uint64_t *, size_t), cuMemcpyHtoD_v2(uint64_t, const void *, size_t);
extern int cuMemsetD8_v2(uint64_t, unsigned char, size_t);
extern int cuGraphInstantiateWithFlags(Handle *, Handle, unsigned long long), cuGraphLaunch(Handle, Handle), cuGraphLaunch_ptsz(Handle, Handle);
extern int cuEventCreate(Handle *, unsigned), cuEventRecord(Handle, Handle), cuEventSynchronize(Handle);

enum { SHORT = 20000, CONTEXTS = 12, FEW = 20, MANY = 200, THREADS = 4, EACH = 2, GIVE_UP = 90, NO_CONTEXT = 201 };

static Handle first, module, function, stream, other;
static uint64_t number, until;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void rest(uint64_t nanos)
{
    struct timespec time = { (time_t)(nanos / 1000000000u), (long)(nanos % 1000000000u) };
    nanosleep(&time, NULL);
}

static void launch(uint64_t nanos)
{
    void *parameters[] = { &nanos };
    CHECK(cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, parameters, NULL) == 0);
    number++;
}

static void load(void)
{
    CHECK(cuModuleLoadData(&module, "image") == 0 && cuModuleGetFunction(&function, module, "kp") == 0);
}

/* One kernel, then the process ends: after a wait of the driver's, of an event, by asking, or without a word. */
static void once(uint64_t nanos)
{
    launch(nanos);
    CHECK(cuCtxSynchronize() == 0);
}

static void once_by_event(uint64_t nanos)
{
    Handle event;
    CHECK(cuEventCreate(&event, 0) == 0);
    launch(nanos);
    CHECK(cuEventRecord(event, stream) == 0 && cuEventSynchronize(event) == 0);
}

static void once_by_asking(uint64_t nanos)
{
    launch(nanos);
    while (cuStreamQuery(stream))
        rest(500000);
}

static void once_in_silence(uint64_t nanos)
{
    launch(nanos);
    rest(nanos + nanos / 10);
}

/* Learns that the kernel is short, then it is long, four at a time. */
static void grows(uint64_t nanos)
{
    for (int one = 0; one < 2 * MANY; one++)
        launch(SHORT);
    CHECK(cuStreamSynchronize(stream) == 0);
    while (now() < until) {
        for (int one = 0; one < 4; one++)
            launch(nanos);
        CHECK(cuStreamSynchronize(stream) == 0);
    }
}

static void captured(uint64_t nanos)
{
    CHECK(cuStreamBeginCapture_v2(other, 2) == 0);
    grows(nanos);
}

static void capture_lost(uint64_t nanos)
{
    CHECK(cuStreamBeginCapture_v2(other, 2) == 0 && cuStreamDestroy_v2(other) == 0);
    grows(nanos);
}

/* Kernels are written down, while streams that joined the capture come and go. */
static void capture_joined(uint64_t nanos)
{
    Handle event, graph;
    size_t nodes = 0;
    CHECK(cuEventCreate(&event, 0) == 0 && cuStreamBeginCapture_v2(other, 2) == 0);
    stream = other;
    for (int one = 0; one < FEW; one++) {
        Handle joined;
        CHECK(cuStreamCreate(&joined, 1) == 0 && cuEventRecord(event, other) == 0);
        CHECK(cuStreamWaitEvent(joined, event, 0) == 0 && cuStreamDestroy_v2(joined) == 0);
        launch(nanos);
    }
    CHECK(cuStreamEndCapture(other, &graph) == 0 && cuGraphGetNodes(graph, NULL, &nodes) == 0 && nodes == FEW);
}

/* The same in the thread's default stream. */
static void capture_of_thread(uint64_t nanos)
{
    void *parameters[] = { &nanos };
    Handle graph;
    size_t nodes = 0;
    CHECK(cuStreamBeginCapture_v2_ptsz(NULL, 2) == 0);
    for (; number < FEW; number++)
        CHECK(cuLaunchKernel_ptsz(function, 4, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL) == 0);
    CHECK(cuStreamEndCapture_ptsz(NULL, &graph) == 0 && cuGraphGetNodes(graph, NULL, &nodes) == 0 && nodes == FEW);
}

/* In either stream, into a graph that is there already. */
static void capture_to_graph(uint64_t nanos)
{
    void *parameters[] = { &nanos };
    Handle graph, same;
    size_t nodes = 0;
    CHECK(cuGraphCreate(&graph, 0) == 0 && cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, 2) == 0);
    for (int one = 0; one < FEW; one++)
        launch(nanos);
    CHECK(cuStreamEndCapture(stream, &same) == 0 && same == graph);
    CHECK(cuStreamBeginCaptureToGraph_ptsz(NULL, graph, NULL, NULL, 0, 2) == 0);
    for (int one = 0; one < FEW; one++)
        CHECK(cuLaunchKernel_ptsz(function, 4, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL) == 0);
    CHECK(cuStreamEndCapture_ptsz(NULL, &same) == 0 && same == graph);
    CHECK(cuGraphGetNodes(graph, NULL, &nodes) == 0 && nodes == 2 * FEW);
}

/* One launch on both cards, after some that the driver refuses. */
static void both_cards(uint64_t nanos)
{
    void *parameters[] = { &nanos };
    OnCard launches[] = { { function, { 4, 1, 1 }, { 64, 1, 1 }, 0, stream, parameters },
        { NULL, { 4, 1, 1 }, { 64, 1, 1 }, 0, NULL, parameters } };
    Handle second;
    alarm(GIVE_UP);
    CHECK(cuLaunchCooperativeKernelMultiDevice(launches, 0, 0) == 1);
    CHECK(cuDevicePrimaryCtxRetain(&second, 1) == 0 && cuCtxSetCurrent(second) == 0);
    load();
    launches[1].function = function;
    CHECK(cuStreamCreate(&launches[1].stream, 1) == 0);
    launches[1].grid[0]++;
    for (int one = 0; one < FEW; one++)
        CHECK(cuLaunchCooperativeKernelMultiDevice(launches, 2, 0) == 1);
    launches[1].grid[0]--;
    CHECK(cuLaunchCooperativeKernelMultiDevice(launches, 2, 0) == 0);
    number = 2;
}

/* Launches on both cards, so that it is known what they take; then such that the driver refuses, with each card's context current and
   with none; then a short kernel on each. */
static void refused_on_both(uint64_t nanos)
{
    uint64_t brief = SHORT;
    void *parameters[] = { &nanos }, *short_ones[] = { &brief };
    OnCard launches[] = { { function, { 4, 1, 1 }, { 64, 1, 1 }, 0, stream, parameters },
        { NULL, { 4, 1, 1 }, { 64, 1, 1 }, 0, NULL, parameters } };
    Handle currents[] = { first, NULL, NULL };
    alarm(GIVE_UP);
    CHECK(cuDevicePrimaryCtxRetain(&currents[1], 1) == 0 && cuCtxSetCurrent(currents[1]) == 0);
    load();
    launches[1].function = function;
    CHECK(cuStreamCreate(&launches[1].stream, 1) == 0);
    for (number = 0; number < 2; number++) {
        CHECK(cuLaunchCooperativeKernelMultiDevice(launches, 2, 0) == 0);
        for (int card = 0; card < 2; card++)
            CHECK(cuCtxSetCurrent(currents[card]) == 0 && cuCtxSynchronize() == 0);
    }
    launches[0].grid[0]++;
    for (int one = 0; one < 3 * FEW; one++)
        CHECK(cuCtxSetCurrent(currents[one / FEW]) == 0 && cuLaunchCooperativeKernelMultiDevice(launches, 2, 0) == 1);
    for (int card = 0; card < 2; card++) {
        CHECK(cuCtxSetCurrent(currents[card]) == 0);
        CHECK(cuLaunchKernel(launches[card].function, 4, 1, 1, 64, 1, 1, 0, launches[card].stream, short_ones, NULL) == 0);
        CHECK(cuCtxSynchronize() == 0);
    }
}

/* A capture is lost with the context that its stream was in; then a kernel. */
static void capture_lost_with_context(uint64_t nanos)
{
    Handle context, lost;
    CHECK(cuCtxCreate_v2(&context, 0, 0) == 0 && cuStreamCreate(&lost, 1) == 0);
    CHECK(cuStreamBeginCapture_v2(lost, 2) == 0 && cuCtxDestroy_v2(context) == 0);
    once(nanos);
}

/* Each kernel is waited for; in the end, how many events there are in the process. */
static void events(uint64_t nanos)
{
    const void *const *table;
    for (int one = 0; one < FEW; one++)
        once(nanos);
    CHECK(cuGetExportTable((const void **)&table, "aliquot-sim-ctx\1") == 0);
    number = ((uint64_t (*)(void))table[3])();
}

/* One function of two lengths, in turns, each followed by a wait. */
static void two_lengths(uint64_t nanos)
{
    while (now() < until) {
        for (int one = 0; one < MANY; one++)
            launch(SHORT);
        CHECK(cuStreamSynchronize(stream) == 0);
        for (int one = 0; one < FEW; one++)
            launch(nanos);
        CHECK(cuStreamSynchronize(stream) == 0);
    }
}

/* Every context has had work; the last one works on. */
static void many_contexts(uint64_t nanos)
{
    for (int one = 0; one < CONTEXTS; one++) {
        Handle context;
        CHECK(cuCtxCreate_v2(&context, 0, 0) == 0);
        load();
        stream = NULL;
        launch(1000);
        CHECK(cuCtxSynchronize() == 0);
    }
    while (now() < until) {
        launch(nanos);
        if (number % 3 == 0)
            CHECK(cuCtxSynchronize() == 0);
    }
}

/* Every context has work, and then the last one gets more. */
static void contexts_at_work(uint64_t nanos)
{
    alarm(GIVE_UP);
    for (int one = 0; one < CONTEXTS; one++) {
        Handle context;
        CHECK(cuCtxCreate_v2(&context, 0, 0) == 0);
        load();
        stream = NULL;
        launch(nanos);
    }
    for (int one = 0; one < FEW; one++)
        launch(SHORT);
}

/* Each launch is of an unknown kernel, and no thread waits for any. */
static void *of_one_thread(void *given)
{
    uint64_t *nanos = given;
    Handle own;
    CHECK(cuCtxSetCurrent(first) == 0 && cuStreamCreate(&own, 1) == 0);
    for (unsigned one = 0; one < EACH; one++) {
        Handle fresh;
        char name[32];
        snprintf(name, sizeof name, "k_%llu", (unsigned long long)(*nanos + __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED)));
        CHECK(cuModuleGetFunction(&fresh, module, name) == 0);
        CHECK(cuLaunchKernel(fresh, 4, 1, 1, 64, 1, 1, 0, own, NULL, NULL) == 0);
    }
    return NULL;
}

static void unknown_by_threads(uint64_t nanos)
{
    pthread_t threads[THREADS];
    alarm(GIVE_UP);
    for (int one = 0; one < THREADS; one++)
        CHECK(pthread_create(&threads[one], NULL, of_one_thread, &nanos) == 0);
    for (int one = 0; one < THREADS; one++)
        CHECK(pthread_join(threads[one], NULL) == 0);
}

/* A thread that has no context: the driver refuses whatever it is asked for. */
static void *without_context(void *given)
{
    static char bytes[FEW << 10];
    uint64_t *address = given;
    for (unsigned one = 1; one < FEW; one++) {
        Handle fresh;
        char name[32];
        snprintf(name, sizeof name, "k_%u", SHORT + one);
        CHECK(cuModuleGetFunction(&fresh, module, name) == 0);
        CHECK(cuLaunchKernel(fresh, 4, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL) == NO_CONTEXT);
        CHECK(cuMemcpyHtoD_v2(*address, bytes, one << 10) == NO_CONTEXT);
        CHECK(cuMemsetD8_v2(*address, 1, one << 10) == NO_CONTEXT);
    }
    return NULL;
}

/* No thread waits for a refused launch. */
static void refused(uint64_t nanos)
{
    pthread_t thread;
    uint64_t address;
    alarm(GIVE_UP);
    CHECK(cuMemAlloc_v2(&address, FEW << 10) == 0);
    once(nanos);
    CHECK(pthread_create(&thread, NULL, without_context, &address) == 0 && pthread_join(thread, NULL) == 0);
    once(nanos);
}

/* A graph for each launch call, on a stream with a name and on a default one: the first launch of each is long in the driver. */
static void graphs(uint64_t nanos)
{
    alarm(GIVE_UP);
    for (int by_thread = 0; by_thread < 2; by_thread++) {
        Handle graph, executable;
        CHECK(cuStreamBeginCapture_v2(stream, 2) == 0);
        launch(nanos);
        CHECK(cuStreamEndCapture(stream, &graph) == 0 && cuGraphInstantiateWithFlags(&executable, graph, 0) == 0);
        for (int one = 0; one < FEW; one++)
            CHECK((by_thread ? cuGraphLaunch_ptsz(executable, NULL) : cuGraphLaunch(executable, stream)) == 0);
        CHECK(cuCtxSynchronize() == 0);
    }
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*play)(uint64_t);
    } scenes[] = { { "once", once }, { "once_by_event", once_by_event }, { "once_by_asking", once_by_asking },
        { "once_in_silence", once_in_silence }, { "grows", grows }, { "captured", captured }, { "capture_lost", capture_lost },
        { "capture_joined", capture_joined }, { "capture_of_thread", capture_of_thread },
        { "capture_to_graph", capture_to_graph }, { "both_cards", both_cards }, { "refused_on_both", refused_on_both },
        { "capture_lost_with_context", capture_lost_with_context },
        { "events", events }, { "two_lengths", two_lengths }, { "many_contexts", many_contexts },
        { "contexts_at_work", contexts_at_work }, { "unknown_by_threads", unknown_by_threads },
        { "refused", refused }, { "graphs", graphs } };
    CHECK(count == 4);
    void (*play)(uint64_t) = NULL;
    for (size_t scene = 0; scene < sizeof scenes / sizeof *scenes; scene++)
        if (strcmp(words[1], scenes[scene].name) == 0)
            play = scenes[scene].play;
    CHECK(play);
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&first, 0) == 0 && cuCtxSetCurrent(first) == 0);
    load();
    CHECK(cuStreamCreate(&stream, 1) == 0 && cuStreamCreate(&other, 1) == 0);
    until = now() + strtoull(words[3], NULL, 10) * 1000000u;
    play(strtoull(words[2], NULL, 10));
    printf("ok %llu\n", (unsigned long long)number);
    fflush(stdout);
    _exit(0);
}
