/* Libraries that stand between a program and the driver; what is defined says which.
   DLSYM: looks up for others, as profilers and OpenMP tools do. OWN: has a function that is named like one of the driver's.
   VERSIONED: is a driver whose functions have versions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

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
#endif

#ifdef LATE
/* Linked to the driver and opened by itself: what it may see the program does not. */
void *look(int next) { return dlsym(next ? RTLD_NEXT : RTLD_DEFAULT, "cuDeviceTotalMem_v2"); }
#endif
