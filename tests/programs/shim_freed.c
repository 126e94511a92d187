/* Memory of cuMemAlloc that is freed in the order of a stream, against a limit with room for one such block beside contexts.
   usage: shim_freed SCENE; says OK, or where it stopped */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

typedef uint64_t H;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(H *, int), cuCtxSetCurrent(H), cuMemAlloc_v2(H *, size_t), cuMemFree_v2(H), cuMemFreeAsync(H, H);
int cuStreamCreate(H *, unsigned), cuStreamSynchronize(H), cuLaunchHostFunc(H, void (*)(void *), void *), cuMemGetInfo_v2(size_t *, size_t *);
int cuCtxCreate_v2(H *, unsigned, int), cuCtxDestroy_v2(H), cuMemHostAlloc(void **, size_t, unsigned);
int cuStreamWaitValue32_v2(H, H, uint32_t, unsigned), cuStreamDestroy_v2(H), cuCtxGetCurrent(H *);
int cuEventCreate(H *, unsigned), cuEventRecord(H, H), cuEventSynchronize(H), cuStreamBeginCapture_v2(H, int), cuStreamEndCapture(H, H *);

enum { BLOCK = 40 << 20, PIECES = 160, PIECE = BLOCK / PIECES, APART = 1, NO_LESS = 0, FULL = 2, PER_THREAD = 2, AHEAD = 32, RELAXED = 2 };

static volatile int is_open;
static void pass(void *data) {
    (void)data;
    while (!is_open) usleep(200);
}
static size_t left(void) { size_t free, total; CHECK(cuMemGetInfo_v2(&free, &total) == 0); return free; }
static H stream(void) { H s; CHECK(cuStreamCreate(&s, APART) == 0); return s; }

/* An idle stream frees at once; a held one frees when it is released, and a query without a wait finds that, too. */
static void one(void) {
    H s = stream(), a, b;
    size_t before = left();
    CHECK(cuMemAlloc_v2(&a, BLOCK) == 0 && cuMemFreeAsync(a, s) == 0 && left() == before);
    CHECK(cuMemAlloc_v2(&a, BLOCK) == 0 && cuLaunchHostFunc(s, pass, 0) == 0 && cuMemFreeAsync(a, s) == 0);
    CHECK(left() == before - BLOCK && cuMemAlloc_v2(&b, BLOCK) == FULL);
    is_open = 1;
    while (cuMemAlloc_v2(&b, BLOCK) == FULL) usleep(500);
    CHECK(cuMemFree_v2(b) == 0 && left() == before);
}

/* More pieces than there are events for. */
static void many(H s) {
    H pieces[PIECES], b;
    size_t before = left();
    for (int i = 0; i < PIECES; i++) CHECK(cuMemAlloc_v2(&pieces[i], PIECE) == 0);
    is_open = 0;
    CHECK(cuLaunchHostFunc(s, pass, 0) == 0);
    for (int i = 0; i < PIECES; i++) CHECK(cuMemFreeAsync(pieces[i], s) == 0);
    CHECK(left() == before - BLOCK && cuMemAlloc_v2(&b, BLOCK) == FULL);
    is_open = 1;
    CHECK(cuStreamSynchronize(s) == 0 && left() == before && cuMemAlloc_v2(&b, BLOCK) == 0 && cuMemFree_v2(b) == 0);
}

static uint32_t *words(void) { void *w; CHECK(cuMemHostAlloc(&w, 4096, 0) == 0); return w; }
static void hold(H s, volatile uint32_t *word, uint32_t until) {
    CHECK(cuStreamWaitValue32_v2(s, (H)(uintptr_t)word, until, NO_LESS) == 0);
}

/* A stream that is always many frees behind: what it has passed leaves while more comes. */
static void behind(void) {
    volatile uint32_t *word = words();
    H s = stream(), passed[4 * PIECES], piece;
    size_t before = left();
    for (int i = 0; i < 4 * PIECES; i++) {
        CHECK(cuMemAlloc_v2(&piece, PIECE) == 0 && cuEventCreate(&passed[i], 0) == 0);
        hold(s, word, (uint32_t)i + 1);
        CHECK(cuMemFreeAsync(piece, s) == 0 && cuEventRecord(passed[i], s) == 0);
        if (i < AHEAD) continue;
        *word = (uint32_t)(i - AHEAD) + 1;
        CHECK(cuEventSynchronize(passed[i - AHEAD]) == 0 && left() >= before - 3 * AHEAD * (size_t)PIECE);
    }
    *word = UINT32_MAX / 4;
    CHECK(cuStreamSynchronize(s) == 0 && left() == before);
}

/* What waits for a stream that was destroyed does not leave with another one that has its handle. */
static void destroyed(void) {
    volatile uint32_t *word = words();
    H s = stream(), again, pieces[PIECES];
    size_t before = left();
    for (int i = 0; i < PIECES; i++) CHECK(cuMemAlloc_v2(&pieces[i], PIECE) == 0);
    hold(s, &word[0], 1);
    for (int i = 0; i < PIECES / 2; i++) CHECK(cuMemFreeAsync(pieces[i], s) == 0);
    CHECK(cuStreamDestroy_v2(s) == 0 && (again = stream()) == s);
    hold(again, &word[1], 1);
    for (int i = PIECES / 2; i < PIECES; i++) CHECK(cuMemFreeAsync(pieces[i], again) == 0);
    CHECK(left() == before - BLOCK);
    word[1] = 1;
    CHECK(cuStreamSynchronize(again) == 0 && left() == before - BLOCK / 2);
    word[0] = 1;
    while (left() != before) usleep(500);
}

/* A stream of another context than the current one. */
static void other(H first) {
    H context, s, a, b;
    CHECK(cuCtxCreate_v2(&context, 0, 0) == 0);
    s = stream();
    CHECK(cuCtxSetCurrent(first) == 0);
    size_t before = left();
    CHECK(cuMemAlloc_v2(&a, BLOCK) == 0 && cuLaunchHostFunc(s, pass, 0) == 0 && cuMemFreeAsync(a, s) == 0);
    CHECK(left() == before - BLOCK && cuMemAlloc_v2(&b, BLOCK) == FULL && cuCtxGetCurrent(&b) == 0 && b == first);
    is_open = 1;
    CHECK(cuStreamSynchronize(s) == 0 && left() == before);
}

/* In a capture nothing is freed, nor is it spoilt. */
static void captured(void) {
    H s = stream(), a, b, graph;
    size_t before = left();
    CHECK(cuMemAlloc_v2(&a, BLOCK) == 0 && cuStreamBeginCapture_v2(s, RELAXED) == 0);
    int answer = cuMemFreeAsync(a, s);
    CHECK(cuMemAlloc_v2(&b, BLOCK) == FULL && (cuStreamEndCapture(s, &graph) == 0 || answer != 0));
    CHECK(left() == before - BLOCK && cuMemFree_v2(a) == 0 && left() == before);
}

/* A context that ends frees what it has, held or not. */
static void ends(H first) {
    H context, s, a;
    uint32_t *word = words();
    size_t before = left();
    CHECK(cuCtxCreate_v2(&context, 0, 0) == 0);
    s = stream();
    hold(s, word, 1);
    CHECK(cuMemAlloc_v2(&a, BLOCK) == 0 && cuMemFreeAsync(a, s) == 0 && cuMemAlloc_v2(&a, BLOCK) == FULL);
    CHECK(cuCtxDestroy_v2(context) == 0 && cuCtxSetCurrent(first) == 0 && left() == before);
}

int main(int argc, char **argv) {
    H context;
    CHECK(argc == 2 && cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    if (!strcmp(argv[1], "one")) one();
    else if (!strcmp(argv[1], "many")) many(stream());
    else if (!strcmp(argv[1], "default")) many(0);
    else if (!strcmp(argv[1], "thread")) many(PER_THREAD);
    else if (!strcmp(argv[1], "behind")) behind();
    else if (!strcmp(argv[1], "destroyed")) destroyed();
    else if (!strcmp(argv[1], "other")) other(context);
    else if (!strcmp(argv[1], "captured")) captured();
    else if (!strcmp(argv[1], "ends")) ends(context);
    else CHECK(!"a scene that is known");
    printf("OK\n");
    return 0;
}
