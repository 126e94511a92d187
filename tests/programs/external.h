/* Memory of another interface to the card, as the vendor describes it. */
#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned type;
    union {
        int fd;
        void *win32[2];
    } handle;
    unsigned long long size;
    unsigned flags, reserved[16];
} External;
_Static_assert(sizeof(External) == 104, "CUDA_EXTERNAL_MEMORY_HANDLE_DESC");
typedef struct {
    unsigned long long offset, size;
    unsigned flags, reserved[16];
} Buffer;
_Static_assert(sizeof(Buffer) == 88, "CUDA_EXTERNAL_MEMORY_BUFFER_DESC");
extern int cuGetExportTable(const void **, const void *);
extern int cuImportExternalMemory(void **, const External *), cuDestroyExternalMemory(void *);
extern int cuExternalMemoryGetMappedBuffer(uint64_t *, void *, const Buffer *);

/* As the other interface makes it on a card, and a descriptor of it. */
static inline int make_elsewhere(int *descriptor, uint64_t bytes, int card)
{
    const void **table = NULL;
    int code = cuGetExportTable((const void **)&table, "aliquot-sim-ctx\1");
    return code ? code : ((int (*)(int *, uint64_t, int))table[4])(descriptor, bytes, card);
}

static inline int import_external(void **object, int descriptor, uint64_t bytes)
{
    External given = {1, {descriptor}, bytes, 0, {0}};
    return cuImportExternalMemory(object, &given);
}

static inline int map_external(uint64_t *address, void *object, uint64_t bytes)
{
    Buffer buffer = {0, bytes, 0, {0}};
    return cuExternalMemoryGetMappedBuffer(address, object, &buffer);
}
