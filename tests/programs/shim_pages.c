/* Device memory in pages: plain, pitched and managed memory of random sizes, taken and freed.
   usage: shim_pages KEEP SEED PAGE
   Says "ready"; then for each line:
     go OPERATIONS   so many operations with at most KEEP bytes of whole pages; "granted refused"
     fill BYTES      blocks of BYTES until one is refused; how many
     rest            takes all that is free: 0, or how many requests were refused with enough whole pages free
     give            frees everything; 0
   Any answer but success and out of memory ends it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemGetInfo_v2(size_t *, size_t *);
extern int cuMemAllocPitch_v2(uint64_t *, size_t *, size_t, size_t, unsigned), cuMemAllocManaged(uint64_t *, size_t, unsigned);

enum { OUT_OF_MEMORY = 2, ENTRIES_MAX = 1 << 16, PITCH = 512 };
static const size_t largest = 64 << 20;
static size_t page;
static struct {
    uint64_t address;
    size_t pages;
} entries[ENTRIES_MAX];
static size_t count, held, granted, refused;
static uint64_t state;

static uint64_t next(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/* 1 byte to 64 MiB, small ones as often as large ones. */
static size_t size(void)
{
    size_t bits = next() % 27;
    size_t bytes = ((size_t)1 << bits) + next() % ((size_t)1 << bits);
    return bytes > largest ? largest : bytes;
}

static size_t pages_of(size_t bytes)
{
    return (bytes + page - 1) / page * page;
}

static int take(size_t bytes, unsigned kind)
{
    uint64_t address = 0;
    size_t apart = 0;
    int answer;
    if (kind == 0 && bytes >= PITCH)
        answer = cuMemAllocPitch_v2(&address, &apart, PITCH, bytes / PITCH, 4);
    else if (kind == 1)
        answer = cuMemAllocManaged(&address, bytes, 1);
    else
        answer = cuMemAlloc_v2(&address, bytes);
    if (answer == OUT_OF_MEMORY)
        return refused++, 0;
    CHECK(answer == 0);
    entries[count].address = address;
    entries[count++].pages = pages_of(bytes);
    held += pages_of(bytes);
    granted++;
    return 1;
}

static void drop(size_t at)
{
    CHECK(cuMemFree_v2(entries[at].address) == 0);
    held -= entries[at].pages;
    entries[at] = entries[--count];
}

static void go(size_t operations, size_t keep)
{
    granted = refused = 0;
    while (operations--) {
        size_t bytes = size();
        while (count && (held + pages_of(bytes) > keep || count == ENTRIES_MAX))
            drop(next() % count);
        if (held + pages_of(bytes) <= keep)
            take(bytes, next() % 6);
        if (count && next() % 2)
            drop(next() % count);
    }
    printf("%zu %zu\n", granted, refused);
}

static size_t left(void)
{
    size_t free_bytes = 0, total = 0;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total) == 0);
    return free_bytes;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    size_t keep = strtoull(argv[1], 0, 10), number = 0;
    page = strtoull(argv[3], 0, 10);
    state = strtoull(argv[2], 0, 10) * 0x9e3779b97f4a7c15 | 1;
    void *context;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "go %zu", &number) == 1) {
            go(number, keep);
        } else if (sscanf(line, "fill %zu", &number) == 1) {
            granted = 0;
            while (count < ENTRIES_MAX && take(number, 5))
                ;
            printf("%zu\n", granted);
        } else if (!strncmp(line, "rest", 4)) {
            size_t wrong = 0, enough;
            while (count < ENTRIES_MAX && (enough = left()) >= page && wrong < 10) {
                size_t bytes = size();
                if (pages_of(bytes) > enough)
                    bytes = page - next() % page;
                wrong += !take(bytes, next() % 6);
            }
            /* And not a page more. */
            wrong += left() >= page || take(2 * page, 5);
            printf("%zu\n", wrong);
        } else if (!strncmp(line, "give", 4)) {
            while (count)
                drop(count - 1);
            puts("0");
        } else {
            return 0;
        }
        fflush(stdout);
    }
    return 0;
}
