/* MIG through NVML, with the structures as nvml.h has them. Words say what to do, one after the other; each prints a line.
 *   mode, count               of card 0
 *   profile N, placements N   number of nvml.h; placements by the vendor's number
 *   room N                    how many more fit, by the vendor's number
 *   make N [START SIZE]       a GPU instance by the vendor's number: prints the answer, its number and placement
 *   compute GI N              a compute instance of this profile in a GPU instance
 *   undo GI, empty GI         destroys the GPU instance; its compute instances
 *   devices                   every MIG device: UUID, numbers, name, memory, multiprocessors
 *   memory UUID               total and used of a MIG device or card
 *   util                      utilisation of the card
 */
#include "opened.h"

typedef void *Handle;
typedef struct { unsigned start, size; } Placement;
typedef struct {
    unsigned id, p2p, slices, instances, sms, ce, dec, enc, jpeg, ofa;
    unsigned long long mib;
} Profile;
typedef struct {
    unsigned version, id, p2p, slices, instances, sms, ce, dec, enc, jpeg, ofa;
    unsigned long long mib;
    char name[96];
} Profile2;
typedef struct {
    unsigned version, id, slices, instances, sms, ce, dec, enc, jpeg, ofa;
    unsigned long long mib;
    char name[96];
    unsigned capabilities;
} Profile3;
typedef struct { Handle device; unsigned id, profile; Placement placement; } Gpu;
typedef struct { unsigned id, slices, instances, sms, ce, dec, enc, jpeg, ofa; } ComputeProfile;
typedef struct { unsigned version; ComputeProfile info; char name[96]; } ComputeProfile2;
typedef struct { Handle device, gpu; unsigned id, profile; Placement placement; } Compute;
typedef struct { unsigned sms, ce, dec, enc, jpeg, ofa, gpu_slices, compute_slices; unsigned long long mib; } Attributes;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;

static char **words;
static Handle card;

static unsigned number(void)
{
    if (!*words) exit(64);
    return (unsigned)strtoul(*words++, NULL, 10);
}

static int more(void)
{
    return *words && **words >= '0' && **words <= '9';
}

/* The GPU instance of a number; NULL and its answer printed where there is none. */
static Handle gpu_of(unsigned id)
{
    Handle gpu = NULL;
    int code = CALL(nvmlDeviceGetGpuInstanceById, card, id, &gpu);
    if (code) printf("%d\n", code);
    return code ? NULL : gpu;
}

static void profile(unsigned index)
{
    Profile first = { 0 };
    Profile2 second = { .version = sizeof second | 2u << 24 };
    Profile3 third = { .version = sizeof third | 3u << 24 };
    int code = CALL(nvmlDeviceGetGpuInstanceProfileInfo, card, index, &first);
    int code2 = CALL(nvmlDeviceGetGpuInstanceProfileInfoV, card, index, &second);
    int code3 = CALL(nvmlDeviceGetGpuInstanceProfileInfoV, card, index, &third);
    if (code || code2 || code3) {
        printf("%d %d %d\n", code, code2, code3);
        return;
    }
    int same = first.id == second.id && first.id == third.id && first.mib == second.mib && first.mib == third.mib
        && first.ofa == second.ofa && first.ofa == third.ofa && !strcmp(second.name, third.name);
    printf("%u %s slices %u instances %u sms %u mib %llu %s\n", first.id, second.name, first.slices, first.instances,
           first.sms, first.mib, same ? "same" : "differ");
}

static void placements(unsigned id)
{
    Placement at[16];
    unsigned count = 0, filled = 16;
    int code = CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, card, id, NULL, &count);
    int code2 = CALL(nvmlDeviceGetGpuInstancePossiblePlacements_v2, card, id, at, &filled);
    printf("%d %d", code, code2);
    for (unsigned i = 0; !code && !code2 && i < count && count == filled; i++) printf(" %u:%u", at[i].start, at[i].size);
    puts("");
}

static void make(unsigned id)
{
    Handle gpu = (Handle)UNTOUCHED;
    Gpu info = { 0 };
    Placement at;
    int code;
    if (more()) {
        at.start = number();
        at.size = number();
        code = CALL(nvmlDeviceCreateGpuInstanceWithPlacement, card, id, &at, &gpu);
    } else {
        code = CALL(nvmlDeviceCreateGpuInstance, card, id, &gpu);
    }
    if (code) {
        printf("%d%s\n", code, gpu == (Handle)UNTOUCHED ? "" : " touched");
        return;
    }
    code = CALL(nvmlGpuInstanceGetInfo, gpu, &info);
    printf("%d %u %u at %u:%u%s\n", code, info.id, info.profile, info.placement.start, info.placement.size,
           info.device == card ? "" : " of another card");
}

static void compute(unsigned id, unsigned index)
{
    Handle gpu = gpu_of(id), made = NULL;
    ComputeProfile first = { 0 };
    ComputeProfile2 second = { .version = sizeof second | 2u << 24 };
    Compute info = { 0 };
    if (!gpu) return;
    int code = CALL(nvmlGpuInstanceGetComputeInstanceProfileInfo, gpu, index, 0u, &first);
    if (!code) code = CALL(nvmlGpuInstanceGetComputeInstanceProfileInfoV, gpu, index, 0u, &second);
    if (!code) code = CALL(nvmlGpuInstanceCreateComputeInstance, gpu, first.id, &made);
    if (!code) code = CALL(nvmlComputeInstanceGetInfo_v2, made, &info);
    if (code) {
        printf("%d\n", code);
        return;
    }
    printf("0 %u %s sms %u%s\n", info.id, second.name, first.sms, info.gpu == gpu ? "" : " elsewhere");
}

static void empty(unsigned id)
{
    Handle gpu = gpu_of(id), found[8];
    if (!gpu) return;
    for (unsigned index = 0; index < 7; index++) {
        unsigned count = 8;
        int code = CALL(nvmlGpuInstanceGetComputeInstances, gpu, index, found, &count);
        for (unsigned i = 0; !code && i < count; i++) printf("%d ", CALL(nvmlComputeInstanceDestroy, found[i]));
    }
    puts("");
}

static void devices(void)
{
    unsigned most = 0;
    int code = CALL(nvmlDeviceGetMaxMigDeviceCount, card, &most);
    for (unsigned i = 0; !code && i < most; i++) {
        Handle device = NULL, parent = NULL, again = NULL;
        char uuid[96] = "", name[96] = "";
        unsigned gpu = 99, compute = 99, is = 9;
        Attributes has = { 0 };
        Memory memory = { 0 };
        code = CALL(nvmlDeviceGetMigDeviceHandleByIndex, card, i, &device);
        if (code) break;
        int wrong = CALL(nvmlDeviceIsMigDeviceHandle, device, &is) || is != 1
            || CALL(nvmlDeviceGetUUID, device, uuid, 96u) || CALL(nvmlDeviceGetName, device, name, 96u)
            || CALL(nvmlDeviceGetGpuInstanceId, device, &gpu) || CALL(nvmlDeviceGetComputeInstanceId, device, &compute)
            || CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device, &parent) || parent != card
            || CALL(nvmlDeviceGetHandleByUUID, uuid, &again) || again != device
            || CALL(nvmlDeviceGetAttributes_v2, device, &has) || CALL(nvmlDeviceGetMemoryInfo, device, &memory)
            || has.mib << 20 != memory.total;
        printf("%s %u/%u %s sms %u mib %llu%s\n", uuid, gpu, compute, name, has.sms, has.mib, wrong ? " wrong" : "");
    }
    printf("%d\n", code);
}

int main(int count, char **arguments)
{
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library || CALL(nvmlInit_v2) || CALL(nvmlDeviceGetHandleByIndex_v2, 0u, &card)) return 3;
    (void)count;
    words = arguments + 1;
    while (*words) {
        const char *word = *words++;
        if (!strcmp(word, "mode")) {
            unsigned current = 9, pending = 9;
            int code = CALL(nvmlDeviceGetMigMode, card, &current, &pending);
            printf("%d %u %u\n", code, current, pending);
        } else if (!strcmp(word, "count")) {
            unsigned most = 99;
            int code = CALL(nvmlDeviceGetMaxMigDeviceCount, card, &most);
            printf("%d %u\n", code, most);
        } else if (!strcmp(word, "profile")) profile(number());
        else if (!strcmp(word, "placements")) placements(number());
        else if (!strcmp(word, "room")) {
            unsigned left = 99;
            int code = CALL(nvmlDeviceGetGpuInstanceRemainingCapacity, card, number(), &left);
            printf("%d %u\n", code, left);
        } else if (!strcmp(word, "make")) make(number());
        else if (!strcmp(word, "compute")) {
            unsigned gpu = number();
            compute(gpu, number());
        } else if (!strcmp(word, "undo")) {
            Handle gpu = gpu_of(number());
            if (gpu) {
                int code = CALL(nvmlGpuInstanceDestroy, gpu);
                /* A handle of what is gone is none. */
                Gpu info;
                printf("%d %d\n", code, CALL(nvmlGpuInstanceGetInfo, gpu, &info));
            }
        } else if (!strcmp(word, "empty")) empty(number());
        else if (!strcmp(word, "devices")) devices();
        else if (!strcmp(word, "memory")) {
            Handle device = NULL;
            Memory memory = { 0 };
            int code = CALL(nvmlDeviceGetHandleByUUID, *words++, &device);
            if (!code) code = CALL(nvmlDeviceGetMemoryInfo, device, &memory);
            printf("%d %llu %llu\n", code, memory.total >> 20, memory.used >> 20);
        } else if (!strcmp(word, "util")) {
            Utilization rates;
            printf("%d\n", CALL(nvmlDeviceGetUtilizationRates, card, &rates));
        } else return 64;
    }
    return 0;
}
