/* Calls of the driver that begin inside calls of the driver, of the same thread, on a driver that allows it.
   usage: shim_reentry handler | jump | cancel    MILLISECONDS
   handler: signals storm on four threads, and their handler takes and gives back memory
   jump:    the same, and the handler jumps out of what it interrupted
   cancel:  threads that take and give back are cancelled wherever they are, while others go on
   Then each block that is not out is had and given back once more. It prints how many calls were refused before, and how many
   blocks are out. */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <errno.h>

extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), blocks_out(void);
extern int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemGetInfo_v2(size_t *, size_t *);

enum { THREADS = 4, BLOCKS = 64, BLOCK = 512, OUT_OF_MEMORY = 2, JUMPS = 32, HANGS_AFTER = 60 };
static void *context;
static int jumps;
static long refused, handled;
static volatile int over;
static __thread sigjmp_buf back;
static __thread volatile sig_atomic_t armed;

/* A block is had and given back. */
static void once(void)
{
    uint64_t block;
    int code = cuMemAlloc_v2(&block, BLOCK);
    CHECK(code == 0 || code == OUT_OF_MEMORY);
    if (code)
        __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
    else
        CHECK(cuMemFree_v2(block) == 0);
}

/* Every address that the driver has to give. */
static void all_once(void)
{
    uint64_t blocks[BLOCKS];
    int count = 0;
    while (count < BLOCKS && cuMemAlloc_v2(&blocks[count], BLOCK) == 0)
        count++;
    while (count > 0)
        CHECK(cuMemFree_v2(blocks[--count]) == 0);
}

static void on_signal(int number)
{
    int before = errno;
    size_t available, total;
    (void)number;
    once();
    CHECK(cuMemGetInfo_v2(&available, &total) == 0 && errno == before);
    __atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
    if (armed && __atomic_fetch_sub(&jumps, 1, __ATOMIC_RELAXED) > 0)
        siglongjmp(back, 1);
}

static void *work(void *unused)
{
    CHECK(cuCtxSetCurrent(context) == 0);
    sigsetjmp(back, 1);
    armed = 1;
    while (!over)
        once();
    armed = 0;
    return unused;
}

static void *cancelled(void *unused)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    return work(unused);
}

static void pass(long micros)
{
    struct timespec time = { 0, micros * 1000 };
    nanosleep(&time, NULL);
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void storm(pthread_t *threads, int cancels, long until)
{
    while (now() < until) {
        for (int at = 0; at < THREADS; at++) {
            if (!cancels) {
                pthread_kill(threads[at], SIGUSR1);
            } else if (at) {
                pthread_cancel(threads[at]);
                pthread_join(threads[at], NULL);
                CHECK(pthread_create(&threads[at], NULL, cancelled, NULL) == 0);
            }
        }
        pass(cancels ? 500 : 20);
    }
}

int main(int count, char **given)
{
    pthread_t threads[THREADS];
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    CHECK(count == 3);
    int cancels = !strcmp(given[1], "cancel");
    jumps = strcmp(given[1], "jump") ? 0 : JUMPS;
    alarm(HANGS_AFTER);
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    once();
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, cancels && at ? cancelled : work, NULL) == 0);
    storm(threads, cancels, now() + atol(given[2]));
    over = 1;
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    CHECK(handled || cancels);
    long told = refused;
    all_once();
    printf("%ld %d\n", told, blocks_out());
    return 0;
}
