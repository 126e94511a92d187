/* For programs that open the driver and call it by name: a function that is lacking ends the program, and says which. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
#define CALL(name, ...) ((int (*)())sym(#name))(__VA_ARGS__)
/* What stands in an out-parameter before a call. */
#define UNTOUCHED 0xfeedfacecafebeefull

static void *library;

static void *sym(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        printf("no %s\n", name);
        exit(1);
    }
    return found;
}
