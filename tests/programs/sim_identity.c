/* What the libraries say of each card, by which programs tell cards apart: a line a card. Then the answers of the profiler's
 * functions, without a context and with one. */
#include "opened.h"
#include "check.h"

typedef struct { char legacy[16]; unsigned domain, bus, device, id; } Pci1;
typedef struct { Pci1 first; unsigned subsystem; } Pci2;
typedef struct { Pci2 second; char address[32]; } Pci3;

static void card(int index)
{
    void *handle, *found;
    char uuid[96], serial[64], address[32];
    unsigned architecture, mode = 77;
    int device, same = -1, bus, slot, domain;
    struct { Pci3 pci; unsigned char behind[64]; } one, two, three;
    memset(&one, 0x5a, sizeof one), memset(&two, 0x5a, sizeof two), memset(&three, 0x5a, sizeof three);
    CHECK(!CALL(nvmlDeviceGetHandleByIndex_v2, index, &handle));
    CHECK(!CALL(nvmlDeviceGetUUID, handle, uuid, 96u) && !CALL(nvmlDeviceGetSerial, handle, serial, 64u));
    CHECK(!CALL(nvmlDeviceGetArchitecture, handle, &architecture) && !CALL(nvmlDeviceGetVirtualizationMode, handle, &mode));
    CHECK(!CALL(nvmlDeviceGetPciInfo_v3, handle, &three.pci));
    CHECK(!CALL(nvmlDeviceGetPciInfo_v2, handle, &two.pci) && !CALL(nvmlDeviceGetPciInfo, handle, &one.pci));
    CHECK(!memcmp(&one, &three, sizeof(Pci1)) && !memcmp(&two, &three, sizeof(Pci2)));
    CHECK(((unsigned char *)&one)[sizeof(Pci1)] == 0x5a && ((unsigned char *)&two)[sizeof(Pci2)] == 0x5a);
    CHECK(!CALL(nvmlDeviceGetHandleByPciBusId_v2, three.pci.address, &found) && found == handle);
    CHECK(!CALL(nvmlDeviceGetHandleByPciBusId_v2, three.pci.second.first.legacy, &found) && found == handle);
    CHECK(!CALL(cuDeviceGet, &device, index) && !CALL(cuDeviceGetPCIBusId, address, 32, device));
    CHECK(!CALL(cuDeviceGetByPCIBusId, &same, address) && same == device);
    CHECK(!CALL(cuDeviceGetAttribute, &bus, 33, device) && !CALL(cuDeviceGetAttribute, &slot, 34, device));
    CHECK(!CALL(cuDeviceGetAttribute, &domain, 50, device));
    CHECK(bus == (int)three.pci.second.first.bus && slot == (int)three.pci.second.first.device);
    CHECK(domain == (int)three.pci.second.first.domain);
    printf("%s %s %s %s %u %u\n", uuid, serial, address, three.pci.address, architecture, mode);
}

int main(void)
{
    unsigned count;
    void *context;
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) && dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL));
    library = RTLD_DEFAULT;
    CHECK(!CALL(nvmlInit_v2) && !CALL(cuInit, 0) && !CALL(nvmlDeviceGetCount_v2, &count));
    for (unsigned index = 0; index < count; index++) card((int)index);
    int before[] = { CALL(cuProfilerStart), CALL(cuProfilerStop) };
    CHECK(!CALL(cuCtxCreate_v2, &context, 0, 0));
    printf("profiler %d %d %d %d %d\n", before[0], before[1], CALL(cuProfilerInitialize, "", "", 0), CALL(cuProfilerStart),
           CALL(cuProfilerStop));
    return 0;
}
