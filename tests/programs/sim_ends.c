/* The primary context is reset while others make green contexts and allocate: memory on the card in the end has an owner.
 * "green": one after the other. "threads SEED": at once. */
#include "green.h"
#include "check.h"
#include <pthread.h>

#define MIB (1ul << 20)
enum { THREADS = 4, ROUNDS = 400 };

/* With one context there, and nothing in it: how much of the card is in use. */
static size_t in_use(void)
{
    size_t left = 0, all = 0;
    void *context = 0;
    CHECK(CALL(cuDevicePrimaryCtxReset_v2, 0) == 0);
    CHECK(CALL(cuDevicePrimaryCtxRetain, &context, 0) == 0);
    CHECK(CALL(cuCtxSetCurrent, context) == 0);
    CHECK(CALL(cuMemGetInfo_v2, &left, &all) == 0);
    CHECK(CALL(cuCtxSetCurrent, (void *)0) == 0);
    return all - left;
}

/* Two of three allocations stay; also larger stacks, which the context has until it ends. */
static void use(void *context, unsigned *seed)
{
    u64 address = 0;
    if (CALL(cuCtxSetCurrent, context) != 0)
        return;
    if (rand_r(seed) % 4 == 0)
        CALL(cuCtxSetLimit, 0, (size_t)(1024 + rand_r(seed) % 4096));
    if (CALL(cuMemAlloc_v2, &address, (size_t)(16 * MIB)) == 0 && rand_r(seed) % 3 == 0)
        CALL(cuMemFree_v2, address);
    CALL(cuCtxSetCurrent, (void *)0);
}

static void with_green(unsigned *seed)
{
    u64 green = 0;
    void *context = 0;
    if (make_green(&green, 0) != 0)
        return;
    if (CALL(cuCtxFromGreenCtx, &context, green) == 0)
        use(context, seed);
    CALL(cuGreenCtxDestroy, green);
}

static void with_primary(unsigned *seed)
{
    void *context = 0;
    if (CALL(cuDevicePrimaryCtxRetain, &context, 0) != 0)
        return;
    use(context, seed);
    CALL(cuDevicePrimaryCtxRelease_v2, 0);
}

static void *churn(void *given)
{
    unsigned seed = *(unsigned *)given;
    for (int round = 0; round < ROUNDS; round++) {
        int what = rand_r(&seed) % 8;
        if (what == 0)
            CALL(cuDevicePrimaryCtxReset_v2, 0);
        else if (what < 5)
            with_green(&seed);
        else
            with_primary(&seed);
    }
    return 0;
}

static void threads(unsigned seed)
{
    pthread_t all[THREADS];
    unsigned seeds[THREADS];
    for (int i = 0; i < THREADS; i++) {
        seeds[i] = seed + i;
        CHECK(pthread_create(&all[i], 0, churn, &seeds[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(all[i], 0) == 0);
}

static void green(void)
{
    u64 made = 0, address = 0;
    void *context = 0, *other = 0, *again = 0;
    CHECK(make_green(&made, 0) == 0);
    CHECK(CALL(cuCtxFromGreenCtx, &context, made) == 0);
    CHECK(CALL(cuCtxSetCurrent, context) == 0);
    CHECK(CALL(cuMemAlloc_v2, &address, (size_t)MIB) == 0);
    CHECK(CALL(cuDevicePrimaryCtxReset_v2, 0) == 0);
    /* Its memory was the primary context's. */
    CHECK(CALL(cuMemAlloc_v2, &address, (size_t)MIB) == 201);
    CHECK(CALL(cuDevicePrimaryCtxRetain, &other, 0) == 0);
    CHECK(CALL(cuGreenCtxDestroy, made) == 0);
    /* The one that was made since is not its to release. */
    CHECK(CALL(cuDevicePrimaryCtxRetain, &again, 0) == 0 && again == other);
}

int main(int count, char **words)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library);
    CHECK(CALL(cuInit, 0) == 0);
    size_t empty = in_use();
    if (count > 2)
        threads((unsigned)atoi(words[2]));
    else
        green();
    size_t left = in_use();
    printf("%zu MiB have no owner\n", (left - empty) / MIB);
    return 0;
}
