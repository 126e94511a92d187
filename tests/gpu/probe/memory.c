/* Memory by every family of calls, until the driver refuses. */
#include "driver.h"

#define HELD_MAX 131072

/* As the driver's headers lay them out. */
struct Location { int type, id; };
struct Physical { int type, handle_types; struct Location location; void *win32; unsigned char flags[8]; };
struct Array { size_t width, height; int format; unsigned channels; };
struct Pool { int type, handle_types; struct Location location; void *win32; size_t most; unsigned char rest[56]; };
struct Node { struct Pool pool; const void *access; size_t access_count, bytes; Pointer address; };

/* A quarter of a gibibyte of a module's own data, and a kernel for which it must be there. */
static const char *const LARGE =
    ".visible .global .align 256 .b8 large[268435456];\n"
    ".visible .entry touch()\n{\n"
    ".reg .u64 %where;\n.reg .u32 %one;\n"
    "mov.u64 %where, large;\nmov.u32 %one, 1;\nst.global.u32 [%where], %one;\nret;\n}\n";

void texts_of_memory(void)
{
    print_texts(LARGE);
}

static Pointer held[HELD_MAX];

/* A graph that allocated, and what. */
struct Launched { void *exec; Pointer address; };

static int graph(size_t chunk, Pointer *into)
{
    struct Node node = {{1, 0, {1, device}, NULL, 0, {0}}, NULL, 0, chunk, 0};
    void *graph = NULL, *added = NULL, *exec = NULL;
    int code = CALL("cuGraphCreate", (void **, unsigned), &graph, 0);
    if (!code)
        code = CALL("cuGraphAddMemAllocNode", (void **, void *, const void *, size_t, void *), &added, graph, NULL, 0, &node);
    if (!code)
        code = CALL("cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &exec, graph, 0);
    if (!code)
        code = CALL("cuGraphLaunch", (void *, void *), exec, NULL);
    if (!code)
        code = CALL("cuCtxSynchronize", (void), );
    struct Launched *launched = malloc(sizeof *launched);
    if (!code && launched) {
        *launched = (struct Launched){exec, node.address};
        *into = (Pointer)(uintptr_t)launched;
    } else if (exec) {
        CALL("cuGraphExecDestroy", (void *), exec);
    }
    return launched ? code : -1;
}

static int give_graph(struct Launched *launched)
{
    /* What a launch allocated outlives its graph. */
    int code = CALL("cuMemFree_v2", (Pointer), launched->address);
    code |= CALL("cuGraphExecDestroy", (void *), launched->exec);
    free(launched);
    return code | CALL("cuDeviceGraphMemTrim", (int), device);
}

static int module(Pointer *into)
{
    void *loaded = NULL, *function = NULL;
    int code = module_of(LARGE, &loaded);
    if (!code)
        code = CALL("cuModuleGetFunction", (void **, void *, const char *), &function, loaded, "touch");
    if (!code)
        *into = (Pointer)(uintptr_t)loaded;
    else if (loaded)
        CALL("cuModuleUnload", (void *), loaded);
    return code;
}

static int from_pool(size_t chunk, Pointer *into)
{
    static void *pool;
    struct Pool properties = {1, 0, {1, device}, NULL, 0, {0}};
    if (!pool) {
        int code = CALL("cuMemPoolCreate", (void **, const void *), &pool, &properties);
        if (code)
            return code;
    }
    return CALL("cuMemAllocFromPoolAsync", (Pointer *, size_t, void *, void *), into, chunk, pool, NULL);
}

static int take(const char *family, size_t chunk, Pointer *into)
{
    size_t pitch;
    struct Physical physical = {1, 0, {1, device}, NULL, {0}};
    struct Array array = {1024, chunk / 16 / 1024, 0x20, 4}, thin = {1, 65536, 0x01, 1};
    if (!strcmp(family, "plain"))
        return CALL("cuMemAlloc_v2", (Pointer *, size_t), into, chunk);
    if (!strcmp(family, "pitch"))
        return CALL("cuMemAllocPitch_v2", (Pointer *, size_t *, size_t, size_t, unsigned), into, &pitch, 65536, chunk / 65536, 16);
    if (!strcmp(family, "async"))
        return CALL("cuMemAllocAsync", (Pointer *, size_t, void *), into, chunk, NULL);
    if (!strcmp(family, "pool"))
        return from_pool(chunk, into);
    if (!strcmp(family, "physical"))
        return CALL("cuMemCreate", (Pointer *, size_t, void *, unsigned long long), into, chunk, &physical, 0);
    if (!strcmp(family, "managed"))
        return CALL("cuMemAllocManaged", (Pointer *, size_t, unsigned), into, chunk, 1);
    if (!strcmp(family, "array"))
        return CALL("cuArrayCreate_v2", (Pointer *, void *), into, &array);
    if (!strcmp(family, "thin"))
        return CALL("cuArrayCreate_v2", (Pointer *, void *), into, &thin);
    if (!strcmp(family, "graph"))
        return graph(chunk, into);
    if (!strcmp(family, "module"))
        return module(into);
    exit(2);
}

static int give(const char *family, Pointer what)
{
    if (!strcmp(family, "async") || !strcmp(family, "pool"))
        return CALL("cuMemFreeAsync", (Pointer, void *), what, NULL);
    if (!strcmp(family, "physical"))
        return CALL("cuMemRelease", (Pointer), what);
    if (!strcmp(family, "array") || !strcmp(family, "thin"))
        return CALL("cuArrayDestroy", (Pointer), what);
    if (!strcmp(family, "graph"))
        return give_graph((struct Launched *)(uintptr_t)what);
    if (!strcmp(family, "module"))
        return CALL("cuModuleUnload", (void *), (void *)(uintptr_t)what);
    return CALL("cuMemFree_v2", (Pointer), what);
}

void fill(const char *family, size_t chunk, int most)
{
    const Pointer mark = 0x5a5a5a5a5a5a5a5aULL;
    int code = 0, freed = 0, again = 0, count = 0;
    begin();
    enter();
    while (count < HELD_MAX && count < most) {
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
    /* 801: this card has none of it. */
    if (code == 801 && !count)
        ASIDE("the driver answers 801, %s", named(code));
    say("code", code);
    say("count", count);
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
