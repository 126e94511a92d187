/* Holds device memory and lives an unusual life, as it is told line by line; answers each line but exec and become.
   alloc BYTES | free | info | exec | become | close | fork | orphan | vfork | clone BYTES | leader
   halt: it stops itself as soon as it has the lock of all reapers, which is on the first byte of the usage file */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t Pointer;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(Pointer *, size_t), cuMemFree_v2(Pointer), cuMemGetInfo_v2(size_t *, size_t *);

static Pointer held[64];
static int count;
static void *context;

static volatile int halts;

/* What the kernel is asked for. */
int fcntl(int file, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    long answer = syscall(SYS_fcntl, file, command, argument);
    struct flock *lock = (struct flock *)argument;
    if (halts && !answer && command == F_SETLK && !lock->l_start && lock->l_type == F_WRLCK) {
        halts = 0;
        raise(SIGSTOP);
    }
    return (int)answer;
}

static int allocate(size_t bytes)
{
    Pointer made = 0;
    int answer = cuMemAlloc_v2(&made, bytes);
    if (answer == 0 && count < 64)
        held[count++] = made;
    return answer;
}

/* Another file in place of every descriptor of the usage file. */
static int close_usage(void)
{
    int closed = 0;
    for (int file = 3; file < 256; file++) {
        char name[64], target[4096];
        snprintf(name, sizeof name, "/proc/thread-self/fd/%d", file);
        ssize_t length = readlink(name, target, sizeof target - 1);
        if (length < 6 || memcmp(target + length - 6, "/usage", 6))
            continue;
        int other = open("/dev/null", O_RDWR);
        dup2(other, file);
        close(other);
        closed++;
    }
    return closed;
}

static int finish(pid_t child)
{
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static size_t wanted;
static int in_clone(void *unused)
{
    (void)unused;
    cuCtxSetCurrent(context);
    _exit(allocate(wanted));
}

static char stack[1 << 20] __attribute__((aligned(64)));

static void *serve(void *unused)
{
    char line[128];
    size_t length = 0;
    if (unused)
        cuCtxSetCurrent(context);
    /* One byte at a time: the next image reads on where this one ends. */
    for (char byte; read(0, &byte, 1) == 1;) {
        if (byte != '\n') {
            if (length < sizeof line - 1)
                line[length++] = byte;
            continue;
        }
        line[length] = 0;
        length = 0;
        size_t bytes = strtoull(strchr(line, ' ') ? strchr(line, ' ') : "0", NULL, 10), total = 0;
        int answer = -1;
        if (!strncmp(line, "alloc", 5)) {
            answer = allocate(bytes);
        } else if (!strcmp(line, "free")) {
            answer = count > 0 ? cuMemFree_v2(held[--count]) : -1;
        } else if (!strcmp(line, "info")) {
            answer = cuMemGetInfo_v2(&bytes, &total);
            printf("%zu %zu\n", bytes, total);
            fflush(stdout);
            continue;
        } else if (!strcmp(line, "halt")) {
            halts = 1;
            answer = 0;
        } else if (!strcmp(line, "exec")) {
            execl("/proc/self/exe", "shim_life", (char *)NULL);
        } else if (!strcmp(line, "become")) {
            unsetenv("LD_PRELOAD");
            execlp("cat", "cat", (char *)NULL);
        } else if (!strcmp(line, "close")) {
            answer = close_usage() > 0 ? 0 : 1;
        } else if (!strcmp(line, "fork")) {
            /* The driver does not work in the child, and what the parent holds is not the child's to give back. */
            pid_t child = fork();
            if (child == 0) {
                int refused = allocate(512) != 0;
                for (int at = 0; at < count; at++)
                    refused &= cuMemFree_v2(held[at]) != 0;
                _exit(refused ? 0 : 1);
            }
            answer = finish(child);
        } else if (!strcmp(line, "orphan")) {
            pid_t child = fork();
            if (child == 0) {
                close(0);
                close(1);
                pause();
            }
            answer = child;
        } else if (!strcmp(line, "vfork")) {
            pid_t child = vfork();
            if (child == 0) {
                execlp("true", "true", (char *)NULL);
                _exit(1);
            }
            answer = finish(child);
        } else if (!strncmp(line, "clone", 5)) {
            wanted = bytes;
            answer = finish(clone(in_clone, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL));
        } else if (!strcmp(line, "leader") && !unused) {
            pthread_t thread;
            answer = pthread_create(&thread, NULL, serve, stack);
            printf("%d\n", answer);
            fflush(stdout);
            pthread_exit(NULL);
        }
        printf("%d\n", answer);
        fflush(stdout);
    }
    _exit(0);
}

int main(void)
{
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
        puts("no card");
        return 1;
    }
    serve(NULL);
    return 0;
}
