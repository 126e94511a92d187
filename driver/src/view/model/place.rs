//! Use of one card or partition: its shares, their processes, and processes without a grant.

use std::path::Path;

use aliquot_abi::limits::{ComputePolicy, Limits, MemoryLimit};
use aliquot_core::units::{Bytes, Cores};

use super::contradiction::{self, DriverTime};
use super::looks::{SnapshotPair, ViewProblem, sum};
use super::rate::TimeRate;
use super::rate::{self, Reading};
use super::rows::{CardPart, DriverRow, Enforcement, ProcessRow, ShareRow, Shim, Spot};
use crate::region::{Life, SeenProcess, UsageCopy};
use crate::view::snapshot::{DriverProcess, DriverView, Files, Region, ShareView};

/// The owner of a process that the driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belongs {
    Slot { share: usize, process: usize },
    Share(usize),
    NoGrant,
}

/// Use of a card or partition.
pub(super) fn place(
    looks: SnapshotPair<'_>,
    spot: Spot<'_>,
    shares: &[&ShareView],
    problems: &mut Vec<ViewProblem>,
) -> CardPart {
    let memory = spot.memory;
    let cores = spot.cores.or_else(|| shares.iter().find_map(|share| cores_around(share)));
    let spot = Spot { cores, ..spot };
    let driver = looks.now.driver(spot.uuid, spot.state);
    let before = looks.before.and_then(|before| before.driver(spot.uuid, spot.state));
    let mut rows: Vec<ShareRow> =
        shares.iter().map(|share| share_row(looks, share, spot, problems)).collect();
    let mut outside = Vec::new();
    let mut times = vec![DriverTime::default(); rows.len()];
    let passed = before.zip(driver).map_or(0, |(before, now)| now.at.saturating_sub(before.at).as_nanos());
    for process in driver.iter().flat_map(|driver| &driver.processes) {
        let row = |shim| on_card(process, shim, driver, before);
        match belongs(process, shares) {
            Belongs::Slot { share, process: number } => {
                if let Some(time) = times.get_mut(share) {
                    time.add(row(Shim::Held).measured, passed);
                }
                let row = rows.get_mut(share).and_then(|row| row.processes.get_mut(number));
                if let Some(row) = row {
                    row.driver =
                        process.held.map(|held| sum(row.driver.into_iter().chain([held]))).or(row.driver);
                    row.command = row.command.take().or_else(|| process.command.clone());
                }
            }
            Belongs::Share(share) => {
                if let Some(share) = rows.get_mut(share) {
                    share.processes.push(row(Shim::Missing));
                }
            }
            Belongs::NoGrant => outside.push(row(Shim::Outside)),
        }
    }
    for (row, time) in rows.iter_mut().zip(times) {
        row.enforcement = row.enforcement.clone().with(&row.processes);
        if row.enforcement == Enforcement::Observed
            && let (Some(limits), Some(usage)) = (&row.limits, &row.usage)
            && let Some(why) = contradiction::of(limits, usage, &row.processes, time, cores)
        {
            problems.push(ViewProblem::new(format!("share {} ({})", row.claim, row.grant.share), &why));
            row.enforcement = Enforcement::Contradicted(why);
        }
    }
    let in_card = |process: &mut ProcessRow| process.measured = process.measured.in_part(cores);
    rows.iter_mut().flat_map(|row| &mut row.processes).chain(&mut outside).for_each(in_card);
    let books = sum(rows.iter().filter_map(|row| row.usage.as_ref()).map(|usage| usage.total));
    CardPart {
        memory,
        granted: sum(rows.iter().map(|row| row.grant.memory)),
        books,
        driver: driver.map(|driver| DriverRow {
            in_use: driver.in_use,
            high_water: driver.high_water,
            unattributed: Bytes(driver.in_use.0.saturating_sub(books.0)),
            busy: TimeRate::between(before.and_then(DriverView::reading), driver.reading()).in_part(cores),
        }),
        shares: rows,
        outside,
    }
}

/// How much of the card the part of a share has, by the share's own part of it.
fn cores_around(share: &ShareView) -> Option<Cores> {
    let (own, limits) = (share.grant.cores, share.files()?.limits.as_ref().ok()?);
    let of_part = u32::from(own.percent()) * 1_000_000;
    let percent = of_part.checked_add(limits.share_ppm / 2)?.checked_div(limits.share_ppm)?;
    u8::try_from(percent).ok().and_then(Cores::new).filter(|cores| *cores != Cores::NONE)
}

/// A process that the driver reports and no slot names.
fn on_card(
    process: &DriverProcess,
    shim: Shim,
    driver: Option<&DriverView>,
    before: Option<&DriverView>,
) -> ProcessRow {
    let reading = |driver: &DriverView, process: &DriverProcess| {
        Some(Reading { nanos: process.device_nanos?, at: driver.at })
    };
    let earlier = before.and_then(|before| {
        reading(before, before.processes.iter().find(|earlier| earlier.pid == process.pid)?)
    });
    ProcessRow {
        pid: Some(process.pid),
        inner_pid: None,
        command: process.command.clone(),
        shim,
        books: None,
        driver: process.held,
        measured: TimeRate::between(earlier, driver.and_then(|driver| reading(driver, process))),
    }
}

/// The owner of a process: the slot that it holds, else a slot that names it, else the grant that it was started with.
fn belongs(process: &DriverProcess, shares: &[&ShareView]) -> Belongs {
    let slot = |is: &dyn Fn(Life) -> bool| {
        let mut seen = shares.iter().enumerate().flat_map(|(number, share)| {
            share
                .seen()
                .into_iter()
                .flat_map(|seen| seen.processes.iter().enumerate())
                .map(move |p| (number, p))
        });
        seen.find(|(_, (_, p))| is(p.life)).map(|(share, (process, _))| Belongs::Slot { share, process })
    };
    let pid = Some(process.pid);
    let started = || {
        let is = |share: &&&ShareView| process.grants.iter().any(|dir| share.is_in(dir));
        let share = shares.iter().position(|share| is(&share))?;
        Some(Belongs::Share(share))
    };
    slot(&|life| matches!(life, Life::Held { pid: held } if held == pid))
        .or_else(|| slot(&|life| matches!(life, Life::Named { pid: named } if named == pid)))
        .or_else(started)
        .unwrap_or(Belongs::NoGrant)
}

fn share_row(
    looks: SnapshotPair<'_>,
    share: &ShareView,
    spot: Spot<'_>,
    problems: &mut Vec<ViewProblem>,
) -> ShareRow {
    let before = looks.before.and_then(|before| before.share(&share.dir));
    let files = share.files();
    let (limits, usage) = (files.and_then(|f| f.limits.as_ref().ok().copied()), share.seen());
    let enforcement = match files.map(|files| (&files.limits, &files.usage)) {
        None => Enforcement::without_limits(share, spot),
        Some((Err(why), _)) => Enforcement::Broken(format!("limits: {why}")),
        Some((_, Err(why))) => Enforcement::Broken(format!("usage: {why}")),
        Some((Ok(limits), Ok(_))) => {
            let all = limits.memory == MemoryLimit::Unlimited && limits.policy == ComputePolicy::Unlimited;
            if all { Enforcement::of_all(&share.grant.part) } else { Enforcement::Unseen }
        }
    };
    let measured = TimeRate::between(before.and_then(ShareView::reading), share.reading());
    let subject = || format!("share {} ({})", share.claim, share.grant.share);
    let wrong = untrue(share, limits.as_ref(), usage, measured);
    problems.extend(wrong.into_iter().map(|text| ViewProblem::new(subject(), text)));
    if let Enforcement::Broken(why) = &enforcement {
        problems.push(ViewProblem::new(subject(), why));
    }
    let of_card = |ppm: u32| Some(rate::of_card(ppm.into(), spot.cores?));
    let all = || spot.cores.map(|cores| rate::of_card(1_000_000, cores));
    let (guaranteed, granted) = match (&enforcement, &limits) {
        (Enforcement::Hardware | Enforcement::Unlimited, None) => (all(), all()),
        (_, limits) => (
            limits.and_then(|limits| of_card(limits.share_ppm)),
            limits.and_then(|limits| of_card(limits.granted_ppm)),
        ),
    };
    ShareRow {
        claim: share.claim.clone(),
        phase: share.phase,
        grant: share.grant.clone(),
        visible: share.visible.clone(),
        dir: share.dir.clone(),
        enforcement,
        limits,
        guaranteed,
        granted,
        usage: usage.cloned(),
        measured: measured.in_part(spot.cores),
        processes: usage.into_iter().flat_map(|u| &u.processes).map(|p| in_slot(p, share, before)).collect(),
    }
}

/// Impossible values of a region.
fn untrue(
    share: &ShareView,
    limits: Option<&Limits>,
    usage: Option<&UsageCopy>,
    measured: TimeRate,
) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(limits) = limits {
        if limits.claim.as_str() != share.grant.claim.as_str() {
            wrong.push(format!("its limits are those of claim {}", limits.claim.as_str()));
        }
        if share.visible.as_deref().is_some_and(|visible| visible != limits.card.as_str()) {
            wrong.push(format!("its limits are about card {}", limits.card.as_str()));
        }
    }
    if let Some(usage) = usage {
        let expected = aliquot_abi::layout::usage::BYTES;
        if usize::try_from(usage.length.0) != Ok(expected) {
            wrong.push(format!(
                "its usage file has {} bytes, expected {expected}: its tenant changed it",
                usage.length.0
            ));
        }
        match limits.map(|limits| limits.memory) {
            Some(MemoryLimit::Bytes(limit)) if usage.total.0 > limit => {
                wrong.push(format!("found {} bytes in use, but its limit is {limit}", usage.total.0));
            }
            _ => {}
        }
    }
    if measured == TimeRate::Implausible {
        wrong.push("its device time went backwards or faster than time: its tenant wrote it".to_owned());
    }
    wrong
}

fn in_slot(process: &SeenProcess, share: &ShareView, before: Option<&ShareView>) -> ProcessRow {
    let (pid, shim) = match process.life {
        Life::Held { pid } => (pid, Shim::Held),
        Life::Named { pid } => (pid, Shim::Named),
        Life::Dead => (None, Shim::Dead),
    };
    let reading = |share: &ShareView, process: &SeenProcess| {
        Some(Reading { nanos: process.device_nanos, at: share.reading()?.at })
    };
    let earlier = before.and_then(|before| {
        let same = |p: &&SeenProcess| p.pid == process.pid && p.life == process.life;
        reading(before, before.seen()?.processes.iter().find(same)?)
    });
    let commands = share.files().map(|files| &files.commands);
    let command = pid.and_then(|pid| commands?.get(&pid).cloned());
    ProcessRow {
        pid,
        inner_pid: Some(process.pid),
        command,
        shim,
        books: Some(process.used),
        driver: None,
        measured: TimeRate::between(earlier, reading(share, process)),
    }
}

// === impl DriverView ===

impl DriverView {
    fn reading(&self) -> Option<Reading> {
        Some(Reading { nanos: self.busy_nanos?, at: self.at })
    }
}

// === impl ShareView ===

impl ShareView {
    fn files(&self) -> Option<&Files> {
        match &self.region {
            Region::There(files) => Some(files),
            Region::Absent | Region::Missing => None,
        }
    }

    fn seen(&self) -> Option<&UsageCopy> {
        self.files()?.usage.as_ref().ok()
    }

    fn reading(&self) -> Option<Reading> {
        Some(Reading { nanos: self.seen()?.device_nanos, at: self.files()?.at })
    }

    /// Whether the share lies in a directory of grants, or is the `claim/share` of one.
    fn is_in(&self, dir: &Path) -> bool {
        if dir.is_absolute() { self.dir.starts_with(dir) } else { self.dir.ends_with(dir) }
    }
}
