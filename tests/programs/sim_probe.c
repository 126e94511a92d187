/*
 * One step at a time on the driver, which is opened with dlopen as most clients do. Commands:
 *   hold BYTES          allocates, says ready, waits until its input ends, frees
 *   busy NANOS          says ready, then launches kernels of that length until killed
 *   count NANOS N       launches N kernels of that length and waits for them
 *   churn SEED          says ready, then allocates and frees at random until killed
 *   allocs N            allocates 4 KiB N times and prints each result
 *   devices             prints the UUID of each visible card
 *   resolve             answers "symbol version flags" lines with both versions of cuGetProcAddress
 *   fork                prints what a forked child gets
 *   stale               uses streams, events and a context after their end, and prints what that answers
 *   trims N             N launches of a graph that leaves an allocation, and fills 16 MiB, while another thread trims all the
 *                       time; prints what graphs have reserved and use
 *   grows N             N pools, each of which eight threads take 256 KiB at once; prints how much the largest ever had
 *   export, open HEX    one side of sharing memory between processes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t H;
typedef struct { unsigned char bytes[64]; } Ipc;

static void *driver;

static void *symbol(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) { printf("missing %s\n", name); exit(3); }
    return found;
}

#define CALL(name, types) ((int (*) types)symbol(name))

static void must(int code, const char *what) {
    if (code) { printf("%s: %d\n", what, code); exit(2); }
}

static void ready(void) { puts("ready"); fflush(stdout); }

static void start(void) {
    H context;
    must(CALL("cuInit", (unsigned))(0), "cuInit");
    must(CALL("cuDevicePrimaryCtxRetain", (H *, int))(&context, 0), "retain");
    must(CALL("cuCtxSetCurrent", (H))(context), "current");
}

static H kernel(const char *nanos) {
    H module, function;
    char name[64];
    snprintf(name, sizeof name, "k_%s", nanos);
    must(CALL("cuModuleLoadData", (H *, const void *))(&module, "image"), "load");
    must(CALL("cuModuleGetFunction", (H *, H, const char *))(&function, module, name), "function");
    return function;
}

typedef int Launch(H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);

static void busy(const char *nanos, long count) {
    start();
    H function = kernel(nanos);
    Launch *launch = (Launch *)symbol("cuLaunchKernel");
    ready();
    for (long n = 0; count < 0 || n < count; n++) must(launch(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), "launch");
    must(CALL("cuCtxSynchronize", (void))(), "sync");
}

static void churn(unsigned seed) {
    H held[64] = {0};
    start();
    int (*alloc)(H *, size_t) = CALL("cuMemAlloc_v2", (H *, size_t)), (*give)(H) = CALL("cuMemFree_v2", (H));
    ready();
    for (;;) {
        int slot = rand_r(&seed) % 64;
        if (held[slot]) { must(give(held[slot]), "free"); held[slot] = 0; }
        else must(alloc(&held[slot], 512 + rand_r(&seed) % (8 << 20)), "alloc");
    }
}

static const char *name_of(void *address) {
    Dl_info info;
    return address && dladdr(address, &info) && info.dli_sname ? info.dli_sname : "-";
}

static void resolve(void) {
    char line[256], name[200];
    int version;
    unsigned long long flags;
    int (*first)(const char *, void **, int, uint64_t) = CALL("cuGetProcAddress", (const char *, void **, int, uint64_t));
    int (*second)(const char *, void **, int, uint64_t, int *) =
        CALL("cuGetProcAddress_v2", (const char *, void **, int, uint64_t, int *));
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%199s %d %llu", name, &version, &flags) != 3) exit(2);
        void *one = (void *)1, *two = (void *)1;
        int status = -1;
        int a = first(name, &one, version, flags), b = second(name, &two, version, flags, &status);
        printf("%d %s %d %d %s\n", a, a == 1 ? "-" : name_of(one), b, status, b == 1 ? "-" : name_of(two));
    }
}

static void share(const char *hex) {
    H address;
    Ipc handle;
    char text[] = "the same bytes";
    start();
    if (!hex) {
        must(CALL("cuMemAlloc_v2", (H *, size_t))(&address, 1 << 20), "alloc");
        must(CALL("cuMemcpyHtoD_v2", (H, const void *, size_t))(address, text, sizeof text), "to");
        must(CALL("cuIpcGetMemHandle", (Ipc *, H))(&handle, address), "export");
        for (int i = 0; i < 64; i++) printf("%02x", handle.bytes[i]);
        puts("");
        fflush(stdout);
        getchar();
        must(CALL("cuMemcpyDtoH_v2", (void *, H, size_t))(text, address, sizeof text), "from");
        puts(text);
        return;
    }
    for (int i = 0; i < 64; i++) sscanf(hex + 2 * i, "%2hhx", &handle.bytes[i]);
    must(CALL("cuIpcOpenMemHandle_v2", (H *, Ipc, unsigned))(&address, handle, 1), "open");
    must(CALL("cuMemcpyDtoH_v2", (void *, H, size_t))(text, address, sizeof text), "from");
    puts(text);
    must(CALL("cuMemcpyHtoD_v2", (H, const void *, size_t))(address, "THE", 3), "to");
    must(CALL("cuIpcCloseMemHandle", (H))(address), "close");
    handle.bytes[0] ^= 1;
    printf("%d\n", CALL("cuIpcOpenMemHandle_v2", (H *, Ipc, unsigned))(&address, handle, 1));
}

/* Streams and events end by themselves, and with their context. */
static void stale(void) {
    H context, stream, event, kept, last;
    start();
    must(CALL("cuStreamCreate", (H *, unsigned))(&stream, 1), "stream");
    must(CALL("cuEventCreate", (H *, unsigned))(&event, 0), "event");
    must(CALL("cuCtxCreate_v2", (H *, unsigned, int))(&context, 0, 0), "context");
    must(CALL("cuStreamCreate", (H *, unsigned))(&last, 1), "stream");
    must(CALL("cuEventCreate", (H *, unsigned))(&kept, 0), "event");
    must(CALL("cuStreamDestroy_v2", (H))(stream), "end of the stream");
    must(CALL("cuEventDestroy_v2", (H))(event), "end of the event");
    must(CALL("cuCtxDestroy_v2", (H))(context), "end of the context");
    printf("%d ", CALL("cuStreamQuery", (H))(stream));
    printf("%d ", CALL("cuEventQuery", (H))(event));
    printf("%d ", CALL("cuStreamSynchronize", (H))(last));
    printf("%d ", CALL("cuEventDestroy_v2", (H))(kept));
    printf("%d ", CALL("cuCtxPushCurrent_v2", (H))(context));
    printf("%d\n", CALL("cuEventQuery", (H))(0x53));
}

static atomic_int enough;

static void *trim(void *unused) {
    while (!enough)
        must(CALL("cuDeviceGraphMemTrim", (int))(0), "trim");
    return unused;
}

static void trims(int count) {
    enum { FILLED = 16 << 20, LEFT = 2 << 20 };
    H stream, filled, left, graph, ready;
    pthread_t trimmer;
    uint64_t reserved = 0, used = 0;
    start();
    must(CALL("cuStreamCreate", (H *, unsigned))(&stream, 1), "stream");
    must(CALL("cuMemAlloc_v2", (H *, size_t))(&filled, FILLED), "alloc");
    if (pthread_create(&trimmer, NULL, trim, NULL)) exit(2);
    for (int n = 0; n < count; n++) {
        must(CALL("cuStreamBeginCapture_v2", (H, unsigned))(stream, 2), "capture");
        must(CALL("cuMemAllocAsync", (H *, size_t, H))(&left, LEFT, stream), "node");
        must(CALL("cuMemsetD8Async", (H, unsigned char, size_t, H))(filled, 1, FILLED, stream), "fill");
        must(CALL("cuStreamEndCapture", (H, H *))(stream, &graph), "end");
        must(CALL("cuGraphInstantiateWithFlags", (H *, H, unsigned long long))(&ready, graph, 0), "instantiate");
        must(CALL("cuGraphLaunch", (H, H))(ready, stream), "launch");
    }
    enough = 1;
    pthread_join(trimmer, NULL);
    must(CALL("cuDeviceGetGraphMemAttribute", (int, int, uint64_t *))(0, 2, &reserved), "reserved");
    must(CALL("cuDeviceGetGraphMemAttribute", (int, int, uint64_t *))(0, 0, &used), "used");
    printf("%llu %llu\n", (unsigned long long)reserved, (unsigned long long)used);
}

enum { TAKERS = 8 };
static pthread_barrier_t gate;
static H pool;
static int (*from_pool)(H *, size_t, H, H);

static void *taker(void *context) {
    H block;
    must(CALL("cuCtxSetCurrent", (H))((H)context), "current");
    pthread_barrier_wait(&gate);
    must(from_pool(&block, 256 << 10, pool, 0), "block");
    return NULL;
}

static void grows(int count) {
    /* Of the card, by the vendor's structure. */
    uint64_t card[11] = {1, 1}, most = 0, largest = 0;
    pthread_t takers[TAKERS];
    H context;
    start();
    must(CALL("cuCtxGetCurrent", (H *))(&context), "context");
    from_pool = CALL("cuMemAllocFromPoolAsync", (H *, size_t, H, H));
    pthread_barrier_init(&gate, NULL, TAKERS);
    for (int n = 0; n < count; n++) {
        must(CALL("cuMemPoolCreate", (H *, const void *))(&pool, card), "pool");
        for (int at = 0; at < TAKERS; at++)
            if (pthread_create(&takers[at], NULL, taker, (void *)context)) exit(2);
        for (int at = 0; at < TAKERS; at++) pthread_join(takers[at], NULL);
        must(CALL("cuMemPoolGetAttribute", (H, int, uint64_t *))(pool, 6, &most), "most");
        largest = most > largest ? most : largest;
        must(CALL("cuMemPoolDestroy", (H))(pool), "end of the pool");
    }
    printf("%llu\n", (unsigned long long)largest);
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "", *argument = argc > 2 ? argv[2] : "0";
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { puts(dlerror()); return 1; }
    if (!strcmp(command, "hold")) {
        H address;
        start();
        must(CALL("cuMemAlloc_v2", (H *, size_t))(&address, strtoull(argument, 0, 10)), "alloc");
        ready();
        while (getchar() != EOF) { }
        must(CALL("cuMemFree_v2", (H))(address), "free");
        must(CALL("cuDevicePrimaryCtxRelease_v2", (int))(0), "release");
    } else if (!strcmp(command, "busy")) busy(argument, -1);
    else if (!strcmp(command, "count")) busy(argument, strtol(argv[3], 0, 10));
    else if (!strcmp(command, "churn")) churn(strtoul(argument, 0, 10));
    else if (!strcmp(command, "resolve")) resolve();
    else if (!strcmp(command, "stale")) stale();
    else if (!strcmp(command, "trims")) trims(atoi(argument));
    else if (!strcmp(command, "grows")) grows(atoi(argument));
    else if (!strcmp(command, "export")) share(0);
    else if (!strcmp(command, "open")) share(argument);
    else if (!strcmp(command, "allocs")) {
        start();
        for (int n = atoi(argument); n > 0; n--) {
            H address = 77;
            int code = CALL("cuMemAlloc_v2", (H *, size_t))(&address, 4096);
            printf("%d%s\n", code, code && address != 77 ? " touched" : "");
        }
    } else if (!strcmp(command, "devices")) {
        int count = 0;
        int code = CALL("cuInit", (unsigned))(0);
        if (code) { printf("%d\n", code); return 0; }
        must(CALL("cuDeviceGetCount", (int *))(&count), "count");
        for (int n = 0; n < count; n++) {
            unsigned char uuid[16];
            must(CALL("cuDeviceGetUuid_v2", (void *, int))(uuid, n), "uuid");
            for (int i = 0; i < 16; i++) printf("%02x", uuid[i]);
            puts("");
        }
    } else if (!strcmp(command, "fork")) {
        int status;
        start();
        if (fork() == 0) _exit(CALL("cuCtxSynchronize", (void))());
        wait(&status);
        printf("%d %d\n", WEXITSTATUS(status), CALL("cuCtxSynchronize", (void))());
    } else return 64;
    return 0;
}
