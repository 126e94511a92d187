/* Kills processes that are taking device memory, and asks a sibling after each whether all of it can be had again.
   usage: shim_kill random|steps|first KILLS SEED LIMIT [FAMILY]
   random: at a random moment of two threads' random work; steps: in turn at every step of the shim in what a family does once;
   where there are more than KILLS, at random where an instruction comes for the first time; first: at random instructions of a process's first
   allocation. Says "KILLS POINTS WORST" (microseconds until everything was free again, without those that the asking process
   waited for a processor), or what went wrong. Each time the sibling launches a kernel, too, where the family is "launch"; where
   it is "lent", the sibling exports 4096 bytes beside the LIMIT. */
#define _GNU_SOURCE
#include "shim_families.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern int cuMemAllocAsync(Pointer *, size_t, void *), cuMemFreeAsync(Pointer, void *), cuStreamSynchronize(void *);
extern int cuDeviceGraphMemTrim(int);
extern int cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *), cuCtxSynchronize(void);
extern int cuModuleLoadData(void **, const void *), cuModuleUnload(void *);
extern int cuModuleGetFunction(void **, void *, const char *);
typedef struct { unsigned char bytes[64]; } Ipc;
extern int cuIpcGetMemHandle(Ipc *, Pointer), cuIpcOpenMemHandle_v2(Pointer *, Ipc, unsigned), cuIpcCloseMemHandle(Pointer);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static size_t limit;
static void *context, *kernels[2];
/* Memory of the sibling, of LENT bytes. */
static Ipc lent;
enum { LENT = 4096 };

static uint64_t micros(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

static void fail(const char *what, uint64_t number)
{
    printf("%s (%llu)\n", what, (unsigned long long)number);
    fflush(stdout);
    exit(1);
}

static void use_card(void)
{
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        _exit(3);
}

static void load_kernels(void)
{
    void *module;
    if (cuModuleLoadData(&module, "image") || cuModuleGetFunction(&kernels[0], module, "k_1000") ||
        cuModuleGetFunction(&kernels[1], module, "k_2000"))
        _exit(5);
}

static int launch(int which, unsigned blocks)
{
    return cuLaunchKernel(kernels[which], blocks, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

/* What a family does once; takes from the card and gives back. */
static int plain_once(void)
{
    Pointer block;
    return cuMemAlloc_v2(&block, limit / 2) || cuMemFree_v2(block);
}

static int pool_once(void)
{
    Pointer block;
    return cuMemAllocAsync(&block, limit / 4, NULL) || cuMemFreeAsync(block, NULL) || cuStreamSynchronize(NULL);
}

static int physical_once(void)
{
    Entry entry;
    return take(&entry, MAPPED, limit / 2) || give(&entry);
}

/* Of a size that every family has. */
static int taken_once(int which)
{
    Entry entry;
    return take(&entry, which, limit / 64) || give(&entry);
}

static int pitched_once(void) { return taken_once(PITCHED); }
static int managed_once(void) { return taken_once(MANAGED); }
static int array_once(void) { return taken_once(ARRAY); }
static int mipmapped_once(void) { return taken_once(MIPMAPPED); }

static int graph_once(void)
{
    Entry entry;
    return take_other(&entry, GRAPH, limit / 4, NULL, NULL) || give_other(&entry, NULL) || cuDeviceGraphMemTrim(0);
}

static int context_once(void)
{
    void *own;
    return cuCtxCreate_v2(&own, 0, 0) || cuCtxDestroy_v2(own);
}

static int module_once(void)
{
    void *module, *function;
    return cuModuleLoadData(&module, "image") || cuModuleGetFunction(&function, module, "k_1") ||
           cuModuleUnload(module);
}

/* One kernel that was launched before, and one of a form that was not. */
static int launch_once(void)
{
    static unsigned blocks = 1;
    return launch(0, 1) || launch(1, blocks++) || cuCtxSynchronize();
}

/* Exports memory, frees an export without importers, imports the sibling's export. */
static int lent_once(void)
{
    Pointer block, opened;
    Ipc handle;
    return cuMemAlloc_v2(&block, limit / 2) || cuIpcGetMemHandle(&handle, block) || cuMemFree_v2(block) ||
           cuIpcOpenMemHandle_v2(&opened, lent, 1) || cuIpcCloseMemHandle(opened);
}

static const struct Family {
    const char *name;
    int (*once)(void);
} families[] = {
    {"plain", plain_once},     {"pool", pool_once},     {"physical", physical_once},
    {"context", context_once}, {"module", module_once}, {"launch", launch_once},
    {"lent", lent_once},       {"array", array_once},   {"mipmapped", mipmapped_once},
    {"pitched", pitched_once}, {"managed", managed_once}, {"graph", graph_once},
};
static const struct Family *family = &families[0];

static int launches(void) { return family->once == launch_once; }

static int lends(void) { return family->once == lent_once; }

/* Microseconds that this thread waited for a processor: on a loaded machine they are the others' and not the shim's. */
static uint64_t waited(void)
{
    unsigned long long ran = 0, waiting = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (file) {
        if (fscanf(file, "%llu %llu", &ran, &waiting) != 2)
            waiting = 0;
        fclose(file);
    }
    return waiting / 1000;
}

/* Answers each byte with the microseconds until everything could be had; no answer takes longer than five seconds. */
static void sibling(int questions, int answers)
{
    char question;
    Pointer own = 0;
    use_card();
    if (launches())
        load_kernels();
    if (lends() && (cuMemAlloc_v2(&own, LENT) || cuIpcGetMemHandle(&lent, own) || write(answers, &lent, sizeof lent) != sizeof lent))
        _exit(6);
    while (read(questions, &question, 1) == 1) {
        uint64_t before = waited(), begun = micros(), took = 0, idle;
        Pointer all = 0;
        int answer;
        do {
            answer = cuMemAlloc_v2(&all, limit);
            took = micros() - begun;
        } while (answer == OUT_OF_MEMORY && took < 5000000);
        idle = waited() - before;
        took -= idle < took ? idle : took;
        if (answer == 0)
            answer = cuMemFree_v2(all);
        /* No wait for a turn is without end. */
        alarm(20);
        if (answer == 0 && launches())
            answer = launch(0, 1) || cuCtxSynchronize();
        alarm(0);
        if (answer)
            took = UINT64_MAX;
        if (write(answers, &took, sizeof took) != sizeof took)
            break;
    }
    _exit(0);
}

static void *work(void *given)
{
    uint64_t random = (uintptr_t)given | 1;
    Entry entries[8];
    int count = 0;
    cuCtxSetCurrent(context);
    for (;;) {
        uint64_t chosen = next_random(&random);
        if (count == 8 || (count > 0 && chosen >> 62 == 0)) {
            give(&entries[--count]);
        } else if (take(&entries[count], chosen % FAMILIES, 1 + (chosen >> 8) % (limit / 4)) == 0) {
            count++;
        }
    }
    return NULL;
}

/* Works at random until it is killed. */
static void victim(uint64_t seed, int ready)
{
    pthread_t thread;
    use_card();
    if (write(ready, "", 1) != 1 || pthread_create(&thread, NULL, work, (void *)(uintptr_t)(seed * 31)))
        _exit(3);
    work((void *)(uintptr_t)seed);
}

/* Stops, does once what the family does, stops. */
static void stepped(int first)
{
    Pointer one = 0;
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
        _exit(4);
    use_card();
    if (launches())
        load_kernels();
    if (!first && (cuMemAlloc_v2(&one, 4096) || family->once()))
        _exit(3);
    raise(SIGSTOP);
    _exit(family->once() ? 8 : 7);
}

#if defined(__x86_64__)
static uint64_t shim_begin, shim_end;
/* Steps that came to an instruction for the first time, while they are counted. */
static uint64_t *firsts, firsts_count;
static unsigned char *seen;

static void count_first(uint64_t address, uint64_t step)
{
    if (seen && !seen[address - shim_begin]) {
        seen[address - shim_begin] = 1;
        firsts[firsts_count++] = step;
    }
}

/* Where the shim lies; the same in every fork. */
static void find_shim(void)
{
    char line[4352];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long long begin, end;
        if (strstr(line, "libaliquot") && sscanf(line, "%llx-%llx", &begin, &end) == 2) {
            shim_begin = shim_begin ? shim_begin : begin;
            shim_end = end;
        }
    }
    if (maps)
        fclose(maps);
    if (!shim_end)
        fail("no shim", 0);
}

static int in_shim(uint64_t address) { return address >= shim_begin && address < shim_end; }

/* Runs a stopped process to an address. */
static int run_to(pid_t child, uint64_t address)
{
    struct user_regs_struct registers;
    int status;
    long before = ptrace(PTRACE_PEEKTEXT, child, address, NULL);
    ptrace(PTRACE_POKETEXT, child, address, (before & ~0xffl) | 0xcc);
    ptrace(PTRACE_CONT, child, NULL, NULL);
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
        return 0;
    ptrace(PTRACE_POKETEXT, child, address, before);
    ptrace(PTRACE_GETREGS, child, NULL, &registers);
    registers.rip = address;
    ptrace(PTRACE_SETREGS, child, NULL, &registers);
    return 1;
}

/* Whether the instruction at an address is a return. */
static int is_return(pid_t child, uint64_t address)
{
    long bytes = ptrace(PTRACE_PEEKTEXT, child, address, NULL);
    return (bytes & 0xff) == 0xc3 || (bytes & 0xffff) == 0xc3f3;
}

/* Goes through so many instructions of the shim, what it calls being one. How many there were; fewer: the child is gone. */
static uint64_t walk(pid_t child, uint64_t steps)
{
    struct user_regs_struct registers;
    uint64_t gone = 0, last = 0;
    int status;
    while (gone < steps) {
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        if (waitpid(child, &status, 0) != child)
            fail("a child is gone", gone);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 7)
            return gone;
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
            fail("the work failed", status);
        ptrace(PTRACE_GETREGS, child, NULL, &registers);
        if (in_shim(registers.rip)) {
            last = registers.rip;
            count_first(last, ++gone);
            continue;
        }
        /* Left by a call or a jump, not by a return: what is on top of the stack is where it goes on. */
        if (last && !is_return(child, last)) {
            uint64_t back = ptrace(PTRACE_PEEKDATA, child, registers.rsp, NULL);
            if (!run_to(child, back))
                fail("a call did not return", gone);
            gone += in_shim(back);
            last = in_shim(back) ? back : 0;
            continue;
        }
        last = 0;
    }
    return gone;
}

/* Kills after so many steps. How many there were; fewer: it ended before. */
static uint64_t kill_at(uint64_t steps, int first)
{
    int status;
    uint64_t reached;
    pid_t child = fork();
    if (child == 0)
        stepped(first);
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        fail(WIFEXITED(status) && WEXITSTATUS(status) == 4 ? "it may not be traced" : "the work failed", status);
    reached = walk(child, steps);
    if (reached < steps)
        return reached;
    kill(child, SIGKILL);
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
        ;
    return reached;
}
/* How many steps there are; which of them are first ones is known from now on. */
static uint64_t count_steps(void)
{
    seen = calloc(shim_end - shim_begin, 1);
    firsts = malloc((shim_end - shim_begin) * sizeof *firsts);
    uint64_t steps = kill_at(UINT64_MAX, 0);
    free(seen);
    seen = NULL;
    return steps;
}

static uint64_t a_first(uint64_t random) { return firsts[random % firsts_count]; }
#else
static void find_shim(void) { fail("it may not be traced", 0); }
static uint64_t count_steps(void) { return 0; }
static uint64_t a_first(uint64_t random) { return random; }
static uint64_t kill_at(uint64_t steps, int first) { return steps * first * 0; }
#endif

static void kill_at_random(uint64_t seed)
{
    int ready[2], status;
    char byte;
    if (pipe(ready))
        fail("no pipe", 0);
    pid_t child = fork();
    if (child == 0)
        victim(seed | 1, ready[1]);
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1)
        fail("a victim did not begin", seed);
    close(ready[0]);
    struct timespec pause = {0, (long)(seed % 1500000)};
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status))
        fail("a victim ended by itself", seed);
}

int main(int count, char **arguments)
{
    int questions[2], answers[2];
    if (count < 5 || pipe(questions) || pipe(answers))
        return 1;
    const char *mode = arguments[1];
    uint64_t kills = strtoull(arguments[2], NULL, 10), random = strtoull(arguments[3], NULL, 10) | 1;
    uint64_t worst = 0, late = 0, points = 0, took = 0, done;
    limit = strtoull(arguments[4], NULL, 10);
    for (size_t i = 0; count > 5 && i < sizeof families / sizeof *families; i++)
        if (!strcmp(arguments[5], families[i].name))
            family = &families[i];
    pid_t asked = fork();
    if (asked == 0) {
        close(questions[1]);
        sibling(questions[0], answers[1]);
    }
    if (lends() && read(answers[0], &lent, sizeof lent) != sizeof lent)
        fail("the sibling lends nothing", 0);
    if (strcmp(mode, "random"))
        find_shim();
    if (!strcmp(mode, "steps"))
        points = count_steps();
    for (done = 0; done < kills; done++) {
        uint64_t seed = next_random(&random);
        if (!strcmp(mode, "random")) {
            kill_at_random(seed);
        } else if (!strcmp(mode, "steps")) {
            kill_at(points <= kills ? 1 + done % points : a_first(seed), 0);
        } else {
            uint64_t step = 1 + seed % 24000;
            points += kill_at(step, 1) == step;
        }
        if (write(questions[1], "", 1) != 1 || read(answers[0], &took, sizeof took) != sizeof took)
            fail("the sibling is gone", done);
        if (took > 5000000)
            fail("not everything was free again in time", took);
        if (took > 100000)
            late++;
        else
            worst = took > worst ? took : worst;
    }
    printf("%llu %llu %llu %llu\n", (unsigned long long)done, (unsigned long long)points, (unsigned long long)worst,
           (unsigned long long)late);
    return 0;
}
