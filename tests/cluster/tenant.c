// A tenant's program: it opens the driver library and calls it, as any program does, and knows nothing of limits.
//
//   fill                 allocates on the first card until the driver refuses: `total BYTES got BYTES code CODE`
//   work FROM UNTIL      launches kernels of a millisecond until the second time: `done COUNT`, of those between the two
//   smi                  the cards that NVML reports: `INDEX NAME UUID total BYTES used BYTES`
//   npu                  what DCMI reports: `chip LOGIC NAME health NUMBER`, `vnpu LOGIC ID TEMPLATE`
//   hold                 makes a context and sleeps
//   maps                 the shim, where the loader has mapped it: `mapped PATH`, else nothing and exit code 1
// Times are milliseconds since 1970.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *driver;

static void *symbol(const char *name) {
  void *found = dlsym(driver, name);
  if (!found) { printf("missing %s\n", name); exit(3); }
  return found;
}

static void open_library(const char *name) {
  driver = dlopen(name, RTLD_NOW);
  if (!driver) { puts(dlerror()); exit(1); }
}

static void must(int code, const char *call) {
  if (code) { printf("no card: %s: %d\n", call, code); exit(2); }
}

static void start(void) {
  void *context;
  int device;
  open_library("libcuda.so.1");
  must(((int (*)(unsigned))symbol("cuInit"))(0), "cuInit");
  must(((int (*)(int *, int))symbol("cuDeviceGet"))(&device, 0), "cuDeviceGet");
  must(((int (*)(void **, unsigned, int))symbol("cuCtxCreate_v2"))(&context, 0, device), "cuCtxCreate");
}

static int fill(void) {
  size_t free, total, got = 0, step = 64u << 20;
  unsigned long long pointer;
  int code, (*alloc)(unsigned long long *, size_t);
  start();
  alloc = symbol("cuMemAlloc_v2");
  must(((int (*)(size_t *, size_t *))symbol("cuMemGetInfo_v2"))(&free, &total), "cuMemGetInfo");
  while ((code = alloc(&pointer, step)) == 0) got += step;
  printf("total %zu got %zu code %d\n", total, got, code);
  return 0;
}

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static int work(long long from, long long until) {
  void *module, *kernel;
  long long done = 0;
  start();
  must(((int (*)(void **, const void *))symbol("cuModuleLoadData"))(&module, ""), "cuModuleLoadData");
  must(((int (*)(void **, void *, const char *))symbol("cuModuleGetFunction"))(&kernel, module, "k_1000000"), "kernel");
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  launch = symbol("cuLaunchKernel");
  // Never waits for a kernel: a tenant that waits leaves of its share what it waits. The driver blocks when its queue is
  // full, before the first time and at the second one alike.
  for (;;) {
    must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), "cuLaunchKernel");
    long long time = now();
    if (time >= until) break;
    if (time >= from) done++;
  }
  printf("done %lld\n", done);
  return 0;
}

static int smi(void) {
  unsigned count;
  open_library("libnvidia-ml.so.1");
  must(((int (*)(void))symbol("nvmlInit_v2"))(), "nvmlInit");
  must(((int (*)(unsigned *))symbol("nvmlDeviceGetCount_v2"))(&count), "nvmlDeviceGetCount");
  for (unsigned index = 0; index < count; index++) {
    void *device;
    char name[96], uuid[96];
    struct { unsigned long long total, free, used; } memory;
    must(((int (*)(unsigned, void **))symbol("nvmlDeviceGetHandleByIndex_v2"))(index, &device), "nvmlDeviceGetHandle");
    must(((int (*)(void *, char *, unsigned))symbol("nvmlDeviceGetName"))(device, name, sizeof name), "nvmlDeviceGetName");
    must(((int (*)(void *, char *, unsigned))symbol("nvmlDeviceGetUUID"))(device, uuid, sizeof uuid), "nvmlDeviceGetUUID");
    must(((int (*)(void *, void *))symbol("nvmlDeviceGetMemoryInfo"))(device, &memory), "nvmlDeviceGetMemoryInfo");
    for (char *c = name; *c; c++) if (*c == ' ') *c = '-';
    printf("%u %s %s total %llu used %llu\n", index, name, uuid, memory.total, memory.used);
  }
  return 0;
}

static int npu(void) {
  int cards, list[64], chips = 0;
  open_library("/usr/local/dcmi/libdcmi.so");
  must(((int (*)(void))symbol("dcmi_init"))(), "dcmi_init");
  must(((int (*)(int *, int *, int))symbol("dcmi_get_card_list"))(&cards, list, 64), "dcmi_get_card_list");
  int (*info)(int, int, int, unsigned, void *, unsigned *) = symbol("dcmi_get_device_info");
  for (int card = 0; card < cards; card++) {
    int devices;
    must(((int (*)(int, int *))symbol("dcmi_get_device_num_in_card"))(list[card], &devices), "dcmi_get_device_num_in_card");
    for (int device = 0; device < devices; device++, chips++) {
      struct { char type[32], name[32], version[32]; unsigned cores; } chip;
      // 360 and 264 bytes are the vendor's structures: a count, then 32 ids; an id, then a template's name.
      union { unsigned words[90]; char bytes[360]; } all = {0};
      unsigned health, size = 360;
      must(((int (*)(int, int, void *))symbol("dcmi_get_device_chip_info"))(list[card], device, &chip), "dcmi_get_device_chip_info");
      must(((int (*)(int, int, unsigned *))symbol("dcmi_get_device_health"))(list[card], device, &health), "dcmi_get_device_health");
      printf("chip %d %.32s health %u\n", chips, chip.name, health);
      if (info(list[card], device, 52, 1, &all, &size)) continue;
      for (unsigned index = 0; index < all.words[0] && index < 32; index++) {
        union { unsigned words[66]; char bytes[264]; } one = {.words = {all.words[1 + index]}};
        size = 264;
        must(info(list[card], device, 52, 0, &one, &size), "dcmi_get_device_info");
        printf("vnpu %d %u %.16s\n", chips, one.words[0], one.bytes + 8);
      }
    }
  }
  return 0;
}

static int maps(void) {
  char line[4096], *path;
  FILE *file = fopen("/proc/self/maps", "r");
  while (file && fgets(line, sizeof line, file))
    if ((path = strchr(line, '/')) && strstr(path, "libaliquot.so")) { printf("mapped %s", path); return 0; }
  return 1;
}

int main(int count, char **words) {
  const char *what = count > 1 ? words[1] : "";
  if (!strcmp(what, "fill")) return fill();
  if (!strcmp(what, "work") && count == 4) return work(atoll(words[2]), atoll(words[3]));
  if (!strcmp(what, "smi")) return smi();
  if (!strcmp(what, "npu")) return npu();
  if (!strcmp(what, "hold")) { start(); puts("holds"); fflush(stdout); for (;;) pause(); }
  if (!strcmp(what, "maps")) return maps();
  puts("expected fill, work FROM UNTIL, smi, npu, hold or maps");
  return 4;
}
