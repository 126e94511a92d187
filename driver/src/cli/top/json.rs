//! The picture for programs. Keys and units are a promise: `docs/user/top.md`.

use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, MemoryLimit};
use aliquot_core::grant::SettingWord;
use aliquot_core::partition::Part;
use aliquot_core::units::Bytes;
use serde_json::{Value, json};

use crate::region::{SeenRefusal, UsageCopy};
use crate::view::model::{
    CardHealthView, CardPart, CardRow, Enforcement, PartitionRow, Picture, ProcessRow, ShareRow, TimeRate,
    phase_word,
};

/// Version of the shape: raised when a key changes its meaning or goes.
const VERSION: u32 = 2;

/// Everything.
pub(super) fn value(picture: &Picture) -> Value {
    let states: Vec<Value> = picture
        .states
        .iter()
        .map(|state| json!({ "directory": state.dir.display().to_string(), "shares": state.shares }))
        .collect();
    let problems: Vec<Value> =
        picture.problems.iter().map(|p| json!({ "subject": p.subject, "problem": p.text })).collect();
    json!({
        "version": VERSION,
        "states": states,
        "closed": picture.closed.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>(),
        "cards": picture.cards.iter().map(card).collect::<Vec<_>>(),
        "problems": problems,
    })
}

fn card(card: &CardRow) -> Value {
    let mut value = place(&card.place);
    let own = json!({
        "uuid": card.uuid,
        "index": card.index,
        "name": card.name,
        "state": card.state.as_ref().map(|dir| dir.display().to_string()),
        "health": health(&card.health),
        "partitions": card.partitions.iter().map(partition).collect::<Vec<_>>(),
    });
    join(&mut value, own);
    value
}

fn health(health: &CardHealthView) -> Value {
    let (health, why) = match health {
        CardHealthView::Unknown => ("unknown", None),
        CardHealthView::Well => ("healthy", None),
        CardHealthView::Unwell(why) => ("unhealthy", Some(why)),
    };
    json!({ "state": health, "why": why })
}

fn partition(partition: &PartitionRow) -> Value {
    let mut value = place(&partition.place);
    let own = json!({
        "template": partition.template,
        "placement": partition.placement,
        "uuid": partition.uuid,
        "health": health(&partition.health),
    });
    join(&mut value, own);
    value
}

fn join(value: &mut Value, more: Value) {
    if let (Value::Object(value), Value::Object(more)) = (value, more) {
        value.extend(more);
    }
}

fn place(place: &CardPart) -> Value {
    let driver = place.driver.map(|driver| {
        json!({
            "usedBytes": driver.in_use.0,
            "highWaterBytes": bytes(driver.high_water),
            "unattributedBytes": driver.unattributed.0,
            "busyPercent": percent(driver.busy),
        })
    });
    json!({
        "memoryBytes": bytes(place.memory),
        "grantedBytes": place.granted.0,
        "bookedBytes": place.books.0,
        "driver": driver,
        "shares": place.shares.iter().map(share).collect::<Vec<_>>(),
        "outside": place.outside.iter().map(process).collect::<Vec<_>>(),
    })
}

fn share(share: &ShareRow) -> Value {
    let why = match &share.enforcement {
        Enforcement::Broken(why) | Enforcement::Contradicted(why) => Some(why),
        _ => None,
    };
    let part = match &share.grant.part {
        Part::Card => "card".to_owned(),
        part => part.to_string(),
    };
    json!({
        "claim": share.claim,
        "claimUid": share.grant.claim.as_str(),
        "share": share.grant.share.as_str(),
        "request": share.grant.request,
        "phase": phase_word(share.phase),
        "part": part,
        "visibleUuid": share.visible,
        "directory": share.dir.display().to_string(),
        "enforcement": { "state": share.enforcement.word(), "why": why },
        "memory": {
            "grantedBytes": share.grant.memory.0,
            "limitBytes": share.limits.as_ref().and_then(limit),
            "usedBytes": share.usage.as_ref().map(|usage| usage.total.0),
            "highWaterBytes": share.usage.as_ref().map(|usage| usage.high_water.0),
            "deniedAllocations": share.usage.as_ref().map(|usage| usage.denied),
            "refusals": share.usage.as_ref().map(|usage| usage.refusals.iter().map(refusal).collect::<Vec<_>>()),
        },
        "compute": compute(share),
        "failMode": share.limits.as_ref().map(|limits| match limits.fail_mode {
            FailMode::Closed => "closed",
            FailMode::Open => "open",
        }),
        "reapedProcesses": share.usage.as_ref().map(|usage: &UsageCopy| usage.reaped),
        "unknownSymbols": share.usage.as_ref().map(|usage| usage.unknown_symbols),
        "processes": share.processes.iter().map(process).collect::<Vec<_>>(),
    })
}

fn refusal(seen: &SeenRefusal) -> Value {
    let SeenRefusal { refusal, ago } = seen;
    json!({
        "secondsAgo": ago.as_secs_f64(),
        "innerPid": refusal.pid,
        "kind": refusal.call.kind.word(),
        "cause": refusal.call.cause.word(),
        "wantedBytes": Some(refusal.call.wanted_bytes).filter(|bytes| *bytes > 0),
        "reservedBytes": refusal.reserved_bytes,
        "residueBytes": refusal.residue_bytes,
        "limitBytes": Some(refusal.limit_bytes).filter(|bytes| *bytes < u64::MAX),
    })
}

fn compute(share: &ShareRow) -> Value {
    let limits = share.limits.as_ref();
    json!({
        "policy": limits.map(|limits| policy(limits.policy)),
        "priority": share.grant.settings.priority.word(),
        "guaranteedPercent": share.guaranteed.map(of_ppm),
        "grantedPercent": share.granted.map(of_ppm),
        "measuredPercent": percent(share.measured),
        "deviceNanos": share.usage.as_ref().map(|usage| usage.device_nanos),
    })
}

fn process(process: &ProcessRow) -> Value {
    json!({
        "pid": process.pid,
        "innerPid": process.inner_pid,
        "command": process.command,
        "shim": process.shim.word(),
        "bookedBytes": bytes(process.books),
        "driverBytes": bytes(process.driver),
        "measuredPercent": percent(process.measured),
    })
}

/// A limit in bytes; `None`: there is none.
pub(super) fn limit(limits: &Limits) -> Option<u64> {
    match limits.memory {
        MemoryLimit::Bytes(bytes) => Some(bytes),
        MemoryLimit::Unlimited => None,
    }
}

/// How compute is limited, as a word.
pub(super) const fn policy(policy: ComputePolicy) -> &'static str {
    match policy {
        ComputePolicy::Cap => "cap",
        ComputePolicy::Burst => "burst",
        ComputePolicy::BestEffort => "best effort",
        ComputePolicy::Unlimited => "unlimited",
    }
}

fn bytes(bytes: Option<Bytes>) -> Option<u64> {
    bytes.map(|bytes| bytes.0)
}

fn percent(measured: TimeRate) -> Option<f64> {
    match measured {
        TimeRate::Ppm(ppm) => Some(of_ppm(ppm)),
        TimeRate::Unknown | TimeRate::Implausible => None,
    }
}

/// Percent with one ten-thousandth of a percent, which a double holds exactly enough to be printed so.
fn of_ppm(ppm: u64) -> f64 {
    f64::from(u32::try_from(ppm).unwrap_or(u32::MAX)) / 10_000.0
}
