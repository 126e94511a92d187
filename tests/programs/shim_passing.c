/* Calls functions of the noting driver, and says whether each call came through as it was made. Lines of input are an export and a
 * letter for each argument, as tests/symbols/arguments.py prints them; each is answered by the export and "ok", or what is wrong. */
#include "opened.h"
#include <sys/mman.h>

enum { ARGUMENTS = 13, ANSWER = 901, ROOM = 1 << 16 };

typedef int Function(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64);

static char *rooms;

/* What is given for an argument: pointers lead to zeroes, and no two values are alike. */
static u64 given(char letter, int at)
{
    switch (letter) {
    case 'p': return (u64)(uintptr_t)(rooms + (size_t)at * ROOM);
    case 'h': return 0x4a00000000 + (u64)at * 0x100;
    case 'b': return 0x21 + at;
    default: return 3 + at;
    }
}

/* Whether that came through. In the place of a pointer another may stand: answers are looked at before they are handed on. */
static int same(char letter, u64 sent, u64 came)
{
    switch (letter) {
    case 'p': return came == sent || (came > 1 << 20 && (came >> 32 != 0x4a) && (came < (u64)(uintptr_t)rooms || came >= (u64)(uintptr_t)rooms + (u64)ARGUMENTS * ROOM));
    case 'w': return (uint32_t)came == (uint32_t)sent;
    case 's': return (uint16_t)came == (uint16_t)sent;
    case 'b': return (uint8_t)came == (uint8_t)sent;
    default: return came == sent;
    }
}

int main(void)
{
    char export[96], letters[16];
    library = dlopen("libcuda.so.1", RTLD_NOW);
    rooms = mmap(NULL, (size_t)ARGUMENTS * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!library || rooms == MAP_FAILED) return 3;
    void (*note_calls_of)(const char *) = (void (*)(const char *))sym("note_calls_of");
    unsigned (*noted_calls)(u64 *) = (unsigned (*)(u64 *))sym("noted_calls");
    while (scanf("%95s %15s", export, letters) == 2) {
        int count = !strcmp(letters, "-") ? 0 : (int)strlen(letters);
        Function *function = (Function *)sym(export);
        u64 a[ARGUMENTS], came[ARGUMENTS];
        /* Words behind the last argument belong to no call. */
        for (int at = 0; at < ARGUMENTS; at++) a[at] = at < count ? given(letters[at], at) : 0xbad000 + (u64)at;
        memset(rooms, 0, (size_t)ARGUMENTS * ROOM);
        printf("%s ", export);
        fflush(stdout);
        note_calls_of(export);
        int answer = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12]);
        unsigned calls = noted_calls(came);
        note_calls_of("");
        int wrong = 0;
        while (wrong < count && same(letters[wrong], a[wrong], came[wrong])) wrong++;
        if (!calls) printf("was not called, and answers %d\n", answer);
        else if (wrong < count) printf("argument %d came as %llx, and was %llx\n", wrong, (unsigned long long)came[wrong], (unsigned long long)a[wrong]);
        else if (answer != ANSWER) printf("answers %d\n", answer);
        else if (calls != 1) printf("was called %u times\n", calls);
        else puts("ok");
    }
    return 0;
}
