//! Between the records on disk and the values that the program works with.

use std::collections::BTreeSet;

use aliquot_core::dra::DeviceId;
use aliquot_core::grant::{Grant, ShareSettings, Spelled};
use aliquot_core::id::{CardUuid, ClaimUid, NameError, ShareName, TemplateName};
use aliquot_core::partition::{Part, PlacementName};
use aliquot_core::plan::{Plan, PlanProblem, Step, check};
use aliquot_core::ports::{PartitionAt, PartitionHandle};
use aliquot_core::units::{Bytes, Cores};

use super::{ClaimRecord, Journal, Making, Phase, v1};

/// Why a record that is whole is not one of ours.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A name in it breaks its rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A word in it means nothing.
    #[error("{field} is `{found}`; expected {expected}")]
    Word {
        /// Field.
        field: &'static str,
        /// As found.
        found: String,
        /// Words that there are.
        expected: String,
    },
    /// A plan in it breaks a rule of plans.
    #[error("the plan of claim {claim} is none: {problem}")]
    Plan {
        /// Claim.
        claim: ClaimUid,
        /// Which rule.
        problem: PlanProblem,
    },
    /// A record is there twice.
    #[error("{0} is there twice")]
    Twice(String),
}

/// The records of a journal, partitions first.
pub(super) fn to_records(journal: &Journal) -> Vec<v1::Record> {
    let partitions =
        journal.partitions.iter().map(|(at, making)| v1::Record::Partition(partition(at, making)));
    let claims = journal.claims.values().map(|record| v1::Record::Claim(claim(record)));
    let mut records: Vec<v1::Record> = partitions.chain(claims).collect();
    for record in &mut records {
        if let Some(later) = journal.carried.fields.get(&record.key()) {
            record.later().clone_from(later);
        }
    }
    records
}

/// What the records of a journal are about.
pub(super) fn keys(journal: &Journal) -> BTreeSet<String> {
    to_records(journal).iter().map(v1::Record::key).collect()
}

/// Adds one record to a journal.
pub(super) fn add_record(mut record: v1::Record, journal: &mut Journal) -> Result<(), ConvertError> {
    let key = record.key();
    let later = std::mem::take(record.later());
    if !later.is_empty() {
        journal.carried.fields.insert(key.clone(), later);
    }
    let twice = match record {
        v1::Record::Claim(text) => {
            let record = claim_of(text)?;
            journal.claims.insert(record.plan.claim.clone(), record).is_some()
        }
        v1::Record::Partition(text) => {
            let at = place(&text.card, &text.template, &text.placement)?;
            let making = match text.handle {
                None => Making::Planned,
                Some(handle) => {
                    Making::Made(PartitionHandle { id: handle.id, uuid: CardUuid::new(handle.uuid)? })
                }
            };
            journal.partitions.insert(at, making).is_some()
        }
    };
    if twice { Err(ConvertError::Twice(key)) } else { Ok(()) }
}

fn partition(at: &PartitionAt, making: &Making) -> v1::Partition {
    let handle = match making {
        Making::Planned => None,
        Making::Made(handle) => Some(v1::Handle { id: handle.id, uuid: handle.uuid.to_string() }),
    };
    v1::Partition {
        card: at.card.to_string(),
        template: at.template.to_string(),
        placement: at.placement.to_string(),
        handle,
        later: serde_json::Map::new(),
    }
}

fn claim(record: &ClaimRecord) -> v1::Claim {
    let phase = match record.phase {
        Phase::Preparing => v1::Phase::Preparing,
        Phase::Prepared => v1::Phase::Prepared,
        Phase::Releasing => v1::Phase::Releasing,
    };
    v1::Claim {
        uid: record.plan.claim.to_string(),
        name: record.plan.name.clone(),
        phase,
        grants: record.plan.grants.iter().map(grant).collect(),
        steps: record.plan.steps.iter().map(step).collect(),
        later: serde_json::Map::new(),
    }
}

fn grant(grant: &Grant) -> v1::Grant {
    let part = match &grant.part {
        Part::Card => v1::Part::Card,
        Part::Partition { template, placement } => {
            v1::Part::Partition { template: template.to_string(), placement: placement.to_string() }
        }
        Part::Slot { name, copy } => v1::Part::Slot { name: name.clone(), copy: *copy },
    };
    v1::Grant {
        share: grant.share.to_string(),
        request: grant.request.clone(),
        driver: grant.device.driver.clone(),
        pool: grant.device.pool.clone(),
        device: grant.device.device.clone(),
        card: grant.card.to_string(),
        part,
        sharing: grant.sharing.word().to_owned(),
        memory_bytes: grant.memory.0,
        cores_percent: grant.cores.percent(),
        compute: grant.settings.compute.word().to_owned(),
        priority: grant.settings.priority.word().to_owned(),
        fail_mode: grant.settings.fail_mode.word().to_owned(),
    }
}

fn step(step: &Step) -> v1::Step {
    match step {
        Step::CreatePartition(at) => v1::Step::CreatePartition {
            card: at.card.to_string(),
            template: at.template.to_string(),
            placement: at.placement.to_string(),
        },
        Step::WriteGrant(share) => v1::Step::WriteGrant { share: share.to_string() },
        Step::WriteCdi => v1::Step::WriteCdi,
    }
}

fn claim_of(text: v1::Claim) -> Result<ClaimRecord, ConvertError> {
    let uid = ClaimUid::new(text.uid)?;
    let phase = match text.phase {
        v1::Phase::Preparing => Phase::Preparing,
        v1::Phase::Prepared => Phase::Prepared,
        v1::Phase::Releasing => Phase::Releasing,
    };
    let grants: Result<Vec<Grant>, ConvertError> =
        text.grants.into_iter().map(|grant| grant_of(&uid, grant)).collect();
    let steps: Result<Vec<Step>, ConvertError> = text.steps.into_iter().map(step_of).collect();
    let plan = Plan { claim: uid.clone(), name: text.name, grants: grants?, steps: steps? };
    check(&plan).map_err(|problem| ConvertError::Plan { claim: uid, problem })?;
    Ok(ClaimRecord { plan, phase })
}

fn grant_of(claim: &ClaimUid, text: v1::Grant) -> Result<Grant, ConvertError> {
    let part = match text.part {
        v1::Part::Card => Part::Card,
        v1::Part::Partition { template, placement } => {
            Part::Partition { template: TemplateName::new(template)?, placement: PlacementName(placement) }
        }
        v1::Part::Slot { name, copy } => Part::Slot { name, copy },
    };
    let cores = Cores::new(text.cores_percent).ok_or_else(|| ConvertError::Word {
        field: "coresPercent",
        found: text.cores_percent.to_string(),
        expected: "0 to 100".to_owned(),
    })?;
    Ok(Grant {
        claim: claim.clone(),
        share: ShareName::new(text.share)?,
        request: text.request,
        device: DeviceId { driver: text.driver, pool: text.pool, device: text.device },
        card: CardUuid::new(text.card)?,
        part,
        sharing: word("sharing", &text.sharing)?,
        memory: Bytes(text.memory_bytes),
        cores,
        settings: ShareSettings {
            compute: word("compute", &text.compute)?,
            priority: word("priority", &text.priority)?,
            fail_mode: word("failMode", &text.fail_mode)?,
        },
    })
}

fn step_of(text: v1::Step) -> Result<Step, ConvertError> {
    Ok(match text {
        v1::Step::CreatePartition { card, template, placement } => {
            Step::CreatePartition(place(&card, &template, &placement)?)
        }
        v1::Step::WriteGrant { share } => Step::WriteGrant(ShareName::new(share)?),
        v1::Step::WriteCdi => Step::WriteCdi,
    })
}

fn place(card: &str, template: &str, placement: &str) -> Result<PartitionAt, ConvertError> {
    Ok(PartitionAt {
        card: CardUuid::new(card)?,
        template: TemplateName::new(template)?,
        placement: PlacementName(placement.to_owned()),
    })
}

fn word<T: Spelled>(field: &'static str, found: &str) -> Result<T, ConvertError> {
    T::of_word(found).ok_or_else(|| ConvertError::Word {
        field,
        found: found.to_owned(),
        expected: T::words(),
    })
}
