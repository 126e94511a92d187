//! A claim made ready for a search on one node.

use std::sync::Arc;

use super::candidates::LaneNo;
use super::constraints::Constraint;
use super::demand::{DemandNo, Shape};
use crate::dra::{Access, AllocationMode};

/// A claim made ready for one node.
#[derive(Debug)]
pub(super) struct ClaimPlan {
    pub(super) shape: Arc<Shape>,
    pub(super) requests: Vec<RequestPlan>,
    /// As many as the shape has.
    pub(super) constraints: Vec<Constraint>,
}

/// A request made ready for one node.
#[derive(Debug)]
pub(super) struct RequestPlan {
    pub(super) form: Form,
    pub(super) alternatives: Vec<Alternative>,
}

/// Which of the two forms a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Exactly,
    FirstAvailable,
}

/// The request, and where it fits.
#[derive(Debug)]
pub(super) struct Alternative {
    pub(super) demand: DemandNo,
    pub(super) lane: LaneNo,
    pub(super) access: Access,
    pub(super) wanted: DeviceCount,
}

/// How many devices.
#[derive(Debug)]
pub(super) enum DeviceCount {
    Count(usize),
    /// Exactly these, by position in the set.
    All(Vec<usize>),
}

// === impl DeviceCount ===

impl DeviceCount {
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::All(positions) => positions.len(),
        }
    }

    pub(super) fn of(mode: AllocationMode) -> Self {
        match mode {
            AllocationMode::ExactCount(count) => Self::Count(count as usize),
            AllocationMode::All => Self::All(Vec::new()),
        }
    }
}
