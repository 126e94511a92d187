/* The vendor's driver as the probe opens it: by name, as programs do. */
#ifndef PROBE_DRIVER_H
#define PROBE_DRIVER_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long Pointer;

/* What the driver cannot do here, and the shim is not to blame for: exit code 3, with the reason. */
#define ASIDE(...)                                                    \
    do {                                                              \
        printf("reason " __VA_ARGS__);                                \
        printf("\n");                                                 \
        exit(3);                                                      \
    } while (0)

/* Calls a driver function by its export, with the argument types given. */
#define CALL(name, types, ...) (((int (*) types)symbol(name)) (__VA_ARGS__))
#define MUST(name, types, ...)                                        \
    do {                                                              \
        int code = CALL(name, types, __VA_ARGS__);                    \
        if (code)                                                     \
            failed(name, code);                                       \
    } while (0)

extern void *driver;
extern int device;

/* A function of the driver; stands aside where it has none of that name. */
void *symbol(const char *name);
/* What the vendor calls a code. */
const char *named(int code);
/* Says what was answered, and ends with 1. */
void failed(const char *name, int code);
/* Opens the driver and its first card. */
void begin(void);
/* The same, with its primary context current. */
void enter(void);
/* Monotonic nanoseconds. */
long long now(void);
void say(const char *key, unsigned long long number);
/* Ready, and on when the input ends: several processes begin at once. */
void gate(void);
/* As grants and NVML name the card; whether it is a part of one in MIG mode. */
int card_uuid(char *into);

void facts(void);
void report(void);
void watch(const char *uuid);
void fill(const char *family, size_t chunk, int count);
void calibrate(double nanos, unsigned blocks, unsigned threads);
void spin(char **words);
void costs(int count);
/* A module from PTX text without its head, for the oldest card for which this driver compiles; 0 or the last answer. */
int module_of(const char *body, void **into);
/* Prints a text with each of its heads, and `// end` behind each. */
void print_texts(const char *body);
void texts_of_work(void);
void texts_of_memory(void);

#endif
