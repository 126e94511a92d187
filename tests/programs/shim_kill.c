/* Kills processes that are taking device memory, and asks a sibling after each whether all of it can be had again.
   usage: shim_kill random|steps|first KILLS SEED LIMIT
   random: at a random moment of two threads' random work; steps: in turn at every instruction of the shim in one allocation
   and one free; first: at random instructions of a process's first allocation. Says "KILLS POINTS WORST" (microseconds until
   everything was free again, without those that the asking process waited for a processor), or what went wrong. */
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

static size_t limit;
static void *context;

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
    use_card();
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

/* Stops, allocates and frees once, stops. */
static void stepped(int first)
{
    Pointer one = 0, other = 0;
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
        _exit(4);
    use_card();
    if (!first && (cuMemAlloc_v2(&one, 4096) || cuMemAlloc_v2(&other, 4096) || cuMemFree_v2(other)))
        _exit(3);
    raise(SIGSTOP);
    if (cuMemAlloc_v2(&other, limit / 2) == 0)
        cuMemFree_v2(other);
    _exit(7);
}

#if defined(__x86_64__)
static uint64_t shim_begin, shim_end;

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

/* Goes through so many instructions of the shim, what it calls being one. 0: the work ended before. */
static int walk(pid_t child, uint64_t steps)
{
    struct user_regs_struct registers;
    int status, was_in = 0;
    while (steps > 0) {
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
            return 0;
        ptrace(PTRACE_GETREGS, child, NULL, &registers);
        if (in_shim(registers.rip)) {
            was_in = 1;
            steps--;
            continue;
        }
        uint64_t back = ptrace(PTRACE_PEEKDATA, child, registers.rsp, NULL);
        if (was_in && in_shim(back)) {
            if (!run_to(child, back))
                return 0;
            steps--;
        }
    }
    return 1;
}

/* Kills after so many steps. 0: there are not so many. */
static int kill_at(uint64_t steps, int first)
{
    int status, reached;
    pid_t child = fork();
    if (child == 0)
        stepped(first);
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        fail("it may not be traced", WIFEXITED(status) ? WEXITSTATUS(status) : 0);
    reached = walk(child, steps);
    kill(child, SIGKILL);
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
        ;
    return reached;
}
#else
static void find_shim(void) { fail("it may not be traced", 0); }
static int kill_at(uint64_t steps, int first) { return (int)steps * first * 0; }
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
    uint64_t worst = 0, points = 0, took = 0, step = 0, done;
    limit = strtoull(arguments[4], NULL, 10);
    pid_t asked = fork();
    if (asked == 0) {
        close(questions[1]);
        sibling(questions[0], answers[1]);
    }
    if (strcmp(mode, "random"))
        find_shim();
    for (done = 0; done < kills; done++) {
        uint64_t seed = next_random(&random);
        if (!strcmp(mode, "random")) {
            kill_at_random(seed);
        } else if (!strcmp(mode, "steps")) {
            if (kill_at(++step, 0))
                points = step > points ? step : points;
            else
                step = 0;
        } else if (kill_at(1 + seed % 24000, 1)) {
            points++;
        }
        if (write(questions[1], "", 1) != 1 || read(answers[0], &took, sizeof took) != sizeof took)
            fail("the sibling is gone", done);
        if (took > 100000)
            fail("not everything was free again in time", took);
        worst = took > worst ? took : worst;
    }
    printf("%llu %llu %llu\n", (unsigned long long)done, (unsigned long long)points, (unsigned long long)worst);
    return 0;
}
