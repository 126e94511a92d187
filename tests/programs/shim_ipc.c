/* Memory that one process makes and others open. Commands come on standard input, one a line; each is answered by its code.
   Slots of allocations and of what is opened are numbers.

     alloc <made> <bytes>, free <made>, order <made>   the last: cuMemFreeAsync
     export <made>                                     answers the handle behind the code, as hexadecimal digits
     crowd <count> <bytes>                             so many allocations, all of them lent
     member <number>, part <number>                    the handle of one of them; it is freed
     open <opened> <handle>, close <opened>
     together <opened> <handle>                        eight threads open it at once; all but one close it
     same <opened> <opened>                            0: the same address
     write <made> <number>, read <opened> <number>     0: that is what stands there
     reset                                             the primary context ends, and begins anew
     context, leave                                    a context of its own becomes the current one; it ends, and the primary is
     info                                              cuMemGetInfo: free
     lose <offset>                                     the word there of a file is gone at the next query for its locks; 0: no more

   With an argument the primary context is had as runtime libraries have it, past every function with a name; with "stalled" in
   the usual way, while another thread of the process is stalled while it reaps. */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef uint64_t Pointer;
typedef struct { unsigned char bytes[64]; } Handle;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuDevicePrimaryCtxReset_v2(int);
extern int cuGetExportTable(const void **, const char *);
extern int cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *);
extern int cuMemAlloc_v2(Pointer *, size_t), cuMemFree_v2(Pointer), cuMemFreeAsync(Pointer, void *);
extern int cuMemGetInfo_v2(size_t *, size_t *), cuMemcpyDtoH_v2(void *, Pointer, size_t), cuMemcpyHtoD_v2(Pointer, const void *, size_t);
extern int cuIpcGetMemHandle(Handle *, Pointer), cuIpcOpenMemHandle_v2(Pointer *, Handle, unsigned), cuIpcCloseMemHandle(Pointer);

enum { MANY = 2048 };
static Pointer made[16], opened[16], many[MANY];
static Handle handles[MANY];
static void *context, *own;
static const char *many_digits;

static int open_handle(Pointer *address, const char *digits)
{
    Handle handle;
    for (int at = 0; at < 64; at++) {
        unsigned byte = 0;
        if (sscanf(digits + 2 * at, "%2x", &byte) != 1)
            return -1;
        handle.bytes[at] = byte;
    }
    return cuIpcOpenMemHandle_v2(address, handle, 1);
}

/* Replaces the C library's for all callers, the shim among them. */
static long lost_at;
static pthread_barrier_t stall;
static __thread int is_stalled_here;

int fcntl(int file, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    uint64_t nothing = 0;
    if (command == F_GETLK && is_stalled_here) {
        pthread_barrier_wait(&stall);
        pthread_barrier_wait(&stall);
        is_stalled_here = 0;
    }
    if (lost_at && command == F_GETLK && pwrite(file, &nothing, sizeof nothing, lost_at) != sizeof nothing)
        abort();
    return (int)syscall(SYS_fcntl, file, command, argument);
}

extern int cuDeviceTotalMem_v2(size_t *, int);

/* Reaps, and is stalled at it. */
static void *look(void *unused)
{
    size_t total = 0;
    is_stalled_here = 1;
    cuDeviceTotalMem_v2(&total, 0);
    return unused;
}

static int inner(void);

/* The context, past every function with a name; or while another thread is stalled while it reaps. */
static int begin(const char *how)
{
    pthread_t thread;
    if (!how)
        return cuDevicePrimaryCtxRetain(&context, 0);
    if (strcmp(how, "stalled"))
        return inner();
    pthread_barrier_init(&stall, NULL, 2);
    pthread_create(&thread, NULL, look, NULL);
    pthread_barrier_wait(&stall);
    int code = cuDevicePrimaryCtxRetain(&context, 0);
    pthread_barrier_wait(&stall);
    pthread_join(thread, NULL);
    return code;
}

enum { TOGETHER = 8 };
static pthread_barrier_t gate;
static Pointer same_one[TOGETHER];

static void *open_with_others(void *which)
{
    uintptr_t at = (uintptr_t)which;
    intptr_t code = cuCtxSetCurrent(context);
    pthread_barrier_wait(&gate);
    code = code ? code : open_handle(&same_one[at], many_digits);
    pthread_barrier_wait(&gate);
    if (at && !code)
        code = cuIpcCloseMemHandle(same_one[at]);
    return (void *)code;
}

static int together(Pointer *address, const char *digits)
{
    pthread_t threads[TOGETHER];
    intptr_t code = 0;
    many_digits = digits;
    pthread_barrier_init(&gate, NULL, TOGETHER);
    for (uintptr_t at = 0; at < TOGETHER; at++)
        if (pthread_create(&threads[at], NULL, open_with_others, (void *)at))
            exit(3);
    for (int at = 0; at < TOGETHER; at++) {
        void *answer = NULL;
        pthread_join(threads[at], &answer);
        code = code ? code : (intptr_t)answer;
        code = code ? code : same_one[at] != same_one[0];
    }
    *address = same_one[0];
    return (int)code;
}

static int crowd(uint64_t count, uint64_t bytes)
{
    int code = 0;
    for (uint64_t at = 0; at < count && at < MANY && !code; at++) {
        code = cuMemAlloc_v2(&many[at], bytes);
        code = code ? code : cuIpcGetMemHandle(&handles[at], many[at]);
    }
    return code;
}

static void tell(int code, const Handle *handle)
{
    printf("%d ", code);
    for (int at = 0; at < 64 && !code; at++)
        printf("%02x", handle->bytes[at]);
    puts("");
}

static int reset(void)
{
    int code = cuDevicePrimaryCtxReset_v2(0);
    code = code ? code : cuDevicePrimaryCtxRetain(&context, 0);
    return code ? code : cuCtxSetCurrent(context);
}

static int inner(void)
{
    const void **table = NULL;
    int code = cuGetExportTable((const void **)&table, "aliquot-sim-ctx\1");
    return code ? code : ((int (*)(void **, int))table[2])(&context, 0);
}

static int leave(void)
{
    int code = cuCtxDestroy_v2(own);
    return code ? code : cuCtxSetCurrent(context);
}

static int one(const char *word, uint64_t a, const char *text)
{
    uint64_t number = strtoull(text, NULL, 10), found = 0;
    if (!strcmp(word, "alloc"))
        return cuMemAlloc_v2(&made[a], number);
    if (!strcmp(word, "free"))
        return cuMemFree_v2(made[a]);
    if (!strcmp(word, "order"))
        return cuMemFreeAsync(made[a], NULL);
    if (!strcmp(word, "open"))
        return open_handle(&opened[a], text);
    if (!strcmp(word, "together"))
        return together(&opened[a], text);
    if (!strcmp(word, "close"))
        return cuIpcCloseMemHandle(opened[a]);
    if (!strcmp(word, "same"))
        return opened[a] != opened[number];
    if (!strcmp(word, "write"))
        return cuMemcpyHtoD_v2(made[a], &number, sizeof number);
    if (!strcmp(word, "reset"))
        return reset();
    if (!strcmp(word, "context"))
        return cuCtxCreate_v2(&own, 0, 0);
    if (!strcmp(word, "leave"))
        return leave();
    if (strcmp(word, "read"))
        return -1;
    int code = cuMemcpyDtoH_v2(&found, opened[a], sizeof found);
    return code ? code : found != number;
}

int main(int count, char **words)
{
    char line[512], word[32], text[256];
    if (cuInit(0) || begin(count > 1 ? words[1] : NULL) || cuCtxSetCurrent(context)) {
        puts("no driver");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        uint64_t a = 0;
        size_t left = 0, total = 0;
        Handle handle;
        text[0] = 0;
        if (sscanf(line, "%31s %lu %255s", word, &a, text) < 1)
            continue;
        if (!strcmp(word, "info")) {
            int code = cuMemGetInfo_v2(&left, &total);
            printf("%d %zu\n", code, left);
        } else if (!strcmp(word, "lose")) {
            lost_at = (long)a;
            printf("0\n");
        } else if (!strcmp(word, "export")) {
            tell(cuIpcGetMemHandle(&handle, made[a & 15]), &handle);
        } else if (!strcmp(word, "crowd")) {
            printf("%d\n", crowd(a, strtoull(text, NULL, 10)));
        } else if (!strcmp(word, "member")) {
            tell(0, &handles[a % MANY]);
        } else if (!strcmp(word, "part")) {
            printf("%d\n", cuMemFree_v2(many[a % MANY]));
        } else {
            printf("%d\n", one(word, a & 15, text));
        }
    }
    return 0;
}
