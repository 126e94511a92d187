//! What each device of a node says to a request.

use super::reason::{ReasonGroup, RejectReason};
use crate::dra::{AllocationMode, DeviceId};

/// What each device of a node says to one alternative of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestExplanation {
    /// The claim, as namespace/name.
    pub claim: String,
    /// `request`, or `request/subrequest`.
    pub request: String,
    /// How many devices it wants.
    pub wanted: AllocationMode,
    /// Devices that would serve it, in the order of search.
    pub usable: Vec<DeviceId>,
    /// Devices that would not, in the order of search.
    pub rejected: Vec<Rejection>,
}

/// A device and the first reason why it does not serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The device.
    pub device: DeviceId,
    /// Why not.
    pub reason: RejectReason,
}

// === impl RequestExplanation ===

impl RequestExplanation {
    /// The reasons without their devices, and how many devices each keeps off: the nearest misses first, and of those the
    /// most frequent. What a selector leaves out was never meant.
    #[must_use]
    pub fn groups(&self) -> Vec<(ReasonGroup, usize)> {
        let mut groups: Vec<(ReasonGroup, usize)> = Vec::new();
        for rejection in &self.rejected {
            let group = rejection.reason.group();
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, count)) => *count += 1,
                None => groups.push((group, 1)),
            }
        }
        groups.sort_by_key(|(group, count)| (group.distance(), std::cmp::Reverse(*count)));
        groups
    }
}
