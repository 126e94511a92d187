//! Claims in the order in which they are released for a try.

use std::sync::Arc;

use super::change::ChangesTried;

/// The claims that are released for a try, in order.
#[derive(Debug)]
pub(in crate::allocate) struct ReleaseOrder {
    pub(super) first: Vec<ReleasedClaim>,
    /// Whether there are more claims that hold something.
    pub(super) tried: ChangesTried,
}

/// A claim that holds something.
#[derive(Debug)]
pub(super) struct ReleasedClaim {
    pub(super) uid: String,
    /// namespace/name
    pub(super) claim: Arc<str>,
    /// How many devices and shares.
    pub(super) holds: usize,
}
