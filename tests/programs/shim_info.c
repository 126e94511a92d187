/* Prints what the driver says about memory, by one of the ways to reach it: linked (argument "linked" needs linking),
   opened, default, next, versioned, address, address2. One line: free total device-total. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Init)(unsigned);
typedef int (*Retain)(void **, int);
typedef int (*Current)(void *);
typedef int (*Info)(size_t *, size_t *);
typedef int (*Total)(size_t *, int);
typedef int (*Address)(const char *, void **, int, unsigned long long);
typedef int (*Address2)(const char *, void **, int, unsigned long long, int *);

static void *library;
static const char *way;

static void *get(const char *symbol, const char *export)
{
    void *found = NULL;
    int status = -1;
    if (!strcmp(way, "default"))
        return dlsym(RTLD_DEFAULT, export);
    if (!strcmp(way, "next"))
        return dlsym(RTLD_NEXT, export);
    if (!strcmp(way, "address")) {
        Address address = (Address)dlsym(library, "cuGetProcAddress");
        return address(symbol, &found, 13000, 0) ? NULL : found;
    }
    if (!strcmp(way, "address2")) {
        Address2 address = (Address2)dlsym(library, "cuGetProcAddress_v2");
        return address(symbol, &found, 13000, 0, &status) ? NULL : found;
    }
    return dlsym(library, export);
}

int main(int count, char **arguments)
{
    size_t free_bytes = 0, total = 0, device_total = 0;
    void *context = NULL;
    way = count > 1 ? arguments[1] : "opened";
    int flags = RTLD_NOW | (!strcmp(way, "default") || !strcmp(way, "next") ? RTLD_GLOBAL : 0);
    if (!strcmp(way, "deepbind"))
        flags |= RTLD_DEEPBIND;
    library = dlopen("libcuda.so.1", flags);
    if (!library) {
        printf("no library: %s\n", dlerror());
        return 1;
    }
    Init init = (Init)get("cuInit", "cuInit");
    Retain retain = (Retain)get("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
    Current current = (Current)get("cuCtxSetCurrent", "cuCtxSetCurrent");
    Info info = (Info)get("cuMemGetInfo", "cuMemGetInfo_v2");
    Total of_device = (Total)get("cuDeviceTotalMem", "cuDeviceTotalMem_v2");
    if (!init || !retain || !current || !info || !of_device) {
        printf("a function is missing\n");
        return 1;
    }
    if (init(0) || retain(&context, 0) || current(context) || info(&free_bytes, &total) || of_device(&device_total, 0)) {
        printf("a call failed\n");
        return 1;
    }
    printf("%zu %zu %zu\n", free_bytes, total, device_total);
    return 0;
}
