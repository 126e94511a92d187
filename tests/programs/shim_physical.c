/* Physical memory and its holders, under a limit. Commands come on standard input, one a line; each is answered by its code.
   Slots of handles, ranges, descriptors and arrays are numbers.

     create <handle> <bytes> <types>       cuMemCreate; types 1: may be exported as a descriptor
     release <handle>
     same <handle> <handle>                0: the driver's values are equal
     map <range> <handle> <bytes>          cuMemAddressReserve and cuMemMap
     unmap <range>
     retain <handle> <range>
     export <descriptor> <handle>          answers the descriptor behind the code
     close <descriptor>
     import <handle> <descriptor>
     foreign <handle> <pid> <descriptor>   the same from another process's descriptor
     post <pid> <descriptor>               sends it to a process that runs this program, where it waits until
     fetch <descriptor>                    takes the first that came
     array <array>                         a sparse one
     put <array> <x> <handle>              cuMemMapArrayAsync: 64 × 64 elements from x on
     take <array> <x> <wide>               the same, unmapped
     destroy <array>
     team <handle> <bytes>                 cuMulticastCreate, and two cards added; its descriptor may be exported
     bind <team> <what> <way>              cuMulticastBindMem, its second form, cuMulticastBindAddr, its second form: what a handle
                                           or range has, at the way's own place; 4: two in a row by cuMulticastBindAddr
     beside <range> <handle> <handle>      cuMemMap of two of 8 MiB, one behind the other
     unbind <team> <way>
     endpoint <slot> <cards> <bytes>       cuLogicalEndpointCreate of the first card, or of two; asked until it is there
     tie <slot> <what> <way>               cuLogicalEndpointBindMem, cuLogicalEndpointBindAddr: what a handle or range has
     untie <slot> <way>, dissolve <slot>   cuLogicalEndpointUnbind, cuLogicalEndpointDestroy
     plain <range> <bytes>                 cuMemAlloc
     span <descriptor> <range> <bytes>     cuMemGetHandleForAddressRange
     elsewhere <descriptor> <bytes>        memory as another interface to the card makes it
     adopt <object> <descriptor> <bytes>   cuImportExternalMemory
     open <descriptor>                     0: it is
     buffer <range> <object> <bytes>       cuExternalMemoryGetMappedBuffer
     picture <array> <object>              cuExternalMemoryGetMappedMipmappedArray
     drop <object>                         cuDestroyExternalMemory
     free <range>, burn <array>            cuMemFree, cuMipmappedArrayDestroy
     later <range>                         cuMemFreeAsync, in the stream of put and take
     work <nanos>, query                   in the stream of put and take
     busy, calm                            another thread takes and frees memory from now on, no longer
     leave                                 cuDevicePrimaryCtxRelease, while another thread asks what is free in a context of its own
     end                                   cuDevicePrimaryCtxRelease
     past                                  the primary context as a runtime library gets it, instead of the retained one
     reset                                 ends it, as a runtime library does
     bare                                  no context is current any more
     here, there                           the first card's primary context is current, the second card's
     become <seconds>                      another program from now on, which sleeps
     watch                                 says "held" when this process next takes hold of IPC-shared memory
     slow <times>                          when the kernel has told this process so often that shared memory has no holder, or let
                                           it reap, it says "asked", and goes on after one more line
     pause                                 the same where it is about to pay for an exited process's export, or to take a slot
     shadow                                a child of the same memory for two seconds, without descriptors
     worker <way>                          forks a child, with its process ID behind the code; 1: the child execs another program;
                                           2: it closes all descriptors
     info                                  cuMemGetInfo: free */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "external.h"
#include "sparse.h"

typedef uint64_t u64;
typedef struct {
    unsigned kind, handle_types, location_type;
    int location;
    void *windows;
    unsigned char flags[8];
} Properties;
typedef struct {
    size_t width, height, depth;
    unsigned format, channels, flags;
} Deep;
typedef struct {
    unsigned long long offset;
    Deep deep;
    unsigned levels, reserved[16];
} Picture;
_Static_assert(sizeof(Picture) == 120, "CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC");

extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuDevicePrimaryCtxRelease_v2(int), cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *);
extern int cuMemGetInfo_v2(size_t *, size_t *);
extern int cuMemCreate(u64 *, size_t, const Properties *, u64), cuMemRelease(u64);
extern int cuMemAddressReserve(u64 *, size_t, size_t, u64, u64), cuMemAddressFree(u64, size_t);
extern int cuMemMap(u64, size_t, size_t, u64, u64), cuMemUnmap(u64, size_t);
extern int cuMemRetainAllocationHandle(u64 *, void *);
extern int cuMemExportToShareableHandle(void *, u64, unsigned, u64);
extern int cuMemImportFromShareableHandle(u64 *, void *, unsigned);
extern int cuArray3DCreate_v2(void **, const Deep *), cuArrayDestroy(void *), cuMipmappedArrayDestroy(void *);
extern int cuMulticastCreate(u64 *, const void *), cuMulticastAddDevice(u64, int);
extern int cuMulticastBindMem(u64, size_t, u64, size_t, size_t, u64), cuMulticastUnbind(u64, int, size_t, size_t);
extern int cuMulticastBindMem_v2(u64, int, size_t, u64, size_t, size_t, u64);
extern int cuMulticastBindAddr(u64, size_t, u64, size_t, u64);
extern int cuMulticastBindAddr_v2(u64, int, size_t, u64, size_t, u64);
extern int cuMemAlloc_v2(u64 *, size_t), cuMemGetHandleForAddressRange(void *, u64, size_t, unsigned, u64);
extern int cuMemFree_v2(u64), cuMemFreeAsync(u64, void *);
extern int cuExternalMemoryGetMappedMipmappedArray(void **, void *, const Picture *);
extern int cuStreamCreate(void **, unsigned), cuStreamQuery(void *);
extern int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

typedef struct {
    unsigned kind, cards;
    unsigned long long bytes;
    unsigned handle_types, flags;
} EndpointProperties;
extern int cuLogicalEndpointIdReserve(unsigned *, unsigned), cuLogicalEndpointIdRelease(unsigned, unsigned);
extern int cuLogicalEndpointCreate(unsigned, const EndpointProperties *), cuLogicalEndpointAddDevice(unsigned, int);
extern int cuLogicalEndpointQuery(unsigned, unsigned, int *), cuLogicalEndpointDestroy(unsigned);
extern int cuLogicalEndpointBindMem(unsigned, int, u64, u64, u64, u64, unsigned long long);
extern int cuLogicalEndpointBindAddr(unsigned, int, u64, void *, u64, unsigned long long);
extern int cuLogicalEndpointUnbind(unsigned, int, u64, u64);

static unsigned endpoints[16];
static u64 handles[16], ranges[16], sizes[16];
static int descriptors[16];
static void *arrays[16], *objects[16], *stream;

static int work(u64 nanos)
{
    char name[32];
    void *module = NULL, *function = NULL;
    snprintf(name, sizeof name, "k_%lu", nanos);
    int code = cuModuleLoadData(&module, "image");
    code = code ? code : cuModuleGetFunction(&function, module, name);
    return code ? code : cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static int foreign(u64 *handle, u64 pid, u64 descriptor)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lu/fd/%lu", pid, descriptor);
    int file = open(path, O_RDWR | O_CLOEXEC);
    int code = file < 0 ? -1 : cuMemImportFromShareableHandle(handle, (void *)(intptr_t)file, 1);
    close(file);
    return code;
}

/* Bytes of everything that is bound. */
enum { BOUND = 8 << 20 };

/* Where a process is sent descriptors. */
static socklen_t mailbox(struct sockaddr_un *name, u64 pid)
{
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "aliquot-shim-physical-%lu", pid);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int box = -1;

static int open_box(void)
{
    struct sockaddr_un name;
    box = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return box < 0 || bind(box, (struct sockaddr *)&name, mailbox(&name, (u64)getpid()));
}

union Control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static int post(u64 pid, int descriptor)
{
    struct sockaddr_un name;
    union Control control = {0};
    char byte = 1;
    struct iovec part = {&byte, 1};
    struct msghdr message = {&name, mailbox(&name, pid), &part, 1, &control, sizeof control, 0};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    return sendmsg(box, &message, MSG_DONTWAIT) == 1 ? 0 : -1;
}

static int fetch(int *descriptor)
{
    union Control control = {0};
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {NULL, 0, &part, 1, &control, sizeof control, 0};
    if (recvmsg(box, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message))
        return -1;
    memcpy(descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *descriptor);
    return 0;
}

static int team(u64 *object, u64 bytes)
{
    struct {
        unsigned devices;
        size_t bytes;
        u64 handle_types, flags;
    } two = {2, bytes, 1, 0};
    int code = cuMulticastCreate(object, &two);
    code = code ? code : cuMulticastAddDevice(*object, 0);
    return code ? code : cuMulticastAddDevice(*object, 1);
}

static int bind_in(u64 object, u64 what, u64 way)
{
    switch (way) {
    case 0: return cuMulticastBindMem(object, 0, handles[what], 0, BOUND, 0);
    case 1: return cuMulticastBindMem_v2(object, 0, BOUND, handles[what], 0, BOUND, 0);
    case 2: return cuMulticastBindAddr(object, 2 * BOUND, ranges[what], BOUND, 0);
    case 4: return cuMulticastBindAddr(object, 0, ranges[what], 2 * BOUND, 0);
    default: return cuMulticastBindAddr_v2(object, 0, 3 * BOUND, ranges[what], BOUND, 0);
    }
}

static int endpoint(unsigned *id, unsigned cards, u64 bytes)
{
    EndpointProperties one = { 1, 0, bytes, 0, 0 }, several = { 2, cards, bytes, 0, 0 };
    int ready = 0;
    int code = cuLogicalEndpointIdReserve(id, 1);
    code = code ? code : cuLogicalEndpointCreate(*id, cards == 1 ? &one : &several);
    for (unsigned card = 0; cards > 1 && card < cards; card++)
        code = code ? code : cuLogicalEndpointAddDevice(*id, (int)card);
    code = code ? code : cuLogicalEndpointQuery(*id, 1, &ready);
    return code ? code : !ready;
}

static int tie(unsigned id, u64 what, u64 way)
{
    return way ? cuLogicalEndpointBindAddr(id, 0, BOUND, (void *)(uintptr_t)ranges[what], BOUND, 0)
               : cuLogicalEndpointBindMem(id, 0, 0, handles[what], 0, BOUND, 0);
}

static int dissolve(unsigned id)
{
    int code = cuLogicalEndpointDestroy(id);
    return code ? code : cuLogicalEndpointIdRelease(id, 1);
}

static int beside(u64 range, u64 first, u64 second)
{
    int code = cuMemAddressReserve(&ranges[range], sizes[range] = 2 * BOUND, 0, 0, 0);
    code = code ? code : cuMemMap(ranges[range], BOUND, 0, handles[first], 0);
    return code ? code : cuMemMap(ranges[range] + BOUND, BOUND, 0, handles[second], 0);
}

/* What cuGetExportTable gives has in this place. */
static int (*inner(int place))(void **, int)
{
    const void **table = NULL;
    return cuGetExportTable((const void **)&table, "aliquot-sim-ctx\1") ? NULL : (int (*)(void **, int))table[place];
}

/* It shows only after the first work in it. */
static int past(void)
{
    void *context;
    u64 address;
    int code = cuDevicePrimaryCtxRelease_v2(0);
    code = code ? code : inner(2)(&context, 0);
    code = code ? code : cuCtxSetCurrent(context);
    code = code ? code : cuMemAlloc_v2(&address, 1 << 20);
    return code ? code : cuMemFree_v2(address);
}

static int reset(void)
{
    return ((int (*)(int))inner(6))(0);
}

static int become(u64 seconds)
{
    char text[32];
    snprintf(text, sizeof text, "%lu", seconds);
    return execlp("sleep", "sleep", text, NULL);
}

/* What is not had is not written. */
static int adopt(void **object, int descriptor, u64 bytes)
{
    void *untouched = &untouched, *made = untouched;
    int code = import_external(&made, descriptor, bytes);
    if (code)
        return made == untouched ? code : -2;
    *object = made;
    return 0;
}

static void *current;

static int there(void)
{
    void *context;
    int code = cuDevicePrimaryCtxRetain(&context, 1);
    return code ? code : cuCtxSetCurrent(context);
}

static int others(const char *word, u64 a, u64 b, u64 c)
{
    Picture picture = {0, {64, 64, 0, 0x20, 1, 0}, 3, {0}};
    if (!strcmp(word, "post"))
        return post(a, descriptors[b]);
    if (!strcmp(word, "fetch"))
        return fetch(&descriptors[a]);
    if (!strcmp(word, "team"))
        return team(&handles[a], b);
    if (!strcmp(word, "bind"))
        return bind_in(handles[a], b, c);
    if (!strcmp(word, "unbind"))
        return cuMulticastUnbind(handles[a], 0, b * BOUND, BOUND);
    if (!strcmp(word, "plain"))
        return cuMemAlloc_v2(&ranges[a], b);
    if (!strcmp(word, "span"))
        return cuMemGetHandleForAddressRange(&descriptors[a], ranges[b], c, 1, 0);
    if (!strcmp(word, "endpoint"))
        return endpoint(&endpoints[a], (unsigned)b, c);
    if (!strcmp(word, "tie"))
        return tie(endpoints[a], b, c);
    if (!strcmp(word, "untie"))
        return cuLogicalEndpointUnbind(endpoints[a], 0, b * BOUND, BOUND);
    if (!strcmp(word, "dissolve"))
        return dissolve(endpoints[a]);
    if (!strcmp(word, "beside"))
        return beside(a, b, c);
    if (!strcmp(word, "past"))
        return past();
    if (!strcmp(word, "reset"))
        return reset();
    if (!strcmp(word, "bare"))
        return cuCtxSetCurrent(NULL);
    if (!strcmp(word, "here"))
        return cuCtxSetCurrent(current);
    if (!strcmp(word, "there"))
        return there();
    if (!strcmp(word, "become"))
        return become(a);
    if (!strcmp(word, "elsewhere"))
        return make_elsewhere(&descriptors[a], b, 0);
    if (!strcmp(word, "adopt"))
        return adopt(&objects[a], descriptors[b], c);
    if (!strcmp(word, "open"))
        return fcntl(descriptors[a], F_GETFD) < 0;
    if (!strcmp(word, "buffer"))
        return map_external(&ranges[a], objects[b], c);
    if (!strcmp(word, "picture"))
        return cuExternalMemoryGetMappedMipmappedArray(&arrays[a], objects[b], &picture);
    if (!strcmp(word, "drop"))
        return cuDestroyExternalMemory(objects[a]);
    if (!strcmp(word, "free"))
        return cuMemFree_v2(ranges[a]);
    if (!strcmp(word, "later"))
        return cuMemFreeAsync(ranges[a], stream);
    return strcmp(word, "burn") ? -1 : cuMipmappedArrayDestroy(arrays[a]);
}

static atomic_int slow, watched, pausing;

static void wait_for_a_line(const char *word)
{
    char line;
    puts(word);
    while (read(0, &line, 1) == 1 && line != '\n') {}
}

/* What the kernel is asked for. Those locks are between the two. */
int fcntl(int file, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    long answer = syscall(SYS_fcntl, file, command, argument);
    if (answer < 0)
        return -1;
    struct flock *lock = (struct flock *)argument;
    if (command != F_GETLK && command != F_SETLK)
        return (int)answer;
    int takes = command == F_SETLK && lock->l_type == F_WRLCK;
    if (takes && lock->l_start && pausing) {
        pausing = 0;
        wait_for_a_line("paused");
    }
    if (takes && !lock->l_start && slow && !--slow)
        wait_for_a_line("asked");
    if (!(lock->l_start >> 40) || lock->l_start >> 50)
        return (int)answer;
    if (watched && command == F_SETLK && lock->l_type == F_RDLCK) {
        watched = 0;
        puts("held");
    }
    if (slow && command == F_GETLK && lock->l_type == F_UNLCK && !--slow)
        wait_for_a_line("asked");
    return (int)answer;
}

static atomic_int asked, enough;

static void *ask(void *unused)
{
    void *context;
    size_t left, total;
    long code = cuCtxCreate_v2(&context, 0, 0);
    do {
        code = code ? code : cuMemGetInfo_v2(&left, &total);
        asked = 1;
    } while (!enough);
    (void)unused;
    return (void *)(code ? code : cuCtxDestroy_v2(context));
}

static pthread_t mover;

static void *move(void *unused)
{
    u64 address;
    int code = cuCtxSetCurrent(current);
    while (!code && !enough)
        code = cuMemAlloc_v2(&address, 1 << 20) ? 0 : cuMemFree_v2(address);
    (void)unused;
    return (void *)(long)code;
}

static int calm(void)
{
    void *answer;
    enough = 1;
    int code = pthread_join(mover, &answer) || answer ? -1 : 0;
    enough = 0;
    return code;
}

static int leave(void)
{
    pthread_t thread;
    void *answer;
    if (pthread_create(&thread, NULL, ask, NULL))
        return -1;
    while (!asked)
        usleep(100);
    int code = cuDevicePrimaryCtxRelease_v2(0);
    enough = 1;
    return pthread_join(thread, &answer) || answer ? -1 : code;
}

static int one(const char *word, u64 a, u64 b, u64 c)
{
    Properties card = {1, (unsigned)c, 1, 0, NULL, {0}};
    Deep sparse = {1024, 1024, 0, 0x20, 1, 0x40};
    if (!strcmp(word, "create"))
        return cuMemCreate(&handles[a], b, &card, 0);
    if (!strcmp(word, "release"))
        return cuMemRelease(handles[a]);
    if (!strcmp(word, "same"))
        return handles[a] != handles[b];
    if (!strcmp(word, "map")) {
        int code = cuMemAddressReserve(&ranges[a], sizes[a] = c, 0, 0, 0);
        return code ? code : cuMemMap(ranges[a], c, 0, handles[b], 0);
    }
    if (!strcmp(word, "unmap")) {
        int code = cuMemUnmap(ranges[a], sizes[a]);
        return code ? code : cuMemAddressFree(ranges[a], sizes[a]);
    }
    if (!strcmp(word, "retain"))
        return cuMemRetainAllocationHandle(&handles[a], (void *)(uintptr_t)(ranges[b] + 1));
    if (!strcmp(word, "export"))
        return cuMemExportToShareableHandle(&descriptors[a], handles[b], 1, 0);
    if (!strcmp(word, "close"))
        return close(descriptors[a]);
    if (!strcmp(word, "import"))
        return cuMemImportFromShareableHandle(&handles[a], (void *)(intptr_t)descriptors[b], 1);
    if (!strcmp(word, "foreign"))
        return foreign(&handles[a], b, c);
    if (!strcmp(word, "array"))
        return cuArray3DCreate_v2(&arrays[a], &sparse);
    if (!strcmp(word, "put"))
        return put_behind(arrays[a], (unsigned)b, handles[c], stream);
    if (!strcmp(word, "take"))
        return take_away(arrays[a], (unsigned)b, (unsigned)c, stream);
    if (!strcmp(word, "destroy"))
        return cuArrayDestroy(arrays[a]);
    if (!strcmp(word, "leave"))
        return leave();
    if (!strcmp(word, "busy"))
        return pthread_create(&mover, NULL, move, NULL) ? -1 : 0;
    if (!strcmp(word, "watch"))
        return (watched = 1) != 1;
    if (!strcmp(word, "slow"))
        return (slow = (int)a) < 1;
    if (!strcmp(word, "pause"))
        return (pausing = 1) != 1;
    if (!strcmp(word, "calm"))
        return calm();
    if (!strcmp(word, "work"))
        return work(a);
    if (!strcmp(word, "end"))
        return cuDevicePrimaryCtxRelease_v2(0);
    return strcmp(word, "query") ? others(word, a, b, c) : cuStreamQuery(stream);
}

/* Has this process's memory, and none of its descriptors. */
static int rests(void *seconds)
{
    struct timespec while_it_lives = { (time_t)(intptr_t)seconds, 0 };
    syscall(SYS_close_range, 0u, ~0u, 0u);
    syscall(SYS_nanosleep, &while_it_lives, NULL);
    syscall(SYS_exit, 0);
    return 0;
}

/* A child that does nothing for a minute, or until it is killed. */
static pid_t worker(u64 way)
{
    pid_t child = fork();
    if (child)
        return child;
    if (way == 1)
        execlp("sleep", "sleep", "60", (char *)NULL);
    if (way == 2)
        syscall(SYS_close_range, 0u, ~0u, 0u);
    sleep(60);
    _exit(0);
}

int main(void)
{
    char line[256], word[32];
    if (open_box() || cuInit(0) || cuDevicePrimaryCtxRetain(&current, 0) || cuCtxSetCurrent(current) || cuStreamCreate(&stream, 1)) {
        puts("no driver");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        u64 a = 0, b = 0, c = 0;
        size_t left = 0, total = 0;
        if (sscanf(line, "%31s %lu %lu %lu", word, &a, &b, &c) < 1)
            continue;
        if (!strcmp(word, "shadow")) {
            static char stack[16384];
            printf("%d\n", clone(rests, stack + sizeof stack, CLONE_VM, (void *)2) > 0 ? 0 : 1);
        } else if (!strcmp(word, "keeper")) {
            static char stack[16384];
            printf("%d\n", clone(rests, stack + sizeof stack, CLONE_VM, (void *)60));
            continue;
        } else if (!strcmp(word, "info")) {
            int code = cuMemGetInfo_v2(&left, &total);
            printf("%d %zu\n", code, left);
            continue;
        }
        if (!strcmp(word, "worker")) {
            printf("0 %d\n", worker(a));
            continue;
        }
        int code = one(word, a, b, c);
        if (!code && !strcmp(word, "export"))
            printf("0 %d\n", descriptors[a]);
        else
            printf("%d\n", code);
    }
    return 0;
}
