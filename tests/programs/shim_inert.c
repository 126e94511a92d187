/* Says what a library could have left in this process: threads, descriptors, signal handlers, environment, errno.
   The last line is memory, which the caller compares by size: "rss <kibibytes>". */
#include <dirent.h>
#include <errno.h>
#include <features.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void list(const char *what, const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    int count = 0;
    if (!directory) {
        printf("%s: %s\n", what, strerror(errno));
        return;
    }
    while ((entry = readdir(directory)))
        count += entry->d_name[0] != '.';
    /* One of the descriptors is the directory itself. */
    printf("%s %d\n", what, count);
    closedir(directory);
}

static void status(const char *key)
{
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key)))
            printf("%s", line);
    if (file)
        fclose(file);
}

int main(void)
{
    int at_start = errno;
    printf("errno %d\n", at_start);
#ifdef __GLIBC__
    printf("glibc %s\n", gnu_get_libc_version());
#endif
    list("threads", "/proc/self/task");
    list("descriptors", "/proc/self/fd");
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (!sigaction(number, NULL, &action) && action.sa_handler != SIG_DFL)
            printf("signal %d %s\n", number, action.sa_handler == SIG_IGN ? "ignored" : "handled");
    }
    status("SigBlk");
    status("SigCgt");
    status("NoNewPrivs");
    status("Seccomp:");
    for (char **word = environ; *word; word++)
        if (strncmp(*word, "LD_PRELOAD=", 11))
            printf("%s\n", *word);
    fflush(stdout);
    status("VmRSS");
    return 7;
}
