/* Works and rests as it is told: at 'w' on its standard input it launches kernels as fast as it can, at 'r' it waits for
   what it launched and rests, at the end of its input it ends. Says its number first, then when it began and when it had
   done all, in nanoseconds of the monotonic clock.
   usage: turns NANOSECONDS */
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "opened.h"

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int is_told(void)
{
    struct pollfd input = { 0, POLLIN, 0 };
    return poll(&input, 1, 0) != 0;
}

int main(int count, char **words)
{
    void *context, *module, *function;
    char name[64], told;
    CHECK(count == 2);
    snprintf(name, sizeof name, "k_%s", words[1]);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library && CALL(cuInit, 0) == 0);
    CHECK(CALL(cuDevicePrimaryCtxRetain, &context, 0) == 0 && CALL(cuCtxSetCurrent, context) == 0);
    CHECK(CALL(cuModuleLoadData, &module, "image") == 0 && CALL(cuModuleGetFunction, &function, module, name) == 0);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        (int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))sym("cuLaunchKernel");
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("is %d\n", (int)getpid());
    while (read(0, &told, 1) == 1) {
        if (told == 'w') {
            printf("works %lld\n", now());
            while (!is_told())
                CHECK(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0);
        } else {
            CHECK(CALL(cuCtxSynchronize) == 0);
            printf("rests %lld\n", now());
        }
    }
    return 0;
}
