//! The plan linter: rules that every plan keeps, looked at apart from the code that makes plans.

use std::collections::BTreeSet;

use super::step::{Plan, Step};
use crate::id::ShareName;
use crate::ports::PartitionAt;
use crate::units::Bytes;

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanProblem {
    /// Nothing is granted.
    #[error("it grants nothing")]
    Empty,
    /// A share has the name of another.
    #[error("share {0} is granted twice")]
    SharedName(ShareName),
    /// A grant is of another claim.
    #[error("share {0} is of another claim")]
    OtherClaim(ShareName),
    /// A grant of nothing.
    #[error("share {0} has no memory")]
    NoMemory(ShareName),
    /// A step is there twice.
    #[error("step `{0}` is there twice")]
    Repeated(String),
    /// A share is granted, but its record is not written.
    #[error("the grant of share {0} is not written")]
    Unwritten(ShareName),
    /// A record is written for a share that is not granted.
    #[error("share {0} is written but not granted")]
    Ungranted(ShareName),
    /// A partition is created that no grant uses.
    #[error("{0} is created without a grant")]
    Unused(PartitionAt),
    /// The order of steps hands out what does not exist yet.
    #[error("step `{0}` comes too late: partitions, then grants, then the CDI file")]
    Order(String),
    /// The claim cannot be handed to a container.
    #[error("the CDI file is not written as the last step")]
    NoCdi,
}

/// The first rule that the plan breaks.
///
/// # Errors
/// It breaks one.
pub fn check(plan: &Plan) -> Result<(), PlanProblem> {
    let granted = check_grants(plan)?;
    let mut stage = 0;
    let mut seen = BTreeSet::new();
    for step in &plan.steps {
        if !seen.insert(step) {
            return Err(PlanProblem::Repeated(step.to_string()));
        }
        if stage_of(step) < stage {
            return Err(PlanProblem::Order(step.to_string()));
        }
        stage = stage_of(step);
        match step {
            Step::CreatePartition(at) => {
                if !plan.grants.iter().any(|g| g.partition().as_ref() == Some(at)) {
                    return Err(PlanProblem::Unused(at.clone()));
                }
            }
            Step::WriteGrant(share) if !granted.contains(share) => {
                return Err(PlanProblem::Ungranted(share.clone()));
            }
            Step::WriteGrant(_) | Step::WriteCdi => {}
        }
    }
    if let Some(share) = granted.iter().find(|s| !seen.contains(&Step::WriteGrant((*s).clone()))) {
        return Err(PlanProblem::Unwritten(share.clone()));
    }
    if plan.steps.last() == Some(&Step::WriteCdi) { Ok(()) } else { Err(PlanProblem::NoCdi) }
}

fn check_grants(plan: &Plan) -> Result<BTreeSet<ShareName>, PlanProblem> {
    if plan.grants.is_empty() {
        return Err(PlanProblem::Empty);
    }
    let mut granted = BTreeSet::new();
    for grant in &plan.grants {
        if grant.claim != plan.claim {
            return Err(PlanProblem::OtherClaim(grant.share.clone()));
        }
        if grant.memory == Bytes(0) {
            return Err(PlanProblem::NoMemory(grant.share.clone()));
        }
        if !granted.insert(grant.share.clone()) {
            return Err(PlanProblem::SharedName(grant.share.clone()));
        }
    }
    Ok(granted)
}

/// Where in a plan a step belongs.
const fn stage_of(step: &Step) -> u8 {
    match step {
        Step::CreatePartition(_) => 0,
        Step::WriteGrant(_) => 1,
        Step::WriteCdi => 2,
    }
}
