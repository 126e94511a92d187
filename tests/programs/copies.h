/* Copies between arrays and memory, in batches, and with attributes: declarations and one call each. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t H;

int cuArrayCreate_v2(H *, const void *), cuMemAlloc_v2(H *, size_t);
int cuMemcpyHtoA_v2(H, size_t, const void *, size_t), cuMemcpyAtoH_v2(void *, H, size_t, size_t);
int cuMemcpyDtoA_v2(H, size_t, H, size_t), cuMemcpyAtoD_v2(H, H, size_t, size_t), cuMemcpyAtoA_v2(H, size_t, H, size_t, size_t);
int cuMemcpyHtoAAsync_v2(H, size_t, const void *, size_t, void *), cuMemcpyAtoHAsync_v2(void *, H, size_t, size_t, void *);

typedef struct {
    size_t x, y, z, level;
    unsigned kind;
    const void *host;
    H device, array, context;
    size_t pitch, height;
} PeerSide;
typedef struct {
    PeerSide source, target;
    size_t width, height, depth;
} Peer;
int cuMemcpy3DPeer(const Peer *), cuMemcpy3DPeerAsync(const Peer *, void *);

typedef struct {
    unsigned order, places[4], flags;
} Attributes;
typedef struct {
    unsigned kind;
    H place;
    size_t inside[3];
} BoxSide;
typedef struct {
    BoxSide source, target;
    size_t width, height, depth;
    unsigned order, flags;
} Box;
int cuMemcpyBatchAsync(H *, H *, size_t *, size_t, Attributes *, size_t *, size_t, size_t *, void *);
int cuMemcpyBatchAsync_v2(H *, H *, size_t *, size_t, Attributes *, size_t *, size_t, void *);
int cuMemcpyBatchAsync_v2_ptsz(H *, H *, size_t *, size_t, Attributes *, size_t *, size_t, void *);
int cuMemcpy3DBatchAsync(size_t, Box *, size_t *, unsigned long long, void *);
int cuMemcpy3DBatchAsync_v2(size_t, Box *, unsigned long long, void *);
int cuMemcpyWithAttributesAsync(H, H, size_t, Attributes *, void *);
int cuMemcpy3DWithAttributesAsync(Box *, unsigned long long, void *);
int cuMemPrefetchBatchAsync(H *, size_t *, size_t, void *, size_t *, size_t, unsigned long long, void *);
int cuMemDiscardBatchAsync(H *, size_t *, size_t, unsigned long long, void *);

_Static_assert(sizeof(Peer) == 200 && sizeof(Attributes) == 24 && sizeof(Box) == 112, "the vendor's sizes");

enum { ENTRIES = 4, IN_HOST = 1, IN_ARRAY = 3, BOX_MEMORY = 1, BOX_ARRAY = 2 };

/* Two arrays and two buffers of `bytes` bytes, and as much of the host. */
typedef struct {
    H arrays[2], buffers[2];
    char *host;
    size_t bytes;
    void *stream;
} Ground;

static inline int ground(Ground *on)
{
    struct {
        size_t width, height;
        unsigned format, channels;
    } array = { on->bytes, 0, 1, 1 };
    return cuArrayCreate_v2(&on->arrays[0], &array) || cuArrayCreate_v2(&on->arrays[1], &array) ||
           cuMemAlloc_v2(&on->buffers[0], on->bytes) || cuMemAlloc_v2(&on->buffers[1], on->bytes);
}

/* Each moves all bytes once: host, array 0, array 1, buffer 0, buffer 1, array 0, host. Eight calls make a round. */
static inline int between_arrays(const Ground *on, uint64_t number)
{
    Peer peer = { .source = { .kind = IN_ARRAY, .array = on->arrays[1] }, .target = { .kind = IN_ARRAY, .array = on->arrays[0] },
        .width = on->bytes, .height = 1, .depth = 1 };
    switch (number % 8) {
    case 0: return cuMemcpyHtoA_v2(on->arrays[0], 0, on->host, on->bytes);
    case 1: return cuMemcpyAtoA_v2(on->arrays[1], 0, on->arrays[0], 0, on->bytes);
    case 2: return cuMemcpyAtoD_v2(on->buffers[0], on->arrays[1], 0, on->bytes);
    case 3: return cuMemcpyDtoA_v2(on->arrays[1], 0, on->buffers[0], on->bytes);
    case 4: return cuMemcpy3DPeerAsync(&peer, on->stream);
    case 5: return cuMemcpyAtoHAsync_v2(on->host, on->arrays[0], 0, on->bytes, on->stream);
    case 6: return cuMemcpyHtoAAsync_v2(on->arrays[0], 0, on->host, on->bytes, on->stream);
    default: return cuMemcpyAtoH_v2(on->host, on->arrays[0], 0, on->bytes);
    }
}

/* Buffer 0 to buffer 1 and back, in entries; boxes by way of array 0. Eight calls make a round. */
static inline int in_batches(const Ground *on, uint64_t number)
{
    size_t part = on->bytes / ENTRIES, sizes[ENTRIES], first = 0, failed = 0;
    H there[ENTRIES], back[ENTRIES];
    Attributes attributes = { 1, { 0 }, 0 };
    Box in[ENTRIES], out[ENTRIES];
    for (size_t entry = 0; entry < ENTRIES; entry++) {
        there[entry] = on->buffers[1] + entry * part;
        back[entry] = on->buffers[0] + entry * part;
        sizes[entry] = part;
        BoxSide memory = { BOX_MEMORY, there[entry], { 0 } }, array = { BOX_ARRAY, on->arrays[0], { entry * part } };
        in[entry] = (Box){ memory, array, part, 1, 1, 1, 0 };
        memory.place = back[entry];
        out[entry] = (Box){ array, memory, part, 1, 1, 1, 0 };
    }
    BoxSide memory = { BOX_MEMORY, on->buffers[0], { 0 } }, array = { BOX_ARRAY, on->arrays[1], { 0 } };
    Box whole = { memory, array, on->bytes, 1, 1, 1, 0 };
    switch (number % 8) {
    case 0: return cuMemcpyBatchAsync(there, back, sizes, ENTRIES, &attributes, &first, 1, &failed, on->stream);
    case 1: return cuMemcpyBatchAsync_v2(back, there, sizes, ENTRIES, &attributes, &first, 1, on->stream);
    case 2: return cuMemcpyBatchAsync_v2_ptsz(there, back, sizes, ENTRIES, &attributes, &first, 1, on->stream);
    case 3: return cuMemcpy3DBatchAsync(ENTRIES, in, &failed, 0, on->stream);
    case 4: return cuMemcpy3DBatchAsync_v2(ENTRIES, out, 0, on->stream);
    case 5: return cuMemcpyWithAttributesAsync(on->buffers[1], on->buffers[0], on->bytes, &attributes, on->stream);
    case 6: return cuMemcpyWithAttributesAsync(on->buffers[0], on->buffers[1], on->bytes, &attributes, on->stream);
    default: return cuMemcpy3DWithAttributesAsync(&whole, 0, on->stream);
    }
}
