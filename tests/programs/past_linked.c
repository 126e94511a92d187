/* Linked to the driver: takes as many bytes of card 0 as the first argument says, says ready, and holds them until its input ends. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(uint64_t *, size_t);

int main(int argc, char **argv)
{
    void *context;
    uint64_t address;
    int code = cuInit(0);
    if (!code) code = cuDevicePrimaryCtxRetain(&context, 0);
    if (!code) code = cuCtxSetCurrent(context);
    if (!code) code = cuMemAlloc_v2(&address, strtoull(argc > 1 ? argv[1] : "0", NULL, 10));
    printf(code ? "error %d\n" : "ready\n", code);
    fflush(stdout);
    while (!code && getchar() != EOF) { }
    return code;
}
