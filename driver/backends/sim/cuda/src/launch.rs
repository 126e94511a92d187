//! Kernel launches: a length, handed to the card.

use crate::code::{Answer, INVALID_VALUE};
use crate::graph::WorkKind;
use crate::module::{self, FUNCTIONS, Function, Length};
use crate::stacks;
use crate::stream::{self};
use crate::table::Mode;

/// Blocks and threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Grid {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// Threads a block may have.
const THREADS_MAX: u64 = 1024;

/// The first parameter of a launch as a number; read only if the kernel's length depends on it.
pub(crate) type FirstParameter<'a> = &'a dyn Fn() -> Answer<u64>;

/// Device time of a launch, in nanoseconds.
pub(crate) fn nanos(function: u64, grid: &Grid, first: FirstParameter<'_>) -> Answer<u64> {
    length(&*FUNCTIONS.get(function)?, grid, first)
}

fn length(function: &Function, grid: &Grid, first: FirstParameter<'_>) -> Answer<u64> {
    let product = |sides: [u32; 3]| sides.into_iter().map(u64::from).fold(1_u64, u64::saturating_mul);
    let (blocks, threads) = (product(grid.blocks), product(grid.threads));
    if blocks == 0 || threads == 0 || threads > THREADS_MAX || grid.blocks[1].max(grid.blocks[2]) > 65_535 {
        return Err(INVALID_VALUE);
    }
    Ok(match function.length {
        Length::Whole(nanos) => nanos,
        Length::Block(nanos) => nanos.saturating_mul(blocks),
        Length::Parameter => first()?,
    })
}

/// cuLaunchKernel and its kind.
pub(crate) fn launch(
    function: u64,
    grid: &Grid,
    stream: u64,
    mode: Mode,
    first: FirstParameter<'_>,
) -> Answer {
    let stream = stream::find(stream, mode)?;
    let function = FUNCTIONS.get(function)?;
    let nanos = length(&function, grid, first)?;
    module::load_in(&function, stream.context)?;
    stacks::need(stream.context, function.local)?;
    stream.run(WorkKind::Kernel, nanos, None)
}
