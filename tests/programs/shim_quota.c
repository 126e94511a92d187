/* Threads that take and give back device memory of all families at random, each at most KEEP bytes at a time.
   usage: shim_quota THREADS OPERATIONS KEEP SEED plain|all
   Says "ready" and waits for a line; then, with everything still held, "granted refused wrong"; then for each line:
     info   what is free, which brings the books up to what the driver says
     rest   0: all that is free can be had, and not a byte more
     give   gives everything back
   Anything but success or out of memory is a failure. `all` takes memory of which the driver decides the cost, too: blocks of
   pools, graphs with memory nodes, contexts with memory in them, modules. */
#include "shim_families.h"
#include <pthread.h>

extern int cuStreamCreate(void **, unsigned), cuDeviceGraphMemTrim(int), cuMemPoolTrimTo(void *, size_t);
extern int cuDeviceGetDefaultMemPool(void **, int);

enum { ENTRIES = 24, THREADS_MAX = 256, RARE = 16 };

typedef struct {
    uint64_t random;
    size_t keep, operations, granted, refused, held;
    int wrong, count;
    void *stream;
    Entry entries[ENTRIES];
} Worker;

static Worker workers[THREADS_MAX];
static void *context;
static int threads, families = FAMILIES;

/* Contexts and modules are dear to make, for the driver too. */
static int choose(uint64_t random)
{
    int family = random % families;
    return family >= CONTEXT && (random >> 52) % RARE ? POOLED : family;
}

static int take_any(Worker *worker, Entry *entry, int family, size_t size)
{
    return family < FAMILIES ? take(entry, family, size) : take_other(entry, family, size, worker->stream);
}

static int give_any(Worker *worker, Entry *entry)
{
    return entry->family < FAMILIES ? give(entry) : give_other(entry, worker->stream);
}

static void *work(void *given)
{
    Worker *worker = given;
    if (cuCtxSetCurrent(context) || cuStreamCreate(&worker->stream, 1))
        worker->wrong = -1;
    for (size_t done = 0; done < worker->operations && !worker->wrong; done++) {
        uint64_t random = next_random(&worker->random);
        int family = choose(random);
        size_t size = 1 + (random >> 8) % (worker->keep / 4);
        int fits = worker->held + (family < FAMILIES || family == MODULE ? price(family, size) : size) <= worker->keep;
        if (worker->count > 0 && (!fits || worker->count == ENTRIES || (random >> 60) < 6)) {
            int at = (random >> 40) % worker->count;
            worker->held -= worker->entries[at].charged;
            worker->wrong = give_any(worker, &worker->entries[at]);
            worker->entries[at] = worker->entries[--worker->count];
        } else if (fits) {
            Entry *entry = &worker->entries[worker->count];
            int answer = take_any(worker, entry, family, size);
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

static size_t left(void)
{
    size_t free_bytes = 0, total = 0;
    return cuMemGetInfo_v2(&free_bytes, &total) ? 0 : free_bytes;
}

/* Pools and graphs keep nothing that is not in use: else the last byte makes them give it back. */
static int trim(void)
{
    void *pool = NULL;
    return families == ALL_FAMILIES &&
           (cuDeviceGraphMemTrim(0) || cuDeviceGetDefaultMemPool(&pool, 0) || cuMemPoolTrimTo(pool, 0));
}

static int rest(void)
{
    Pointer all = 0, more = 0;
    size_t bytes = trim() ? 0 : left();
    if (bytes && cuMemAlloc_v2(&all, bytes))
        return 1;
    if (cuMemAlloc_v2(&more, 1) != OUT_OF_MEMORY || left() != 0)
        return 2;
    return bytes ? cuMemFree_v2(all) : 0;
}

static int give_all(void)
{
    int wrong = 0;
    for (int at = 0; at < threads; at++)
        for (int entry = 0; entry < workers[at].count; entry++)
            wrong = wrong ? wrong : give_any(&workers[at], &workers[at].entries[entry]);
    return wrong ? wrong : trim();
}

static void run(char **arguments)
{
    pthread_t running[THREADS_MAX];
    size_t granted = 0, refused = 0;
    int wrong = 0;
    for (int at = 0; at < threads; at++) {
        workers[at].operations = strtoull(arguments[2], NULL, 10);
        workers[at].keep = strtoull(arguments[3], NULL, 10);
        workers[at].random = strtoull(arguments[4], NULL, 10) * 0x9e3779b97f4a7c15 + at * 77777 + 1;
        if (pthread_create(&running[at], NULL, work, &workers[at]))
            exit(1);
    }
    for (int at = 0; at < threads; at++) {
        pthread_join(running[at], NULL);
        granted += workers[at].granted;
        refused += workers[at].refused;
        wrong = wrong ? wrong : workers[at].wrong;
    }
    printf("%zu %zu %d\n", granted, refused, wrong);
}

int main(int count, char **arguments)
{
    char line[64];
    threads = count > 5 ? atoi(arguments[1]) : 0;
    if (threads < 1 || threads > THREADS_MAX || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
        cuCtxSetCurrent(context)) {
        puts("no card, or a wrong argument");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(arguments[5], "all"))
        families = ALL_FAMILIES;
    puts("ready");
    if (fgets(line, sizeof line, stdin))
        run(arguments);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "info", 4))
            printf("%zu\n", left());
        else
            printf("%d\n", line[0] == 'r' ? rest() : give_all());
    }
    return 0;
}
