/* What is put behind parts of sparse arrays, as the vendor describes it. */
#include <stddef.h>
#include <stdint.h>

/* The card that is meant. */
static int on_card;

typedef struct {
    unsigned resource;
    void *array;
    unsigned part;
    union {
        unsigned level[8];
        struct { unsigned layer; uint64_t offset, size; } tail;
    } where;
    unsigned operation, handle_type;
    uint64_t handle, offset;
    unsigned devices, flags, reserved[2];
} Part;
_Static_assert(sizeof(Part) == 96, "CUarrayMapInfo");
extern int cuMemMapArrayAsync(Part *, unsigned, void *);

/* `wide` × 64 elements from `x` on. */
static inline int map_part(void *array, unsigned x, unsigned wide, uint64_t handle, void *stream)
{
    Part given = {0, array, 0, {{0, 0, x, 0, 0, wide, 64, 1}}, 2, 0, 0, 0, 1u << on_card, 0, {0, 0}};
    if (handle) {
        given.operation = 1;
        given.handle = handle;
    }
    return cuMemMapArrayAsync(&given, 1, stream);
}

static inline int put_behind(void *array, unsigned x, uint64_t handle, void *stream)
{
    return map_part(array, x, 64, handle, stream);
}

static inline int take_away(void *array, unsigned x, unsigned wide, void *stream)
{
    return map_part(array, x, wide, 0, stream);
}
