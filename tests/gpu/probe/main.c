/* A tenant in plain C: opens the driver as programs do, and does one thing.

     probe facts                                  what the card is
     probe loaded                                 whether the library that LD_PRELOAD names is in this process
     probe text                                   the kernels, as the driver is given them
     probe report                                 what every call says about memory
     probe watch UUID                             what NVML says now, for each line of input; keeps the card from being closed
     probe fill FAMILY CHUNK COUNT                allocates until the driver refuses, then holds until its input ends
     probe calibrate NANOS BLOCKS THREADS         how many units of work a kernel of that length is
     probe spin UNITS BLOCKS THREADS HOW BATCH SECONDS WINDOW WARM
                                                  kernels back to back, counted by windows; seconds
     probe launch COUNT                           what launching, allocating and asking cost

   Answers are lines of a key and numbers. Kernels are PTX text: nothing is compiled on the machine of the card but by its
   driver. Exit code 3: the driver or the card cannot do this, and the reason is printed. */
#include "driver.h"

void *driver;
int device;

void *symbol(const char *name)
{
    void *found = dlsym(driver, name);
    if (!found)
        ASIDE("the driver has no %s", name);
    return found;
}

const char *named(int code)
{
    const char *text = NULL;
    int (*name)(int, const char **) = (int (*)(int, const char **))dlsym(driver, "cuGetErrorName");
    return name && !name(code, &text) && text ? text : "without a name";
}

void failed(const char *name, int code)
{
    printf("failed %s: %d, %s\n", name, code, named(code));
    exit(1);
}

long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

void say(const char *key, unsigned long long number)
{
    printf("%s %llu\n", key, number);
    fflush(stdout);
}

void gate(void)
{
    char byte;
    printf("ready\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
}

void begin(void)
{
    int code, count = 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        ASIDE("%s", dlerror());
    code = CALL("cuInit", (unsigned), 0);
    if (!code)
        code = CALL("cuDeviceGetCount", (int *), &count);
    if (code == 100)
        ASIDE("the driver shows no card (%d, %s); one in MIG mode without an instance is none to it", code, named(code));
    if (code)
        ASIDE("the driver answers %d, %s", code, named(code));
    if (count < 1)
        ASIDE("the driver shows no card");
    MUST("cuDeviceGet", (int *, int), &device, 0);
}

void enter(void)
{
    void *context;
    MUST("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    MUST("cuCtxSetCurrent", (void *), context);
}

int card_uuid(char *into)
{
    unsigned char whole[16], part[16];
    int (*second)(void *, int) = (int (*)(void *, int))dlsym(driver, "cuDeviceGetUuid_v2");
    MUST("cuDeviceGetUuid", (void *, int), whole, device);
    /* The second version tells the part's, where the process has a part of a card in MIG mode. */
    if (!second || second(part, device))
        memcpy(part, whole, sizeof part);
    int is_part = memcmp(part, whole, sizeof part) != 0;
    into += sprintf(into, is_part ? "MIG-" : "GPU-");
    for (int at = 0; at < 16; at++)
        into += sprintf(into, at == 4 || at == 6 || at == 8 || at == 10 ? "-%02x" : "%02x", part[at]);
    return is_part;
}

/* Attributes by the vendor's numbers; one that this driver does not know is left out. */
static void attribute(const char *key, int number)
{
    int value = 0;
    if (!CALL("cuDeviceGetAttribute", (int *, int, int), &value, number, device))
        say(key, value);
}

void facts(void)
{
    char name[256] = "", uuid[64];
    size_t total = 0;
    int version = 0;
    begin();
    MUST("cuDeviceGetName", (char *, int, int), name, sizeof name, device);
    MUST("cuDeviceTotalMem_v2", (size_t *, int), &total, device);
    MUST("cuDriverGetVersion", (int *), &version);
    int is_part = card_uuid(uuid);
    printf("name %s\nuuid %s\n", name, uuid);
    say("part", is_part);
    say("total", total);
    say("version", version);
    attribute("processors", 16);
    attribute("threads", 39);
    attribute("compute_mode", 20);
    attribute("major", 75);
    attribute("minor", 76);
    attribute("mps", 133);
}

static void loaded(void)
{
    const char *path = getenv("LD_PRELOAD");
    say("loaded", path && *path && dlopen(path, RTLD_LAZY | RTLD_NOLOAD) != NULL);
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "facts"))
        facts();
    else if (!strcmp(what, "loaded"))
        loaded();
    else if (!strcmp(what, "text"))
        texts_of_work(), texts_of_memory();
    else if (!strcmp(what, "report"))
        report();
    else if (!strcmp(what, "watch") && count == 3)
        watch(words[2]);
    else if (!strcmp(what, "fill") && count == 5)
        fill(words[2], (size_t)atoll(words[3]), atoi(words[4]));
    else if (!strcmp(what, "calibrate") && count == 5)
        calibrate(atof(words[2]), atoi(words[3]), atoi(words[4]));
    else if (!strcmp(what, "spin") && count == 10)
        spin(words + 2);
    else if (!strcmp(what, "launch") && count == 3)
        costs(atoi(words[2]));
    else
        return 2;
    return 0;
}
