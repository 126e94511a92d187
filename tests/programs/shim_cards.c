/* Work of a process with two cards, of which one has a context that is not the current one, or none any more; answers "ok".
   usage: shim_cards SCENE NANOSECONDS */
#include "opened.h"

#include <time.h>
#include <unistd.h>

enum { FEW = 50, MANY = 400, SHORT = 20000, STREAMS = 64 };

#define DO(name, ...) \
    do { \
        int code = CALL(name, __VA_ARGS__); \
        if (code) { \
            printf("line %d: %s: %d\n", __LINE__, #name, code); \
            exit(1); \
        } \
    } while (0)

static void *contexts[2], *functions[2];

static void launch(int card, void *stream, u64 nanos)
{
    void *parameters[] = {&nanos};
    DO(cuLaunchKernel, functions[card], 4, 1, 1, 64, 1, 1, 0, stream, parameters, NULL);
}

/* Short kernels on a stream of the first card, which is destroyed; then on one of the second card that has its handle. */
static void renewed(u64 nanos)
{
    void *stream, *other = NULL;
    (void)nanos;
    DO(cuCtxSetCurrent, contexts[0]);
    DO(cuStreamCreate, &stream, 1);
    for (int one = 0; one < MANY; one++) {
        launch(0, stream, SHORT);
        if (one % FEW == 0)
            DO(cuStreamSynchronize, stream);
    }
    while (CALL(cuStreamQuery, stream))
        usleep(500);
    DO(cuStreamDestroy_v2, stream);
    DO(cuCtxSetCurrent, contexts[1]);
    for (int one = 0; one < STREAMS && other != stream; one++)
        DO(cuStreamCreate, &other, 1);
    if (other != stream)
        puts("another handle");
    for (int one = 0; one < FEW; one++)
        launch(1, other, SHORT);
    DO(cuStreamSynchronize, other);
}

/* A kernel on the default stream of the second card, which is waited for while the first one's context is current. */
static void waited(u64 nanos)
{
    DO(cuCtxSetCurrent, contexts[1]);
    launch(1, NULL, nanos);
    DO(cuCtxSetCurrent, contexts[0]);
    DO(cuCtxSynchronize_v2, contexts[1]);
}

static u64 now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000000000u + (u64)time.tv_nsec;
}

static int is_over;

/* Contexts come, have work, and go. */
static void *come_and_go(void *nothing)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
        void *context, *module;
        DO(cuCtxCreate_v2, &context, 0u, 0);
        DO(cuModuleLoadData, &module, "image");
        DO(cuModuleGetFunction, &functions[0], module, "kp");
        launch(0, NULL, SHORT);
        DO(cuCtxDestroy_v2, context);
    }
    return nothing;
}

/* Meanwhile a thread without a context asks for an event, for so long. */
static void ending(u64 nanos)
{
    pthread_t thread;
    void *event;
    u64 until = now() + nanos;
    DO(cuCtxSetCurrent, contexts[1]);
    DO(cuEventCreate, &event, 0u);
    DO(cuCtxSetCurrent, NULL);
    if (pthread_create(&thread, NULL, come_and_go, NULL))
        exit(1);
    while (now() < until)
        CALL(cuEventQuery, event);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
}

int main(int count, char **words)
{
    static const struct { const char *name; void (*play)(u64); } scenes[] = {
        {"renewed", renewed}, {"waited", waited}, {"ending", ending}};
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (count != 3 || !library)
        return 1;
    DO(cuInit, 0u);
    for (int card = 0; card < 2; card++) {
        void *module;
        DO(cuDevicePrimaryCtxRetain, &contexts[card], card);
        DO(cuCtxSetCurrent, contexts[card]);
        DO(cuModuleLoadData, &module, "image");
        DO(cuModuleGetFunction, &functions[card], module, "kp");
    }
    for (size_t at = 0; at < sizeof scenes / sizeof *scenes; at++)
        if (!strcmp(scenes[at].name, words[1]))
            scenes[at].play(strtoull(words[2], NULL, 10));
    puts("ok");
    fflush(stdout);
    _exit(0);
}
