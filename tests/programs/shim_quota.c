/* Threads that take and give back device memory of all families at random, each at most KEEP bytes at a time.
   usage: shim_quota THREADS OPERATIONS KEEP SEED plain|all|elsewhere|lasting FILE
   Says "ready"; then for each line:
     go     as many operations of each thread; with everything still held, "granted refused wrong opened judged"
     info   free memory; the query updates the accounting to the driver's figures
     had    bytes that are imported of another interface to the card
     let    bytes that were freed, and that may still be accounted
     graphs bytes of executable graphs, charged whether the driver has them or not
     pool   takes and frees a block of the card's pool: the process has seen by how much pools grow
     stacks BYTES  the primary context's stacks are so large
     rest   0: all that is free can be had, and not a byte more
     give   gives everything back
   Anything but success or out of memory is a failure. `all` takes memory of which the driver decides the cost, too: blocks of
   the card's pool and of pools that come and go, graphs with memory nodes, written down and captured, contexts with memory and
   larger stacks in them, modules; and memory that other processes open, for which handles lie in FILE, the same for all of them.
   `elsewhere` imports memory of another interface as well, of which each process makes MADE bytes before it is ready.

   Of refusals, one in JUDGED is looked into: the thread waits until no other one, of any process, is in a call, and asks again. Where
   at least as much is free then as the request takes, it has to be granted.

   `lasting` takes plain families and those that may stay accounted longer than on the card: physical memory with a shared handle,
   which other processes import, memory of which another device has a range, memory that a sparse array or a multicast object alone
   holds, and contexts with shrinking stacks. */
#define _GNU_SOURCE
#include "shim_mixed.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

extern int cuStreamCreate(void **, unsigned), cuDeviceGraphMemTrim(int), cuMemPoolTrimTo(void *, size_t);
extern int cuDeviceGetDefaultMemPool(void **, int), cuCtxSynchronize(void);
extern int cuMemPoolCreate(void **, const void *), cuMemPoolDestroy(void *), cuMemPoolSetAttribute(void *, unsigned, void *);

enum { ENTRIES = 24, THREADS_MAX = 256, RARE = 16, JUDGED = 128, POOLS = 4 };
/* What pools and graphs grow by; a pool of which that is not known yet is taken to grow by more. */
enum { UNIT = 2 << 20, UNIT_PRESUMED = 32 << 20, CONTEXT_PRESUMED = 512 << 20 };

typedef struct {
    uint64_t random;
    size_t keep, operations, granted, refused, opened, judged, held, let;
    int wrong, count;
    /* The pool is the thread's own, of one thread in POOLS. */
    void *stream, *pool;
    Entry entries[ENTRIES];
} Worker;

/* A handle for any process, or a descriptor of the exporter's, and how much is behind it. */
typedef struct {
    int busy, maker;
    size_t size;
    Ipc handle;
    int descriptor;
    ino_t file;
} Offer;
enum { OFFERS = 16 };
/* What all processes have in common. */
typedef struct {
    /* Held shared by each thread in a call, and exclusively by a thread that judges a refusal. */
    pthread_rwlock_t calls;
    int is_made;
    Offer offers[OFFERS];
} Common;
/* Memory of another interface: so many pieces of each process. */
enum { PIECES = 8 };

static Common *common;
static Worker workers[THREADS_MAX];
static void *context;
static int threads, families = FAMILIES, lasts, pieces[PIECES];
/* Whether this process has had a block of a pool, so that it knows by how much they grow. */
static int pools_known;

/* Contexts and modules are dear to make, for the driver too, and what is lent has a slot of the grant. */
static int choose(uint64_t random)
{
    int family = random % families;
    if (lasts) {
        family = random % (FAMILIES + LASTING_FAMILIES - MIXED_FAMILIES);
        family += family < FAMILIES ? 0 : MIXED_FAMILIES - FAMILIES;
        return family > FAMILIES && family != ADOPTED && (random >> 52) % RARE ? PLAIN : family;
    }
    int is_dear = family == CONTEXT || family == MODULE || family == LENT;
    return is_dear && (random >> 52) % RARE ? POOLED : family;
}

/* Of a thread's part. What lies in pools and graphs is counted in the units by which these grow: the last block of a pool keeps one. */
static size_t part_of(int family, size_t size)
{
    switch (family) {
    case POOLED:
    case OWNED:
    case GRAPH:
    case CAPTURED: return up(size, UNIT);
    case CONTEXT:
    case SHRUNK: return size;
    case SHARED:
    case SPARSE:
    case TEAM: return up(size, UNIT);
    case RANGED: return up(size, 4096);
    case IMPORTED: return PIECE;
    default: return price(family, size);
    }
}

/* With so much free nothing of the kind may be refused. */
static size_t enough_for(int family, size_t size)
{
    if (family == CONTEXT || family == SHRUNK)
        return CONTEXT_PRESUMED;
    int may_grow_by_more = family == POOLED || family == OWNED || family == GRAPH || family == CAPTURED;
    return may_grow_by_more && !pools_known ? UNIT_PRESUMED : part_of(family, size);
}

static Offer exchange(uint64_t random, const Offer *next)
{
    Offer *place = &common->offers[random % OFFERS];
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
    Offer offer = {.maker = getpid(), .size = size};
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

/* Exported memory is offered to every process. */
static int take_exported(Worker *worker, Entry *entry, size_t size)
{
    struct stat what;
    int answer = take_shared(entry, size);
    if (answer || fstat(entry->descriptor, &what))
        return answer ? answer : -1;
    Offer offer = {.maker = getpid(), .size = entry->charged, .descriptor = entry->descriptor, .file = what.st_ino};
    exchange(worker->random >> 8, &offer);
    return 0;
}

/* As with what is opened. The maker may close its descriptor at any time, and the number may be that of another file. */
static int take_adopted(Worker *worker, Entry *entry, size_t size)
{
    Offer offer = exchange(worker->random >> 8, NULL);
    char path[64];
    struct stat what;
    if (!offer.size || offer.maker == getpid() || offer.size > size)
        return take(entry, PLAIN, size);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", offer.maker, offer.descriptor);
    if (stat(path, &what) || what.st_ino != offer.file)
        return take(entry, PLAIN, size);
    int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    memset(entry, 0, sizeof *entry);
    int answer = file < 0 ? -1 : cuMemImportFromShareableHandle(&entry->handle, (void *)(intptr_t)file, 1);
    if (file >= 0)
        close(file);
    if (answer)
        return take(entry, PLAIN, size);
    entry->family = ADOPTED;
    entry->charged = offer.size;
    worker->opened++;
    return 0;
}

/* A pool of which the blocks outlive it, or that is cut down meanwhile, and keeps nothing, something or all of what is freed. */
static int take_owned(Worker *worker, Entry *entry, size_t size)
{
    Properties card = {1, 0, 1, 0};
    uint64_t keeps[] = {0, 3 * UNIT, UINT64_MAX}, random = worker->random >> 20;
    if (worker->pool && random % 8 == 0) {
        if (cuMemPoolDestroy(worker->pool))
            return -1;
        worker->pool = NULL;
    }
    if (!worker->pool &&
        (cuMemPoolCreate(&worker->pool, &card) || cuMemPoolSetAttribute(worker->pool, 4, &keeps[random / 8 % 3])))
        return -1;
    if (random / 32 % 4 == 0 && cuMemPoolTrimTo(worker->pool, random % worker->keep))
        return -1;
    return take_other(entry, POOLED, size, worker->stream, worker->pool);
}

static int take_any(Worker *worker, Entry *entry, int family, size_t size)
{
    int answer;
    switch (family) {
    case LENT: return take_lent(worker, entry, size);
    case OPENED: return take_opened(worker, entry, size);
    case SHARED: return take_exported(worker, entry, size);
    case RANGED: return take_ranged(entry, size);
    case SPARSE:
    case TEAM: return take_behind(entry, family, size);
    case ADOPTED: return take_adopted(worker, entry, size);
    case SHRUNK: return take_shrunk(entry, size);
    case IMPORTED:
        return take_imported(entry, pieces[worker->random / 8 % PIECES], worker->random / 64 % 2 ? AS_OBJECT : AS_BUFFER);
    case OWNED:
        answer = (worker - workers) % POOLS ? take_other(entry, POOLED, size, worker->stream, NULL)
                                            : take_owned(worker, entry, size);
        break;
    case CAPTURED: answer = take_other(entry, family, size, worker->stream, worker->pool); break;
    default:
        answer = family < FAMILIES ? take(entry, family, size) : take_other(entry, family, size, worker->stream, NULL);
    }
    if (!answer && (family == POOLED || family == OWNED))
        pools_known = 1;
    entry->charged = part_of(family, size);
    return answer;
}

static size_t left(void)
{
    size_t free_bytes = 0, total = 0;
    return cuMemGetInfo_v2(&free_bytes, &total) ? 0 : free_bytes;
}

/* Repeats a refused request: the answer while no other thread is in a call. */
static int judge(Worker *worker, Entry *entry, int family, size_t size)
{
    pthread_rwlock_wrlock(&common->calls);
    size_t free_bytes = left();
    int answer = take_any(worker, entry, family, size);
    if (answer == OUT_OF_MEMORY && enough_for(family, size) <= free_bytes) {
        fprintf(stderr, "family %d: %zu bytes refused with %zu free\n", family, size, free_bytes);
        answer = 10000 + family;
    }
    pthread_rwlock_unlock(&common->calls);
    worker->judged++;
    return answer;
}

static void take_one(Worker *worker, int family, size_t size)
{
    Entry *entry = &worker->entries[worker->count];
    pthread_rwlock_rdlock(&common->calls);
    int answer = take_any(worker, entry, family, size);
    pthread_rwlock_unlock(&common->calls);
    if (answer == OUT_OF_MEMORY && (worker->random >> 32) % JUDGED == 0)
        answer = judge(worker, entry, family, size);
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

/* What may stay accounted after its free: also the stacks, as long as their context exists. */
static size_t may_last(const Entry *entry)
{
    switch (entry->family) {
    case SHARED:
    case RANGED:
    case SPARSE:
    case TEAM: return entry->charged;
    default: return 0;
    }
}

static void give_one(Worker *worker, int at)
{
    worker->held -= worker->entries[at].charged;
    worker->let += may_last(&worker->entries[at]);
    pthread_rwlock_rdlock(&common->calls);
    worker->wrong = give_any(&worker->entries[at], worker->stream);
    pthread_rwlock_unlock(&common->calls);
    worker->entries[at] = worker->entries[--worker->count];
}

static void *work(void *given)
{
    Worker *worker = given;
    if (cuCtxSetCurrent(context) || (!worker->stream && cuStreamCreate(&worker->stream, 1)))
        worker->wrong = -1;
    for (size_t done = 0; done < worker->operations && !worker->wrong; done++) {
        uint64_t random = next_random(&worker->random);
        int family = choose(random);
        size_t size = 1 + (random >> 8) % (worker->keep / 4);
        int fits = worker->held + part_of(family, size) <= worker->keep;
        if (worker->count > 0 && (!fits || worker->count == ENTRIES || (random >> 60) < 6))
            give_one(worker, (random >> 40) % worker->count);
        else if (fits)
            take_one(worker, family, size);
    }
    return NULL;
}

/* Pools and graphs keep nothing that is not in use, and nothing is at work: else the last byte makes them give it back. */
static int trim(void)
{
    void *pool = NULL;
    if (families == FAMILIES)
        return 0;
    int wrong = cuCtxSynchronize() || cuDeviceGraphMemTrim(0) || cuDeviceGetDefaultMemPool(&pool, 0) || cuMemPoolTrimTo(pool, 0);
    for (int at = 0; at < threads && !wrong; at++)
        wrong = workers[at].pool && cuMemPoolTrimTo(workers[at].pool, 0);
    return wrong;
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
    for (int at = 0; at < threads; at++) {
        for (int entry = 0; entry < workers[at].count; entry++)
            workers[at].let += may_last(&workers[at].entries[entry]);
        for (int entry = 0; entry < workers[at].count; entry++)
            wrong = wrong ? wrong : give_any(&workers[at].entries[entry], workers[at].stream);
        workers[at].count = 0;
        workers[at].held = 0;
    }
    return wrong ? wrong : trim();
}

static int see_pool(void)
{
    Pointer block = 0;
    pools_known = 1;
    return cuMemAllocAsync(&block, 1, NULL) || cuMemFree_v2(block) || trim();
}

static size_t imported(void)
{
    size_t bytes = 0;
    for (int at = 0; at < threads; at++)
        for (int entry = 0; entry < workers[at].count; entry++)
            bytes += workers[at].entries[entry].family == IMPORTED ? PIECE : 0;
    return bytes;
}

static size_t graphs(void)
{
    size_t bytes = 0;
    for (int at = 0; at < threads; at++)
        for (int entry = 0; entry < workers[at].count; entry++) {
            int family = workers[at].entries[entry].family;
            bytes += family == GRAPH || family == CAPTURED ? workers[at].entries[entry].charged : 0;
        }
    return bytes;
}

static size_t let(void)
{
    size_t bytes = 0;
    for (int at = 0; at < threads; at++) {
        bytes += workers[at].let;
        for (int entry = 0; entry < workers[at].count; entry++)
            bytes += workers[at].entries[entry].family == SHRUNK ? workers[at].entries[entry].charged : 0;
    }
    return bytes;
}

static void run(void)
{
    pthread_t running[THREADS_MAX];
    Worker sum = {0};
    for (int at = 0; at < threads; at++)
        if (pthread_create(&running[at], NULL, work, &workers[at]))
            exit(1);
    for (int at = 0; at < threads; at++) {
        pthread_join(running[at], NULL);
        sum.granted += workers[at].granted;
        sum.refused += workers[at].refused;
        sum.opened += workers[at].opened;
        sum.judged += workers[at].judged;
        sum.wrong = sum.wrong ? sum.wrong : workers[at].wrong;
    }
    printf("%zu %zu %d %zu %zu\n", sum.granted, sum.refused, sum.wrong, sum.opened, sum.judged);
}

/* What is in the file, made by the first process, which is ready before another one starts. */
static int share(const char *path)
{
    pthread_rwlockattr_t kind;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (ftruncate(file, sizeof *common))
        return -1;
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (common == MAP_FAILED)
        return -1;
    if (__atomic_exchange_n(&common->is_made, 1, __ATOMIC_ACQ_REL))
        return 0;
    /* Later readers do not delay a thread that judges. */
    return pthread_rwlockattr_init(&kind) || pthread_rwlockattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) ||
           pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP) ||
           pthread_rwlock_init(&common->calls, &kind);
}

static int begin(char **arguments)
{
    if (share(arguments[6]) || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return -1;
    lasts = !strcmp(arguments[5], "lasting");
    families = lasts || !strcmp(arguments[5], "plain") ? FAMILIES : !strcmp(arguments[5], "all") ? IMPORTED : MIXED_FAMILIES;
    for (int at = 0; at < PIECES && families == MIXED_FAMILIES; at++)
        if (make_elsewhere(&pieces[at], PIECE, 0))
            return -1;
    for (int at = 0; at < threads; at++) {
        workers[at].operations = strtoull(arguments[2], NULL, 10);
        workers[at].keep = strtoull(arguments[3], NULL, 10);
        workers[at].random = strtoull(arguments[4], NULL, 10) * 0x9e3779b97f4a7c15 + at * 77777 + 1;
    }
    return 0;
}

int main(int count, char **arguments)
{
    char line[64];
    size_t bytes = 0;
    threads = count > 6 ? atoi(arguments[1]) : 0;
    if (threads < 1 || threads > THREADS_MAX || begin(arguments)) {
        puts("no card, or a wrong argument");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "go", 2))
            run();
        else if (!strncmp(line, "info", 4))
            printf("%zu\n", left());
        else if (!strncmp(line, "had", 3))
            printf("%zu\n", imported());
        else if (!strncmp(line, "graphs", 6))
            printf("%zu\n", graphs());
        else if (!strncmp(line, "let", 3))
            printf("%zu\n", let());
        else if (!strncmp(line, "pool", 4))
            printf("%d\n", families > FAMILIES && see_pool());
        else if (sscanf(line, "stacks %zu", &bytes) == 1)
            printf("%d\n", cuCtxSetLimit(0, bytes));
        else
            printf("%d\n", line[0] == 'r' ? rest() : give_all());
    }
    return 0;
}
