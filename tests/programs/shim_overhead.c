/* Contexts and modules under a limit. Commands come on standard input, one a line; each is answered by its code, and
   "touched" behind it where an out-parameter changed although the call failed.

     retain <device>, release <device>, reset <device>
     inner <device>                        the primary context as runtime libraries get it, past every function with a name
     innerrelease <device>, innerreset <device>   let go and ended in the same way
     create <slot> <device> <version>      cuCtxCreate, _v2, _v3, _v4: it becomes current
     destroy <slot>
     green <slot> <device>                 a green context of all multiprocessors: it becomes current
     wither <slot>                         cuGreenCtxDestroy
     cross <slot> <other> <bytes>          the same, while a thread makes another one and allocates so many bytes in it
     churn <threads> <rounds>              threads that make green contexts, allocate in them and destroy them
     beside <bytes>                        cuMemAlloc, 0.3 s after a thread began to release the primary context (the first ABI)
     press <slot> <millis>                 threads that retain and release the primary context, that are refused, and that fill the
                                           grant in the context of that slot, for so long; how many calls failed that should not
     current <slot>                        cuCtxSetCurrent; slot 0 is the primary context last retained
     load <slot> <way> <bytes>             cuModuleLoadData, cuModuleLoadDataEx, cuModuleLoadFatBinary, cuLibraryLoadData,
                                           cuModuleLoad, cuLibraryLoadFromFile: variables of so many bytes in the image
     function <slot> <number>              cuModuleGetFunction or cuLibraryGetKernel
     kernels <slot> <way> <count>          the same ways: so many kernels in the image
     others <slot> <way>                   the same ways: a texture, a surface and a unified function in the image
     other <slot> <kind>                   cuModuleGetTexRef, cuModuleGetSurfRef, cuLibraryGetUnifiedFunction: 1, 2, 3
     locals <slot> <way> <bytes>           the same ways: the kernels f0, f1, f2 of so many bytes of local memory, times their number
     list <slot> <room>                    cuModuleEnumerateFunctions or cuLibraryEnumerateKernels: the code, and how many
     atonce <threads>                      threads that load modules, and get a function of 2048 bytes of local memory; how many failed
     ready <slot>                          cuKernelGetFunction of the kernel that was got last of it
     stream <slot>                         cuStreamCreate in the current context
     launch <slot> <stream>                cuLaunchKernel of what was got last of it, on the default stream or on that one
     unload <slot>
     limit <number> <value>                cuCtxSetLimit
     alloc <bytes>                         cuMemAlloc, never freed
     info
     forbid                                a filter: process_vm_readv is not permitted from now on
     narrow                                no address space can be had from now on
     hold <seed> <threads> <modules>       threads that load so many modules each, some from files, and use them; answered is
                                           how many calls failed
     let                                   they are unloaded
     storm <seed> <threads> <rounds>       threads that retain and release, load and unload, allocate and free */
#include "green.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static u64 contexts[16], greens[16], modules[64], got[64], streams[16];
static int is_library[64];

static void answer(int code, u64 out)
{
    printf("%d%s\n", code, code && out != UNTOUCHED ? " touched" : "");
}

static int create(u64 *context, int device, int version)
{
    switch (version) {
    case 1: return CALL(cuCtxCreate, context, 0u, device);
    case 2: return CALL(cuCtxCreate_v2, context, 0u, device);
    case 3: return CALL(cuCtxCreate_v3, context, NULL, 0, 0u, device);
    default: return CALL(cuCtxCreate_v4, context, NULL, 0u, device);
    }
}

/* It becomes current. */
static int green(u64 *made, int device)
{
    u64 context = 0;
    int code = make_green(made, device);
    code = code ? code : CALL(cuCtxFromGreenCtx, &context, *made);
    return code ? code : CALL(cuCtxSetCurrent, context);
}

static struct { u64 slot, bytes; int code; } other;

static void *make_other(void *unused)
{
    u64 address = 0;
    usleep(100000);
    other.code = green(&greens[other.slot], 0);
    other.code = other.code ? other.code : CALL(cuMemAlloc_v2, &address, (size_t)other.bytes);
    return unused;
}

static int cross(u64 slot, u64 made, u64 bytes)
{
    pthread_t running;
    other.slot = made;
    other.bytes = bytes;
    if (pthread_create(&running, NULL, make_other, NULL))
        return -1;
    int code = CALL(cuGreenCtxDestroy, greens[slot]);
    pthread_join(running, NULL);
    return code ? code : other.code;
}

static u64 churn_rounds;

static void *churn(void *failed)
{
    for (u64 i = 0; i < churn_rounds; i++) {
        u64 made = 0, address = 0;
        int code = green(&made, 0);
        code = code ? code : CALL(cuMemAlloc_v2, &address, (size_t)4096);
        code = code ? code : CALL(cuGreenCtxDestroy, made);
        *(u64 *)failed += code != 0;
    }
    return NULL;
}

static u64 churns(u64 threads, u64 rounds)
{
    pthread_t running[16];
    u64 failed[16] = {0}, all = 0, started = 0;
    churn_rounds = rounds;
    for (; started < threads && started < 16; started++)
        if (pthread_create(&running[started], NULL, churn, &failed[started]))
            exit(1);
    for (u64 i = 0; i < started; i++) {
        pthread_join(running[i], NULL);
        all += failed[i];
    }
    return all;
}

/* What cuGetExportTable gives has in this place. */
static void *inner(int place)
{
    void **table = NULL;
    if (CALL(cuGetExportTable, &table, "aliquot-sim-ctx\1"))
        exit(1);
    return table[place];
}

static int from_file(u64 *module, int way, const char *image)
{
    char path[64];
    int file = memfd_create("image", 0), code;
    if (file < 0 || write(file, image, strlen(image)) != (ssize_t)strlen(image))
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    code = way == 5 ? CALL(cuModuleLoad, module, path)
                    : CALL(cuLibraryLoadFromFile, module, path, NULL, NULL, 0u, NULL, NULL, 0u);
    close(file);
    return code;
}

static int load_image(u64 *module, int way, const char *image)
{
    switch (way) {
    case 1: return CALL(cuModuleLoadData, module, image);
    case 2: return CALL(cuModuleLoadDataEx, module, image, 0u, NULL, NULL);
    case 3: return CALL(cuModuleLoadFatBinary, module, image);
    case 4: return CALL(cuLibraryLoadData, module, image, NULL, NULL, 0u, NULL, NULL, 0u);
    default: return from_file(module, way, image);
    }
}

static int load(u64 *module, int way, u64 bytes)
{
    char image[128];
    snprintf(image, sizeof image, ".version 8.0 .visible .global .align 8 .b8 data[%lu];", bytes);
    return load_image(module, way, bytes ? image : "image");
}

static int load_kernels(u64 *module, int way, u64 count)
{
    char image[4096] = ".version 8.0";
    for (u64 i = 0; i < count; i++)
        snprintf(image + strlen(image), sizeof image - strlen(image), " .visible .entry e%lu() { ret; }", i);
    return load_image(module, way, image);
}

static int load_locals(u64 *module, int way, u64 bytes)
{
    char image[512] = ".version 8.0";
    for (u64 i = 0; i < 3; i++)
        snprintf(image + strlen(image), sizeof image - strlen(image),
                 " .visible .entry f%lu() { .local .align 8 .b8 depot[%lu]; ret; }", i, i * bytes);
    return load_image(module, way, image);
}

static int load_others(u64 *module, int way)
{
    return load_image(module, way, ".version 8.0 .global .texref seen; .global .surfref drawn;"
                                   " .visible .func .attribute(.unified(1, 2)) whole() { ret; }");
}

static int named(u64 *got, u64 module, u64 kind)
{
    switch (kind) {
    case 1: return CALL(cuModuleGetTexRef, got, module, "seen");
    case 2: return CALL(cuModuleGetSurfRef, got, module, "drawn");
    default: return CALL(cuLibraryGetUnifiedFunction, got, module, "whole");
    }
}

enum { LISTED = 128 };

/* What is not had is not written. */
static int list(u64 *first, u64 module, int from_library, unsigned room, int *count)
{
    u64 all[LISTED];
    for (int i = 0; i < LISTED; i++)
        all[i] = UNTOUCHED;
    int code = from_library ? CALL(cuLibraryEnumerateKernels, all, room, module) : CALL(cuModuleEnumerateFunctions, all, room, module);
    for (*count = 0; *count < LISTED && all[*count] != UNTOUCHED;)
        ++*count;
    *first = all[0];
    return code;
}

static int is_way_of_library(u64 way) { return way == 4 || way == 6; }

static int unload(u64 module, int from_library)
{
    return from_library ? CALL(cuLibraryUnload, module) : CALL(cuModuleUnload, module);
}

static int function(u64 *got, u64 module, int from_library, u64 number)
{
    char name[32];
    snprintf(name, sizeof name, "f%lu", number);
    return from_library ? CALL(cuLibraryGetKernel, got, module, name) : CALL(cuModuleGetFunction, got, module, name);
}

/* At once, of modules of their own. */
static void *function_at_once(void *failed)
{
    u64 module = 0, got = 0;
    *(u64 *)failed += CALL(cuCtxSetCurrent, contexts[0]) || load_locals(&module, 1, 2048) || function(&got, module, 0, 1);
    return NULL;
}

static u64 functions_at_once(u64 threads)
{
    pthread_t running[16];
    u64 failed[16] = {0}, all = 0, started = 0;
    for (; started < threads && started < 16; started++)
        if (pthread_create(&running[started], NULL, function_at_once, &failed[started]))
            exit(1);
    for (u64 i = 0; i < started; i++) {
        pthread_join(running[i], NULL);
        all += failed[i];
    }
    return all;
}

struct storm {
    u64 seed, rounds;
    const char *wrong;
};

static const char *one(u64 random, u64 *block, u64 *module, int *kind)
{
    u64 out = UNTOUCHED, got = UNTOUCHED;
    int code = 0;
    switch ((random >> 33) % 4) {
    case 0:
        if (*block)
            return code = CALL(cuMemFree_v2, *block), *block = 0, code ? "free" : NULL;
        code = CALL(cuMemAlloc_v2, &out, (size_t)((random >> 20) % (8 << 20) + 1));
        *block = code ? 0 : out;
        break;
    case 1:
        if (*module)
            return code = unload(*module, *kind), *module = 0, code ? "unload" : NULL;
        *kind = random >> 63;
        code = load(&out, *kind ? 4 : 1, (random >> 20) % 4 << 20);
        *module = code ? 0 : out;
        break;
    case 2:
        if (*module)
            code = function(&got, *module, *kind, (random >> 40) % 3);
        break;
    default:
        code = CALL(cuDevicePrimaryCtxRetain, &out, 0);
        if (!code && CALL(cuDevicePrimaryCtxRelease_v2, 0))
            return "release";
    }
    return code == 0 ? NULL : code == 2 && out == UNTOUCHED && got == UNTOUCHED ? NULL : "a call";
}

static void *storm(void *given)
{
    struct storm *me = given;
    u64 block = 0, module = 0, random = me->seed * 0x9e3779b97f4a7c15ull + 1;
    int kind = 0;
    if (CALL(cuCtxSetCurrent, contexts[0]))
        me->wrong = "setup";
    for (u64 round = 0; round < me->rounds && !me->wrong; round++) {
        random = random * 6364136223846793005ull + 1;
        me->wrong = one(random, &block, &module, &kind);
    }
    if (block && CALL(cuMemFree_v2, block))
        me->wrong = "last free";
    if (module && unload(module, kind))
        me->wrong = "last unload";
    return NULL;
}

static void storms(u64 seed, u64 threads, u64 rounds)
{
    pthread_t running[64];
    struct storm given[64];
    const char *wrong = "0";
    for (u64 i = 0; i < threads && i < 64; i++) {
        given[i] = (struct storm){seed + i, rounds, NULL};
        pthread_create(&running[i], NULL, storm, &given[i]);
    }
    for (u64 i = 0; i < threads && i < 64; i++) {
        pthread_join(running[i], NULL);
        if (given[i].wrong)
            wrong = given[i].wrong;
    }
    printf("%s\n", wrong);
}

enum { HELD_MAX = 64 };
struct hold {
    u64 seed, modules, held[HELD_MAX], failed;
    int kinds[HELD_MAX];
};
static struct hold holds[16];

static void *hold(void *given)
{
    struct hold *me = given;
    u64 random = me->seed * 0x9e3779b97f4a7c15ull + 1, got;
    me->failed = CALL(cuCtxSetCurrent, contexts[0]) ? 1 : 0;
    for (u64 i = 0; i < me->modules; i++) {
        random = random * 6364136223846793005ull + 1;
        u64 way = (random >> 33) % 6 + 1, bytes = (random >> 40) % 64 << 16;
        me->kinds[i] = is_way_of_library(way);
        if (load(&me->held[i], (int)way, bytes) || function(&got, me->held[i], me->kinds[i], i))
            me->failed++;
    }
    return NULL;
}

static u64 hold_all(u64 seed, u64 threads, u64 modules)
{
    pthread_t running[16];
    u64 failed = 0;
    for (u64 i = 0; i < threads && i < 16; i++) {
        holds[i] = (struct hold){.seed = seed + i, .modules = modules < HELD_MAX ? modules : HELD_MAX};
        if (pthread_create(&running[i], NULL, hold, &holds[i]))
            exit(1);
    }
    for (u64 i = 0; i < threads && i < 16; i++) {
        pthread_join(running[i], NULL);
        failed += holds[i].failed;
    }
    return failed;
}

static u64 let_all(void)
{
    u64 failed = 0;
    for (u64 i = 0; i < 16; i++) {
        for (u64 at = 0; at < holds[i].modules; at++)
            failed += unload(holds[i].held[at], holds[i].kinds[at]) != 0;
        holds[i].modules = 0;
    }
    return failed;
}

static void *release(void *code)
{
    *(int *)code = CALL(cuDevicePrimaryCtxRelease, 0);
    return NULL;
}

static int beside(u64 bytes)
{
    u64 address = 0;
    int released = 1;
    pthread_t other;
    if (pthread_create(&other, NULL, release, &released))
        exit(1);
    usleep(300000);
    int code = CALL(cuMemAlloc_v2, &address, (size_t)bytes);
    pthread_join(other, NULL);
    return released ? -released : code;
}

static volatile int is_pressed;
static u64 pressed;

static void *retains(void *failed)
{
    void *context;
    while (is_pressed)
        if (CALL(cuDevicePrimaryCtxRetain, &context, 0) == 0)
            *(u64 *)failed += CALL(cuDevicePrimaryCtxRelease_v2, 0) != 0;
    return NULL;
}

static void *asks_too_much(void *failed)
{
    u64 address;
    *(u64 *)failed += CALL(cuCtxSetCurrent, pressed) != 0;
    while (is_pressed)
        *(u64 *)failed += CALL(cuMemAlloc_v2, &address, (size_t)1 << 40) != 2;
    return NULL;
}

static void *fills(void *failed)
{
    u64 addresses[400];
    *(u64 *)failed += CALL(cuCtxSetCurrent, pressed) != 0;
    while (is_pressed) {
        int count = 0;
        while (count < 400 && CALL(cuMemAlloc_v2, &addresses[count], (size_t)8 << 20) == 0)
            count++;
        while (count > 0)
            *(u64 *)failed += CALL(cuMemFree_v2, addresses[--count]) != 0;
    }
    return NULL;
}

static u64 press(u64 slot, u64 millis)
{
    void *(*const works[])(void *) = { retains, retains, asks_too_much, asks_too_much, fills, fills };
    pthread_t threads[6];
    u64 failed[6] = { 0 }, sum = 0;
    pressed = contexts[slot];
    is_pressed = 1;
    for (int i = 0; i < 6; i++)
        if (pthread_create(&threads[i], NULL, works[i], &failed[i]))
            exit(1);
    usleep(millis * 1000);
    is_pressed = 0;
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        sum += failed[i];
    }
    return sum;
}

/* As Docker's profile does on kernels before 4.8. */
static int forbid(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* What the driver and this program need of the heap lies ready. */
static int narrow(void)
{
    struct rlimit limit;
    void *ready[256];
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    for (int i = 0; i < 256; i++)
        memset(ready[i] = malloc(16 << 10), 1, 16 << 10);
    for (int i = 0; i < 256; i++)
        free(ready[i]);
    if (getrlimit(RLIMIT_AS, &limit))
        return -1;
    limit.rlim_cur = 1;
    return setrlimit(RLIMIT_AS, &limit);
}

int main(void)
{
    char line[256], word[32];
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || CALL(cuInit, 0u)) {
        printf("no driver\n");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        u64 a = 0, b = 0, c = 0, out = UNTOUCHED;
        if (sscanf(line, "%31s %lu %lu %lu", word, &a, &b, &c) < 1)
            continue;
        if (!strcmp(word, "retain")) {
            int code = CALL(cuDevicePrimaryCtxRetain, &out, (int)a);
            if (!code)
                CALL(cuCtxSetCurrent, contexts[0] = out);
            answer(code, out);
        } else if (!strcmp(word, "inner")) {
            int code = ((int (*)(u64 *, int))inner(2))(&out, (int)a);
            code = code ? code : CALL(cuCtxSetCurrent, contexts[0] = out);
            answer(code, out);
        } else if (!strcmp(word, "innerrelease")) {
            answer(((int (*)(int))inner(5))((int)a), out);
        } else if (!strcmp(word, "innerreset")) {
            answer(((int (*)(int))inner(6))((int)a), out);
        } else if (!strcmp(word, "release")) {
            answer(CALL(cuDevicePrimaryCtxRelease_v2, (int)a), out);
        } else if (!strcmp(word, "reset")) {
            answer(CALL(cuDevicePrimaryCtxReset_v2, (int)a), out);
        } else if (!strcmp(word, "create")) {
            int code = create(&out, (int)b, (int)c);
            if (!code)
                contexts[a] = out;
            answer(code, out);
        } else if (!strcmp(word, "destroy")) {
            answer(CALL(cuCtxDestroy_v2, contexts[a]), out);
        } else if (!strcmp(word, "green")) {
            int code = green(&out, (int)b);
            if (!code)
                greens[a] = out;
            answer(code, out);
        } else if (!strcmp(word, "wither")) {
            answer(CALL(cuGreenCtxDestroy, greens[a]), out);
        } else if (!strcmp(word, "cross")) {
            printf("%d\n", cross(a, b, c));
        } else if (!strcmp(word, "churn")) {
            printf("%lu\n", churns(a, b));
        } else if (!strcmp(word, "beside")) {
            printf("%d\n", beside(a));
        } else if (!strcmp(word, "press")) {
            printf("%lu\n", press(a, b));
        } else if (!strcmp(word, "current")) {
            answer(CALL(cuCtxSetCurrent, contexts[a]), out);
        } else if (!strcmp(word, "load")) {
            int code = load(&out, (int)b, c);
            if (!code) {
                modules[a] = out;
                is_library[a] = is_way_of_library(b);
            }
            answer(code, out);
        } else if (!strcmp(word, "function")) {
            int code = function(&out, modules[a], is_library[a], b);
            got[a] = code ? got[a] : out;
            answer(code, out);
        } else if (!strcmp(word, "kernels")) {
            int code = load_kernels(&out, (int)b, c);
            if (!code) {
                modules[a] = out;
                is_library[a] = is_way_of_library(b);
            }
            answer(code, out);
        } else if (!strcmp(word, "locals")) {
            int code = load_locals(&out, (int)b, c);
            if (!code) {
                modules[a] = out;
                is_library[a] = is_way_of_library(b);
            }
            answer(code, out);
        } else if (!strcmp(word, "others")) {
            int code = load_others(&out, (int)b);
            if (!code) {
                modules[a] = out;
                is_library[a] = is_way_of_library(b);
            }
            answer(code, out);
        } else if (!strcmp(word, "other")) {
            answer(named(&out, modules[a], b), out);
        } else if (!strcmp(word, "atonce")) {
            printf("%lu\n", functions_at_once(a));
        } else if (!strcmp(word, "ready")) {
            answer(CALL(cuKernelGetFunction, &out, got[a]), out);
        } else if (!strcmp(word, "list")) {
            int count = 0, code = list(&out, modules[a], is_library[a], (unsigned)b, &count);
            got[a] = code ? got[a] : out;
            printf("%d %d\n", code, count);
        } else if (!strcmp(word, "launch")) {
            answer(CALL(cuLaunchKernel, got[a], 1u, 1u, 1u, 32u, 1u, 1u, 0u, streams[b], NULL, NULL), out);
        } else if (!strcmp(word, "stream")) {
            int code = CALL(cuStreamCreate, &out, 0u);
            streams[a] = code ? streams[a] : out;
            answer(code, out);
        } else if (!strcmp(word, "unload")) {
            answer(unload(modules[a], is_library[a]), out);
        } else if (!strcmp(word, "limit")) {
            answer(CALL(cuCtxSetLimit, (unsigned)a, (size_t)b), out);
        } else if (!strcmp(word, "limitis")) {
            size_t value = 0;
            int code = CALL(cuCtxGetLimit, &value, (unsigned)a);
            printf("%d %zu\n", code, value);
        } else if (!strcmp(word, "alloc")) {
            answer(CALL(cuMemAlloc_v2, &out, (size_t)a), out);
        } else if (!strcmp(word, "info")) {
            size_t left = 0, total = 0;
            int code = CALL(cuMemGetInfo_v2, &left, &total);
            printf("%d %zu\n", code, left);
        } else if (!strcmp(word, "forbid")) {
            printf("%d\n", forbid());
        } else if (!strcmp(word, "narrow")) {
            printf("%d\n", narrow());
        } else if (!strcmp(word, "hold")) {
            printf("%lu\n", hold_all(a, b, c));
        } else if (!strcmp(word, "let")) {
            printf("%lu\n", let_all());
        } else if (!strcmp(word, "storm")) {
            storms(a, b, c);
        } else {
            printf("what is %s\n", word);
            return 1;
        }
    }
    return 0;
}
