/* NVML of one card that answers at once, as libnvidia-ml.so.1. The card is that of bare_driver.c. */
#include <string.h>

typedef struct { unsigned long total, free, used; } Memory;

int nvmlDeviceGetUUID(void *card, char *text, unsigned size)
{
    (void)card;
    strncpy(text, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *card, Memory *memory)
{
    (void)card;
    *memory = (Memory){ 80UL << 30, 60UL << 30, 20UL << 30 };
    return 0;
}
