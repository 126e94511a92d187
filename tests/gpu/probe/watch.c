/* What the card says of itself: by NVML, or where that is not there by the driver. */
#include "driver.h"

struct Memory { unsigned long long total, free, used; };
struct Memory2 { unsigned version; unsigned long long total, reserved, free, used; };
struct Busy { unsigned card, memory; };

static void *library, *handle;

#define NVML(name, types) ((int (*) types)dlsym(library, name))

/* Whether NVML tells of this card; why not. */
static const char *opened(const char *uuid)
{
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library)
        return dlerror();
    int (*init)(void) = NVML("nvmlInit_v2", (void));
    int (*find)(const char *, void **) = NVML("nvmlDeviceGetHandleByUUID", (const char *, void **));
    if (!init || !find || !NVML("nvmlDeviceGetMemoryInfo", (void *, void *)))
        return "NVML is too old";
    if (init())
        return "NVML does not start";
    return find(uuid, &handle) ? "NVML does not know this card" : NULL;
}

/* The older of the two names that CUDA has for an instance: its card's UUID and the numbers of its instances. */
static void path(void)
{
    char uuid[96] = "";
    unsigned gpu = 0, compute = 0;
    void *card = NULL;
    int (*whole)(void *, void **) = NVML("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", (void *, void **));
    int (*named)(void *, char *, unsigned) = NVML("nvmlDeviceGetUUID", (void *, char *, unsigned));
    int (*first)(void *, unsigned *) = NVML("nvmlDeviceGetGpuInstanceId", (void *, unsigned *));
    int (*second)(void *, unsigned *) = NVML("nvmlDeviceGetComputeInstanceId", (void *, unsigned *));
    if (whole && named && first && second && !whole(handle, &card) && !named(card, uuid, sizeof uuid)
        && !first(handle, &gpu) && !second(handle, &compute))
        printf("path MIG-%s/%u/%u\n", uuid, gpu, compute);
}

/* The same figures under the shim and without it, in a process with a context. */
void report(void)
{
    size_t free_bytes = 0, total = 0, whole = 0;
    struct Memory memory = {0, 0, 0};
    struct Memory2 memory2 = {sizeof(struct Memory2) | 2 << 24, 0, 0, 0, 0};
    char uuid[64];
    begin();
    enter();
    card_uuid(uuid);
    MUST("cuMemGetInfo_v2", (size_t *, size_t *), &free_bytes, &total);
    MUST("cuDeviceTotalMem_v2", (size_t *, int), &whole, device);
    say("info_free", free_bytes);
    say("info_total", total);
    say("device_total", whole);
    if (opened(uuid))
        return;
    int (*first)(void *, void *) = NVML("nvmlDeviceGetMemoryInfo", (void *, void *));
    int (*second)(void *, void *) = NVML("nvmlDeviceGetMemoryInfo_v2", (void *, void *));
    int code = first(handle, &memory);
    if (code) {
        printf("failed nvmlDeviceGetMemoryInfo: %d\n", code);
        exit(1);
    }
    say("nvml_total", memory.total);
    if (second && !second(handle, &memory2))
        say("nvml2_total", memory2.total);
}

/* One number under a key, where this NVML has the call and the card has the figure. */
static void figure(const char *key, const char *name)
{
    unsigned value = 0;
    int (*get)(void *, unsigned *) = NVML(name, (void *, unsigned *));
    if (get && !get(handle, &value))
        printf(" %s %u", key, value);
}

static void pair(const char *key, const char *name)
{
    unsigned value = 0, pending = 0;
    int (*get)(void *, unsigned *, unsigned *) = NVML(name, (void *, unsigned *, unsigned *));
    if (get && !get(handle, &value, &pending))
        printf(" %s %u", key, value);
}

static void processes(void)
{
    static const char *const names[] = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
                                        "nvmlDeviceGetComputeRunningProcesses"};
    for (int at = 0; at < 3; at++) {
        unsigned count = 0;
        int (*get)(void *, unsigned *, void *) = NVML(names[at], (void *, unsigned *, void *));
        int code = get ? get(handle, &count, NULL) : 1;
        /* 7: there are more than there is room for, which is none. */
        if (!code || code == 7) {
            printf(" processes %u", count);
            return;
        }
    }
}

static void now_by_nvml(void)
{
    struct Memory memory = {0, 0, 0};
    struct Busy busy = {0, 0};
    unsigned value = 0;
    unsigned long long reasons = 0;
    int (*memory_info)(void *, void *) = NVML("nvmlDeviceGetMemoryInfo", (void *, void *));
    int (*rates)(void *, void *) = NVML("nvmlDeviceGetUtilizationRates", (void *, void *));
    int (*clock)(void *, int, unsigned *) = NVML("nvmlDeviceGetClockInfo", (void *, int, unsigned *));
    int (*warmth)(void *, int, unsigned *) = NVML("nvmlDeviceGetTemperature", (void *, int, unsigned *));
    int (*slowed)(void *, unsigned long long *) =
        NVML("nvmlDeviceGetCurrentClocksThrottleReasons", (void *, unsigned long long *));
    int code = memory_info(handle, &memory);
    if (code) {
        printf("failed nvmlDeviceGetMemoryInfo: %d\n", code);
        exit(1);
    }
    printf("now used %llu total %llu", memory.used, memory.total);
    if (rates && !rates(handle, &busy))
        printf(" busy %u", busy.card);
    if (clock && !clock(handle, 1, &value))
        printf(" clock %u", value);
    if (warmth && !warmth(handle, 0, &value))
        printf(" temperature %u", value);
    if (slowed && !slowed(handle, &reasons))
        printf(" slowed %llu", reasons);
    figure("persistence", "nvmlDeviceGetPersistenceMode");
    figure("milliwatts", "nvmlDeviceGetEnforcedPowerLimit");
    pair("ecc", "nvmlDeviceGetEccMode");
    pair("mig", "nvmlDeviceGetMigMode");
    processes();
    printf("\n");
}

static void now_by_driver(void)
{
    size_t free_bytes = 0, total = 0;
    MUST("cuMemGetInfo_v2", (size_t *, size_t *), &free_bytes, &total);
    printf("now used %llu total %llu\n", (unsigned long long)(total - free_bytes), (unsigned long long)total);
}

void watch(const char *uuid)
{
    char line[64], text[96] = "";
    const char *why = opened(uuid);
    if (why) {
        printf("without %s\n", why);
        begin();
        enter();
    } else {
        int (*version)(char *, unsigned) = NVML("nvmlSystemGetDriverVersion", (char *, unsigned));
        if (version && !version(text, sizeof text))
            printf("driver %s\n", text);
        if (!strncmp(uuid, "MIG-", 4))
            path();
    }
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (why)
            now_by_driver();
        else
            now_by_nvml();
        fflush(stdout);
    }
}
