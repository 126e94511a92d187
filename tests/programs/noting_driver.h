/* A driver with functions that note their calls, and do next to nothing. A test writes the list of them behind this. */
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
enum { ARGUMENTS = 13, ANSWER = 901 };

static const char *expected = "";
static unsigned calls;
static u64 noted[ARGUMENTS];

/* From now on calls of this function are noted; each answers ANSWER. */
void note_calls_of(const char *name) { expected = name, calls = 0; }
/* How often it was called, and with what the first time. */
unsigned noted_calls(u64 *arguments) { return memcpy(arguments, noted, sizeof noted), calls; }

static int called(const char *name, const u64 *arguments)
{
    if (!strcmp(name, expected)) {
        if (!calls++)
            memcpy(noted, arguments, sizeof noted);
        return ANSWER;
    }
    /* What a library that stands before this one wants to know. */
    if (!strcmp(name, "cuCtxGetDevice"))
        *(int *)arguments[0] = 0;
    if (!strcmp(name, "cuCtxGetCurrent") || !strcmp(name, "cuDeviceGetMemPool"))
        *(u64 *)arguments[0] = 0xc0de;
    if (!strcmp(name, "cuDriverGetVersion"))
        *(int *)arguments[0] = 13050;
    if (!strncmp(name, "cuDeviceGetUuid", 15))
        for (int at = 0; at < 16; at++)
            ((unsigned char *)arguments[0])[at] = (unsigned char)at;
    return 0;
}

#define NOTED(name) \
    int name(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, u64 i, u64 j, u64 k, u64 l, u64 m) \
    { \
        u64 arguments[ARGUMENTS] = {a, b, c, d, e, f, g, h, i, j, k, l, m}; \
        return called(#name, arguments); \
    }
