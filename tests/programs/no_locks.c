/* A file system that has no locks for the records of runs: flock(2) of a file below a directory `runs` is ENOLCK. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int flock(int file, int operation) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    if (strstr(path, "/runs/")) {
        errno = ENOLCK;
        return -1;
    }
    return (int)syscall(SYS_flock, file, operation);
}
