//! Claims and requests by the names of their authors.

use crate::dra::{RequestKind, ResourceClaim};

/// One alternative of one request of one claim, as its author named it.
#[derive(Clone, Copy)]
pub(super) struct NamedAlternative<'a> {
    pub(super) claim: &'a ResourceClaim,
    pub(super) request: usize,
    pub(super) alternative: usize,
}

// === impl NamedAlternative ===

impl NamedAlternative<'_> {
    /// `request`, or `request/subrequest`.
    pub(super) fn name(self) -> String {
        let request = &self.claim.requests[self.request];
        match &request.kind {
            RequestKind::Exactly(_) => request.name.clone(),
            RequestKind::FirstAvailable(subs) => format!("{}/{}", request.name, subs[self.alternative].name),
        }
    }
}

/// namespace/name
pub(super) fn name_of(claim: &ResourceClaim) -> String {
    format!("{}/{}", claim.namespace, claim.name)
}
