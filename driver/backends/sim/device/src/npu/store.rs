//! What the NPUs remember: one text file, replaced by rename under a lock. A killed process leaves the old or the new state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::NpuError;

const STATE_FILE: &str = "npus-state.toml";
const LOCK_FILE: &str = "npus.lock";

/// Everything that the NPUs remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NpuState {
    /// The next recovery line cannot be written.
    pub recovery_fails: bool,
    /// Chips with their physical device node open in a process.
    pub whole: BTreeSet<usize>,
    /// Serial number of the newest fault event.
    pub serial: u32,
    /// Calls so far, by symbol; only those that a fault is planned for.
    pub calls: BTreeMap<String, u64>,
    /// Health of chips that are not well, by physical id.
    pub ailing: BTreeMap<String, ChipHealth>,
    /// vNPUs that exist.
    #[serde(rename = "vnpu")]
    pub vnpus: Vec<Vnpu>,
    /// Fault events, oldest first.
    #[serde(rename = "event")]
    pub events: Vec<FaultEvent>,
}

/// One vNPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vnpu {
    /// Physical id of its chip.
    pub phy: usize,
    /// Its id.
    pub id: u32,
    /// Its template.
    pub template: String,
    /// Its group, on chips that have groups.
    #[serde(default)]
    pub group: Option<u32>,
    /// Whether a process has its device node open.
    #[serde(default)]
    pub used: bool,
    /// The container of that process.
    #[serde(default)]
    pub container: u64,
}

/// How a chip is unwell, in the vendor's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChipHealth {
    /// 0 well, 1 minor, 2 major, 3 critical, 0xffffffff not there.
    pub health: u32,
    /// Fault codes.
    #[serde(default)]
    pub codes: Vec<u32>,
}

/// A fault that began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultEvent {
    /// Serial number, from 1.
    pub serial: u32,
    /// Physical id of the chip.
    pub phy: usize,
    /// Fault code.
    pub id: u32,
    /// 0 notice, 1 minor, 2 major, 3 critical.
    pub severity: u8,
    /// 0 ended, 1 began, 2 once.
    pub assertion: u8,
}

// === impl NpuState ===

impl NpuState {
    /// vNPUs of one chip.
    pub fn on(&self, phy: usize) -> impl Iterator<Item = &Vnpu> {
        self.vnpus.iter().filter(move |vnpu| vnpu.phy == phy)
    }

    /// How a chip is.
    #[must_use]
    pub fn ailment(&self, phy: usize) -> ChipHealth {
        self.ailing.get(&phy.to_string()).cloned().unwrap_or_default()
    }

    pub(super) fn count(&mut self, symbol: &str) -> u64 {
        let count = self.calls.entry(symbol.to_owned()).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    pub(super) fn report(&mut self, phy: usize, ailment: &ChipHealth) {
        let before = self.ailment(phy);
        let severity = |ailment: &ChipHealth| u8::try_from(ailment.health.min(3)).unwrap_or(3);
        let ended = before.codes.iter().filter(|code| !ailment.codes.contains(code));
        let began = ailment.codes.iter().filter(|code| !before.codes.contains(code));
        let ended = ended.map(|code| (*code, severity(&before), 0));
        let changes: Vec<(u32, u8, u8)> =
            ended.chain(began.map(|code| (*code, severity(ailment), 1))).collect();
        for (id, severity, assertion) in changes {
            self.serial = self.serial.saturating_add(1);
            self.events.push(FaultEvent { serial: self.serial, phy, id, severity, assertion });
        }
        self.ailing.insert(phy.to_string(), ailment.clone());
    }
}

pub(super) fn file(path: &Path, source: io::Error) -> NpuError {
    NpuError::File { path: path.to_owned(), source }
}

/// Replaces a file in one step.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), NpuError> {
    let next = path.with_extension(format!("next-{}", std::process::id()));
    fs::write(&next, text).map_err(|error| file(&next, error))?;
    fs::rename(&next, path).map_err(|error| file(path, error))
}

pub(super) fn read(dir: &Path) -> Result<NpuState, NpuError> {
    let path = dir.join(STATE_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => toml::from_str(&text).map_err(|error| file(&path, io::Error::other(error))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NpuState::default()),
        Err(error) => Err(file(&path, error)),
    }
}

pub(super) fn change<T>(
    dir: &Path,
    change: impl FnOnce(&mut NpuState) -> Result<T, NpuError>,
) -> Result<T, NpuError> {
    let path = dir.join(LOCK_FILE);
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.map_err(|error| file(&path, error))?;
    lock.lock().map_err(|error| file(&path, error))?;
    let before = read(dir)?;
    let mut state = before.clone();
    let answer = change(&mut state);
    if state != before {
        let path = dir.join(STATE_FILE);
        let text = toml::to_string(&state).map_err(|error| file(&path, io::Error::other(error)))?;
        replace(&path, &text)?;
    }
    answer
}
