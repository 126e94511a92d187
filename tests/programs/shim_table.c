/*
 * What both versions of cuGetProcAddress answer for every symbol of a facts table, every version and flags 0 to 3.
 * Arguments: the facts table, a file with versions, one a line and rising. Without the file: each export, and the library that has
 * the function which dlsym gives for it.
 * A line for each stretch of versions with the same answer: symbol flags first-last answer export | answer status export.
 * An export is told by its address: the one that dlsym gives for its name on the same handle.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int First(const char *, void **, int, unsigned long long);
typedef int Second(const char *, void **, int, unsigned long long, int *);

static struct export { void *address; char name[96]; } exports[1024];
static int exports_count, versions[8192], versions_count;
static char symbols[1024][96];
static int symbols_count;

static int by_address(const void *a, const void *b) {
    const struct export *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

static const char *name_of(void *address) {
    struct export key = { address, "" };
    struct export *found = address ? bsearch(&key, exports, exports_count, sizeof key, by_address) : NULL;
    return !address ? "-" : found ? found->name : "?";
}

static void read_table(void *driver, const char *path) {
    char line[256], export[96];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (line[0] == '#') continue;
        if (sscanf(line, "%95s %*s %*s %95s", symbols[symbols_count], export) != 2) exit(2);
        if (!symbols_count || strcmp(symbols[symbols_count], symbols[symbols_count - 1])) symbols_count++;
        void *address = dlsym(driver, export);
        if (!address) { printf("missing %s\n", export); continue; }
        exports[exports_count].address = address;
        strcpy(exports[exports_count++].name, export);
    }
    qsort(exports, exports_count, sizeof *exports, by_address);
    for (int n = 1; n < exports_count; n++)
        if (exports[n].address == exports[n - 1].address) { printf("one address: %s %s\n", exports[n].name, exports[n - 1].name); exit(2); }
}

static void tell_libraries(void) {
    for (int n = 0; n < exports_count; n++) {
        Dl_info info = { 0 };
        dladdr(exports[n].address, &info);
        const char *path = info.dli_fname ? info.dli_fname : "?", *name = strrchr(path, '/');
        printf("%s %s\n", exports[n].name, name ? name + 1 : path);
    }
}

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (argc < 2 || !driver) return 64;
    read_table(driver, argv[1]);
    if (argc < 3) {
        tell_libraries();
        return 0;
    }
    FILE *file = fopen(argv[2], "r");
    while (file && versions_count < 8192 && fscanf(file, "%d", &versions[versions_count]) == 1) versions_count++;
    First *first = (First *)dlsym(driver, "cuGetProcAddress");
    Second *second = (Second *)dlsym(driver, "cuGetProcAddress_v2");
    strcpy(symbols[symbols_count++], "cuNoSuchFunction");
    strcpy(symbols[symbols_count++], "cuMemAlloc_v2");
    strcpy(symbols[symbols_count++], "cuMemAlloc_ptsz");
    strcpy(symbols[symbols_count++], "");
    for (int s = 0; s < symbols_count; s++)
        for (int flags = 0; flags < 4; flags++) {
            char last[256] = "", now[256];
            int from = 0, before = 0;
            for (int v = 0; v < versions_count; v++) {
                void *one = (void *)1, *two = (void *)1;
                int status = -1, a = first(symbols[s], &one, versions[v], flags);
                int b = second(symbols[s], &two, versions[v], flags, &status);
                snprintf(now, sizeof now, "%d %s | %d %d %s", a, one == (void *)1 ? "untouched" : name_of(one), b, status,
                         two == (void *)1 ? "untouched" : name_of(two));
                if (strcmp(now, last)) {
                    if (v) printf("%s %d %d-%d %s\n", symbols[s], flags, from, before, last);
                    strcpy(last, now);
                    from = versions[v];
                }
                before = versions[v];
            }
            printf("%s %d %d-%d %s\n", symbols[s], flags, from, before, last);
        }
    return 0;
}
