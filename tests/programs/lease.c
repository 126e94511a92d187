/* Takes a lease on each of the files and says how many it has, until its input ends: an open that a lease does not allow waits. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **files)
{
    char byte;
    int taken = 0;
    signal(SIGIO, SIG_IGN);
    for (int at = 2; at < count; at++) {
        int file = open(files[at], O_RDONLY | O_NONBLOCK);
        taken += file >= 0 && !fcntl(file, F_SETLEASE, strcmp(files[1], "write") ? F_RDLCK : F_WRLCK);
    }
    printf("%d\n", taken);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
