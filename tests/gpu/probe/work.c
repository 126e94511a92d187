/* Kernels of a fixed amount of work, and how long they take.

   A kernel does so much work, and does not run for so much time: work done is then device time that a process really had,
   whatever took turns with it. */
#include "driver.h"

/* One unit is one step of a square in 32 bits, each of the step before it: no compiler can put two of them together, know the
   first, or leave out what the last decides. */
static const char *const STEPS =
    ".visible .global .align 4 .u32 met;\n"
    ".visible .entry kp(.param .u64 units)\n{\n"
    ".reg .pred %done, %odd;\n.reg .u64 %count, %most, %where;\n.reg .u32 %step;\n"
    "ld.param.u64 %most, [units];\nmov.u64 %count, 0;\nmov.u32 %step, %clock;\n"
    "$next:\nsetp.ge.u64 %done, %count, %most;\n@%done bra $end;\n"
    "mad.lo.u32 %step, %step, %step, 40503;\nadd.u64 %count, %count, 1;\nbra.uni $next;\n"
    "$end:\nsetp.ne.u32 %odd, %step, 1515870810;\n@%odd bra $out;\n"
    "mov.u64 %where, met;\nst.global.u32 [%where], %step;\n"
    "$out:\nret;\n}\n";

/* A driver compiles for its card what was written for an older one; which is the oldest that it still knows, it must say. */
static const struct { const char *version, *target; } HEADS[] = {
    {"6.0", "sm_50"}, {"6.3", "sm_75"}, {"7.0", "sm_80"}, {"7.8", "sm_90"}, {"8.7", "sm_100"},
};

/* Longest text of a module. */
#define TEXT_MAX 2048
/* Kernels of one measurement take so long at least. */
#define MEASURED_NANOS 40000000LL
/* A card that rested is not yet as fast as it will be. */
#define WARM_NANOS 700000000LL
/* Steps within which a length must be met, and how exactly. */
#define STEPS_MAX 16
#define OFF_MAX 0.03

static void *kernel;

#define HEADS_COUNT (sizeof HEADS / sizeof *HEADS)

static const char *text_of(size_t head, const char *body)
{
    static char text[TEXT_MAX];
    const char *format = ".version %s\n.target %s\n.address_size 64\n%s";
    snprintf(text, sizeof text, format, HEADS[head].version, HEADS[head].target, body);
    return text;
}

int module_of(const char *body, void **into)
{
    int code = -1;
    for (size_t at = 0; code && code != 2 && at < HEADS_COUNT; at++)
        code = CALL("cuModuleLoadData", (void **, const void *), into, text_of(at, body));
    return code;
}

void print_texts(const char *body)
{
    for (size_t at = 0; at < HEADS_COUNT; at++)
        printf("%s// end\n", text_of(at, body));
}

void texts_of_work(void)
{
    print_texts(STEPS);
}

typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static Launch launch;

static void one(uint64_t units, unsigned blocks, unsigned threads, void *stream)
{
    void *parameters[] = {&units};
    int code = launch(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
    if (code)
        failed("cuLaunchKernel", code);
}

static void work(uint64_t units, unsigned blocks, unsigned threads, int count)
{
    for (int at = 0; at < count; at++)
        one(units, blocks, threads, NULL);
    MUST("cuCtxSynchronize", (void), );
}

static void compute(void)
{
    void *module = NULL;
    begin();
    enter();
    int code = module_of(STEPS, &module);
    if (code)
        ASIDE("the driver does not compile the kernel: %d, %s", code, named(code));
    MUST("cuModuleGetFunction", (void **, void *, const char *), &kernel, module, "kp");
    launch = (Launch)symbol("cuLaunchKernel");
}

/* Nanoseconds of a kernel, the launches' own cost beside it. */
static double measured(double units, unsigned blocks, unsigned threads)
{
    int count = 1;
    for (;;) {
        long long start = now();
        work((uint64_t)units, blocks, threads, count);
        long long nanos = now() - start;
        if (nanos > MEASURED_NANOS || count >= 100000)
            return (double)nanos / count;
        count *= 4;
    }
}

static int near(double found, double wanted)
{
    return found > wanted * (1 - OFF_MAX) && found < wanted * (1 + OFF_MAX);
}

void calibrate(double nanos, unsigned blocks, unsigned threads)
{
    double units = 100, took = 0, before = 0;
    compute();
    for (long long start = now(); now() - start < WARM_NANOS;)
        measured(units, blocks, threads);
    for (int step = 0; step < STEPS_MAX; step++) {
        before = took;
        took = measured(units, blocks, threads);
        /* So many blocks can take longer than was asked without any work; that is known as well as another length. */
        int is_least = units <= 1 && took > nanos && took < 4 * nanos && near(took, before);
        if (near(took, nanos) || is_least) {
            say("units", (unsigned long long)units);
            say("nanos", (unsigned long long)took);
            return;
        }
        double factor = nanos / took;
        units = units * (factor > 64 ? 64 : factor < 0.02 ? 0.02 : factor);
        if (units < 1)
            units = 1;
    }
    ASIDE("a kernel of %.1f us does not settle: after %d steps it takes %.1f, before that %.1f", nanos / 1e3, STEPS_MAX, took / 1e3,
          before / 1e3);
}

/* What the kernels of one measurement are like. */
struct Shape { uint64_t units; unsigned blocks, threads; const char *how; int count; };

/* One batch of kernels, as a graph, over streams, or plainly. */
static void batch(const struct Shape *shape)
{
    static void *streams[4], *graph, *exec;
    if (!streams[0])
        for (int at = 0; at < 4; at++)
            MUST("cuStreamCreate", (void **, unsigned), &streams[at], 1);
    if (!strcmp(shape->how, "plain")) {
        work(shape->units, shape->blocks, shape->threads, shape->count);
        return;
    }
    if (!strcmp(shape->how, "streams")) {
        for (int at = 0; at < shape->count; at++)
            one(shape->units, shape->blocks, shape->threads, streams[at % 4]);
        MUST("cuCtxSynchronize", (void), );
        return;
    }
    if (!exec) {
        MUST("cuStreamBeginCapture_v2", (void *, int), streams[0], 2);
        for (int at = 0; at < shape->count; at++)
            one(shape->units, shape->blocks, shape->threads, streams[0]);
        MUST("cuStreamEndCapture", (void *, void **), streams[0], &graph);
        MUST("cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &exec, graph, 0);
    }
    MUST("cuGraphLaunch", (void *, void *), exec, streams[0]);
    MUST("cuStreamSynchronize", (void *), streams[0]);
}

void spin(char **words)
{
    struct Shape shape = {(uint64_t)atoll(words[0]), atoi(words[1]), atoi(words[2]), words[3], atoi(words[4])};
    long long length = (long long)(atof(words[5]) * 1e9), wide = (long long)(atof(words[6]) * 1e9);
    long long warm = (long long)(atof(words[7]) * 1e9), start;
    compute();
    work(shape.units, shape.blocks, shape.threads, 1);
    for (start = now(); now() - start < warm;)
        batch(&shape);
    gate();
    start = now();
    long long window = start, last = start;
    unsigned long long done = 0, in_window = 0;
    while (last - start < length) {
        batch(&shape);
        last = now();
        done += shape.count;
        in_window += shape.count;
        if (last - window >= wide) {
            printf("window %llu %lld\n", in_window, last - window);
            window = last;
            in_window = 0;
        }
    }
    printf("whole %llu %lld\n", done, last - start);
}

/* Launches at a time: few enough that the queue does not fill, which would measure the kernels. */
#define AT_ONCE 64

void costs(int count)
{
    size_t free_bytes, total;
    Pointer pointer;
    compute();
    int (*alloc)(Pointer *, size_t) = (int (*)(Pointer *, size_t))symbol("cuMemAlloc_v2");
    int (*release)(Pointer) = (int (*)(Pointer))symbol("cuMemFree_v2");
    int (*info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))symbol("cuMemGetInfo_v2");
    int code = 0;
    /* The first round is thrown away: it finds everything new. */
    for (int round = 0; round < 2; round++) {
        long long spent = 0, start;
        for (int at = 0; at < count; at += AT_ONCE) {
            start = now();
            for (int each = 0; each < AT_ONCE; each++)
                one(0, 1, 32, NULL);
            spent += now() - start;
            MUST("cuCtxSynchronize", (void), );
        }
        int launches = (count + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
        if (round)
            say("launch_picos", (unsigned long long)(spent * 1000.0 / launches));
        start = now();
        for (int at = 0; !code && at < count; at++) {
            code = alloc(&pointer, 4096);
            if (!code)
                code = release(pointer);
        }
        if (round)
            say("alloc_picos", (unsigned long long)((now() - start) * 1000.0 / count));
        start = now();
        for (int at = 0; !code && at < count; at++)
            code = info(&free_bytes, &total);
        if (round)
            say("info_picos", (unsigned long long)((now() - start) * 1000.0 / count));
    }
    if (code)
        failed("one of cuMemAlloc, cuMemFree, cuMemGetInfo", code);
}
