/*
 * The memory that card 0 has, asked by the way that the first argument names; one line: the bytes, or what was wrong.
 * Other arguments: handles, errors, order FILE.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int Total(size_t *, int);
typedef int Init(unsigned);

static const char *const TOTAL = "cuDeviceTotalMem_v2";
static const char *way = "";
static size_t early;

static size_t total(void *function) {
    size_t bytes = 7;
    int code = function ? ((Total *)function)(&bytes, 0) : -1;
    return code ? (size_t)-code : bytes;
}

static void *opened(int flags) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | flags);
    Init *init = driver ? (Init *)dlsym(driver, "cuInit") : NULL;
    if (!driver || (init && init(0))) { printf("no driver\n"); exit(1); }
    return driver;
}

/* Everything below may happen before main, in a thread's last moments, and inside of malloc. */
static void *ask(void) { return dlsym(opened(0), TOTAL); }

__attribute__((constructor)) static void construct(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "constructor")) early = total(ask());
}

static void at_exit_of_thread(void *unused) { (void)unused; early = total(ask()); }

static void *thread(void *unused) {
    pthread_key_t key;
    pthread_key_create(&key, at_exit_of_thread);
    pthread_setspecific(key, &early);
    return unused;
}

#ifdef OVERRIDES
/* A program that keeps its own heap and asks for the next one, and one that wraps the walk over libraries. */
static char heap[64 << 20];
static size_t used;
static int looking;
void *malloc(size_t bytes) {
    static void *next;
    if (!next && !looking) { looking = 1; next = dlsym(RTLD_NEXT, "malloc"); looking = 0; }
    void *place = heap + used;
    *(size_t *)place = bytes;
    used += (bytes + 31) & ~(size_t)15;
    return used > sizeof heap ? NULL : (char *)place + 16;
}
void *calloc(size_t count, size_t bytes) { return malloc(count * bytes); }
void free(void *place) { (void)place; }
void *realloc(void *place, size_t bytes) {
    void *other = malloc(bytes);
    size_t had = place ? *(size_t *)((char *)place - 16) : 0;
    return place && other ? memcpy(other, place, had < bytes ? had : bytes) : other;
}
int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data) {
    static int (*next)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
    if (!next) next = (int (*)(int (*)(struct dl_phdr_info *, size_t, void *), void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return next(callback, data);
}
#endif

/* What dlerror and errno say, and answers that a shim has no part in. */
static void errors(void) {
    void *driver = opened(0), *table = &early;
    unsigned char id[16] = {1};
    const char *const names[] = {"cuNoSuchFunction", "nvmlNoSuchFunction", "no_such_function", "cuDeviceTotalMem_v2"};
    for (int n = 0; n < 4; n++) {
        errno = 77;
        void *found = dlsym(n == 2 ? RTLD_DEFAULT : driver, names[n]);
        int number = errno;
        const char *said = dlerror();
        printf("%s %s %d %s\n", names[n], found ? "found" : "null", number, said ? strrchr(said, '/') ? strrchr(said, '/') : said : "-");
    }
    /* A failure stays to be told while a function is called for the first time. */
    dlopen("libno-such-library.so", RTLD_NOW);
    void *function = NULL;
    int (*address)(const char *, void **, int, unsigned long long) =
        (int (*)(const char *, void **, int, unsigned long long))dlsym(driver, "cuGetProcAddress");
    dlopen("libno-such-library.so", RTLD_NOW);
    errno = 77;
    int code = address("cuDeviceTotalMem", &function, 13000, 0);
    if (total(function) == 0) printf("no bytes\n");
    printf("address %d %d %s\n", code, errno, dlerror());
    int (*export)(const void **, const void *) = (int (*)(const void **, const void *))dlsym(driver, "cuGetExportTable");
    code = export((const void **)&table, id);
    printf("table %d %s\n", code, table ? "given" : "null");
}

int main(int argc, char **argv) {
    void *function = NULL;
    way = argc > 1 ? argv[1] : "opened";
    if (!strcmp(way, "errors")) return errors(), 0;
    if (!strcmp(way, "opened")) function = ask();
    else if (!strcmp(way, "deepbind")) function = dlsym(opened(RTLD_DEEPBIND), TOTAL);
    else if (!strcmp(way, "default")) opened(RTLD_GLOBAL), function = dlsym(RTLD_DEFAULT, TOTAL);
    else if (!strcmp(way, "default-local")) opened(RTLD_LOCAL), function = dlsym(RTLD_DEFAULT, TOTAL);
    else if (!strcmp(way, "next")) opened(RTLD_GLOBAL), function = dlsym(RTLD_NEXT, TOTAL);
    else if (!strcmp(way, "next-local")) opened(RTLD_LOCAL), function = dlsym(RTLD_NEXT, TOTAL);
    else if (!strcmp(way, "nothing")) function = dlsym(RTLD_DEFAULT, TOTAL);
    else if (!strcmp(way, "program")) opened(RTLD_GLOBAL), function = dlsym(dlopen(NULL, RTLD_NOW), TOTAL);
    else if (!strcmp(way, "versioned")) function = dlvsym(opened(0), TOTAL, argv[2]);
    else if (!strcmp(way, "namespace")) {
        void *driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        Init *init = driver ? (Init *)dlsym(driver, "cuInit") : NULL;
        if (!init || init(0)) return puts("no driver"), 1;
        function = dlsym(driver, TOTAL);
    } else if (!strcmp(way, "c-library")) {
        /* Before 2.34 that is where it keeps it. */
        void *library = dlopen("libdl.so.2", RTLD_NOW), *newer = dlopen("libc.so.6", RTLD_NOW);
        void *(*look)(void *, const char *) = (void *(*)(void *, const char *))dlsym(newer, "dlsym");
        if (!look) look = (void *(*)(void *, const char *))dlsym(library, "dlsym");
        function = look(opened(0), TOTAL);
    } else if (!strcmp(way, "own")) {
        opened(RTLD_GLOBAL);
        void *own = dlopen(argv[2], RTLD_NOW);
        if (!own) return puts(dlerror()), 1;
        function = dlsym(own, TOTAL);
    } else if (!strcmp(way, "late") || !strcmp(way, "late-next")) {
        void *own = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        if (!own) return puts(dlerror()), 1;
        opened(RTLD_LOCAL);
        function = ((void *(*)(int))dlsym(own, "look"))(way[4] != 0);
    } else if (!strcmp(way, "unknown")) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        int (*call)(void) = (int (*)(void))dlsym(driver, "cuNotYetInvented");
        printf("%d\n", call ? call() : -1);
        return 0;
    } else if (!strcmp(way, "unknown-address")) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        int (*one)(void) = NULL, (*two)(void) = NULL, status = 7;
        int code = ((int (*)(const char *, void *, int, unsigned long long))dlsym(driver, "cuGetProcAddress"))("cuNotYetInvented", &one, 13000, 0);
        code |= ((int (*)(const char *, void *, int, unsigned long long, int *))dlsym(driver, "cuGetProcAddress_v2"))("cuNotYetInvented", &two, 13000, 0, &status);
        printf("%d %d %d %d\n", code, status, one ? one() : -1, two ? two() : -1);
        return 0;
    } else if (!strcmp(way, "plugin")) {
        /* Loaded with the driver, unloaded, and loaded again elsewhere. */
        for (int time = 0; time < 2; time++) {
            void *plugin = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
            size_t (*asks)(void) = plugin ? (size_t (*)(void))dlsym(plugin, "ask_the_driver") : NULL;
            if (!asks) return puts("no plugin"), 1;
            early = asks();
            struct link_map *map = NULL;
            dlinfo(plugin, RTLD_DI_LINKMAP, &map);
            while (map && !strstr(map->l_name, "libcuda.so")) map = map->l_next;
            void *base = map ? (void *)map->l_addr : NULL;
            dlclose(plugin);
            mmap(base, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        }
    } else if (!strcmp(way, "twice")) {
        /* Unloaded and loaded again: what was remembered must still be there. */
        void *driver = opened(0);
        if (total(dlsym(driver, TOTAL)) == 7) return 1;
        dlclose(driver);
        function = ask();
    } else if (!strcmp(way, "exits")) {
        pthread_t other;
        if (pthread_create(&other, NULL, thread, NULL) || pthread_join(other, NULL)) return 1;
    }
    if (early) return printf("%zu\n", early), 0;
    if (!function) return printf("null %s\n", dlerror() ? "told" : "silent"), 0;
    const char *said = dlerror();
    if (said) printf("found, and yet %s\n", said);
    printf("%zu\n", total(function));
    int *asked = dlsym(RTLD_DEFAULT, "interposer_asked"), *passed = dlsym(RTLD_DEFAULT, "passed");
    if (asked && !*asked) puts("the interposer was passed by");
    if (passed) printf("passed on %d\n", *passed);
    return 0;
}
