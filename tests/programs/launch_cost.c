/* What a launch costs the launching thread, while the share allows it: prints nanoseconds a launch, by a pointer that was
   looked up and by the linked name. Between bursts the program does something else for as long as the burst's kernels take.
   With several threads, each on a stream of its own, it sleeps for as long as all of them take, and what is counted is processor
   time: they may be more than the processors.
   usage: launch_cost BURSTS [THREADS] */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t Handle;
typedef int Launch(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
extern int cuInit(unsigned);
extern Launch cuLaunchKernel;

enum { BURST = 50, REST = 125000, THREADS_MAX = 64 };

struct worker {
    pthread_t thread;
    Launch *launch;
    unsigned bursts, threads, number;
    double cost;
};

static uint64_t read_clock(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t now(void) { return read_clock(CLOCK_MONOTONIC); }

static void rest(uint64_t begun, unsigned threads)
{
    uint64_t until = begun + (uint64_t)REST * threads;
    struct timespec time = {until / 1000000000u, until % 1000000000u};
    if (threads > 1)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
    while (now() < until)
        ;
}

static int by_time(const void *a, const void *b)
{
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}

/* The mean of a burst, without the hundredth part that took longest: there the machine did something else. */
static void *work(void *given)
{
    struct worker *me = given;
    clockid_t clock = me->threads > 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    uint64_t *spent = malloc(me->bursts * sizeof *spent), sum = 0;
    for (unsigned burst = 0; burst < me->bursts; burst++) {
        uint64_t begun = now(), before = read_clock(clock);
        for (int one = 0; one < BURST; one++)
            if (me->launch(7, 64, 1, 1, 256, 1, 1, 0, 9 + me->number, NULL, NULL))
                exit(1);
        spent[burst] = read_clock(clock) - before;
        rest(begun, me->threads);
    }
    unsigned kept = me->bursts - me->bursts / 100;
    qsort(spent, me->bursts, sizeof *spent, by_time);
    for (unsigned burst = 0; burst < kept; burst++)
        sum += spent[burst];
    free(spent);
    me->cost = (double)sum / kept / BURST;
    return NULL;
}

static double cost(Launch *launch, unsigned bursts, unsigned threads)
{
    static struct worker workers[THREADS_MAX];
    double sum = 0;
    for (unsigned number = 0; number < threads; number++) {
        workers[number] = (struct worker){.launch = launch, .bursts = bursts, .threads = threads, .number = number};
        if (threads > 1 && pthread_create(&workers[number].thread, NULL, work, &workers[number]))
            exit(1);
    }
    if (threads == 1)
        work(workers);
    for (unsigned number = 0; number < threads; number++) {
        if (threads > 1)
            pthread_join(workers[number].thread, NULL);
        sum += workers[number].cost;
    }
    return sum / threads;
}

int main(int count, char **words)
{
    if (count < 2 || cuInit(0))
        return 1;
    unsigned bursts = (unsigned)strtoul(words[1], NULL, 10);
    unsigned threads = count > 2 ? (unsigned)strtoul(words[2], NULL, 10) : 1;
    Launch *looked_up = (Launch *)dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library)
        looked_up = (Launch *)dlsym(library, "cuLaunchKernel");
    if (!looked_up || threads < 1 || threads > THREADS_MAX)
        return 1;
    cost(looked_up, threads > 1 ? 10 : 200, threads);
    double pointer = cost(looked_up, bursts, threads);
    printf("%.2f %.2f\n", pointer, cost(cuLaunchKernel, bursts, threads));
    return 0;
}
