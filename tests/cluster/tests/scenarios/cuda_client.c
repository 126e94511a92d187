// Allocates memory on the first card until the driver refuses, and prints the total that it reports, the amount that it
// got, and the code of the refusal.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cuda) { puts(dlerror()); return 1; }
  int (*init)(unsigned) = dlsym(cuda, "cuInit");
  int (*get)(int *, int) = dlsym(cuda, "cuDeviceGet");
  int (*create)(void **, unsigned, int) = dlsym(cuda, "cuCtxCreate_v2");
  int (*info)(size_t *, size_t *) = dlsym(cuda, "cuMemGetInfo_v2");
  int (*alloc)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
  int device, code;
  void *context;
  if ((code = init(0)) || (code = get(&device, 0)) || (code = create(&context, 0, device))) {
    printf("no card: %d\n", code);
    return 2;
  }
  size_t free, total, got = 0, step = 64u << 20;
  unsigned long long pointer;
  if ((code = info(&free, &total))) return 3;
  while ((code = alloc(&pointer, step)) == 0) got += step;
  printf("total %zu got %zu code %d\n", total, got, code);
  return 0;
}
