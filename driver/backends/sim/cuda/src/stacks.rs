//! Local memory of threads, stacks in it: what a context's card gives for all threads that can run at once.

use crate::code::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::image::Local;
use crate::process::{self, CONTEXTS, Context, lock, must_live};
use aliquot_sim_device::MemoryKind;

/// CU_LIMIT_STACK_SIZE of a new context; so much is in its own size.
pub(crate) const FIRST: usize = 1024;
/// Threads that a multiprocessor runs at once.
const RESIDENT_THREADS: u64 = 2048;

/// What the threads of a context have beside what is in its own size.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// The requested limit, in bytes for each thread.
    limit: u64,
    /// The most that a kernel needed that was launched, in the same unit.
    kernels: u64,
    /// Bytes of the card.
    taken: u64,
}

/// CU_LIMIT_STACK_SIZE: the driver makes room.
pub(crate) fn set(context: &Context, bytes: usize) -> Answer {
    let limit = u64::try_from(bytes.saturating_sub(FIRST)).map_err(|_| INVALID_VALUE)?;
    let mut stacks = lock(&context.stacks);
    let kernels = stacks.kernels;
    stacks.become_of(context, limit, kernels)
}

/// A kernel is launched in a context: the driver makes room for its local memory, and keeps it; of a green one with the primary one.
pub(crate) fn need(context: u64, local: Local) -> Answer {
    let kernel = local.0.saturating_sub(u64::try_from(FIRST).unwrap_or(u64::MAX));
    if kernel == 0 {
        return Ok(());
    }
    let context = CONTEXTS.get(process::home(context))?;
    let mut stacks = lock(&context.stacks);
    let (limit, kernels) = (stacks.limit, stacks.kernels.max(kernel));
    stacks.become_of(&context, limit, kernels)
}

impl Stacks {
    /// Bytes of the card.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    fn become_of(&mut self, context: &Context, limit: u64, kernels: u64) -> Answer {
        let ours = context.card()?;
        let threads = RESIDENT_THREADS * u64::from(ours.card.facts().sms);
        let wanted = limit.max(kernels).checked_mul(threads).ok_or(OUT_OF_MEMORY)?;
        if wanted > self.taken {
            ours.take(MemoryKind::Context, wanted - self.taken)?;
            // The call that ends the context gives back, after its end, what is recorded here.
            must_live(context.handle).inspect_err(|_| ours.give(MemoryKind::Context, wanted - self.taken))?;
        } else {
            must_live(context.handle)?;
            ours.give(MemoryKind::Context, self.taken - wanted);
        }
        *self = Self { limit, kernels, taken: wanted };
        Ok(())
    }
}
