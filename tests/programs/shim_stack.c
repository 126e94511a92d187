/* How much of a thread's stack calls take. Each is made twice in a thread of its own, with a stack painted before.
   usage: shim_stack            "<call> <bytes>" for each, the most of both times
          shim_stack <bytes>    all but the first, which starts the driver, in threads with a stack of that size: "ok" */
#include "opened.h"

#include <sys/mman.h>
#include <unistd.h>

enum { PAINT = 0x5a, WHOLE = 1 << 20, GUARD = 1 << 16, MIB = 1 << 20 };

typedef struct { unsigned allocation, handles, kind; int number; u64 rest[9]; } Props;
typedef struct { Props pool; void *access; u64 accesses, bytes, address; } Node;
typedef struct { u64 flags; void *stream; void *failed; unsigned result, padding; } Instantiation;
typedef struct { size_t width, height; unsigned format, channels; } Flat;

static const char image[] = ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 8 .b8 table[4096];\n"
                            ".visible .entry k_1000() { ret; }\n"
                            ".visible .entry deep() { .local .align 8 .b8 depot[4096]; ret; }\n";
static void *context, *module, *function, *graph, *exec;

#define DO(name, ...) \
    do { \
        int code = CALL(name, __VA_ARGS__); \
        if (code) { \
            printf("line %d: %s: %d\n", __LINE__, #name, code); \
            exit(1); \
        } \
    } while (0)

static void begin(void)
{
    DO(cuInit, 0);
    DO(cuDevicePrimaryCtxRetain, &context, 0);
    DO(cuCtxSetCurrent, context);
}

static void load(void)
{
    void *loaded, *found;
    u64 address;
    size_t bytes;
    DO(cuModuleLoadData, &loaded, image);
    DO(cuModuleGetFunction, &found, loaded, "deep");
    CALL(cuModuleGetGlobal_v2, &address, &bytes, loaded, "table");
    DO(cuModuleUnload, loaded);
    DO(cuModuleLoadData, &module, image);
    DO(cuModuleGetFunction, &function, module, "k_1000");
}

static void library_of_kernels(void)
{
    void *loaded, *kernels[2];
    DO(cuLibraryLoadData, &loaded, image, NULL, NULL, 0u, NULL, NULL, 0u);
    DO(cuLibraryGetKernel, &kernels[0], loaded, "k_1000");
    DO(cuLibraryEnumerateKernels, kernels, 2u, loaded);
    DO(cuLibraryUnload, loaded);
}

static void plain(void)
{
    u64 one, managed;
    DO(cuMemAlloc_v2, &one, (size_t)MIB);
    DO(cuMemAllocManaged, &managed, (size_t)MIB, 1u);
    DO(cuMemFree_v2, managed);
    DO(cuMemFree_v2, one);
}

static void refused(void)
{
    u64 one;
    if (CALL(cuMemAlloc_v2, &one, (size_t)1 << 40) != 2)
        exit(1);
}

static void told(void)
{
    size_t free_bytes, total;
    DO(cuMemGetInfo_v2, &free_bytes, &total);
    DO(cuDeviceTotalMem_v2, &total, 0);
}

static void pooled(void)
{
    u64 one;
    DO(cuMemAllocAsync, &one, (size_t)MIB, NULL);
    DO(cuMemFreeAsync, one, NULL);
    DO(cuStreamSynchronize, NULL);
}

static void physical(void)
{
    Props props = {1, 1, 1, 0, {0}};
    u64 handle, at;
    int file;
    DO(cuMemCreate, &handle, (size_t)2 * MIB, &props, 0ul);
    DO(cuMemAddressReserve, &at, (size_t)2 * MIB, (size_t)0, 0ul, 0ul);
    DO(cuMemMap, at, (size_t)2 * MIB, (size_t)0, handle, 0ul);
    DO(cuMemUnmap, at, (size_t)2 * MIB);
    DO(cuMemExportToShareableHandle, &file, handle, 1u, 0ul);
    close(file);
    DO(cuMemRelease, handle);
}

static void array(void)
{
    Flat flat = {64, 64, 0x20, 1};
    void *made;
    DO(cuArrayCreate_v2, &made, &flat);
    DO(cuArrayDestroy, made);
}

static void launch(void)
{
    DO(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    DO(cuCtxSynchronize, 0);
}

static void copy(void)
{
    u64 one, word = 1;
    DO(cuMemAlloc_v2, &one, (size_t)64);
    DO(cuMemcpyHtoD_v2, one, &word, sizeof word);
    DO(cuMemFree_v2, one);
}

static void graph_made(void)
{
    Node node = {{1, 0, 1, 0, {0}}, NULL, 0, MIB, 0};
    Instantiation given = {2, NULL, NULL, 9, 0};
    void *first, *last;
    DO(cuGraphCreate, &graph, 0u);
    DO(cuGraphAddMemAllocNode, &first, graph, NULL, (size_t)0, &node);
    DO(cuGraphAddMemFreeNode, &last, graph, &first, (size_t)1, node.address);
    DO(cuGraphInstantiateWithParams, &exec, graph, &given);
    DO(cuGraphExecDestroy, exec);
    DO(cuGraphInstantiateWithFlags, &exec, graph, 0ul);
}

static void graph_launched(void)
{
    DO(cuGraphUpload, exec, NULL);
    DO(cuGraphLaunch, exec, NULL);
    DO(cuStreamSynchronize, NULL);
    DO(cuDeviceGraphMemTrim, 0);
    DO(cuGraphLaunch, exec, NULL);
    DO(cuCtxSynchronize, 0);
}

static void stacks(void)
{
    DO(cuCtxSetLimit, 0, (size_t)2048);
    DO(cuCtxSetLimit, 0, (size_t)1024);
}

static void contexts(void)
{
    void *made;
    DO(cuCtxCreate_v2, &made, 0u, 0);
    DO(cuCtxDestroy_v2, made);
    DO(cuDevicePrimaryCtxRetain, &made, 0);
    DO(cuDevicePrimaryCtxRelease_v2, 0);
}

static const struct { const char *name; void (*act)(void); } calls[] = {
    {"begin", begin}, {"told", told}, {"plain", plain}, {"load", load}, {"library", library_of_kernels},
    {"launch", launch}, {"copy", copy}, {"array", array}, {"physical", physical}, {"pooled", pooled},
    {"graph-made", graph_made}, {"graph-launched", graph_launched}, {"refused", refused}, {"stacks", stacks},
    {"contexts", contexts},
};

static void *run(void *act)
{
    if (context)
        DO(cuCtxSetCurrent, context);
    ((void (*)(void))act)();
    return NULL;
}

static size_t depth(void (*act)(void), size_t bytes)
{
    char *base = mmap(NULL, GUARD + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *stack = base + GUARD;
    pthread_attr_t attributes;
    pthread_t thread;
    size_t untouched = 0;
    if (base == MAP_FAILED || mprotect(base, GUARD, PROT_NONE))
        exit(1);
    memset(stack, PAINT, bytes);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, bytes) || pthread_create(&thread, &attributes, run, (void *)act)) {
        printf("no thread with a stack of %zu\n", bytes);
        exit(1);
    }
    pthread_join(thread, NULL);
    while (untouched < bytes && stack[untouched] == PAINT)
        untouched++;
    munmap(base, GUARD + bytes);
    return bytes - untouched;
}

int main(int count, char **arguments)
{
    size_t bytes = count > 1 ? strtoul(arguments[1], NULL, 10) : WHOLE;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return 1;
    if (count > 1)
        begin();
    for (size_t i = count > 1; i < sizeof calls / sizeof *calls; i++) {
        size_t first = depth(calls[i].act, bytes), again = depth(calls[i].act, bytes);
        if (count == 1)
            printf("%s %zu\n", calls[i].name, first > again ? first : again);
    }
    if (count > 1)
        puts("ok");
    return 0;
}
