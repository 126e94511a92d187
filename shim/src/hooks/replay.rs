//! Launches of graphs: metered as one piece of work, and the memory of their nodes is taken at the latest then.

// UNSAFETY: the vendor's functions are called through addresses.
#![expect(unsafe_code, reason = "foreign functions are called through addresses")]

use aliquot_enforce::cost::Shape;

use crate::graphs;
use crate::pacing::{self, Target};
use crate::vendor::StreamMode;

hooks! {
    Cuda, Use;
    fn cuGraphLaunch(graph: u64, stream: u64) {
        let target = Target { stream, mode: StreamMode::Legacy };
        let answer = replay(graph, target, || cuGraphLaunch::real(graph, stream));
        graphs::changed();
        answer
    }
    fn cuGraphLaunch_ptsz(graph: u64, stream: u64) {
        let target = Target { stream, mode: StreamMode::PerThread };
        let answer = replay(graph, target, || cuGraphLaunch_ptsz::real(graph, stream));
        graphs::changed();
        answer
    }
}

fn replay(graph: u64, target: Target, real: impl FnOnce() -> i32) -> i32 {
    let shape = Shape::graph(graph);
    pacing::launch(shape.key, target, || shape, real)
}
