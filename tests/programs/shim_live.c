/* Threads that allocate, ask and free while the limit changes. usage: shim_live THREADS SIZE LARGE SMALL FILE
   FILE is seven words: the number of the change that began last, of the one that ended last; then, written here, how many calls
   were answered with no change under way, how many of them were granted, refused, told the limit, and answered by an old limit.
   Odd numbers put SMALL in force, which SIZE does not fit into; even ones LARGE. Ends when the first word is all ones. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemGetInfo_v2(size_t *, size_t *);

enum { BEGUN, ENDED, DECIDED, GRANTED, REFUSED, TOLD, OLD };
static _Atomic uint64_t *words;
static size_t size, limits[2];
static void *context;

static void *work(void *given)
{
    int wrong = cuCtxSetCurrent(context);
    while (!wrong && words[BEGUN] != UINT64_MAX) {
        uint64_t address = 0, before = words[ENDED];
        size_t left = 0, total = 0;
        int answer = cuMemAlloc_v2(&address, size);
        /* With no change under way since before the call, only the limit of that number answers it. */
        if (words[BEGUN] == before) {
            words[DECIDED]++;
            words[answer ? REFUSED : GRANTED]++;
            if (answer != (before & 1 ? 2 : 0))
                words[OLD]++;
        }
        wrong = (answer != 0 && answer != 2) || (answer == 0 && cuMemFree_v2(address));
        before = words[ENDED];
        wrong = wrong || cuMemGetInfo_v2(&left, &total);
        if (words[BEGUN] == before) {
            words[TOLD]++;
            if (total != limits[before & 1])
                words[OLD]++;
        }
    }
    return wrong ? given : NULL;
}

int main(int count, char **arguments)
{
    pthread_t running[64];
    int threads = count > 5 ? atoi(arguments[1]) : 0, wrong = 0;
    int file = count > 5 ? open(arguments[5], O_RDWR) : -1;
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (threads < 1 || threads > 64 || words == MAP_FAILED || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0)) {
        puts("no card, or a wrong argument");
        return 1;
    }
    size = strtoull(arguments[2], NULL, 10);
    limits[0] = strtoull(arguments[3], NULL, 10);
    limits[1] = strtoull(arguments[4], NULL, 10);
    for (int at = 0; at < threads; at++)
        wrong |= pthread_create(&running[at], NULL, work, &words);
    for (int at = 0; at < threads && !wrong; at++) {
        void *told = NULL;
        wrong = pthread_join(running[at], &told) || told;
    }
    puts(wrong ? "a call failed" : "ok");
    return wrong;
}
