//! The allocator: which devices serve which claims, exactly as Kubernetes' scheduler (1.36 or 1.37) would decide.
//!
//! ```text
//!   ResourceSlices ─▶ index ─▶ view of a node ─▶ candidates ─┐
//!   DeviceClasses ──▶ selectors ─────────────────────────────┤
//!   ResourceClaims ─▶ demands, shapes ───────────────────────┴▶ search ─▶ results ─▶ AllocationResults
//!                                                                ▲  │
//!   allocations ────▶ hold, release ─▶ state: capacities, counters  └▶ explanation
//! ```
//!
//! First fit in published order: pools by driver and name, slices by name, devices as listed; claims, requests and
//! alternatives as written; exhaustive depth-first search; the first full solution wins. Where Kubernetes differs from
//! this text, or this module from Kubernetes, `docs/developer/upstream-differences.md` says so.
//!
//! Invariants:
//! - allocating holds nothing; the state is the same before and after;
//! - the running sums are what a recount of all held claims gives ([`World::invariants`]);
//! - what a world allocated and held one after the other never exceeds what is published ([`World::excesses`]);
//! - what is remembered between searches never changes an answer, only how fast it comes.

mod candidates;
mod claim_plan;
mod constraints;
mod demand;
mod explain;
mod facts;
mod groups;
mod held;
mod holders;
mod index;
mod memo;
mod named;
mod numbers;
mod options;
mod place;
mod pools;
mod problem;
mod refusal;
mod results;
mod search;
mod selectors;
mod state;
mod taints;
mod twins;
mod world;

pub use explain::{
    Change, ChangesTried, Explanation, NodeExplanation, NodesExplained, ReasonGroup, RejectReason, Rejection,
    RequestExplanation,
};
pub use held::{Excess, HoldError, NotHeld, SumViolation};
pub use numbers::NodeIndex;
pub use options::{Limits, Memory, Release};
pub use place::{Candidates, Progress};
pub use problem::{InputProblem, PoolFault};
pub use refusal::{
    NodesTried, PlacementRefusal, RESULTS_MAX, Reach, SelectorFailure, SelectorOrigin, Shortage,
};
pub use world::World;

#[cfg(test)]
mod tests;
