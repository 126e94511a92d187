/* Libraries that stand between a program and the driver; what is defined says which.
   DLSYM: looks up for others, as profilers and OpenMP tools do. OWN: has a function that is named like one of the driver's.
   VERSIONED: is a driver with versioned functions. LAZY: stands in for functions of the C library and looks each up when it
   is first called, as tracers do. CLOCK: tells the shim alone another time, by what WRONG_CLOCK says, as libfaketime tells
   every caller. PLUGIN: is linked to the driver and may be unloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef DLSYM
#if defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#else
#define OLDEST "GLIBC_2.2.5"
#endif
int interposer_asked;
void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", OLDEST);
    if (!real) real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    interposer_asked++;
    return real(handle, name);
}
#endif

#ifdef OWN
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 4242 + device; return 0; }
#endif

#ifdef PASSING
/* Counts and passes on, as a tracer does. */
int passed;
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    int (*next)(size_t *, int) = (int (*)(size_t *, int))dlsym(RTLD_NEXT, "cuDeviceTotalMem_v2");
    passed++;
    return next ? next(bytes, device) : 999;
}
#endif

#ifdef VERSIONED
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 64UL << 30; return device; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { (void)device; for (int i = 0; i < 16; i++) uuid[i] = 1; return 0; }
int cuNotYetInvented(void) { return 7; }
static int address(const char *symbol, void **found) {
    *found = strcmp(symbol, "cuNotYetInvented") ? NULL : (void *)cuNotYetInvented;
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char *symbol, void **found, int version, unsigned long long flags) {
    (void)version, (void)flags;
    return address(symbol, found);
}
int cuGetProcAddress_v2(const char *symbol, void **found, int version, unsigned long long flags, int *status) {
    (void)version, (void)flags;
    *status = 0;
    return address(symbol, found);
}
#endif

#ifdef LATE
/* Linked to the driver and opened by itself: what it may see the program does not. */
void *look(int next) { return dlsym(next ? RTLD_NEXT : RTLD_DEFAULT, "cuDeviceTotalMem_v2"); }
#endif

#ifdef LAZY
#define FIRST(answer, name, parameters, arguments) \
    answer name parameters { \
        static answer(*real) parameters; \
        if (!real) real = (answer(*) parameters)dlsym(RTLD_NEXT, #name); \
        return real arguments; \
    }
FIRST(void *, memcpy, (void *to, const void *from, size_t bytes), (to, from, bytes))
FIRST(void *, memset, (void *to, int byte, size_t bytes), (to, byte, bytes))
FIRST(int, memcmp, (const void *one, const void *other, size_t bytes), (one, other, bytes))
FIRST(int, bcmp, (const void *one, const void *other, size_t bytes), (one, other, bytes))
FIRST(size_t, strlen, (const char *text), (text))
#endif

#ifdef CLOCK
int clock_gettime(clockid_t clock, struct timespec *time) {
    static struct timespec first;
    int answer = (int)syscall(SYS_clock_gettime, clock, time);
    const char *wrong = getenv("WRONG_CLOCK");
    Dl_info caller;
    if (!wrong || clock != CLOCK_MONOTONIC || !dladdr(__builtin_return_address(0), &caller) ||
        !strstr(caller.dli_fname, "libaliquot"))
        return answer;
    if (!first.tv_sec) first = *time;
    /* It stands still, or goes ten times as fast. */
    long long passed = (time->tv_sec - first.tv_sec) * 1000000000LL + time->tv_nsec - first.tv_nsec;
    passed = passed * (strcmp(wrong, "still") ? 10 : 0) + first.tv_nsec;
    time->tv_sec = first.tv_sec + passed / 1000000000;
    time->tv_nsec = passed % 1000000000;
    return answer;
}
#endif

#ifdef PLUGIN
int cuInit(unsigned);
int cuDeviceTotalMem_v2(size_t *, int);
size_t ask_the_driver(void) {
    size_t bytes = 0;
    return cuInit(0) || cuDeviceTotalMem_v2(&bytes, 0) ? 7 : bytes;
}
#endif
