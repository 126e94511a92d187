/* What one call costs: the quickest of 200 batches, each short enough to pass between two turns of other programs, in
   nanoseconds.
   usage: hook_cost alloc LIVE ROUNDS    an allocation and its free, with so many live
          hook_cost replace LIVE ROUNDS  a free of any of them and an allocation in its place */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t);

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static uint64_t *live;
static size_t count;
static uint64_t state = 0x9e3779b97f4a7c15;

static int prepare_alloc(size_t wanted)
{
    count = wanted;
    live = calloc(count, sizeof *live);
    for (size_t at = 0; at < count; at++)
        if (cuMemAlloc_v2(&live[at], 4096))
            return 1;
    return 0;
}

static int alloc(void)
{
    uint64_t made = 0;
    int wrong = cuMemAlloc_v2(&made, 4096);
    return wrong | cuMemFree_v2(made);
}

static int replace(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t *place = &live[(state >> 33) % count];
    int wrong = cuMemFree_v2(*place);
    return wrong | cuMemAlloc_v2(place, 4096);
}

int main(int arguments_count, char **arguments)
{
    void *context = NULL;
    double best = 1e30;
    int wrong = 0;
    if (arguments_count < 4 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    size_t rounds = strtoull(arguments[3], NULL, 10);
    int (*once)(void) = NULL;
    if (!strcmp(arguments[1], "alloc") || !strcmp(arguments[1], "replace")) {
        wrong = prepare_alloc(strtoull(arguments[2], NULL, 10));
        once = arguments[1][0] == 'a' ? alloc : replace;
    }
    if (!once)
        return 1;
    for (int batch = 0; batch < 200; batch++) {
        double begun = now();
        for (size_t at = 0; at < rounds; at++)
            wrong |= once();
        double took = (now() - begun) / rounds;
        best = took < best ? took : best;
    }
    printf("%.2f\n", best);
    return wrong != 0;
}
