/* Device memory of every family, taken and given back by number; for programs that mix them at random. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sparse.h"

typedef uint64_t Pointer;
typedef struct {
    size_t width, height, depth;
    unsigned format, channels, flags;
} Deep;
typedef struct {
    unsigned kind, handle_types, location_type;
    int location;
    void *windows;
    unsigned char flags[8];
} Properties;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(Pointer *, size_t), cuMemFree_v2(Pointer), cuMemGetInfo_v2(size_t *, size_t *);
extern int cuMemAllocPitch_v2(Pointer *, size_t *, size_t, size_t, unsigned);
extern int cuMemAllocManaged(Pointer *, size_t, unsigned);
extern int cuArray3DCreate_v2(void **, const Deep *), cuArrayDestroy(void *);
extern int cuMipmappedArrayCreate(void **, const Deep *, unsigned), cuMipmappedArrayDestroy(void *);
extern int cuMemCreate(uint64_t *, size_t, const Properties *, unsigned long long), cuMemRelease(uint64_t);
extern int cuMemAddressReserve(Pointer *, size_t, size_t, Pointer, unsigned long long);
extern int cuMemAddressFree(Pointer, size_t), cuMemMap(Pointer, size_t, size_t, uint64_t, unsigned long long);
extern int cuMemUnmap(Pointer, size_t), cuMemRetainAllocationHandle(uint64_t *, void *);
extern int cuDeviceGetDevResource(int, void *, unsigned), cuDevResourceGenerateDesc(void **, void *, unsigned);
extern int cuGreenCtxCreate(void **, void *, int, unsigned), cuGreenCtxDestroy(void *), cuCtxFromGreenCtx(void **, void *);
extern int cuCtxGetCurrent(void **), cuCtxSetLimit(unsigned, size_t);

enum { OUT_OF_MEMORY = 2 };
/* The first ones cost what price() says; what the others cost, the driver decides. */
enum { PLAIN, PITCHED, MANAGED, ARRAY, MIPMAPPED, PHYSICAL, MAPPED, RETAINED, GREEN, FAMILIES };
enum { POOLED = FAMILIES, GRAPH, CAPTURED, CONTEXT, MODULE, ALL_FAMILIES };

typedef struct {
    unsigned allocation, handle_types, location_type;
    int location;
    uint64_t rest[9];
    void *access;
    size_t accesses, bytes;
    Pointer address;
} MemoryNode;
extern int cuMemAllocAsync(Pointer *, size_t, void *), cuMemFreeAsync(Pointer, void *);
extern int cuMemAllocFromPoolAsync(Pointer *, size_t, void *, void *);
extern int cuGraphCreate(void **, unsigned), cuGraphDestroy(void *), cuGraphExecDestroy(void *);
extern int cuGraphAddMemAllocNode(void **, void *, const void *, size_t, MemoryNode *);
extern int cuGraphAddMemFreeNode(void **, void *, const void *, size_t, Pointer);
extern int cuGraphAddNode(void **, void *, const void *, size_t, void *);
extern int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
extern int cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *), cuCtxPopCurrent_v2(void **);
extern int cuStreamBeginCapture_v2(void *, unsigned), cuStreamEndCapture(void *, void **);
extern int cuModuleLoadData(void **, const void *), cuModuleUnload(void *);
extern int cuModuleGetFunction(void **, void *, const char *);

typedef struct {
    int family;
    Pointer address;
    void *array;
    /* A graph made ready, a context, a module, a green context. */
    void *object;
    uint64_t handle;
    size_t charged;
    /* Of what others may have. */
    int descriptor;
} Entry;

static inline size_t up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* What `size` bytes or a little less or more of a family cost. */
static inline size_t price(int family, size_t size)
{
    size_t side = 16;
    switch (family) {
    case PITCHED: return up(size / 64 + 1, 512) * 64;
    case ARRAY: return up(up(up(size, 64) / 64 * 4, 64) * 64, 64 << 10);
    case MIPMAPPED: {
        size_t sum = 0;
        while (side * side * 4 < size)
            side *= 2;
        for (size_t level = side; level > 0; level /= 2)
            sum += up(level * 4, 64) * up(level, 8);
        return up(sum, 64 << 10);
    }
    case PHYSICAL:
    case MAPPED:
    case RETAINED: return up(size, 2 << 20);
    case MODULE: return up(size, 64 << 10);
    default: return up(size, 512);
    }
}

/* Physical memory that is mapped, and has no handle any more. */
static inline int take_mapped(Entry *entry)
{
    Properties card = {1, 0, 1, on_card};
    int answer = cuMemCreate(&entry->handle, entry->charged, &card, 0);
    if (answer)
        return answer;
    if (cuMemAddressReserve(&entry->address, entry->charged, 0, 0, 0) ||
        cuMemMap(entry->address, entry->charged, 0, entry->handle, 0))
        return -1;
    return cuMemRelease(entry->handle) ? -1 : 0;
}

static inline int give_mapped(const Entry *entry)
{
    return cuMemUnmap(entry->address, entry->charged) || cuMemAddressFree(entry->address, entry->charged);
}

/* The same, and then again a handle alone. */
static inline int take_retained(Entry *entry)
{
    int answer = take_mapped(entry);
    if (answer)
        return answer;
    return cuMemRetainAllocationHandle(&entry->handle, (void *)(uintptr_t)entry->address) || give_mapped(entry) ? -1 : 0;
}

/* Memory had in a green context is the primary one's; the green one ends with it, or before it. */
static inline int take_green(Entry *entry, size_t size)
{
    struct {
        unsigned type, inner[23], sm[10];
        void *next;
    } all;
    _Static_assert(sizeof all == 144, "CUdevResource");
    void *before = NULL, *described = NULL, *context = NULL;
    if (cuCtxGetCurrent(&before) || cuDeviceGetDevResource(on_card, &all, 1) || cuDevResourceGenerateDesc(&described, &all, 1) ||
        cuGreenCtxCreate(&entry->object, described, on_card, 1) || cuCtxFromGreenCtx(&context, entry->object) ||
        cuCtxSetCurrent(context))
        return -1;
    int answer = cuMemAlloc_v2(&entry->address, size);
    if (cuCtxSetCurrent(before))
        return -1;
    if ((answer || size % 2) && cuGreenCtxDestroy(entry->object))
        return -1;
    entry->object = size % 2 ? NULL : entry->object;
    return answer;
}

/* The driver's answer; what was had is in `entry`. */
static inline int take(Entry *entry, int family, size_t size)
{
    size_t pitch = 0, side = 16;
    int answer = -1;
    Properties card = {1, 0, 1, on_card};
    memset(entry, 0, sizeof *entry);
    entry->family = family;
    entry->charged = price(family, size);
    switch (family) {
    case PLAIN: return cuMemAlloc_v2(&entry->address, size);
    case PITCHED:
        answer = cuMemAllocPitch_v2(&entry->address, &pitch, size / 64 + 1, 64, 4);
        return answer == 0 && pitch * 64 != entry->charged ? -1 : answer;
    case MANAGED: return cuMemAllocManaged(&entry->address, size, 1);
    case ARRAY: {
        Deep shape = {up(size, 64) / 64, 64, 0, 0x20, 1, 0};
        return cuArray3DCreate_v2(&entry->array, &shape);
    }
    case MIPMAPPED: {
        while (side * side * 4 < size)
            side *= 2;
        Deep shape = {side, side, 0, 0x20, 1, 0};
        return cuMipmappedArrayCreate(&entry->array, &shape, 32);
    }
    case PHYSICAL: return cuMemCreate(&entry->handle, entry->charged, &card, 0);
    case MAPPED: return take_mapped(entry);
    case RETAINED: return take_retained(entry);
    case GREEN: return take_green(entry, size);
    default: return -1;
    }
}

static inline int give(Entry *entry)
{
    switch (entry->family) {
    case ARRAY: return cuArrayDestroy(entry->array);
    case MIPMAPPED: return cuMipmappedArrayDestroy(entry->array);
    case PHYSICAL:
    case RETAINED: return cuMemRelease(entry->handle);
    case MAPPED: return give_mapped(entry);
    case GREEN: return (entry->object && cuGreenCtxDestroy(entry->object)) || cuMemFree_v2(entry->address);
    default: return cuMemFree_v2(entry->address);
    }
}

/* A graph with memory nodes: what it allocates is left; or freed in it; or some of both, at one address; or freed in a graph inside
   it. The address of what is left. */
static inline int memory_graph(void **graph, size_t size, Pointer *left)
{
    MemoryNode node = {1, 0, 1, on_card, {0}, NULL, 0, size, 0};
    struct { unsigned kind, reserved[3]; uint64_t body[30]; } inside = {4, {0}, {0, 1}};
    void *taken = NULL, *freed = NULL;
    *left = 0;
    if (cuGraphCreate(graph, 0) || cuGraphAddMemAllocNode(&taken, *graph, NULL, 0, &node))
        return -1;
    if (size % 4 && cuGraphAddMemFreeNode(&freed, *graph, &taken, 1, node.address))
        return -1;
    if (size % 4 == 2 && cuGraphAddMemAllocNode(&taken, *graph, &freed, 1, &node))
        return -1;
    if (size % 4 == 3) {
        inside.body[0] = (uint64_t)*graph;
        return cuGraphCreate(graph, 0) || cuGraphAddNode(&taken, *graph, NULL, 0, &inside) ? -1 : 0;
    }
    *left = size % 4 == 1 ? 0 : node.address;
    return 0;
}

/* The same out of a capture of a stream, from `pool` or the card's current one: freed in it, or left. */
static inline int captured_graph(void **graph, size_t size, void *stream, void *pool, Pointer *left)
{
    Pointer address = 0;
    if (cuStreamBeginCapture_v2(stream, 2))
        return -1;
    int wrong = pool ? cuMemAllocFromPoolAsync(&address, size, pool, stream) : cuMemAllocAsync(&address, size, stream);
    wrong = wrong || (size % 2 && cuMemFreeAsync(address, stream));
    *left = size % 2 ? 0 : address;
    return cuStreamEndCapture(stream, graph) || wrong ? -1 : 0;
}

static inline int take_graph(Entry *entry, size_t size, void *stream, void *pool)
{
    void *graph = NULL;
    if (entry->family == GRAPH ? memory_graph(&graph, size, &entry->address)
                               : captured_graph(&graph, size, stream, pool, &entry->address))
        return -1;
    int answer = cuGraphInstantiateWithFlags(&entry->object, graph, 0);
    if (cuGraphDestroy(graph))
        return -1;
    if (!answer && (answer = cuGraphLaunch(entry->object, stream)) && cuGraphExecDestroy(entry->object))
        return -1;
    return answer;
}

static inline int give_graph(Entry *entry, void *stream)
{
    if (entry->address && cuMemFreeAsync(entry->address, stream))
        return -1;
    return cuGraphExecDestroy(entry->object);
}

/* A context with memory in it, and larger stacks: of 8 multiprocessors with 2,048 threads each. What of it does not fit is not
   there; the rest goes with it. */
static inline int take_context(Entry *entry, size_t size)
{
    void *got = NULL;
    int answer = cuCtxCreate_v2(&entry->object, 0, on_card);
    if (answer)
        return answer;
    int block = cuMemAlloc_v2(&entry->address, size / 2);
    int stacks = cuCtxSetLimit(0, 1024 + size / 2 / (8 * 2048));
    /* A heap is made when a module needs it. */
    int heap = cuCtxSetLimit(2, size);
    if (cuCtxPopCurrent_v2(&got) || got != entry->object || heap)
        return -1;
    return (block && block != OUT_OF_MEMORY) || (stacks && stacks != OUT_OF_MEMORY) ? -1 : 0;
}

/* Those of which the driver decides the cost. `stream` is the calling thread's, `pool` its own or none. */
static inline int take_other(Entry *entry, int family, size_t size, void *stream, void *pool)
{
    char image[64];
    void *got = NULL;
    int answer;
    memset(entry, 0, sizeof *entry);
    entry->family = family;
    entry->charged = size;
    switch (family) {
    case POOLED:
        entry->handle = size;
        return pool ? cuMemAllocFromPoolAsync(&entry->address, size, pool, stream)
                    : cuMemAllocAsync(&entry->address, size, stream);
    case GRAPH:
    case CAPTURED: return take_graph(entry, size, stream, pool);
    case CONTEXT: return take_context(entry, size);
    default:
        entry->charged = price(MODULE, size);
        snprintf(image, sizeof image, ".version 8.0 .global .b8 data[%zu];", entry->charged);
        if ((answer = cuModuleLoadData(&entry->object, image)))
            return answer;
        answer = cuModuleGetFunction(&got, entry->object, "function");
        return answer && cuModuleUnload(entry->object) ? -1 : answer;
    }
}

static inline int give_other(Entry *entry, void *stream)
{
    switch (entry->family) {
    case POOLED: return entry->handle & 1 ? cuMemFree_v2(entry->address) : cuMemFreeAsync(entry->address, stream);
    case GRAPH:
    case CAPTURED: return give_graph(entry, stream);
    case CONTEXT: return cuCtxDestroy_v2(entry->object);
    default: return cuModuleUnload(entry->object);
    }
}
