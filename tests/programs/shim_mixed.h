/* Families behind those of shim_families.h, which take another process or another interface to the card; and how memory of any
   family is given back. */
#include "shim_families.h"

#include "external.h"
#include <unistd.h>

typedef struct { unsigned char bytes[64]; } Ipc;
extern int cuIpcGetMemHandle(Ipc *, Pointer), cuIpcOpenMemHandle_v2(Pointer *, Ipc, unsigned), cuIpcCloseMemHandle(Pointer);

/* Blocks of pools that come and go, exports, imports from other processes, and imports from another interface. */
enum { OWNED = ALL_FAMILIES, LENT, OPENED, IMPORTED, MIXED_FAMILIES };
/* Families that may stay accounted longer than on the card: physical memory with a shared handle, memory of which another device
   has a range, memory that a sparse array or a multicast object alone holds, imports of another process's physical memory, and
   contexts with stacks that shrink again. */
enum { SHARED = MIXED_FAMILIES, RANGED, SPARSE, TEAM, ADOPTED, SHRUNK, LASTING_FAMILIES };
extern int cuMulticastCreate(uint64_t *, const void *), cuMulticastAddDevice(uint64_t, int);
extern int cuMulticastBindMem(uint64_t, size_t, uint64_t, size_t, size_t, unsigned long long);
extern int cuMulticastUnbind(uint64_t, int, size_t, size_t);
extern int cuMemExportToShareableHandle(void *, uint64_t, unsigned, unsigned long long);
extern int cuMemImportFromShareableHandle(uint64_t *, void *, unsigned);
extern int cuMemGetHandleForAddressRange(void *, Pointer, size_t, unsigned, unsigned long long);
/* Memory of another interface is made in pieces of so many bytes. */
enum { PIECE = 2 << 20 };
/* It is held by the object that it was imported as, or by what is mapped of it. */
typedef enum { AS_OBJECT, AS_BUFFER } Hold;

/* A whole piece, by a copy of its descriptor, which is the driver's from then on. */
static inline int take_imported(Entry *entry, int piece, Hold hold)
{
    int descriptor = dup(piece);
    memset(entry, 0, sizeof *entry);
    entry->family = IMPORTED;
    entry->charged = PIECE;
    int answer = import_external(&entry->object, descriptor, PIECE);
    if (answer) {
        close(descriptor);
        return answer;
    }
    if (hold == AS_OBJECT)
        return 0;
    int wrong = map_external(&entry->address, entry->object, PIECE) || cuDestroyExternalMemory(entry->object);
    entry->object = NULL;
    return wrong ? -1 : 0;
}

/* Its descriptor stays open here; what is made is not there where that cannot be had. */
static inline int take_shared(Entry *entry, size_t size)
{
    Properties card = {1, 1, 1, on_card};
    memset(entry, 0, sizeof *entry);
    entry->family = SHARED;
    entry->charged = up(size, 2 << 20);
    int answer = cuMemCreate(&entry->handle, entry->charged, &card, 0);
    return answer ? answer : cuMemExportToShareableHandle(&entry->descriptor, entry->handle, 1, 0) ? -1 : 0;
}

static inline int take_ranged(Entry *entry, size_t size)
{
    memset(entry, 0, sizeof *entry);
    entry->family = RANGED;
    entry->charged = up(size, 4096);
    int answer = cuMemAlloc_v2(&entry->address, entry->charged);
    return answer ? answer : cuMemGetHandleForAddressRange(&entry->descriptor, entry->address, entry->charged, 1, 0) ? -1 : 0;
}

/* Memory that a part of a sparse array, or a multicast object, alone holds. */
static inline int take_behind(Entry *entry, int family, size_t size)
{
    memset(entry, 0, sizeof *entry);
    entry->family = family;
    entry->charged = up(size, 2 << 20);
    Properties card = {1, 0, 1, on_card};
    Deep sparse = {1024, 1024, 0, 0x20, 1, 0x40};
    struct {
        unsigned devices;
        size_t bytes;
        uint64_t handle_types, flags;
    } team = {1, entry->charged, 0, 0};
    uint64_t memory = 0;
    int answer = cuMemCreate(&memory, entry->charged, &card, 0), wrong;
    if (answer)
        return answer;
    if (entry->family == SPARSE)
        wrong = cuArray3DCreate_v2(&entry->array, &sparse) || put_behind(entry->array, 0, memory, NULL);
    else
        wrong = cuMulticastCreate(&entry->handle, &team) || cuMulticastAddDevice(entry->handle, on_card) ||
                cuMulticastBindMem(entry->handle, 0, memory, 0, entry->charged, 0);
    return wrong || cuMemRelease(memory) ? -1 : 0;
}

/* Taken away first, or gone with what holds it. */
static inline int give_behind(const Entry *entry)
{
    int first = entry->charged / (2 << 20) % 2;
    if (entry->family == SPARSE)
        return (first && take_away(entry->array, 0, 64, NULL)) || cuArrayDestroy(entry->array);
    return (first && cuMulticastUnbind(entry->handle, on_card, 0, entry->charged)) || cuMemRelease(entry->handle);
}

/* Its stacks are larger for a moment. */
static inline int take_shrunk(Entry *entry, size_t size)
{
    void *before = NULL;
    memset(entry, 0, sizeof *entry);
    entry->family = SHRUNK;
    entry->charged = size;
    int answer = take_context(entry, size);
    if (answer)
        return answer;
    int wrong = cuCtxGetCurrent(&before) || cuCtxSetCurrent(entry->object) || cuCtxSetLimit(0, 1024);
    return cuCtxSetCurrent(before) || wrong ? -1 : 0;
}

/* Its descriptor goes first, or is what keeps it on the card. */
static inline int give_exported(Entry *entry)
{
    int first = entry->charged / (2 << 20) % 2;
    if (first)
        close(entry->descriptor);
    int answer = entry->family == SHARED ? cuMemRelease(entry->handle) : cuMemFree_v2(entry->address);
    if (!first)
        close(entry->descriptor);
    return answer;
}

static inline int give_any(Entry *entry, void *stream)
{
    switch (entry->family) {
    case LENT: return cuMemFree_v2(entry->address);
    case OPENED: return cuIpcCloseMemHandle(entry->address);
    case IMPORTED: return entry->object ? cuDestroyExternalMemory(entry->object) : cuMemFree_v2(entry->address);
    case SHARED:
    case RANGED: return give_exported(entry);
    case SPARSE:
    case TEAM: return give_behind(entry);
    case ADOPTED: return cuMemRelease(entry->handle);
    case SHRUNK: return cuCtxDestroy_v2(entry->object);
    default: return entry->family < FAMILIES ? give(entry) : give_other(entry, stream);
    }
}
