/* Threads that take and give back device memory of all families at random, each at most KEEP bytes at a time.
   usage: shim_quota THREADS OPERATIONS KEEP SEED
   Holds what it has then, says "granted refused", and goes on with each line it reads: gives all back, ends. Anything but
   success or out of memory is a failure. */
#include "shim_families.h"
#include <pthread.h>

enum { ENTRIES = 24, THREADS_MAX = 256 };

typedef struct {
    uint64_t random;
    size_t keep, operations, granted, refused, held;
    int wrong, count;
    Entry entries[ENTRIES];
} Worker;

static Worker workers[THREADS_MAX];
static void *context;

static void *work(void *given)
{
    Worker *worker = given;
    cuCtxSetCurrent(context);
    for (size_t done = 0; done < worker->operations && !worker->wrong; done++) {
        uint64_t random = next_random(&worker->random);
        int family = random % FAMILIES;
        size_t size = 1 + (random >> 8) % (worker->keep / 4);
        int fits = worker->held + price(family, size) <= worker->keep;
        if (worker->count > 0 && (!fits || worker->count == ENTRIES || (random >> 60) < 6)) {
            int at = (random >> 40) % worker->count;
            worker->held -= worker->entries[at].charged;
            worker->wrong = give(&worker->entries[at]);
            worker->entries[at] = worker->entries[--worker->count];
        } else if (fits) {
            Entry *entry = &worker->entries[worker->count];
            int answer = take(entry, family, size);
            if (answer == 0) {
                worker->held += entry->charged;
                worker->count++;
                worker->granted++;
            } else if (answer == OUT_OF_MEMORY) {
                worker->refused++;
            } else {
                worker->wrong = answer;
            }
        }
    }
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS_MAX];
    size_t granted = 0, refused = 0;
    int wrong = 0, all = count > 4 ? atoi(arguments[1]) : 0;
    int ready = all < 1 || all > THREADS_MAX ? 1 : cuInit(0);
    /* The others may hold all there is for a moment. */
    while (!ready && (ready = cuDevicePrimaryCtxRetain(&context, 0)) == 2)
        ready = 0;
    if (ready || cuCtxSetCurrent(context)) {
        puts("no card, or a wrong argument");
        return 1;
    }
    for (int at = 0; at < all; at++) {
        workers[at].operations = strtoull(arguments[2], NULL, 10);
        workers[at].keep = strtoull(arguments[3], NULL, 10);
        workers[at].random = strtoull(arguments[4], NULL, 10) * 0x9e3779b97f4a7c15 + at * 77777 + 1;
        if (pthread_create(&threads[at], NULL, work, &workers[at]))
            return 1;
    }
    for (int at = 0; at < all; at++) {
        pthread_join(threads[at], NULL);
        granted += workers[at].granted;
        refused += workers[at].refused;
        wrong = wrong ? wrong : workers[at].wrong;
    }
    printf("%zu %zu %d\n", granted, refused, wrong);
    fflush(stdout);
    getchar();
    for (int at = 0; at < all; at++)
        for (int entry = 0; entry < workers[at].count; entry++)
            wrong = wrong ? wrong : give(&workers[at].entries[entry]);
    printf("%d\n", wrong);
    fflush(stdout);
    getchar();
    getchar();
    return wrong != 0;
}
