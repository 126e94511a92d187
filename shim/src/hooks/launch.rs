//! Kernel launches in every form.

// UNSAFETY: launch descriptions of the caller are read.
#![expect(unsafe_code, reason = "the caller's structures are raw")]

use aliquot_enforce::cost::{Key, Shape};

use crate::compute::pacing;
use crate::loader::vendor::{StreamMode, Target};

/// The vendor's launch description.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    attributes: u64,
    attribute_count: u32,
}

/// One of the launches of a call for several cards.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchParams {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    parameters: u64,
}

const _: () = assert!(size_of::<LaunchConfig>() == 56 && core::mem::offset_of!(LaunchConfig, stream) == 32);
const _: () = assert!(size_of::<LaunchParams>() == 56 && core::mem::offset_of!(LaunchParams, stream) == 40);

/// Most launches of one call for several cards: a node has fewer cards.
const CARDS_MAX: u32 = 64;

/// Launches a kernel. The vendor call is written out on both ways, not captured for the one that is taken seldom: so the
/// arguments of a launch that passes stay in registers.
macro_rules! kernel {
    ($function:expr, $grid:expr, $block:expr, $stream:expr, $mode:ident, $real:expr) => {{
        let target = Target { stream: $stream, mode: StreamMode::$mode };
        match pacing::passed(Key::kernel($function, $grid, $block), target.lane()) {
            Some(paced) => paced.answered(target, $real),
            None => {
                let shape = move || Shape::kernel($function, $grid, $block);
                pacing::launch_by_rule(target, shape, move || $real)
            }
        }
    }};
}

hooks! {
    Cuda, Compute;
    fn cuLaunchKernel(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64,
        parameters: usize, extra: usize
    ) {
        kernel!(function, [gx, gy, gz], [bx, by, bz], stream, Legacy,
            cuLaunchKernel::real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
    }
    fn cuLaunchKernel_ptsz(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64,
        parameters: usize, extra: usize
    ) {
        kernel!(function, [gx, gy, gz], [bx, by, bz], stream, PerThread,
            cuLaunchKernel_ptsz::real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
    }
    fn cuLaunchKernelEx(config: *const LaunchConfig, function: u64, parameters: usize, extra: usize) {
        let Some(said) = described(config) else {
            return cuLaunchKernelEx::real(config, function, parameters, extra);
        };
        kernel!(function, said.grid, said.block, said.stream, Legacy,
            cuLaunchKernelEx::real(config, function, parameters, extra))
    }
    fn cuLaunchKernelEx_ptsz(config: *const LaunchConfig, function: u64, parameters: usize, extra: usize) {
        let Some(said) = described(config) else {
            return cuLaunchKernelEx_ptsz::real(config, function, parameters, extra);
        };
        kernel!(function, said.grid, said.block, said.stream, PerThread,
            cuLaunchKernelEx_ptsz::real(config, function, parameters, extra))
    }
    fn cuLaunchCooperativeKernel(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64,
        parameters: usize
    ) {
        kernel!(function, [gx, gy, gz], [bx, by, bz], stream, Legacy,
            cuLaunchCooperativeKernel::real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters))
    }
    fn cuLaunchCooperativeKernel_ptsz(
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64,
        parameters: usize
    ) {
        kernel!(function, [gx, gy, gz], [bx, by, bz], stream, PerThread,
            cuLaunchCooperativeKernel_ptsz::real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters))
    }
    fn cuLaunchCooperativeKernelMultiDevice(list: *const LaunchParams, count: u32, flags: u32) {
        let real = move || cuLaunchCooperativeKernelMultiDevice::real(list, count, flags);
        if list.is_null() || count == 0 || count > CARDS_MAX {
            return real();
        }
        let launches = (0..usize::try_from(count).unwrap_or(0)).map(|at| {
            // SAFETY: the caller's list of `count`, which the vendor reads, too.
            let one = unsafe { list.add(at).read_unaligned() };
            let target = Target { stream: one.stream, mode: StreamMode::Legacy };
            (Shape::kernel(one.function, one.grid, one.block), target)
        });
        pacing::launch_on_several(launches, real)
    }
    fn cuLaunch(function: u64) {
        kernel!(function, [1; 3], [1; 3], 0, Legacy, cuLaunch::real(function))
    }
    fn cuLaunchGrid(function: u64, width: i32, height: i32) {
        kernel!(function, [sides(width), sides(height), 1], [1; 3], 0, Legacy,
            cuLaunchGrid::real(function, width, height))
    }
    fn cuLaunchGridAsync(function: u64, width: i32, height: i32, stream: u64) {
        kernel!(function, [sides(width), sides(height), 1], [1; 3], stream, Legacy,
            cuLaunchGridAsync::real(function, width, height, stream))
    }
}

/// The caller's description, where there is one.
#[inline]
fn described(config: *const LaunchConfig) -> Option<LaunchConfig> {
    // SAFETY: the caller's description, which the vendor reads, too.
    (!config.is_null()).then(|| unsafe { config.read_unaligned() })
}

/// A side of a grid of the first generation; what the vendor will refuse counts as one.
fn sides(count: i32) -> u32 {
    u32::try_from(count).unwrap_or(1).max(1)
}
