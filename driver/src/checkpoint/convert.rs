//! Between the records on disk and the values that the program works with.

use aliquot_core::dra::DeviceId;
use aliquot_core::grant::{Grant, SettingWord, ShareSettings};
use aliquot_core::id::{CardUuid, ClaimUid, ShareName, TemplateName};
use aliquot_core::partition::{Part, PlacementName};
use aliquot_core::plan::{Plan, Step, check};
use aliquot_core::ports::{PartitionAt, PartitionHandle};
use aliquot_core::units::{Bytes, Cores};

use super::{
    Change, ClaimKind, ClaimRecord, ConvertError, Journal, JournalEntry, NewerFields, PartitionProgress,
    Phase, v1,
};

/// The records of a snapshot, partitions first.
pub(super) fn to_records(journal: &Journal) -> Vec<v1::Record> {
    let partitions =
        journal.partitions.iter().map(|(at, making)| JournalEntry::Partition(at.clone(), making.clone()));
    let claims = journal.claims.values().map(|record| JournalEntry::Claim(record.clone()));
    partitions.chain(claims).map(|entry| to_record(&entry, &journal.carried)).collect()
}

/// The record of one entry, with what a newer version wrote of the same claim or partition.
pub(super) fn to_record(entry: &JournalEntry, carried: &NewerFields) -> v1::Record {
    let later = |key: &str| carried.fields.get(key).cloned().unwrap_or_default();
    match entry {
        JournalEntry::Claim(record) => {
            let later = later(&JournalEntry::claim_key(&record.plan.claim));
            v1::Record::Claim(v1::Claim { later, ..claim(record) })
        }
        JournalEntry::Phase(uid, phase) => {
            v1::Record::Phase(v1::PhaseChange { uid: uid.to_string(), phase: phase_word(*phase) })
        }
        JournalEntry::Released(uid) => v1::Record::Released(v1::Released { uid: uid.to_string() }),
        JournalEntry::Partition(at, making) => {
            let later = later(&JournalEntry::partition_key(at));
            v1::Record::Partition(v1::Partition { later, ..partition(at, making) })
        }
        JournalEntry::Destroyed(at) => v1::Record::Destroyed(v1::Place {
            card: at.card.to_string(),
            template: at.template.to_string(),
            placement: at.placement.to_string(),
        }),
    }
}

/// Makes the change of one record.
pub(super) fn add_record(record: v1::Record, journal: &mut Journal) -> Result<(), ConvertError> {
    let there = |is_there: bool, key: String| if is_there { Ok(()) } else { Err(ConvertError::Unknown(key)) };
    let entry = match record {
        v1::Record::Claim(mut text) => {
            let later = std::mem::take(&mut text.later);
            let record = claim_of(text)?;
            carry(journal, JournalEntry::claim_key(&record.plan.claim), later);
            JournalEntry::Claim(record)
        }
        v1::Record::Partition(mut text) => {
            let later = std::mem::take(&mut text.later);
            let at = place(&text.card, &text.template, &text.placement)?;
            let making = match text.handle {
                None => PartitionProgress::Planned,
                Some(handle) => PartitionProgress::Made(PartitionHandle {
                    id: handle.id,
                    uuid: CardUuid::new(handle.uuid)?,
                }),
            };
            carry(journal, JournalEntry::partition_key(&at), later);
            JournalEntry::Partition(at, making)
        }
        v1::Record::Phase(text) => {
            let uid = ClaimUid::new(text.uid)?;
            there(journal.claims.contains_key(&uid), JournalEntry::claim_key(&uid))?;
            JournalEntry::Phase(uid, phase_of(text.phase))
        }
        v1::Record::Released(text) => {
            let uid = ClaimUid::new(text.uid)?;
            there(journal.claims.contains_key(&uid), JournalEntry::claim_key(&uid))?;
            JournalEntry::Released(uid)
        }
        v1::Record::Destroyed(text) => {
            let at = place(&text.card, &text.template, &text.placement)?;
            there(journal.partitions.contains_key(&at), JournalEntry::partition_key(&at))?;
            JournalEntry::Destroyed(at)
        }
    };
    journal.apply(Change::of([entry]));
    Ok(())
}

/// Keeps what a newer version wrote of a claim or partition, in place of what it wrote earlier.
fn carry(journal: &mut Journal, key: String, later: serde_json::Map<String, serde_json::Value>) {
    match later.is_empty() {
        true => drop(journal.carried.fields.remove(&key)),
        false => drop(journal.carried.fields.insert(key, later)),
    }
}

fn partition(at: &PartitionAt, making: &PartitionProgress) -> v1::Partition {
    let handle = match making {
        PartitionProgress::Planned => None,
        PartitionProgress::Made(handle) => Some(v1::Handle { id: handle.id, uuid: handle.uuid.to_string() }),
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
    v1::Claim {
        uid: record.plan.claim.to_string(),
        name: record.plan.name.clone(),
        kind: match record.kind {
            ClaimKind::Container => v1::Kind::Container,
            ClaimKind::Run => v1::Kind::Run,
        },
        phase: phase_word(record.phase),
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
    let kind = match text.kind {
        v1::Kind::Container => ClaimKind::Container,
        v1::Kind::Run => ClaimKind::Run,
    };
    let grants: Result<Vec<Grant>, ConvertError> =
        text.grants.into_iter().map(|grant| grant_of(&uid, grant)).collect();
    let steps: Result<Vec<Step>, ConvertError> = text.steps.into_iter().map(step_of).collect();
    let plan = Plan { claim: uid.clone(), name: text.name, grants: grants?, steps: steps? };
    check(&plan).map_err(|problem| ConvertError::Plan { claim: uid, problem })?;
    Ok(ClaimRecord { plan, kind, phase: phase_of(text.phase) })
}

const fn phase_word(phase: Phase) -> v1::Phase {
    match phase {
        Phase::Preparing => v1::Phase::Preparing,
        Phase::Prepared => v1::Phase::Prepared,
        Phase::Releasing => v1::Phase::Releasing,
    }
}

const fn phase_of(text: v1::Phase) -> Phase {
    match text {
        v1::Phase::Preparing => Phase::Preparing,
        v1::Phase::Prepared => Phase::Prepared,
        v1::Phase::Releasing => Phase::Releasing,
    }
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

fn word<T: SettingWord>(field: &'static str, found: &str) -> Result<T, ConvertError> {
    T::of_word(found).ok_or_else(|| ConvertError::Word {
        field,
        found: found.to_owned(),
        expected: T::words(),
    })
}
