//! What goes wrong, as data: `faults.toml` of the directory.
//!
//! ```toml
//! [[fault]]
//! symbol = "cuMemAlloc_v2"      # the export
//! call = 3                      # the n-th call of a process, from 1; absent: every call
//! action = { error = 2 }        # "kill" | "missing" | "lost" | { error = code } | { slow_nanos = n } | { xid = n }
//! card = 1                      # the card of the Xid, or the lost card: an index, or the UUID of a card or
//! MIG device; absent:
//!                               # card 0, and the call fails with it. An Xid of a MIG device carries its
//!                               numbers; its whole
//!                               # card is lost
//! ```
//!
//! The plan is read when a library is initialised; counting is per process and library.

use crate::card::{Card, Health};
use crate::mig::MigDevice;
use crate::{Device, mapping};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call does nothing and answers this code.
    Error(u32),
    /// The call takes this much longer, in nanoseconds.
    SlowNanos(u64),
    /// The library does not have the symbol.
    Missing,
    /// The process is killed before the call does anything.
    Kill,
    /// The card reports this Xid; the call goes on.
    Xid(u64),
    /// The card falls off the bus. The call fails with it; where a card is named, it goes on, and fails if it is about that card.
    Lost,
}

/// A card as the plan names it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum CardSelector {
    /// By its place.
    Index(usize),
    /// By its UUID, or that of a MIG device on it.
    Uuid(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default, rename = "fault")]
    faults: Vec<Fault>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    symbol: String,
    call: Option<u64>,
    action: Action,
    card: Option<CardSelector>,
}

#[derive(Debug, Default)]
struct SymbolFaults {
    calls: AtomicU64,
    faults: Vec<(Option<u64>, Action, Option<CardSelector>)>,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Struck {
    /// With this code of its library.
    Error(u32),
    /// As if its library did not have it.
    Missing,
    /// As calls on a lost card do.
    Lost,
}

/// The faults of a process.
#[derive(Debug, Default)]
pub struct FaultPlan {
    symbols: HashMap<String, SymbolFaults>,
}

/// Why `faults.toml` was refused.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It is there and cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It says something unknown.
    #[error("{path} is not a fault plan")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: toml::de::Error,
    },
}

/// The card that is meant, with the MIG device where that is.
fn named_on<'a>(device: &'a Device, named: Option<&CardSelector>) -> Option<(&'a Card, Option<MigDevice>)> {
    let uuid = match named {
        None => return device.card(0).map(|card| (card, None)),
        Some(CardSelector::Index(index)) => return device.card(*index).map(|card| (card, None)),
        Some(CardSelector::Uuid(uuid)) => uuid,
    };
    let meant = |card: &'a Card| {
        if card.facts().uuid == *uuid {
            return Some((card, None));
        }
        let part = card.mig_devices().into_iter().find(|part| card.mig_uuid(part.compute) == *uuid)?;
        Some((card, Some(part)))
    };
    device.cards().iter().find_map(meant)
}

impl FaultPlan {
    /// Reads `faults.toml` of `dir`; no faults where there is none.
    ///
    /// # Errors
    ///
    /// [`PlanError`] where it is there and not usable.
    pub fn read(dir: &Path) -> Result<Self, PlanError> {
        let path = dir.join("faults.toml");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(PlanError::Read { path, source }),
        };
        let text: Text = toml::from_str(&text).map_err(|source| PlanError::Parse { path, source })?;
        let mut symbols = HashMap::<String, SymbolFaults>::new();
        for fault in text.faults {
            symbols.entry(fault.symbol).or_default().faults.push((fault.call, fault.action, fault.card));
        }
        Ok(Self { symbols })
    }

    /// Whether nothing ever goes wrong.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Counts a call of `symbol`; what happens to it, and to which card where one is named.
    #[must_use]
    pub fn strike(&self, symbol: &str) -> Vec<(Action, Option<&CardSelector>)> {
        let Some(watched) = self.symbols.get(symbol) else { return Vec::new() };
        let call = watched.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let due = watched.faults.iter().filter(|(number, ..)| number.is_none_or(|number| number == call));
        due.map(|(_, action, card)| (*action, card.as_ref())).collect()
    }

    /// Counts a call of `symbol` and does to it what the plan says.
    ///
    /// # Errors
    ///
    /// [`Struck`] where the call is to fail.
    pub fn apply(&self, symbol: &str, device: &Device) -> Result<(), Struck> {
        for (action, named) in self.strike(symbol) {
            let card = named_on(device, named);
            match action {
                Action::Error(code) => return Err(Struck::Error(code)),
                Action::SlowNanos(nanos) => std::thread::sleep(std::time::Duration::from_nanos(nanos)),
                Action::Missing => return Err(Struck::Missing),
                Action::Kill => mapping::kill_self(),
                Action::Xid(xid) => card.into_iter().for_each(|(card, of)| card.raise_xid(xid, of)),
                Action::Lost => {
                    card.into_iter().for_each(|(card, _)| card.set_health(Health::Lost));
                    if named.is_none() {
                        return Err(Struck::Lost);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the library lacks `symbol`.
    #[must_use]
    pub fn lacks(&self, symbol: &str) -> bool {
        self.symbols
            .get(symbol)
            .is_some_and(|watched| watched.faults.iter().any(|(_, action, _)| *action == Action::Missing))
    }

    /// The symbols a library lacks.
    #[must_use]
    pub fn missing(&self) -> Vec<&str> {
        self.symbols.keys().map(String::as_str).filter(|symbol| self.lacks(symbol)).collect()
    }
}
