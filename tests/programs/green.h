/* For programs that open the driver: a green context of all multiprocessors of a card. */
#include "opened.h"

static int make_green(u64 *made, int device)
{
    struct {
        unsigned type, inner[23], sm[10];
        void *next;
    } all;
    u64 described = 0;
    _Static_assert(sizeof all == 144, "CUdevResource");
    int code = CALL(cuDeviceGetDevResource, device, &all, 1u);
    code = code ? code : CALL(cuDevResourceGenerateDesc, &described, &all, 1u);
    return code ? code : CALL(cuGreenCtxCreate, made, described, device, 1u);
}
