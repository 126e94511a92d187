/* What a question about memory costs, over libraries that answer at once. Built as either library or as the program, which
   prints nanoseconds of processor time, the least of 15 rounds: cuMemGetInfo, nvmlDeviceGetMemoryInfo, dlsym of a hooked name. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct { unsigned long total, free, used; } Memory;

#if defined(CUDA)
int cuInit(unsigned flags) { return (int)flags; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, device + 1, 16); return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *total) { *left = 60UL << 30; *total = 80UL << 30; return 0; }
#elif defined(NVML)
int nvmlDeviceGetUUID(void *card, char *text, unsigned size) {
    (void)card;
    strncpy(text, "GPU-01010101-0101-0101-0101-010101010101", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *card, Memory *memory) { (void)card; *memory = (Memory){ 80UL << 30, 60UL << 30, 20UL << 30 }; return 0; }
#else
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

#define LEAST(count, call) ({ \
    double least = 1e9; \
    for (int round = 0; round < 15; round++) { \
        double start = now(); \
        for (int n = 0; n < count; n++) call; \
        double each = (now() - start) / count; \
        if (each < least) least = each; \
    } \
    least; })

int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *card = &card;
    size_t left, total;
    Memory memory;
    if (!cuda || !nvml) return 1;
    int (*info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))dlsym(cuda, "cuMemGetInfo_v2");
    int (*told)(void *, Memory *) = (int (*)(void *, Memory *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    if (info(&left, &total) || told(card, &memory) || memory.total != total) return 1;
    printf("%.1f ", LEAST(100000, info(&left, &total)));
    printf("%.1f ", LEAST(100000, told(card, &memory)));
    printf("%.1f\n", LEAST(20000, dlsym(cuda, "cuMemGetInfo_v2")));
    return 0;
}
#endif
