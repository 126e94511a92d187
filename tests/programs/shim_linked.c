/* The memory that card 0 has, by linked calls. What dlerror has to tell stays to be told. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

extern int cuInit(unsigned);
extern int cuDeviceTotalMem_v2(size_t *, int);

int main(void) {
    size_t bytes = 7;
    int code = cuInit(0);
    dlopen("libno-such-library.so", RTLD_NOW);
    errno = 77;
    int second = cuDeviceTotalMem_v2(&bytes, 0), number = errno;
    printf("%zu\n", bytes);
    const char *said = dlerror();
    if (code || second || number != 77 || !said) printf("%d %d %d %s\n", code, second, number, said ? said : "silent");
    return 0;
}
