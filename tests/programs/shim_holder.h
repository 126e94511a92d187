/* Memory of any family on any card, taken and given back as told line by line; shim_shown.c says how. */
#include "shim_mixed.h"

extern int cuStreamCreate(void **, unsigned), cuCtxSynchronize(void);
extern int cuMemPoolCreate(void **, const void *), cuMemPoolDestroy(void *), cuMemPoolSetAttribute(void *, unsigned, void *);

enum { ENTRIES = 64, CARDS = 2, STACKS = LASTING_FAMILIES };
/* What there is of each card. */
typedef struct {
    void *context, *stream, *pool;
    int piece;
} Own;
static Own cards[CARDS], *own = cards;
static Entry entries[ENTRIES];

static int turn_to(int card) {
    on_card = card;
    own = &cards[card];
    if (own->context) return cuCtxSetCurrent(own->context);
    int code = cuDevicePrimaryCtxRetain(&own->context, card);
    if (code || (code = cuCtxSetCurrent(own->context)) || (code = cuStreamCreate(&own->stream, 1))) return code;
    return make_elsewhere(&own->piece, PIECE, card);
}

static int have(Entry *entry, int family, size_t bytes) {
    switch (family) {
    case IMPORTED: return take_imported(entry, own->piece, bytes % 2 ? AS_OBJECT : AS_BUFFER);
    case OWNED: return take_other(entry, POOLED, bytes, own->stream, own->pool);
    case STACKS: return cuCtxSetLimit(0, bytes);
    default: return family < FAMILIES ? take(entry, family, bytes) : take_other(entry, family, bytes, own->stream, own->pool);
    }
}

static int make_pool(uint64_t keeps) {
    Properties card = {1, 0, 1, on_card};
    int code = own->pool ? cuMemPoolDestroy(own->pool) : 0;
    own->pool = NULL;
    if (code || keeps == 0 || (code = cuMemPoolCreate(&own->pool, &card))) return code;
    return cuMemPoolSetAttribute(own->pool, 4, &keeps);
}

static int lend(Entry *entry) {
    Ipc handle;
    int code = cuIpcGetMemHandle(&handle, entry->address);
    if (!code) entry->family = LENT;
    printf("%d ", code);
    for (int at = 0; at < 64 && !code; at++) printf("%02x", handle.bytes[at]);
    puts("");
    return code;
}

static int open_lent(Entry *entry, const char *digits) {
    Ipc handle;
    memset(entry, 0, sizeof *entry);
    entry->family = OPENED;
    for (int at = 0; at < 64; at++)
        if (sscanf(digits + 2 * at, "%2hhx", &handle.bytes[at]) != 1) return -1;
    return cuIpcOpenMemHandle_v2(&entry->address, handle, 1);
}

static int circle(int count, size_t bytes) {
    int code = 0;
    for (Ipc handle; count > 0 && !code; count--) {
        Pointer block = 0;
        code = cuMemAlloc_v2(&block, bytes);
        if (code || (code = cuIpcGetMemHandle(&handle, block))) break;
        code = cuMemFree_v2(block);
    }
    return code;
}

/* Whether the line is one of those that are about all families. */
static int is_of_families(const char *line) {
    char digits[129];
    int n = 0, family = 0, code;
    unsigned long long bytes = 0;
    if (sscanf(line, "on %d", &n) == 1) code = turn_to(n % CARDS);
    else if (sscanf(line, "have %d %d %llu", &n, &family, &bytes) == 3) code = have(&entries[n % ENTRIES], family, bytes);
    else if (sscanf(line, "lose %d", &n) == 1) code = give_any(&entries[n % ENTRIES], own->stream);
    else if (sscanf(line, "lend %d", &n) == 1) return lend(&entries[n % ENTRIES]), 1;
    else if (sscanf(line, "open %d %128s", &n, digits) == 2) code = open_lent(&entries[n % ENTRIES], digits);
    else if (!strncmp(line, "wait", 4)) code = cuCtxSynchronize();
    else if (sscanf(line, "pool %llu", &bytes) == 1) code = make_pool(bytes);
    else if (sscanf(line, "circle %d %llu", &n, &bytes) == 2) code = circle(n, bytes);
    else return 0;
    printf("%d\n", code);
    return 1;
}
