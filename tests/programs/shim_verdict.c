/* Tries to take memory of card 0 by every family of calls, and says what came of it, a family a line: "NAME SMALL LARGE", the
   answers to 1 MiB and to the bytes of the argument; "-" where a family has no sizes, or this driver not the function.
   Where it is refused a context it gets one past every function that has a name, as runtime libraries do.
   With the argument "errors": the answers of calls that name no card, before cuInit and after it.
   With "launches": the answers to a kernel, a graph, a fill and a copy; "-" where no kernel is to be had. With "launches-short"
   the process has no address space left by then. With a second argument "crowded" it has made more pools than are counted,
   and asks nothing of the last. */
#include "external.h"
#include "green.h"
#include "sparse.h"
#include <sys/resource.h>
#include <unistd.h>

#define HAS(name) (dlsym(library, #name) != NULL)

static void *stream;
static u64 pool;

static void must(int code, const char *what)
{
    if (code) {
        printf("%s: %d\n", what, code);
        exit(2);
    }
}

/* An answer; one that fails and changes an out-parameter is invalid. */
static int refused(int code, u64 out) { return code && out != UNTOUCHED ? 1000 + code : code; }

typedef struct { unsigned allocation, handles, kind; int number; u64 rest[9]; } Props;
typedef struct { Props props; void *access; u64 accesses, bytes, address; } Node;
typedef struct { unsigned kind, reserved[3]; Node memory; u64 rest[15]; } Any;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } Deep;

static const Props CARD = {1, 0, 1, 0, {0}};

static int plain(size_t bytes)
{
    u64 out = UNTOUCHED;
    return refused(CALL(cuMemAlloc_v2, &out, bytes), out);
}

static int pitched(size_t bytes)
{
    u64 out = UNTOUCHED, pitch = UNTOUCHED;
    int code = refused(CALL(cuMemAllocPitch_v2, &out, &pitch, bytes / 1024, (size_t)1024, 4u), out);
    return refused(code, pitch);
}

static int managed(size_t bytes)
{
    u64 out = UNTOUCHED;
    return refused(CALL(cuMemAllocManaged, &out, bytes, 1u), out);
}

static Deep square(size_t bytes)
{
    size_t side = 16;
    while (side * side * 4 < bytes)
        side *= 2;
    return (Deep){side, side, 0, 0x20, 1, 0};
}

static int array(size_t bytes)
{
    u64 out = UNTOUCHED;
    Deep shape = square(bytes);
    return refused(CALL(cuArray3DCreate_v2, &out, &shape), out);
}

static int mipmapped(size_t bytes)
{
    u64 out = UNTOUCHED;
    Deep shape = square(bytes);
    return refused(CALL(cuMipmappedArrayCreate, &out, &shape, 1u), out);
}

static size_t whole_pages(size_t bytes) { return (bytes + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1); }

static int physical(size_t bytes)
{
    u64 out = UNTOUCHED;
    return refused(CALL(cuMemCreate, &out, whole_pages(bytes), &CARD, 0ull), out);
}

/* What of it is held elsewhere stays there. */
static int part_of_array(size_t bytes)
{
    void *array = NULL;
    Deep sparse = {1024, 1024, 0, 0x20, 1, 0x40};
    Part part = {0, NULL, 0, {{0, 0, 0, 0, 0, 64, 64, 1}}, 1, 0, UNTOUCHED, 0, 1, 0, {0, 0}};
    int code = refused(CALL(cuMemCreate, &part.handle, whole_pages(bytes), &CARD, 0ull), part.handle);
    if (code)
        return code;
    must(CALL(cuArray3DCreate_v2, &array, &sparse), "sparse array");
    part.array = array;
    return CALL(cuMemMapArrayAsync, &part, 1u, stream);
}

static int multicast(size_t bytes)
{
    struct {
        unsigned devices;
        size_t bytes;
        u64 handle_types, flags;
    } team = {1, whole_pages(bytes), 0, 0};
    u64 object = UNTOUCHED, memory = UNTOUCHED;
    must(CALL(cuMulticastCreate, &object, &team), "multicast object");
    must(CALL(cuMulticastAddDevice, object, 0), "its card");
    int code = refused(CALL(cuMemCreate, &memory, team.bytes, &CARD, 0ull), memory);
    return code ? code : CALL(cuMulticastBindMem, object, (size_t)0, memory, (size_t)0, team.bytes, 0ull);
}

static int range(size_t bytes)
{
    u64 out = UNTOUCHED;
    int descriptor = -1;
    int code = refused(CALL(cuMemAlloc_v2, &out, bytes), out);
    code = code ? code : CALL(cuMemGetHandleForAddressRange, &descriptor, out, bytes, 1u, 0ull);
    if (!code)
        close(descriptor);
    return code;
}

/* Of another interface: it is there already, and is the caller's where it is not imported. */
static int external(size_t bytes)
{
    void **table = NULL;
    u64 out = UNTOUCHED;
    External given = {1, {-1}, whole_pages(bytes), 0, {0}};
    must(CALL(cuGetExportTable, &table, "aliquot-sim-ctx\1"), "table");
    must(((int (*)(int *, u64, int))table[4])(&given.handle.fd, given.size, 0), "memory elsewhere");
    int code = refused(CALL(cuImportExternalMemory, &out, &given), out);
    if (code)
        close(given.handle.fd);
    return code;
}

static int ordered(size_t bytes)
{
    u64 out = UNTOUCHED;
    return refused(CALL(cuMemAllocAsync, &out, bytes, stream), out);
}

static int pooled(size_t bytes)
{
    u64 out = UNTOUCHED;
    if (!pool)
        must(CALL(cuMemPoolCreate, &pool, &CARD), "pool");
    return refused(CALL(cuMemAllocFromPoolAsync, &out, bytes, pool, stream), out);
}

static int instantiated(int code, void *graph)
{
    u64 out = UNTOUCHED;
    code = code ? code : refused(CALL(cuGraphInstantiateWithFlags, &out, graph, 0ull), out);
    /* An upload takes memory as a launch does, and no time of the card. */
    code = code ? code : CALL(cuGraphUpload, out, stream);
    /* It is charged as long as it is there, and other families need the room. */
    if (out != UNTOUCHED)
        must(CALL(cuGraphExecDestroy, out), "destruction");
    return code;
}

static int graph_node(size_t bytes)
{
    void *graph = NULL;
    u64 out = UNTOUCHED;
    Node node = {CARD, NULL, 0, bytes, 0};
    must(CALL(cuGraphCreate, &graph, 0u), "graph");
    return instantiated(refused(CALL(cuGraphAddMemAllocNode, &out, graph, NULL, (size_t)0, &node), out), graph);
}

static int any_node(size_t bytes)
{
    void *graph = NULL;
    u64 out = UNTOUCHED;
    Any node = {10, {0}, {CARD, NULL, 0, bytes, 0}, {0}};
    must(CALL(cuGraphCreate, &graph, 0u), "graph");
    return instantiated(refused(CALL(cuGraphAddNode, &out, graph, NULL, (size_t)0, &node), out), graph);
}

typedef int AddEdged(u64 *, void *, void *, void *, size_t, Any *);

static int with_edges(AddEdged *add, size_t bytes)
{
    void *graph = NULL;
    u64 out = UNTOUCHED;
    Any node = {10, {0}, {CARD, NULL, 0, bytes, 0}, {0}};
    must(CALL(cuGraphCreate, &graph, 0u), "graph");
    return instantiated(refused(add(&out, graph, NULL, NULL, 0, &node), out), graph);
}

static int edged_node(size_t bytes) { return with_edges((AddEdged *)dlsym(library, "cuGraphAddNode_v2"), bytes); }

static int described_node(size_t bytes) { return with_edges((AddEdged *)dlsym(library, "cuGraphAddNode_v3"), bytes); }

static int captured_from(size_t bytes, u64 from)
{
    void *graph = NULL;
    u64 out = UNTOUCHED;
    must(CALL(cuStreamBeginCapture_v2, stream, 0u), "capture");
    int code = refused(from ? CALL(cuMemAllocFromPoolAsync, &out, bytes, from, stream)
                            : CALL(cuMemAllocAsync, &out, bytes, stream), out);
    must(CALL(cuStreamEndCapture, stream, &graph), "end of the capture");
    return instantiated(code, graph);
}

static int captured(size_t bytes) { return captured_from(bytes, 0); }

static int captured_of_pool(size_t bytes) { return captured_from(bytes, pool); }

static const struct {
    const char *name, *needs;
    int (*take)(size_t);
} FAMILIES[] = {
    {"plain", "cuMemAlloc_v2", plain},
    {"pitched", "cuMemAllocPitch_v2", pitched},
    {"managed", "cuMemAllocManaged", managed},
    {"array", "cuArray3DCreate_v2", array},
    {"mipmapped", "cuMipmappedArrayCreate", mipmapped},
    {"physical", "cuMemCreate", physical},
    {"ordered", "cuMemAllocAsync", ordered},
    {"pooled", "cuMemAllocFromPoolAsync", pooled},
    {"graph-node", "cuGraphAddMemAllocNode", graph_node},
    {"any-node", "cuGraphAddNode", any_node},
    {"edged-node", "cuGraphAddNode_v2", edged_node},
    {"described-node", "cuGraphAddNode_v3", described_node},
    {"captured", "cuMemAllocAsync", captured},
    {"captured-of-pool", "cuMemAllocFromPoolAsync", captured_of_pool},
    {"part-of-array", "cuMemMapArrayAsync", part_of_array},
    {"multicast", "cuMulticastBindMem", multicast},
    {"range", "cuMemGetHandleForAddressRange", range},
    {"external", "cuImportExternalMemory", external},
};

static void own_context(int version)
{
    u64 out = UNTOUCHED;
    int code = version == 1   ? CALL(cuCtxCreate, &out, 0u, 0)
               : version == 2 ? CALL(cuCtxCreate_v2, &out, 0u, 0)
               : version == 3 ? CALL(cuCtxCreate_v3, &out, NULL, 0, 0u, 0)
                              : CALL(cuCtxCreate_v4, &out, NULL, 0u, 0);
    printf("context-%d %d -\n", version, refused(code, out));
    if (!code)
        must(CALL(cuCtxDestroy_v2, out), "destroy");
}

static void contexts(void)
{
    u64 out = UNTOUCHED;
    int code = CALL(cuDevicePrimaryCtxRetain, &out, 0);
    printf("primary-context %d -\n", refused(code, out));
    if (code) {
        void **table = NULL;
        must(CALL(cuGetExportTable, &table, "aliquot-sim-ctx\1"), "table");
        must(((int (*)(u64 *, int))table[2])(&out, 0), "the other way to a context");
    }
    must(CALL(cuCtxSetCurrent, out), "current");
    for (int version = 1; version <= 4; version++)
        own_context(version);
    if (HAS(cuGreenCtxCreate)) {
        u64 green = UNTOUCHED;
        code = make_green(&green, 0);
        printf("green-context %d -\n", refused(code, green));
        if (!code)
            must(CALL(cuGreenCtxDestroy, green), "destroy");
    }
}

static void modules(void)
{
    u64 out = UNTOUCHED, got = UNTOUCHED;
    int code = CALL(cuModuleLoadData, &out, "image");
    printf("module %d -\n", refused(code, out));
    if (!code)
        printf("function %d -\n", refused(CALL(cuModuleGetFunction, &got, out, "k_1"), got));
    if (!HAS(cuLibraryLoadData))
        return;
    out = got = UNTOUCHED;
    code = CALL(cuLibraryLoadData, &out, "image", NULL, NULL, 0u, NULL, NULL, 0u);
    printf("library %d -\n", refused(code, out));
    if (!code)
        printf("kernel %d -\n", refused(CALL(cuLibraryGetKernel, &got, out, "k_1"), got));
    printf("stacks %d -\n", CALL(cuCtxSetLimit, 0u, (size_t)1032));
}

static void errors(int device)
{
    u64 out = UNTOUCHED;
    void *graph = NULL;
    Props card = {1, 0, 1, device, {0}};
    Node node = {card, NULL, 0, 1 << 20, 0};
    Any any = {10, {0}, {card, NULL, 0, 1 << 20, 0}, {0}};
    printf(" %d", CALL(cuDevicePrimaryCtxRetain, &out, device));
    printf(" %d", CALL(cuDevicePrimaryCtxRetain, NULL, device));
    printf(" %d", CALL(cuCtxCreate_v2, &out, 0u, device));
    printf(" %d", CALL(cuCtxCreate_v4, &out, NULL, 0u, device));
    printf(" %d", CALL(cuMemCreate, &out, (size_t)2 << 20, &card, 0ull));
    printf(" %d", CALL(cuMemAlloc_v2, &out, (size_t)1 << 20));
    printf(" %d", CALL(cuMemAllocAsync, &out, (size_t)1 << 20, NULL));
    printf(" %d", CALL(cuModuleLoadData, &out, "image"));
    CALL(cuGraphCreate, &graph, 0u);
    printf(" %d", CALL(cuGraphAddMemAllocNode, &out, graph, NULL, (size_t)0, &node));
    printf(" %d", CALL(cuGraphAddNode, &out, graph, NULL, (size_t)0, &any));
    printf(" %s\n", out == UNTOUCHED ? "untouched" : "touched");
}

/* As many pools as there may be, and more. */
static void crowd(void)
{
    u64 one = 0;
    for (int i = 0; i < 5000; i++)
        must(CALL(cuMemPoolCreate, &one, &CARD), "pool");
}

static void launches(int is_short)
{
    u64 out = 0, address = 0, length = 1000, function = 0;
    void *parameters[] = {&length}, *graph = NULL, *executable = NULL;
    char here = 7;
    struct rlimit room;
    if (CALL(cuDevicePrimaryCtxRetain, &out, 0)) {
        void **table = NULL;
        must(CALL(cuGetExportTable, &table, "aliquot-sim-ctx\1"), "table");
        must(((int (*)(u64 *, int))table[2])(&out, 0), "the other way to a context");
    }
    must(CALL(cuCtxSetCurrent, out), "current");
    int has_kernel = !CALL(cuModuleLoadData, &out, "image") && !CALL(cuModuleGetFunction, &function, out, "kp");
    must(CALL(cuGraphCreate, &graph, 0u), "graph");
    must(CALL(cuGraphInstantiateWithFlags, &executable, graph, 0ull), "instantiate");
    CALL(cuMemAlloc_v2, &address, (size_t)4096);
    must(getrlimit(RLIMIT_AS, &room), "limit");
    if (is_short)
        must(setrlimit(RLIMIT_AS, &(struct rlimit){1, room.rlim_max}), "no room");
    int kernel =
        has_kernel ? CALL(cuLaunchKernel, function, 1u, 1u, 1u, 32u, 1u, 1u, 0u, NULL, parameters, NULL) : -1;
    int whole = CALL(cuGraphLaunch, executable, NULL);
    int fill = CALL(cuMemsetD8_v2, address, 1, (size_t)1);
    int copy = CALL(cuMemcpyHtoD_v2, address, &here, (size_t)1);
    must(setrlimit(RLIMIT_AS, &room), "room");
    has_kernel ? printf("%d", kernel) : printf("-");
    printf(" %d %d %d\n", whole, fill, copy);
}

int main(int count, char **arguments)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || count < 2)
        return 1;
    int only_errors = !strcmp(arguments[1], "errors");
    if (only_errors)
        errors(0);
    must(CALL(cuInit, 0u), "cuInit");
    if (only_errors) {
        errors(99);
        errors(-1);
        return 0;
    }
    if (!strncmp(arguments[1], "launches", 8)) {
        launches(!strcmp(arguments[1], "launches-short"));
        return 0;
    }
    contexts();
    must(CALL(cuStreamCreate, &stream, 1u), "stream");
    modules();
    int is_crowded = count > 2 && !strcmp(arguments[2], "crowded");
    if (is_crowded)
        crowd();
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++) {
        if (is_crowded && (FAMILIES[i].take == pooled || FAMILIES[i].take == captured_of_pool))
            continue;
        if (!dlsym(library, FAMILIES[i].needs)) {
            printf("%s - -\n", FAMILIES[i].name);
            continue;
        }
        int small = FAMILIES[i].take(1 << 20);
        printf("%s %d %d\n", FAMILIES[i].name, small, FAMILIES[i].take(strtoull(arguments[1], NULL, 10)));
    }
    return 0;
}
