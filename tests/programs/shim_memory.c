/* Plain allocations under a limit, one claim a mode; says "ok" when everything was as it should be.
   usage: shim_memory MODE LIMIT */
#include <stdint.h>
#include <string.h>

#include "check.h"

typedef uint64_t Pointer;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(Pointer *, size_t), cuMemFree_v2(Pointer), cuMemGetInfo_v2(size_t *, size_t *);
extern int cuMemGetInfo(unsigned *, unsigned *);
extern int cuMemAlloc(unsigned *, unsigned), cuMemAllocPitch(unsigned *, unsigned *, unsigned, unsigned, unsigned);
extern int cuMemAllocPitch_v2(Pointer *, size_t *, size_t, size_t, unsigned);
extern int cuMemAllocManaged(Pointer *, size_t, unsigned);
extern int cuMemFreeAsync(Pointer, void *), cuMemFreeAsync_ptsz(Pointer, void *);
extern int cuDevicePrimaryCtxReset(int), cuDevicePrimaryCtxReset_v2(int);
extern int cuDevicePrimaryCtxRelease(int), cuDevicePrimaryCtxRelease_v2(int);
extern int cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *);

typedef struct {
    size_t width, height, depth;
    unsigned format, channels, flags;
} Deep;
typedef struct {
    size_t width, height;
    unsigned format, channels;
} Flat;
typedef struct {
    unsigned kind, handle_types, location_type;
    int location;
    void *windows;
    unsigned char flags[8];
} Properties;
extern int cuArrayCreate(void **, const unsigned *), cuArray3DCreate(void **, const unsigned *);
extern int cuCtxAttach(void **, unsigned), cuCtxDetach(void *);
extern int cuArrayCreate_v2(void **, const Flat *), cuArray3DCreate_v2(void **, const Deep *);
extern int cuMipmappedArrayCreate(void **, const Deep *, unsigned), cuArrayDestroy(void *);
extern int cuMipmappedArrayDestroy(void *);
extern int cuArrayGetMemoryRequirements(size_t *, void *, int), cuMipmappedArrayGetMemoryRequirements(size_t *, void *, int);
extern int cuMemCreate(uint64_t *, size_t, const Properties *, unsigned long long), cuMemRelease(uint64_t);
extern int cuMemAddressReserve(Pointer *, size_t, size_t, Pointer, unsigned long long);
extern int cuMemMap(Pointer, size_t, size_t, uint64_t, unsigned long long), cuMemUnmap(Pointer, size_t);
extern int cuMemRetainAllocationHandle(uint64_t *, void *);

enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1, NOT_SUPPORTED = 801 };

static size_t limit;

static size_t left(void)
{
    size_t free_bytes = 0, total = 0;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total) == 0);
    CHECK(total == limit);
    return free_bytes;
}

/* To the last byte, and not one more. */
static void exact(void)
{
    Pointer all = 0, more = 42;
    CHECK(left() == limit);
    CHECK(cuMemAlloc_v2(&all, limit) == 0 && left() == 0);
    CHECK(cuMemAlloc_v2(&more, 1) == OUT_OF_MEMORY && more == 42);
    CHECK(cuMemAllocManaged(&more, 1, 1) == OUT_OF_MEMORY && more == 42);
    CHECK(cuMemFree_v2(all) == 0 && left() == limit);
    CHECK(cuMemAlloc_v2(&more, limit + 1) == OUT_OF_MEMORY && more == 42);
    CHECK(cuMemAlloc_v2(&more, SIZE_MAX) == OUT_OF_MEMORY && more == 42);
    CHECK(cuMemAlloc_v2(&more, 1) == 0 && left() == limit - 512);
    unsigned short_free = 0, short_total = 0;
    CHECK(cuMemGetInfo(&short_free, &short_total) == 0 && short_free == limit - 512 && short_total == limit);
    CHECK(cuMemFree_v2(more) == 0 && left() == limit);
}

/* Rows are charged as far apart as the driver puts them. */
static void pitched(void)
{
    Pointer rows = 0, more = 42;
    size_t pitch = 0, none = 43;
    CHECK(cuMemAllocPitch_v2(&rows, &pitch, 1000, 77, 4) == 0 && pitch >= 1000);
    CHECK(left() == limit - pitch * 77);
    CHECK(cuMemAllocPitch_v2(&more, &none, 512, limit / 512, 4) == OUT_OF_MEMORY && more == 42 && none == 43);
    CHECK(cuMemAllocPitch_v2(&more, &none, SIZE_MAX, SIZE_MAX, 4) == OUT_OF_MEMORY && more == 42 && none == 43);
    CHECK(cuMemFree_v2(rows) == 0 && left() == limit);
}

/* The allocations of before CUDA 3.2, with sizes and addresses of 32 bits, are refused: their addresses would not be counted. */
static void first_generation(void)
{
    unsigned address = 42, pitch = 43;
    void *array = (void *)42;
    unsigned shape[] = {100, 100, 0x01, 1, 1, 0};
    CHECK(cuMemAlloc(&address, 1000) == NOT_SUPPORTED && cuMemAllocPitch(&address, &pitch, 1000, 77, 4) == NOT_SUPPORTED);
    CHECK(cuArrayCreate(&array, shape) == NOT_SUPPORTED && cuArray3DCreate(&array, shape) == NOT_SUPPORTED);
    CHECK(address == 42 && pitch == 43 && array == (void *)42 && left() == limit);
}

/* What the driver refuses costs nothing, and is refused with the driver's number. */
static void errors(void)
{
    Pointer address = 42;
    size_t pitch = 0;
    CHECK(cuMemAlloc_v2(&address, 0) == INVALID_VALUE && address == 42);
    CHECK(cuMemAlloc_v2(NULL, 4096) == INVALID_VALUE);
    CHECK(cuMemAllocPitch_v2(&address, &pitch, 100, 100, 3) == INVALID_VALUE && address == 42);
    CHECK(cuMemAllocPitch_v2(&address, NULL, 100, 100, 4) == INVALID_VALUE);
    CHECK(cuMemAllocManaged(&address, 4096, 77) == INVALID_VALUE && address == 42);
    CHECK(cuMemFree_v2(0) == 0);
    CHECK(cuMemFree_v2(0x1234) == INVALID_VALUE);
    CHECK(cuMemAlloc_v2(&address, 4096) == 0 && cuMemFree_v2(address + 8) == INVALID_VALUE);
    CHECK(left() == limit - 4096);
    CHECK(cuMemFree_v2(address) == 0 && cuMemFree_v2(address) == INVALID_VALUE && left() == limit);
    CHECK(cuCtxSetCurrent(NULL) == 0 && cuMemAlloc_v2(&address, 4096) == 201);
}

static void managed(void)
{
    Pointer address = 0;
    /* For streams of every card, and for the host. */
    for (unsigned attached = 1; attached <= 2; attached++) {
        CHECK(cuMemAllocManaged(&address, 100000, attached) == 0 && left() == limit - 100352);
        memset((void *)(uintptr_t)address, 7, 100000);
        CHECK(cuMemFree_v2(address) == 0 && left() == limit);
    }
    /* Small ones lie beside each other, and each is mapped for itself. */
    Pointer small[3];
    CHECK(cuMemAlloc_v2(&small[0], 1) == 0 && cuMemAllocManaged(&small[1], 1, 1) == 0);
    CHECK(cuMemAllocManaged(&small[2], 1, 1) == 0 && left() == limit - 3 * 512);
    *(char *)(uintptr_t)small[1] = 1;
    CHECK(cuMemFree_v2(small[2]) == 0 && *(char *)(uintptr_t)small[1] == 1);
    CHECK(cuMemFree_v2(small[0]) == 0 && cuMemFree_v2(small[1]) == 0 && left() == limit);
}

static void managed_free(void)
{
    Pointer address = 0;
    CHECK(cuMemAllocManaged(&address, limit * 2, 1) == 0 && left() == limit);
    CHECK(cuMemFree_v2(address) == 0 && left() == limit);
}

/* Elements, faces, layers and levels; nothing for arrays that get their memory later. */
static void arrays(void)
{
    void *array = (void *)42;
    const size_t unit = 64 << 10;
    struct {
        Deep shape;
        unsigned levels;
        size_t units;
    } cases[] = {
        {{1, 0, 0, 0x01, 1, 0}, 0, 1},           {{1024, 1024, 0, 0x20, 4, 0}, 0, 256},
        {{1024, 1024, 0, 0x10, 2, 0}, 0, 64},    {{256, 256, 6, 0x20, 1, 0x04}, 0, 24},
        {{256, 256, 12, 0x20, 1, 0x05}, 0, 48},  {{1024, 0, 64, 0x20, 1, 0x01}, 0, 32},
        {{64, 64, 64, 0x03, 2, 0}, 0, 32},       {{1024, 1024, 0, 0x20, 1, 0}, 11, 86},
        {{1024, 1024, 0, 0x20, 1, 0x40}, 0, 0},  {{1024, 1024, 0, 0x20, 1, 0x80}, 5, 0},
        /* Thin ones: 64 bytes for each of a column, eight rows for one, the same for each layer and level. */
        {{1, 65536, 0, 0x01, 1, 0}, 0, 64},      {{65536, 1, 0, 0x01, 1, 0}, 0, 8},
        {{1, 1, 2048, 0x01, 1, 0x01}, 0, 16},    {{16384, 1, 0, 0x01, 1, 0}, 15, 5},
    };
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        const Deep *shape = &cases[at].shape;
        unsigned levels = cases[at].levels;
        CHECK((levels ? cuMipmappedArrayCreate(&array, shape, levels) : cuArray3DCreate_v2(&array, shape)) == 0);
        if (left() != limit - cases[at].units * unit)
            printf("case %zu: %zu\n", at, limit - left());
        CHECK(left() == limit - cases[at].units * unit);
        /* What an array needs is told before it has memory, not after. */
        size_t told[4] = {42};
        int answer = levels ? cuMipmappedArrayGetMemoryRequirements(told, array, 0)
                            : cuArrayGetMemoryRequirements(told, array, 0);
        CHECK(shape->flags & 0x80 ? answer == 0 && told[0] > 0 : answer == INVALID_VALUE && told[0] == 42);
        CHECK((levels ? cuMipmappedArrayDestroy(array) : cuArrayDestroy(array)) == 0 && left() == limit);
    }
    Flat flat = {limit / 16 / 8, 8, 0x20, 4}, wrong = {16, 1, 0x7777, 4};
    CHECK(cuArrayCreate_v2(&array, &flat) == 0 && left() == 0 && cuArrayDestroy(array) == 0);
    array = (void *)42;
    flat.height = 9;
    CHECK(cuArrayCreate_v2(&array, &flat) == OUT_OF_MEMORY && array == (void *)42);
    flat.height = SIZE_MAX;
    CHECK(cuArrayCreate_v2(&array, &flat) == OUT_OF_MEMORY && array == (void *)42);
    CHECK(cuArrayCreate_v2(&array, &wrong) == INVALID_VALUE && cuArrayCreate_v2(NULL, &flat) == INVALID_VALUE);
    CHECK(cuArrayCreate_v2(&array, NULL) == INVALID_VALUE && cuArrayDestroy((void *)42) != 0 && left() == limit);
}

/* Physical memory stays until the last reference and the last mapping go, whichever is last. */
static void physical(void)
{
    const size_t page = 2 << 20, size = 4 * page;
    Properties card = {1, 0, 1, 0}, host = {1, 0, 2, 0}, nowhere = {1, 0, 1, 77};
    uint64_t handle = 42, second = 42;
    Pointer at = 0;
    CHECK(cuMemCreate(&handle, limit + page, &card, 0) == OUT_OF_MEMORY && handle == 42);
    CHECK(cuMemCreate(&handle, page + 1, &card, 0) == INVALID_VALUE && handle == 42 && left() == limit);
    CHECK(cuMemCreate(NULL, page, &card, 0) == INVALID_VALUE && cuMemCreate(&handle, page, NULL, 0) == INVALID_VALUE);
    CHECK(cuMemCreate(&handle, page, &nowhere, 0) != 0 && handle == 42);
    CHECK(cuMemCreate(&handle, size, &host, 0) == 0 && left() == limit && cuMemRelease(handle) == 0);
    CHECK(cuMemCreate(&handle, size, &card, 0) == 0 && left() == limit - size);
    CHECK(cuMemAddressReserve(&at, 4 * size, 0, 0, 0) == 0);
    CHECK(cuMemMap(at, size, 0, handle, 0) == 0 && cuMemMap(at + size, size, 0, handle, 0) == 0);
    CHECK(cuMemMap(at, size, 0, handle, 0) == INVALID_VALUE);
    CHECK(cuMemRelease(handle) == 0 && left() == limit - size);
    CHECK(cuMemRetainAllocationHandle(&second, (void *)(uintptr_t)(at + page)) == 0 && left() == limit - size);
    CHECK(cuMemUnmap(at, page) == INVALID_VALUE && left() == limit - size);
    CHECK(cuMemUnmap(at, 2 * size) == 0 && left() == limit - size);
    CHECK(cuMemMap(at, size, 0, second, 0) == 0 && cuMemRelease(second) == 0 && left() == limit - size);
    CHECK(cuMemRelease(second) != 0 && left() == limit - size);
    CHECK(cuMemRetainAllocationHandle(&second, (void *)(uintptr_t)(at + size)) == INVALID_VALUE);
    CHECK(cuMemUnmap(at, size) == 0 && left() == limit);
    CHECK(cuMemUnmap(at, size) == INVALID_VALUE && left() == limit);
}

/* Memory is taken from the card that is named, by itself or by a domain of it, not from the current one. */
static void other_card(void)
{
    Properties second = {1, 0, 1, 1}, part = {1, 0, 6, 0}, part_of_second = {1, 0, 6, 1};
    uint64_t handle = 42;
    CHECK(cuMemCreate(&handle, limit, &second, 0) == OUT_OF_MEMORY && handle == 42 && left() == limit);
    CHECK(cuMemCreate(&handle, limit, &part_of_second, 0) == OUT_OF_MEMORY && handle == 42 && left() == limit);
    CHECK(cuMemCreate(&handle, limit, &part, 0) == 0 && left() == 0 && cuMemRelease(handle) == 0 && left() == limit);
}

/* What was had without an order of streams may be given back in one. */
static void freed_in_order(void)
{
    int (*const frees[])(Pointer, void *) = {cuMemFreeAsync, cuMemFreeAsync_ptsz};
    for (size_t at = 0; at < sizeof frees / sizeof *frees; at++) {
        Pointer address = 0;
        CHECK(cuMemAlloc_v2(&address, limit) == 0 && left() == 0);
        CHECK(frees[at](address, NULL) == 0 && left() == limit);
        CHECK(frees[at](address, NULL) == INVALID_VALUE && left() == limit);
    }
}

/* Everything in the current context, of every kind that ends with it. */
static void fill(void)
{
    const Deep shape = {1024, 1024, 0, 0x20, 1, 0};
    Pointer address = 0;
    void *array = NULL, *levels = NULL;
    CHECK(cuMemAlloc_v2(&address, 1 << 20) == 0 && left() == limit - (1 << 20));
    CHECK(cuArray3DCreate_v2(&array, &shape) == 0 && left() == limit - (5 << 20));
    CHECK(cuMipmappedArrayCreate(&levels, &shape, 1) == 0 && left() == limit - (9 << 20));
}

/* What was had in a context goes with it, in whichever way that ends. */
static void ended(void)
{
    int (*const ends[])(int) = {cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxRelease,
                                cuDevicePrimaryCtxRelease_v2};
    void *primary = NULL, *own = NULL, *beside = NULL;
    CHECK(cuCtxCreate_v2(&beside, 0, 0) == 0);
    for (size_t at = 0; at < sizeof ends / sizeof *ends; at++) {
        CHECK(cuDevicePrimaryCtxRetain(&primary, 0) == 0 && cuCtxSetCurrent(primary) == 0);
        /* The program has it once from its beginning. */
        CHECK(at > 0 || cuDevicePrimaryCtxRelease_v2(0) == 0);
        fill();
        CHECK(ends[at](0) == 0 && cuCtxSetCurrent(beside) == 0 && left() == limit);
    }
    CHECK(cuCtxCreate_v2(&own, 0, 0) == 0);
    fill();
    CHECK(cuCtxDestroy_v2(own) == 0 && cuCtxSetCurrent(beside) == 0 && left() == limit);
    /* By as many detachments as there were attachments, and one. */
    void *again = NULL;
    CHECK(cuCtxCreate_v2(&own, 0, 0) == 0 && cuCtxAttach(&again, 0) == 0 && again == own);
    fill();
    CHECK(cuCtxSetCurrent(beside) == 0 && cuCtxDetach(own) == 201 && cuCtxSetCurrent(own) == 0);
    CHECK(cuCtxDetach(own) == 0 && left() == limit - (9 << 20));
    CHECK(cuCtxDetach(own) == 0 && cuCtxSetCurrent(beside) == 0 && left() == limit);
}

int main(int count, char **arguments)
{
    void *context = NULL;
    const char *mode = count > 2 ? arguments[1] : "";
    limit = count > 2 ? strtoull(arguments[2], NULL, 10) : 0;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"exact", exact},     {"pitched", pitched}, {"errors", errors},
                 {"managed", managed}, {"managed-free", managed_free},
                 {"arrays", arrays},   {"physical", physical}, {"other-card", other_card},
                 {"freed-in-order", freed_in_order}, {"ended", ended},
                 {"first-generation", first_generation}};
    for (size_t at = 0; at < sizeof modes / sizeof *modes; at++) {
        if (!strcmp(mode, modes[at].name)) {
            modes[at].run();
            puts("ok");
            return 0;
        }
    }
    printf("no mode %s\n", mode);
    return 1;
}
