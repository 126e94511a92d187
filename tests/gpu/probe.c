/* A tenant in plain C: opens the driver as programs do, and does one thing.

     probe facts                               what the card is
     probe report                              what every call says about memory
     probe truth UUID                          what NVML says is used, for a process without the shim
     probe fill FAMILY CHUNK MOST              allocates until the driver refuses, then holds until its input ends
     probe calibrate NANOS BLOCKS              how many units of work a kernel of that length is
     probe spin UNITS BLOCKS HOW BATCH SECONDS kernels back to back, counted by windows of half a second
     probe launch COUNT                        what launching, allocating and asking cost

   Answers are lines of a key and numbers. Kernels are PTX text: nothing is compiled on the machine of the card. The kernel
   does a fixed amount of work, not a fixed time: work done by a process is then device time that it really had, whoever
   took turns with it. Exit code 3: there is no driver or no card; the reason is printed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHUNKS_MAX 65536
#define WINDOW_NANOS 500000000LL

typedef unsigned long long Pointer;

static void *driver;
static void *context;
static int device;

static void *symbol(const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) {
        printf("missing %s\n", name);
        exit(3);
    }
    return found;
}

/* Calls a driver function by its export, with the argument types given. */
#define CALL(name, types, ...) (((int (*) types)symbol(name)) (__VA_ARGS__))
#define MUST(name, types, ...)                                        \
    do {                                                              \
        int code = CALL(name, types, __VA_ARGS__);                    \
        if (code) {                                                   \
            printf("failed %s %d\n", name, code);                     \
            exit(1);                                                  \
        }                                                             \
    } while (0)

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void begin(void)
{
    int code, count = 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        printf("reason %s\n", dlerror());
        exit(3);
    }
    code = CALL("cuInit", (unsigned), 0);
    if (!code)
        code = CALL("cuDeviceGetCount", (int *), &count);
    if (code || count < 1) {
        printf("reason the driver answers %d, and shows %d cards\n", code, count);
        exit(3);
    }
    MUST("cuDeviceGet", (int *, int), &device, 0);
}

static void enter(void)
{
    MUST("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    MUST("cuCtxSetCurrent", (void *), context);
}

static void say(const char *key, unsigned long long number)
{
    printf("%s %llu\n", key, number);
    fflush(stdout);
}

/* Ready, and on when the input ends: several processes begin at once. */
static void gate(void)
{
    char byte;
    printf("ready\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
}

static void card_uuid(char *into)
{
    unsigned char bytes[16];
    void *second = dlsym(driver, "cuDeviceGetUuid_v2");
    int (*get)(void *, int) = (int (*)(void *, int))(second ? second : symbol("cuDeviceGetUuid"));
    if (get(bytes, device))
        exit(1);
    into += sprintf(into, "GPU-");
    for (int at = 0; at < 16; at++)
        into += sprintf(into, at == 4 || at == 6 || at == 8 || at == 10 ? "-%02x" : "%02x", bytes[at]);
}

static void facts(void)
{
    char name[256] = "", uuid[64];
    size_t total = 0;
    int version = 0, processors = 0;
    begin();
    MUST("cuDeviceGetName", (char *, int, int), name, sizeof name, device);
    MUST("cuDeviceTotalMem_v2", (size_t *, int), &total, device);
    MUST("cuDriverGetVersion", (int *), &version);
    MUST("cuDeviceGetAttribute", (int *, int, int), &processors, 16, device);
    card_uuid(uuid);
    printf("name %s\nuuid %s\n", name, uuid);
    say("total", total);
    say("version", version);
    say("processors", processors);
}

struct Memory { unsigned long long total, free, used; };
struct Memory2 { unsigned version; unsigned long long total, reserved, free, used; };

static void nvml(const char *uuid, int all)
{
    struct Memory memory = {0, 0, 0};
    struct Memory2 memory2 = {sizeof(struct Memory2) | 2 << 24, 0, 0, 0, 0};
    void *handle = NULL, *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        printf("reason %s\n", dlerror());
        exit(3);
    }
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*find)(const char *, void **) = (int (*)(const char *, void **))dlsym(library, "nvmlDeviceGetHandleByUUID");
    int (*first)(void *, void *) = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    int (*second)(void *, void *) = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo_v2");
    if (!init || !find || !first || init() || find(uuid, &handle) || first(handle, &memory)) {
        printf("reason NVML does not tell the memory of %s\n", uuid);
        exit(3);
    }
    say("nvml_total", memory.total);
    say("nvml_used", memory.used);
    if (all && second && !second(handle, &memory2)) {
        say("nvml2_total", memory2.total);
        say("nvml2_used", memory2.used);
    }
}

static void report(void)
{
    size_t free_bytes = 0, total = 0, whole = 0;
    char uuid[64];
    begin();
    enter();
    card_uuid(uuid);
    MUST("cuMemGetInfo_v2", (size_t *, size_t *), &free_bytes, &total);
    MUST("cuDeviceTotalMem_v2", (size_t *, int), &whole, device);
    say("info_free", free_bytes);
    say("info_total", total);
    say("device_total", whole);
    nvml(uuid, 1);
}

/* As the driver's headers lay them out. */
struct Location { int type, id; };
struct Physical { int type, handle_types; struct Location location; void *win32; unsigned char flags[8]; };
struct Array { size_t width, height; int format; unsigned channels; };

static Pointer held[CHUNKS_MAX];

static int take(const char *family, size_t chunk, Pointer *into)
{
    size_t pitch;
    struct Physical physical = {1, 0, {1, device}, NULL, {0}};
    struct Array array = {1024, chunk / 16 / 1024, 0x20, 4};
    if (!strcmp(family, "plain"))
        return CALL("cuMemAlloc_v2", (Pointer *, size_t), into, chunk);
    if (!strcmp(family, "pitch"))
        return CALL("cuMemAllocPitch_v2", (Pointer *, size_t *, size_t, size_t, unsigned), into, &pitch, 65536, chunk / 65536, 16);
    if (!strcmp(family, "async"))
        return CALL("cuMemAllocAsync", (Pointer *, size_t, void *), into, chunk, NULL);
    if (!strcmp(family, "physical"))
        return CALL("cuMemCreate", (Pointer *, size_t, void *, unsigned long long), into, chunk, &physical, 0);
    if (!strcmp(family, "managed"))
        return CALL("cuMemAllocManaged", (Pointer *, size_t, unsigned), into, chunk, 1);
    if (!strcmp(family, "array"))
        return CALL("cuArrayCreate_v2", (Pointer *, void *), into, &array);
    exit(2);
}

static int give(const char *family, Pointer what)
{
    if (!strcmp(family, "async"))
        return CALL("cuMemFreeAsync", (Pointer, void *), what, NULL);
    if (!strcmp(family, "physical"))
        return CALL("cuMemRelease", (Pointer), what);
    if (!strcmp(family, "array"))
        return CALL("cuArrayDestroy", (Pointer), what);
    return CALL("cuMemFree_v2", (Pointer), what);
}

static void fill(const char *family, size_t chunk, size_t most)
{
    const Pointer mark = 0x5a5a5a5a5a5a5a5aULL;
    int code = 0, freed = 0, again = 0, count = 0;
    begin();
    enter();
    while (count < CHUNKS_MAX && (size_t)count * chunk < most) {
        Pointer one = mark;
        code = take(family, chunk, &one);
        if (code) {
            say("untouched", one == mark);
            break;
        }
        held[count++] = one;
        /* Managed memory comes onto the card with the first write; a byte of each of its pages is enough. */
        if (!strcmp(family, "managed"))
            MUST("cuMemsetD2D8_v2", (Pointer, size_t, unsigned char, size_t, size_t), one, 65536, 1, 1, chunk / 65536);
    }
    MUST("cuCtxSynchronize", (void), );
    say("code", code);
    say("bytes", (unsigned long long)count * chunk);
    if (code && count) {
        freed |= give(family, held[--count]);
        MUST("cuCtxSynchronize", (void), );
        again = take(family, chunk, &held[count]);
        count += !again;
        say("again", again);
    }
    gate();
    while (count)
        freed |= give(family, held[--count]);
    MUST("cuCtxSynchronize", (void), );
    say("freed", freed);
}

/* The work of one unit is one look at the clock, which no compiler may leave out. */
static const char *const PTX =
    ".version 6.0\n.target %s\n.address_size 64\n"
    ".visible .entry kp(.param .u64 units)\n{\n"
    ".reg .pred %%done;\n.reg .u64 %%count, %%most;\n.reg .u32 %%time;\n"
    "ld.param.u64 %%most, [units];\nmov.u64 %%count, 0;\n"
    "$next:\nsetp.ge.u64 %%done, %%count, %%most;\n@%%done bra $end;\n"
    "mov.u32 %%time, %%clock;\nadd.u64 %%count, %%count, 1;\nbra $next;\n"
    "$end:\nret;\n}\n";

static void *kernel;

static void load(void)
{
    static const char *const targets[] = {"sm_50", "sm_75", "sm_90"};
    char text[1024];
    void *module = NULL;
    int code = -1;
    for (int at = 0; code && at < 3; at++) {
        snprintf(text, sizeof text, PTX, targets[at]);
        code = CALL("cuModuleLoadData", (void **, const void *), &module, text);
    }
    if (code) {
        printf("failed cuModuleLoadData %d\n", code);
        exit(1);
    }
    MUST("cuModuleGetFunction", (void **, void *, const char *), &kernel, module, "kp");
}

typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static Launch launch;

static int one(uint64_t units, unsigned blocks, void *stream)
{
    void *parameters[] = {&units};
    return launch(kernel, blocks, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static void work(uint64_t units, unsigned blocks, int count)
{
    for (int at = 0; at < count; at++)
        if (one(units, blocks, NULL)) {
            printf("failed cuLaunchKernel\n");
            exit(1);
        }
    MUST("cuCtxSynchronize", (void), );
}

static void compute(void)
{
    begin();
    enter();
    load();
    launch = (Launch)symbol("cuLaunchKernel");
}

/* Work for at least this long, the launches' own cost beside it. */
static double measured(uint64_t units, unsigned blocks)
{
    int count = 1;
    for (;;) {
        long long start = now();
        work(units, blocks, count);
        long long nanos = now() - start;
        if (nanos > 40000000LL || count >= 100000)
            return (double)nanos / count;
        count *= 4;
    }
}

static void calibrate(double nanos, unsigned blocks)
{
    double units = nanos > 20000 ? 1000 : 100, took = 0;
    compute();
    measured((uint64_t)units, blocks);
    for (int step = 0; step < 12; step++) {
        took = measured((uint64_t)units, blocks);
        if (took > nanos * 0.97 && took < nanos * 1.03)
            break;
        double factor = nanos / took;
        units = units * (factor > 64 ? 64 : factor < 0.02 ? 0.02 : factor);
        if (units < 1)
            units = 1;
    }
    say("units", (unsigned long long)units);
    say("nanos", (unsigned long long)took);
}

/* One batch of kernels, as a graph, over streams, or plainly. */
static void batch(const char *how, uint64_t units, unsigned blocks, int count)
{
    static void *streams[4], *graph, *exec;
    if (!streams[0])
        for (int at = 0; at < 4; at++)
            MUST("cuStreamCreate", (void **, unsigned), &streams[at], 1);
    if (!strcmp(how, "plain")) {
        work(units, blocks, count);
        return;
    }
    if (!strcmp(how, "streams")) {
        for (int at = 0; at < count; at++)
            one(units, blocks, streams[at % 4]);
        MUST("cuCtxSynchronize", (void), );
        return;
    }
    if (!exec) {
        MUST("cuStreamBeginCapture_v2", (void *, int), streams[0], 2);
        for (int at = 0; at < count; at++)
            one(units, blocks, streams[0]);
        MUST("cuStreamEndCapture", (void *, void **), streams[0], &graph);
        MUST("cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &exec, graph, 0);
    }
    MUST("cuGraphLaunch", (void *, void *), exec, streams[0]);
    MUST("cuStreamSynchronize", (void *), streams[0]);
}

static void spin(uint64_t units, unsigned blocks, const char *how, int count, double seconds)
{
    compute();
    work(units, blocks, 1);
    gate();
    long long start = now(), window = start, end = start + (long long)(seconds * 1e9), last = start;
    unsigned long long done = 0, in_window = 0;
    while (last < end) {
        batch(how, units, blocks, count);
        last = now();
        done += count;
        in_window += count;
        if (last - window >= WINDOW_NANOS) {
            printf("window %llu %lld\n", in_window, last - window);
            window = last;
            in_window = 0;
        }
    }
    printf("whole %llu %lld\n", done, last - start);
}

static void costs(int count)
{
    size_t free_bytes, total;
    Pointer pointer;
    compute();
    int (*alloc)(Pointer *, size_t) = (int (*)(Pointer *, size_t))symbol("cuMemAlloc_v2");
    int (*release)(Pointer) = (int (*)(Pointer))symbol("cuMemFree_v2");
    int (*info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))symbol("cuMemGetInfo_v2");
    int failed = 0;
    for (int round = 0; round < 2; round++) {
        long long start = now();
        /* Few enough at a time that the queue does not fill, which would measure the kernels. */
        long long spent = 0;
        for (int at = 0; at < count; at += 64) {
            start = now();
            for (int each = 0; each < 64; each++)
                one(0, 1, NULL);
            spent += now() - start;
            MUST("cuCtxSynchronize", (void), );
        }
        if (round)
            say("launch_picos", (unsigned long long)(spent * 1000.0 / count));
        start = now();
        for (int at = 0; at < count; at++) {
            failed |= alloc(&pointer, 4096);
            failed |= release(pointer);
        }
        if (round)
            say("alloc_picos", (unsigned long long)((now() - start) * 1000.0 / count));
        start = now();
        for (int at = 0; at < count; at++)
            failed |= info(&free_bytes, &total);
        if (round)
            say("info_picos", (unsigned long long)((now() - start) * 1000.0 / count));
    }
    say("failed", failed);
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "facts"))
        facts();
    else if (!strcmp(what, "report"))
        report();
    else if (!strcmp(what, "truth") && count == 3)
        nvml(words[2], 0);
    else if (!strcmp(what, "fill") && count == 5)
        fill(words[2], strtoull(words[3], NULL, 10), strtoull(words[4], NULL, 10));
    else if (!strcmp(what, "calibrate") && count == 4)
        calibrate(atof(words[2]), atoi(words[3]));
    else if (!strcmp(what, "spin") && count == 7)
        spin(strtoull(words[2], NULL, 10), atoi(words[3]), words[4], atoi(words[5]), atof(words[6]));
    else if (!strcmp(what, "launch") && count == 3)
        costs(atoi(words[2]));
    else
        return 2;
    return 0;
}
