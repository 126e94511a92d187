//! Launches of graphs: metered as one piece of work, and the memory of their nodes is reserved before.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use core::sync::atomic::{AtomicU32, Ordering};

use aliquot_enforce::cost::Shape;

use crate::compute::pacing;
use crate::grants;
use crate::grants::Need;
use crate::loader::vendor::{StreamMode, Target};
use crate::memory::graphs;

hooks! {
    Cuda, Use;
    fn cuGraphLaunch(graph: u64, stream: u64) {
        let target = Target { stream, mode: StreamMode::Legacy };
        replay(graph, target, || cuGraphLaunch::real(graph, stream))
    }
    fn cuGraphLaunch_ptsz(graph: u64, stream: u64) {
        let target = Target { stream, mode: StreamMode::PerThread };
        replay(graph, target, || cuGraphLaunch_ptsz::real(graph, stream))
    }
}

/// Whether a grant limits compute, which stays as it was found: 0 no caller looked, 1 none does, 2 one does.
static PACED: AtomicU32 = AtomicU32::new(0);

fn is_paced() -> bool {
    match PACED.load(Ordering::Relaxed) {
        0 => {
            let is_paced = grants::want(Need::Compute);
            PACED.store(1 + u32::from(is_paced), Ordering::Relaxed);
            is_paced
        }
        known => known == 2,
    }
}

fn replay(graph: u64, target: Target, real: impl Fn() -> i32) -> i32 {
    // Its turn first: nothing is reserved while it waits.
    let real = || graphs::launch(graph, target, real);
    if !is_paced() {
        return real();
    }
    let shape = Shape::graph(graph);
    let asked = || {
        if pacing::is_first(&shape, target) {
            graphs::bring(graph, target);
        }
        shape
    };
    pacing::launch(shape.key, target, asked, real)
}
