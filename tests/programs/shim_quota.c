/* Threads that take and give back device memory of all families at random, each at most KEEP bytes at a time.
   usage: shim_quota THREADS OPERATIONS KEEP SEED plain|all FILE
   Says "ready" and waits for a line; then, with everything still held, "granted refused wrong opened"; then for each line:
     info   what is free, which brings the books up to what the driver says
     rest   0: all that is free can be had, and not a byte more
     give   gives everything back
   Anything but success or out of memory is a failure. `all` takes memory of which the driver decides the cost, too: blocks of
   pools, graphs with memory nodes, contexts with memory in them, modules; and memory that other processes open, for which handles
   lie in FILE, the same for all of them. */
#include "shim_families.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

extern int cuStreamCreate(void **, unsigned), cuDeviceGraphMemTrim(int), cuMemPoolTrimTo(void *, size_t);
extern int cuDeviceGetDefaultMemPool(void **, int), cuCtxSynchronize(void);

enum { ENTRIES = 24, THREADS_MAX = 256, RARE = 16 };

typedef struct {
    uint64_t random;
    size_t keep, operations, granted, refused, opened, held;
    int wrong, count;
    void *stream;
    Entry entries[ENTRIES];
} Worker;

typedef struct { unsigned char bytes[64]; } Ipc;
extern int cuIpcGetMemHandle(Ipc *, Pointer), cuIpcOpenMemHandle_v2(Pointer *, Ipc, unsigned), cuIpcCloseMemHandle(Pointer);

/* Behind the families of shim_families.h: memory that is lent, and what is opened of others. */
enum { LENT = ALL_FAMILIES, OPENED, MIXED_FAMILIES };
/* A handle for whoever comes, and how much is behind it. */
typedef struct {
    int busy, maker;
    size_t size;
    Ipc handle;
} Offer;
enum { OFFERS = 16 };

static Offer *offers;
static Worker workers[THREADS_MAX];
static void *context;
static int threads, families = FAMILIES;

/* Contexts and modules are dear to make, for the driver too, and what is lent has a slot of the grant. */
static int choose(uint64_t random)
{
    int family = random % families;
    return family >= CONTEXT && family != OPENED && (random >> 52) % RARE ? POOLED : family;
}

static Offer exchange(uint64_t random, const Offer *next)
{
    Offer *place = &offers[random % OFFERS];
    while (__atomic_exchange_n(&place->busy, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    Offer found = *place;
    if (next) {
        *place = *next;
        place->busy = 1;
    }
    __atomic_store_n(&place->busy, 0, __ATOMIC_RELEASE);
    return found;
}

static int take_lent(Worker *worker, Entry *entry, size_t size)
{
    Offer offer = {0, getpid(), size, {{0}}};
    int answer = take(entry, PLAIN, size);
    if (answer)
        return answer;
    entry->family = LENT;
    answer = cuIpcGetMemHandle(&offer.handle, entry->address);
    if (!answer)
        exchange(worker->random >> 8, &offer);
    /* Only so many can be lent at a time. */
    return answer == OUT_OF_MEMORY ? 0 : answer;
}

/* What is not there any more, or too much, is not opened: then as much is had of one's own. */
static int take_opened(Worker *worker, Entry *entry, size_t size)
{
    Offer offer = exchange(worker->random >> 8, NULL);
    if (!offer.size || offer.maker == getpid() || offer.size > size)
        return take(entry, PLAIN, size);
    memset(entry, 0, sizeof *entry);
    int answer = cuIpcOpenMemHandle_v2(&entry->address, offer.handle, 1);
    if (answer)
        return answer == 1 ? take(entry, PLAIN, size) : answer;
    entry->family = OPENED;
    entry->charged = offer.size;
    worker->opened++;
    return 0;
}

static int take_any(Worker *worker, Entry *entry, int family, size_t size)
{
    if (family == LENT)
        return take_lent(worker, entry, size);
    if (family == OPENED)
        return take_opened(worker, entry, size);
    return family < FAMILIES ? take(entry, family, size) : take_other(entry, family, size, worker->stream);
}

static int give_any(Worker *worker, Entry *entry)
{
    if (entry->family >= LENT)
        return entry->family == LENT ? cuMemFree_v2(entry->address) : cuIpcCloseMemHandle(entry->address);
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

/* Pools and graphs keep nothing that is not in use, and nothing is at work: else the last byte makes them give it back. */
static int trim(void)
{
    void *pool = NULL;
    return families == MIXED_FAMILIES &&
           (cuCtxSynchronize() || cuDeviceGraphMemTrim(0) || cuDeviceGetDefaultMemPool(&pool, 0) || cuMemPoolTrimTo(pool, 0));
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
    size_t granted = 0, refused = 0, opened = 0;
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
        opened += workers[at].opened;
        wrong = wrong ? wrong : workers[at].wrong;
    }
    printf("%zu %zu %d %zu\n", granted, refused, wrong, opened);
}

int main(int count, char **arguments)
{
    char line[64];
    threads = count > 6 ? atoi(arguments[1]) : 0;
    int file = count > 6 ? open(arguments[6], O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    offers = ftruncate(file, OFFERS * sizeof *offers) ? MAP_FAILED
                                                      : mmap(NULL, OFFERS * sizeof *offers, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (offers == MAP_FAILED || threads < 1 || threads > THREADS_MAX || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
        cuCtxSetCurrent(context)) {
        puts("no card, or a wrong argument");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(arguments[5], "all"))
        families = MIXED_FAMILIES;
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
