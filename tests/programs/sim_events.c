/* Events and samples through NVML, with the structures as nvml.h has them. Lines say what to do, and each is answered by one:
 *   supported CARD          the answer, and the kinds of events
 *   register CARD KINDS     the answer
 *   part                    the answer to registering MIG device 0 of card 0
 *   wait MS, first MS       the answer of nvmlEventSetWait_v2 and of the first version; of an event card, kind, number, instances
 *   many N MS               N threads wait at once on the set: how many had an event, and how many not
 *   leave MS                a thread waits, the set is freed under it: its answer, and those to using the set afterwards
 *   wrong                   the answers to arguments that cannot be
 *   samples CARD KIND       answer and number for no room; answer, kind of value, whether the newest has
 *                           been, and samples as windows since the one before:value; the answer for those behind the newest, and what is had with room for two
 */
#include "opened.h"
#include <time.h>
#include <unistd.h>

typedef void *Handle;
typedef struct { Handle device; u64 kind, data; } First;
typedef struct { Handle device; u64 kind, data; unsigned gpu, compute; } Event;
typedef struct { u64 at; union { double d; unsigned u; u64 all; } value; } Sample;

enum { CARDS = 8, WINDOW_MICROS = 166667 };

static Handle set, cards[CARDS];

static int number_of(Handle card)
{
    for (int i = 0; i < CARDS; i++)
        if (cards[i] == card) return i;
    return -1;
}

static void wait_second(unsigned millis)
{
    Event event = { 0 };
    int code = CALL(nvmlEventSetWait_v2, set, &event, millis);
    if (code) printf("%d\n", code);
    else printf("0 %d %llu %llu %x %x\n", number_of(event.device), (unsigned long long)event.kind,
                (unsigned long long)event.data, event.gpu, event.compute);
}

static void wait_first(unsigned millis)
{
    struct { First event; u64 behind; } room = { .behind = UNTOUCHED };
    int code = CALL(nvmlEventSetWait, set, &room.event, millis);
    if (code) printf("%d\n", code);
    else printf("0 %d %llu %llu%s\n", number_of(room.event.device), (unsigned long long)room.event.kind,
                (unsigned long long)room.event.data, room.behind == UNTOUCHED ? "" : " overrun");
}

static void *waiter(void *millis)
{
    Event event;
    return (void *)(uintptr_t)CALL(nvmlEventSetWait_v2, set, &event, (unsigned)(uintptr_t)millis);
}

static void many(unsigned count, unsigned millis)
{
    pthread_t threads[16];
    unsigned had = 0, not = 0;
    for (unsigned i = 0; i < count && i < 16; i++) pthread_create(&threads[i], NULL, waiter, (void *)(uintptr_t)millis);
    for (unsigned i = 0; i < count && i < 16; i++) {
        void *code;
        pthread_join(threads[i], &code);
        if (code == 0) had++;
        if (code == (void *)10) not++;
    }
    printf("%u %u\n", had, not);
}

static void leave(unsigned millis)
{
    pthread_t thread;
    Event event;
    void *code;
    pthread_create(&thread, NULL, waiter, (void *)(uintptr_t)millis);
    usleep(20000);
    int freed = CALL(nvmlEventSetFree, set);
    pthread_join(thread, &code);
    printf("%d %d ", (int)(uintptr_t)code, freed);
    printf("%d %d ", CALL(nvmlEventSetWait_v2, set, &event, 0u), CALL(nvmlDeviceRegisterEvents, cards[0], (u64)8, set));
    printf("%d\n", CALL(nvmlEventSetFree, set));
    if (CALL(nvmlEventSetCreate, &set)) exit(2);
}

static void wrong(void)
{
    Event event;
    printf("%d ", CALL(nvmlEventSetCreate, NULL));
    printf("%d ", CALL(nvmlEventSetWait_v2, set, NULL, 0u));
    printf("%d ", CALL(nvmlEventSetWait, set, NULL, 0u));
    printf("%d ", CALL(nvmlEventSetWait_v2, NULL, &event, 0u));
    printf("%d ", CALL(nvmlEventSetFree, (Handle)&event));
    printf("%d ", CALL(nvmlDeviceRegisterEvents, cards[0], (u64)8, NULL));
    printf("%d ", CALL(nvmlDeviceRegisterEvents, cards[0], (u64)0, set));
    printf("%d ", CALL(nvmlDeviceRegisterEvents, cards[0], (u64)1 << 40, set));
    printf("%d ", CALL(nvmlDeviceRegisterEvents, cards[0], (u64)0x108, set));
    printf("%d ", CALL(nvmlDeviceRegisterEvents, (Handle)&event, (u64)8, set));
    printf("%d ", CALL(nvmlDeviceGetSupportedEventTypes, cards[0], NULL));
    CALL(nvmlShutdown);
    printf("%d %d ", CALL(nvmlEventSetWait_v2, set, &event, 0u), CALL(nvmlEventSetCreate, &set));
    CALL(nvmlInit_v2);
    printf("%d\n", CALL(nvmlEventSetWait_v2, set, &event, 0u));
    if (CALL(nvmlEventSetCreate, &set)) exit(2);
}

static u64 micros(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

static void samples(Handle card, unsigned kind)
{
    Sample room[64] = { { 0 } };
    unsigned value = 99, count = 0;
    int code = CALL(nvmlDeviceGetSamples, card, kind, (u64)0, &value, &count, NULL);
    printf("%d %u", code, code ? 0 : count);
    if (code) { puts(""); return; }
    unsigned none = 0;
    printf(" | %d", CALL(nvmlDeviceGetSamples, card, kind, (u64)0, &value, &none, room));
    count = 64;
    code = CALL(nvmlDeviceGetSamples, card, kind, (u64)0, &value, &count, room);
    u64 now = micros();
    printf(" | %d %u %d", code, value, count && room[count - 1].at <= now);
    for (unsigned i = 0; i < count; i++) {
        u64 since = i ? room[i].at - room[i - 1].at : 0;
        printf(" %llu:%llu", (unsigned long long)((since + WINDOW_MICROS / 2) / WINDOW_MICROS), (unsigned long long)room[i].value.all);
    }
    u64 third = room[2].at, newest = room[count - 1].at;
    unsigned two = 2;
    code = CALL(nvmlDeviceGetSamples, card, kind, newest + 1000000, &value, &two, room);
    printf(" | %d", code);
    two = 2;
    code = CALL(nvmlDeviceGetSamples, card, kind, third, &value, &two, room);
    printf(" | %d %u %d\n", code, two, third < room[0].at && room[0].at < room[1].at && room[0].at - third < 2 * WINDOW_MICROS);
}

int main(void)
{
    char line[128];
    unsigned a, b;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library || CALL(nvmlInit_v2) || CALL(nvmlEventSetCreate, &set)) return 3;
    for (unsigned i = 0; i < CARDS; i++)
        if (CALL(nvmlDeviceGetHandleByIndex_v2, i, &cards[i])) break;
    while (fgets(line, sizeof line, stdin)) {
        u64 kinds = UNTOUCHED;
        Handle part = NULL;
        if (sscanf(line, "supported %u", &a) == 1) {
            int code = CALL(nvmlDeviceGetSupportedEventTypes, cards[a % CARDS], &kinds);
            printf("%d %llu\n", code, code ? 0 : (unsigned long long)kinds);
        } else if (sscanf(line, "register %u %u", &a, &b) == 2)
            printf("%d\n", CALL(nvmlDeviceRegisterEvents, cards[a % CARDS], (u64)b, set));
        else if (!strncmp(line, "part", 4)) {
            int code = CALL(nvmlDeviceGetMigDeviceHandleByIndex, cards[0], 0u, &part);
            printf("%d\n", code ? 100 + code : CALL(nvmlDeviceRegisterEvents, part, (u64)8, set));
        } else if (sscanf(line, "wait %u", &a) == 1) wait_second(a);
        else if (sscanf(line, "first %u", &a) == 1) wait_first(a);
        else if (sscanf(line, "many %u %u", &a, &b) == 2) many(a, b);
        else if (sscanf(line, "leave %u", &a) == 1) leave(a);
        else if (!strncmp(line, "wrong", 5)) wrong();
        else if (sscanf(line, "samples %u %u", &a, &b) == 2) samples(cards[a % CARDS], b);
        else puts("what?");
        fflush(stdout);
    }
    return 0;
}
