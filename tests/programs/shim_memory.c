/* Plain allocations under a limit, one claim a mode; says "ok" when everything was as it should be.
   usage: shim_memory MODE LIMIT */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t Pointer;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(Pointer *, size_t), cuMemFree_v2(Pointer), cuMemGetInfo_v2(size_t *, size_t *);
extern int cuMemAllocPitch_v2(Pointer *, size_t *, size_t, size_t, unsigned);
extern int cuMemAllocManaged(Pointer *, size_t, unsigned);

enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1 };

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

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
    CHECK(cuMemAllocManaged(&address, 100000, 1) == 0 && left() == limit - 100352);
    memset((void *)(uintptr_t)address, 7, 100000);
    CHECK(cuMemFree_v2(address) == 0 && left() == limit);
}

static void managed_free(void)
{
    Pointer address = 0;
    CHECK(cuMemAllocManaged(&address, limit * 2, 1) == 0 && left() == limit);
    CHECK(cuMemFree_v2(address) == 0 && left() == limit);
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
                 {"managed", managed}, {"managed-free", managed_free}};
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
