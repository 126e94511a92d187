/* Families behind those of shim_families.h, which take another process or another interface to the card; and how memory of any
   family is given back. */
#include "shim_families.h"

#include "external.h"
#include <unistd.h>

typedef struct { unsigned char bytes[64]; } Ipc;
extern int cuIpcGetMemHandle(Ipc *, Pointer), cuIpcOpenMemHandle_v2(Pointer *, Ipc, unsigned), cuIpcCloseMemHandle(Pointer);

/* Blocks of pools that come and go, memory that is lent, what is opened of others, and what is imported of another interface. */
enum { OWNED = ALL_FAMILIES, LENT, OPENED, IMPORTED, MIXED_FAMILIES };
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

static inline int give_any(Entry *entry, void *stream)
{
    switch (entry->family) {
    case LENT: return cuMemFree_v2(entry->address);
    case OPENED: return cuIpcCloseMemHandle(entry->address);
    case IMPORTED: return entry->object ? cuDestroyExternalMemory(entry->object) : cuMemFree_v2(entry->address);
    default: return entry->family < FAMILIES ? give(entry) : give_other(entry, stream);
    }
}
