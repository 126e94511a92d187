//! Green contexts: part of a card's multiprocessors, and the primary context, which each of them retains. How fast kernels are in
//! them is not modelled.

use crate::code::{Answer, INVALID_CONTEXT, INVALID_VALUE};
use crate::handle::{Registry, Tag};
use crate::process;

/// What a green context is made from: there as long as the process.
struct GreenDescription {
    device: i32,
}

struct Green {
    /// As which it is used.
    context: u64,
}

static DESCRIBED: Registry<GreenDescription> = Registry::new(Tag::Described, INVALID_VALUE);
static GREEN: Registry<Green> = Registry::new(Tag::Green, INVALID_CONTEXT);

/// CU_GREEN_CTX_DEFAULT_STREAM
const DEFAULT_STREAM: u32 = 1;

/// cuDevResourceGenerateDesc: of multiprocessors of one card.
pub(crate) fn describe(device: i32) -> Answer<u64> {
    process::card(device)?;
    Ok(DESCRIBED.add(|_| GreenDescription { device }).0)
}

/// cuGreenCtxCreate.
pub(crate) fn create(described: u64, device: i32, flags: u32) -> Answer<u64> {
    process::card(device)?;
    if flags & !DEFAULT_STREAM != 0 || DESCRIBED.get(described)?.device != device {
        return Err(INVALID_VALUE);
    }
    let context = process::green_create(device)?;
    Ok(GREEN.add(|_| Green { context }).0)
}

/// cuGreenCtxDestroy.
pub(crate) fn destroy(green: u64) -> Answer {
    process::cards()?;
    process::green_destroy(GREEN.remove(green)?.context)
}

/// cuCtxFromGreenCtx.
pub(crate) fn context(green: u64) -> Answer<u64> {
    process::cards()?;
    GREEN.get(green).map(|green| green.context)
}
