/* A tenant with streams that wait for the host; prints the number of kernels, the longest launch and the total time.
   usage: shim_held SCENE NANOSECONDS ROUNDS [HOLD] */
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

typedef uint64_t H;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(H *, int), cuCtxSetCurrent(H), cuMemHostAlloc(void **, size_t, unsigned);
int cuModuleLoadData(H *, const void *), cuModuleGetFunction(H *, H, const char *), cuStreamCreate(H *, unsigned), cuStreamSynchronize(H);
int cuStreamQuery(H);
int cuLaunchKernel(H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
int cuLaunchHostFunc(H, void (*)(void *), void *), cuStreamAddCallback(H, void (*)(H, int, void *), void *, unsigned);
int cuStreamWaitValue32_v2(H, H, uint32_t, unsigned), cuStreamWaitValue64_v2(H, H, uint64_t, unsigned), cuStreamWriteValue32_v2(H, H, uint32_t, unsigned);
int cuStreamBatchMemOp_v2(H, unsigned, uint64_t (*)[6], unsigned), cuStreamWaitEvent(H, H, unsigned), cuEventCreate(H *, unsigned), cuEventRecord(H, H);

enum { APART = 1, EQUAL = 1 };

static H function, held, beside, other;
static volatile uint32_t *words;
static uint64_t nanos, longest, count;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}
static void rest(uint64_t nanos) {
    struct timespec time = {(time_t)(nanos / 1000000000u), (long)(nanos % 1000000000u)};
    nanosleep(&time, NULL);
}
static void launch(H stream) {
    void *parameters[] = {&nanos};
    uint64_t begun = now();
    CHECK(cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, parameters, NULL) == 0);
    if (now() - begun > longest) longest = now() - begun;
    count++;
}
static H word(int at) { return (H)(uintptr_t)(words + at); }
/* Most of the time a stream waits for a word, with one kernel behind it. */
static void words_in_turn(uint64_t rounds) {
    for (uint32_t round = 1; round <= rounds; round++) {
        CHECK(cuStreamWaitValue32_v2(held, word(0), round, EQUAL) == 0);
        launch(held);
        rest(20000000);
        words[0] = round;
        CHECK(cuStreamSynchronize(held) == 0);
    }
}

/* The same with a function. */
static void resting(void *data) { (void)data; rest(20000000); }
static void functions(uint64_t rounds) {
    for (uint64_t round = 0; round < rounds; round++) {
        CHECK(cuLaunchHostFunc(held, resting, 0) == 0);
        launch(held);
        CHECK(cuStreamSynchronize(held) == 0);
    }
}

/* What stands behind it waits for word 0 to be 1. */
static void until_written(void *data) { (void)data; while (words[0] != 1) rest(100000); }
static void called_back(H stream, int code, void *data) { (void)stream; (void)code; until_written(data); }
static void hold(const char *how) {
    words[0] = 0;
    if (!strcmp(how, "value32")) CHECK(cuStreamWaitValue32_v2(held, word(0), 1, EQUAL) == 0);
    else if (!strcmp(how, "value64")) CHECK(cuStreamWaitValue64_v2(held, word(0), 1, EQUAL) == 0);
    else if (!strcmp(how, "batch")) {
        uint64_t list[1][6] = {{1, word(0), 1, EQUAL}};
        CHECK(cuStreamBatchMemOp_v2(held, 1, list, 0) == 0);
    } else if (!strcmp(how, "function")) CHECK(cuLaunchHostFunc(held, until_written, 0) == 0);
    else if (!strcmp(how, "callback")) CHECK(cuStreamAddCallback(held, called_back, 0, 0) == 0);
    else if (!strcmp(how, "event")) {
        H event;
        CHECK(cuEventCreate(&event, 0) == 0 && cuStreamWaitValue32_v2(other, word(0), 1, EQUAL) == 0);
        CHECK(cuEventRecord(event, other) == 0 && cuStreamWaitEvent(held, event, 0) == 0);
    } else CHECK(!"a hold that is known");
}
/* Three kernels are held, and more are launched beside them; the wait ends after that. */
static void at_work_beside(const char *how, uint64_t rounds) {
    hold(how);
    for (int kernel = 0; kernel < 3; kernel++) launch(held);
    for (uint64_t round = 0; round < rounds; round++) launch(beside);
    CHECK(cuStreamSynchronize(beside) == 0);
    words[0] = 1;
    CHECK(cuStreamSynchronize(held) == 0);
}
/* What runs on the other stream ends the wait. */
static void ended_beside(const char *how, uint64_t rounds) {
    for (uint64_t round = 0; round < rounds; round++) {
        launch(held);
        hold(how);
        for (int kernel = 0; kernel < 3; kernel++) launch(held);
        launch(beside);
        CHECK(cuStreamWriteValue32_v2(beside, word(0), 1, 0) == 0);
        CHECK(cuStreamSynchronize(held) == 0);
    }
}
/* All that it ever launches is held first, and let go at once. */
static void always(const char *how, uint64_t rounds) {
    for (uint64_t round = 0; round < rounds; round++) {
        hold(how);
        for (int kernel = 0; kernel < 50; kernel++) launch(held);
        words[0] = 1;
        while (words[0] == 1 && cuStreamQuery(held) != 0) rest(100000);
    }
}

int main(int argc, char **argv) {
    H context, module;
    CHECK(argc >= 4 && cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuModuleLoadData(&module, "image") == 0 && cuModuleGetFunction(&function, module, "kp") == 0);
    CHECK(cuStreamCreate(&held, APART) == 0 && cuStreamCreate(&beside, APART) == 0 && cuStreamCreate(&other, APART) == 0);
    CHECK(cuMemHostAlloc((void **)&words, 4096, 0) == 0);
    nanos = strtoull(argv[2], NULL, 10);
    uint64_t begun = now(), rounds = strtoull(argv[3], NULL, 10);
    if (!strcmp(argv[1], "rounds")) words_in_turn(rounds);
    else if (!strcmp(argv[1], "functions")) functions(rounds);
    else if (!strcmp(argv[1], "beside")) at_work_beside(argv[4], rounds);
    else if (!strcmp(argv[1], "ended")) ended_beside(argv[4], rounds);
    else if (!strcmp(argv[1], "always")) always(argv[4], rounds);
    else CHECK(!"a scene that is known");
    /* Kernels, the longest launch and the time of all, in milliseconds. */
    printf("ok %llu %llu %llu\n", (unsigned long long)count, (unsigned long long)(longest / 1000000), (unsigned long long)((now() - begun) / 1000000));
    return 0;
}
