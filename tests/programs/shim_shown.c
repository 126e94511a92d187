/*
 * Allocates and tells what every call says about memory, as told line by line:
 *   take BYTES       allocates, prints the driver's answer
 *   give             frees what was taken first, prints the driver's answer
 *   on CARD          its primary context, which is there from then on, becomes the current one: of the lines up to "circle", too,
 *                    each of which prints the driver's answer
 *   have N FAMILY BYTES   takes memory of a family of shim_mixed.h; its stacks are so large, of the first one behind them
 *   lose N           gives it back
 *   lend N, open N HANDLE   plain memory is exported, and its handle follows the answer; an export of another process is imported
 *   wait             for the card: its pools shrink
 *   pool KEEPS       pools of the program's own are destroyed, or made anew and keep so much
 *   circle N BYTES   N times: allocates, exports, frees
 *   cuda             prints free, total and the device's total, in both widths where they are
 *   nvml CARD        prints total, free and used by both versions, then the limit and use that NVML itself holds to,
 *                    what the host may map, and the limit that NVML keeps to where it can
 *   processes CARD   prints pid:bytes by each version of each list, the versions apart by bars
 *   work CARD        prints pid:percent by both calls, a bar between them
 *   run NANOS        launches a kernel of that length, prints the driver's answer
 *   counted CARD        for each list of other than compute processes, the answer and their number when there is no room at all;
 *                       then the answer, the number and the process for a list of accounting with room for one
 *   instances UUID      prints pid:GPU instance/compute instance of compute processes on a MIG device
 *   accounted CARD PID  prints the answer and the processes of the list of accounting, a bar, and the answers about the process
 *   begin            shuts NVML down and initialises it, prints the answers' sum
 *   uninitialised    prints what NVML answers when it was shut down
 * With an argument it never touches CUDA; made with WATCHES it is not linked to it either, and has none of the lines from "on" to
 * "circle".
 */
#include <dlfcn.h>

#ifdef WATCHES
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const int on_card = 0;
static int is_of_families(const char *line) { return line == NULL; }
#else
#include "shim_holder.h"
#endif

typedef uint64_t U;
typedef struct { U total, free, used; } M1;
typedef struct { unsigned version; U total, reserved, free, used; } M2;
typedef struct { const char *space; U soft, hard, used; } Limits;
typedef struct { unsigned pid; U used; } P1;
typedef struct { unsigned pid; U used; unsigned gi, ci; } P2;
typedef struct { unsigned pid; U used; unsigned gi, ci; U cc; } P3;
typedef struct { unsigned version, mode, count; P3 *list; } Detail;
typedef struct { unsigned pid; U at; unsigned sm, mem, enc, dec; } Sample;
typedef struct { U at; unsigned pid, sm, mem, enc, dec, jpg, ofa; } Use;
typedef struct { unsigned version, count; U since; Use *list; } Info;

static void *cuda, *nvml;

#define CALL(library, name, types) ((int (*) types)dlsym(library, name))

static void must(int code, const char *what) {
    if (code) { printf("%s: %d\n", what, code); exit(2); }
}

static U device(int number) {
    U handle = 0;
    must(CALL(nvml, "nvmlDeviceGetHandleByIndex_v2", (unsigned, U *))(number, &handle), "handle");
    return handle;
}

static void list(U card, const char *name, int first) {
    static char room[64 * sizeof(P2)];
    unsigned count = 0;
    int (*ask)(U, unsigned *, void *) = CALL(nvml, name, (U, unsigned *, void *));
    int code = ask(card, &count, NULL);
    if (code == 7) { count = 64; code = ask(card, &count, room); }
    if (code) { printf("%s: %d", name, code); return; }
    for (unsigned n = 0; n < count; n++) {
        P1 *one = (P1 *)room + n;
        P2 *two = (P2 *)room + n;
        printf("%s%u:%llu", n ? " " : "", first ? one->pid : two->pid, (unsigned long long)(first ? one->used : two->used));
    }
}

static void processes(U card) {
    static const char *const names[] = {"nvmlDeviceGet%sRunningProcesses", "nvmlDeviceGet%sRunningProcesses_v2", "nvmlDeviceGet%sRunningProcesses_v3"};
    static const char *const kinds[] = {"Compute", "Graphics", "MPSCompute"};
    char name[96];
    for (int k = 0; k < 3; k++)
        for (int v = 0; v < 3; v++) {
            snprintf(name, sizeof name, names[v], kinds[k]);
            list(card, name, v == 0);
            printf("|");
        }
    P3 room[64];
    Detail detail = { 0x1000018, 0, 64, room };
    must(CALL(nvml, "nvmlDeviceGetRunningProcessDetailList", (U, Detail *))(card, &detail), "details");
    for (unsigned n = 0; n < detail.count; n++) printf("%s%u:%llu", n ? " " : "", room[n].pid, (unsigned long long)room[n].used);
    puts("");
}

static void show_nvml(U card) {
    M1 one;
    M2 two = { .version = sizeof two | 2 << 24 };
    Limits limits = { "" };
    must(CALL(nvml, "nvmlDeviceGetMemoryInfo", (U, M1 *))(card, &one), "memory");
    must(CALL(nvml, "nvmlDeviceGetMemoryInfo_v2", (U, M2 *))(card, &two), "memory 2");
    must(CALL(nvml, "nvmlDeviceGetMemoryLimits_v1", (U, Limits *))(card, &limits), "limits");
    M1 bar;
    must(CALL(nvml, "nvmlDeviceGetBAR1MemoryInfo", (U, M1 *))(card, &bar), "bar");
    printf("%llu %llu %llu ", (unsigned long long)one.total, (unsigned long long)one.free, (unsigned long long)one.used);
    printf("%llu %llu %llu %llu ", (unsigned long long)two.total, (unsigned long long)two.free, (unsigned long long)two.used, (unsigned long long)two.reserved);
    printf("%llu %llu %llu %llu\n", (unsigned long long)limits.hard, (unsigned long long)limits.used, (unsigned long long)bar.total, (unsigned long long)limits.soft);
}

static void work(U card) {
    Sample room[64];
    unsigned count = 0;
    int (*ask)(U, Sample *, unsigned *, U) = CALL(nvml, "nvmlDeviceGetProcessUtilization", (U, Sample *, unsigned *, U));
    int code = ask(card, NULL, &count, 0);
    if (code == 7) code = ask(card, room, &count, 0);
    printf("%d", code);
    for (unsigned n = 0; !code && n < count; n++) printf(" %u:%u", room[n].pid, room[n].sm);
    Use uses[64];
    Info info = { sizeof info | 1 << 24, 0, 0, NULL };
    int (*again)(U, Info *) = CALL(nvml, "nvmlDeviceGetProcessesUtilizationInfo", (U, Info *));
    code = again(card, &info);
    if (code == 7) { info.list = uses; code = again(card, &info); }
    printf(" | %d", code);
    for (unsigned n = 0; !code && n < info.count; n++) printf(" %u:%u", uses[n].pid, uses[n].sm);
    puts("");
}

static int run(unsigned long long nanos) {
    U module, kernel;
    char name[64];
    snprintf(name, sizeof name, "k_%llu", nanos);
    must(CALL(cuda, "cuModuleLoadData", (U *, const void *))(&module, "image"), "module");
    must(CALL(cuda, "cuModuleGetFunction", (U *, U, const char *))(&kernel, module, name), "kernel");
    return CALL(cuda, "cuLaunchKernel", (U, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, U, void **, void **))(
        kernel, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL);
}

static void counted(U card) {
    static const char *const names[] = {"nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2",
        "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetAccountingPids"};
    unsigned count = 0, pid = 0;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        int code = CALL(nvml, names[n], (U, unsigned *, void *))(card, &count, NULL);
        printf("%d %u|", code, count);
        count = 0;
    }
    int code = CALL(nvml, "nvmlDeviceGetProcessUtilization", (U, Sample *, unsigned *, U))(card, NULL, &count, 0);
    Info info = { sizeof info | 1 << 24, 0, 0, NULL };
    Detail detail = { 0x1000018, 0, 0, NULL };
    printf("%d %u|", code, count);
    code = CALL(nvml, "nvmlDeviceGetProcessesUtilizationInfo", (U, Info *))(card, &info);
    printf("%d %u|", code, info.count);
    code = CALL(nvml, "nvmlDeviceGetRunningProcessDetailList", (U, Detail *))(card, &detail);
    printf("%d %u|", code, detail.count);
    count = 1;
    code = CALL(nvml, "nvmlDeviceGetAccountingPids", (U, unsigned *, unsigned *))(card, &count, &pid);
    printf("%d %u %u\n", code, count, pid);
}

static void instances(const char *uuid) {
    P2 room[64];
    unsigned count = 64;
    U card = 0;
    must(CALL(nvml, "nvmlDeviceGetHandleByUUID", (const char *, U *))(uuid, &card), "by UUID");
    must(CALL(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", (U, unsigned *, P2 *))(card, &count, room), "processes");
    for (unsigned n = 0; n < count; n++) printf("%s%u:%u/%u", n ? " " : "", room[n].pid, room[n].gi, room[n].ci);
    puts("");
}

static void accounted(U card, unsigned pid) {
    unsigned pids[64], count = 64;
    U figures[8] = {0}, again[8] = {0};
    int code = CALL(nvml, "nvmlDeviceGetAccountingPids", (U, unsigned *, unsigned *))(card, &count, pids);
    printf("%d", code);
    for (unsigned n = 0; !code && n < count; n++) printf(" %u", pids[n]);
    *(unsigned *)again = pid;
    code = CALL(nvml, "nvmlDeviceGetAccountingStats", (U, unsigned, U *))(card, pid, figures);
    int second = CALL(nvml, "nvmlDeviceGetAccountingStats_v2", (U, U *))(card, again);
    printf(" | %d %d %d\n", code, second, figures[1] || again[2]);
}

static void show_cuda(void) {
    size_t free_bytes, total, all;
    unsigned narrow = 0;
    must(CALL(cuda, "cuMemGetInfo_v2", (size_t *, size_t *))(&free_bytes, &total), "info");
    must(CALL(cuda, "cuDeviceTotalMem_v2", (size_t *, int))(&all, on_card), "total");
    must(CALL(cuda, "cuDeviceTotalMem", (unsigned *, int))(&narrow, on_card), "narrow total");
    printf("%zu %zu %zu %u\n", free_bytes, total, all, narrow);
}

int main(int argc, char **argv) {
    static U held[4096];
    int first = 0, last = 0, number = 0;
    unsigned pid = 0;
    char line[256], word[64];
    unsigned long long bytes;
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml) return 1;
    must(CALL(nvml, "nvmlInit_v2", (void))(), "nvmlInit");
    if (argc < 2) {
        U context;
        cuda = dlopen("libcuda.so.1", RTLD_NOW);
        must(CALL(cuda, "cuInit", (unsigned))(0), "cuInit");
        must(CALL(cuda, "cuDevicePrimaryCtxRetain", (U *, int))(&context, 0), "retain");
        must(CALL(cuda, "cuCtxSetCurrent", (U))(context), "current");
    }
    (void)argv;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "take %llu", &bytes) == 1) {
            int code = CALL(cuda, "cuMemAlloc_v2", (U *, size_t))(&held[last], bytes);
            if (!code) last++;
            printf("%d\n", code);
        } else if (sscanf(line, "managed %llu", &bytes) == 1) {
            U address = 0;
            int code = CALL(cuda, "cuMemAllocManaged", (U *, size_t, unsigned))(&address, bytes, 1);
            if (!code) must(CALL(cuda, "cuMemFree_v2", (U))(address), "free");
            printf("%d\n", code);
        } else if (!strncmp(line, "give", 4)) {
            printf("%d\n", first < last ? CALL(cuda, "cuMemFree_v2", (U))(held[first++]) : 0);
        } else if (is_of_families(line)) {
        } else if (!strncmp(line, "cuda", 4)) show_cuda();
        else if (sscanf(line, "nvml %d", &number) == 1) show_nvml(device(number));
        else if (sscanf(line, "processes %d", &number) == 1) processes(device(number));
        else if (sscanf(line, "accounted %d %u", &number, &pid) == 2) accounted(device(number), pid);
        else if (sscanf(line, "instances %63s", word) == 1) instances(word);
        else if (sscanf(line, "counted %d", &number) == 1) counted(device(number));
        else if (sscanf(line, "work %d", &number) == 1) work(device(number));
        else if (!strncmp(line, "begin", 5))
            printf("%d\n", CALL(nvml, "nvmlShutdown", (void))() + CALL(nvml, "nvmlInit_v2", (void))());
        else if (sscanf(line, "run %llu", &bytes) == 1) printf("%d\n", run(bytes));
        else if (sscanf(line, "%63s", word) == 1 && !strcmp(word, "uninitialised")) {
            U card = device(0), count = 0;
            M1 one = { 1, 2, 3 };
            must(CALL(nvml, "nvmlShutdown", (void))(), "shutdown");
            int a = CALL(nvml, "nvmlDeviceGetMemoryInfo", (U, M1 *))(card, &one);
            int b = CALL(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", (U, unsigned *, void *))(card, (unsigned *)&count, NULL);
            printf("%d %d %llu\n", a, b, (unsigned long long)one.total);
            must(CALL(nvml, "nvmlInit_v2", (void))(), "nvmlInit");
        } else puts("what?");
        fflush(stdout);
    }
    return 0;
}
