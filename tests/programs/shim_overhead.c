/* Contexts and modules under a limit. Commands come on standard input, one a line; each is answered by its code, and
   "touched" behind it where an out-parameter changed although the call failed.

     retain <device>, release <device>, reset <device>
     inner <device>                        the primary context as runtime libraries get it, past every function with a name
     create <slot> <device> <version>      cuCtxCreate, _v2, _v3, _v4: it becomes current
     destroy <slot>
     current <slot>                        cuCtxSetCurrent; slot 0 is the primary context last retained
     load <slot> <way>                     cuModuleLoadData, cuModuleLoadDataEx, cuModuleLoadFatBinary, cuLibraryLoadData
     function <slot> <number>              cuModuleGetFunction or cuLibraryGetKernel
     unload <slot>
     limit <number> <value>                cuCtxSetLimit
     alloc <bytes>                         cuMemAlloc, never freed
     info
     storm <seed> <threads> <rounds>       threads that retain and release, load and unload, allocate and free */
#include "opened.h"

static u64 contexts[16], modules[64];
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

static int load(u64 *module, int way)
{
    switch (way) {
    case 1: return CALL(cuModuleLoadData, module, "image");
    case 2: return CALL(cuModuleLoadDataEx, module, "image", 0u, NULL, NULL);
    case 3: return CALL(cuModuleLoadFatBinary, module, "image");
    default: return CALL(cuLibraryLoadData, module, "image", NULL, NULL, 0u, NULL, NULL, 0u);
    }
}

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
        code = load(&out, *kind ? 4 : 1);
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
            void **table = NULL;
            int code = CALL(cuGetExportTable, &table, "aliquot-sim-ctx\1");
            code = code ? code : ((int (*)(u64 *, int))table[2])(&out, (int)a);
            code = code ? code : CALL(cuCtxSetCurrent, contexts[0] = out);
            answer(code, out);
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
        } else if (!strcmp(word, "current")) {
            answer(CALL(cuCtxSetCurrent, contexts[a]), out);
        } else if (!strcmp(word, "load")) {
            int code = load(&out, (int)b);
            if (!code) {
                modules[a] = out;
                is_library[a] = b == 4;
            }
            answer(code, out);
        } else if (!strcmp(word, "function")) {
            answer(function(&out, modules[a], is_library[a], b), out);
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
        } else if (!strcmp(word, "storm")) {
            storms(a, b, c);
        } else {
            printf("what is %s\n", word);
            return 1;
        }
    }
    return 0;
}
