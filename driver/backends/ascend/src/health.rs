//! Health of chips, and errors in words: the object, what failed, found, expected, what to do.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use aliquot_core::card::Health;
use aliquot_core::health::{Codes, Harm, Meaning};
use aliquot_core::id::CardUuid;
use aliquot_core::ports::BackendError;

use crate::ffi::Fault;

/// The vendor's health numbers.
const WELL: u32 = 0;
const MINOR: u32 = 1;
const MAJOR: u32 = 2;
const CRITICAL: u32 = 3;
const NOT_PRESENT: u32 = u32::MAX;

/// Looks in a row that must agree before a chip counts as worse, or as well again.
const WORSE_LOOKS: u32 = 2;
const BETTER_LOOKS: u32 = 3;

/// Why a machine has no Ascend NPUs for us.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The library is not there or cannot be loaded.
    #[error(
        "Ascend driver library: found no libdcmi.so that can be loaded, expected that of the driver (/usr/local/dcmi): install \
         Huawei's driver, or name the directory of its library in LD_LIBRARY_PATH"
    )]
    NoLibrary(#[source] Fault),
    /// Another user could have written the library.
    #[error(
        "Ascend driver library: not loaded: let root own it (chown root, chmod go-w), or install the driver anew"
    )]
    Unsafe(#[source] Fault),
    /// The library lacks a function without which nothing is known.
    #[error(
        "Ascend driver library: found it without a function, expected one with dcmi_init and card lists: install a newer driver"
    )]
    NoFunction(#[source] Fault),
    /// The library does not serve these NPUs.
    #[error(
        "Ascend driver library: {what}: not supported by these NPUs: the newest chips need the second interface of the library, \
         which is not supported"
    )]
    NotSupported {
        /// What was asked.
        what: &'static str,
        /// What came.
        #[source]
        source: Fault,
    },
    /// The library gives no answer.
    #[error(
        "Ascend driver library: {what}: found an error, expected an answer: see what npu-smi and the kernel's log say"
    )]
    NoAnswer {
        /// What was asked.
        what: &'static str,
        /// What came.
        #[source]
        source: Fault,
    },
    /// No NPU can be used.
    #[error("Ascend NPUs: found none, expected at least one{}", trouble.iter().map(|why| format!("; {why}")).collect::<String>())]
    NoCards {
        /// What is wrong with those that there are.
        trouble: Vec<String>,
    },
}

/// The vendor's table of fault codes: one that is reported as critical asks for a reset of the chip.
#[derive(Clone, Copy, Debug)]
pub struct FaultCodes;

impl Codes for FaultCodes {
    fn meaning(&self, code: u64) -> Meaning {
        Meaning { name: format!("fault {code:08X}"), what: "a critical fault of the NPU", harm: Harm::Card }
    }
}

// === impl OpenError ===

impl OpenError {
    pub(crate) fn of(what: &'static str, fault: Fault) -> Self {
        match fault {
            Fault::NotLoaded(_) => Self::NoLibrary(fault),
            Fault::Unsafe { .. } => Self::Unsafe(fault),
            Fault::NoFunction(_) => Self::NoFunction(fault),
            source if source.is_unsupported() => Self::NotSupported { what, source },
            source => Self::NoAnswer { what, source },
        }
    }

    /// Whether there is simply no Ascend driver on this machine.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        matches!(self, Self::NoLibrary(_))
    }
}

/// A fault as every backend reports it.
pub(crate) fn error(what: String, fault: Fault) -> BackendError {
    match fault {
        Fault::Code { code, call } => {
            BackendError::Vendor { what, code, message: format!("{call}: {}", crate::ffi::words(code)) }
        }
        other => BackendError::Unreachable { what, source: Box::new(other) },
    }
}

/// What is wrong with a chip that does not answer.
pub(crate) fn unanswered(fault: &Fault) -> String {
    if fault.is_not_ready() {
        return format!("{fault}: the chip starts or is in recovery; wait, then ask again");
    }
    format!("{fault}: see what npu-smi and the kernel's log say of it")
}

/// What the vendor's number and fault codes mean.
pub(crate) fn judge(health: &Result<u32, Fault>, codes: &[u32]) -> Health {
    let codes: Vec<String> = codes.iter().take(8).map(|code| format!("{code:08X}")).collect();
    let codes = if codes.is_empty() { String::new() } else { format!(", fault codes {}", codes.join(" ")) };
    let ill = |word: &str| {
        Health::Unhealthy(format!(
            "health: found {word}{codes}, expected ok: look the codes up in the vendor's fault list, then reset the chip (npu-smi \
             set -t reset) or restart the machine"
        ))
    };
    match health {
        Ok(WELL | MINOR) => Health::Healthy,
        Ok(MAJOR) => ill("a major fault"),
        Ok(CRITICAL) => ill("a critical fault"),
        Ok(NOT_PRESENT) => ill("no chip"),
        Ok(other) => ill(&format!("the number {other}")),
        // While a chip is split, some questions are not permitted: that says nothing of its health.
        Err(fault) if fault.is_unsupported() || fault.is_forbidden() => Health::Healthy,
        Err(fault) => {
            Health::Unhealthy(format!("health: found no answer, expected one: {}", unanswered(fault)))
        }
    }
}

/// Keeps a chip's health until several looks in a row say otherwise, so that one odd answer moves no tenant.
#[derive(Debug, Default)]
pub(crate) struct Debounce(Mutex<BTreeMap<CardUuid, Steady>>);

#[derive(Debug)]
struct Steady {
    known: Health,
    other: u32,
}

// === impl Debounce ===

impl Debounce {
    /// The health that counts, now that a look says this. The first look counts at once; so does a chip that is gone or has a
    /// critical fault.
    pub(crate) fn settle(&self, card: &CardUuid, seen: Health, number: Option<u32>) -> Health {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(steady) = known.get_mut(card) else {
            known.insert(card.clone(), Steady { known: seen.clone(), other: 0 });
            return seen;
        };
        let is_well = |health: &Health| matches!(health, Health::Healthy);
        if is_well(&steady.known) == is_well(&seen) {
            *steady = Steady { known: seen.clone(), other: 0 };
            return seen;
        }
        steady.other += 1;
        let looks = match (is_well(&seen), number) {
            (true, _) => BETTER_LOOKS,
            (false, Some(CRITICAL | NOT_PRESENT)) => 1,
            (false, _) => WORSE_LOOKS,
        };
        if steady.other >= looks {
            *steady = Steady { known: seen, other: 0 };
        }
        steady.known.clone()
    }

    /// Whether the latest look of every chip said well, and counts.
    pub(crate) fn is_quiet(&self) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().all(|steady| steady.other == 0 && steady.known == Health::Healthy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(debounce: &Debounce, number: u32) -> bool {
        let card = CardUuid::new("NPU-1").unwrap();
        matches!(debounce.settle(&card, judge(&Ok(number), &[]), Some(number)), Health::Healthy)
    }

    #[test]
    fn health_changes_after_several_looks_that_agree() {
        let debounce = Debounce::default();
        let seen: Vec<bool> =
            [0, 2, 0, 2, 2, 0, 0, 2, 0, 0, 0].into_iter().map(|number| look(&debounce, number)).collect();
        let well = [true, true, true, true, false, false, false, false, false, false, true];
        assert_eq!(seen, well);
    }

    #[test]
    fn critical_faults_and_first_looks_count_at_once() {
        let debounce = Debounce::default();
        assert!(look(&debounce, 1) && !look(&debounce, 3));
        assert!(!look(&Debounce::default(), 2));
        let critical = judge(&Ok(3), &[0x80C9_8001]);
        let Health::Unhealthy(why) = critical else { unreachable!("{critical:?}") };
        assert!(why.contains("a critical fault, fault codes 80C98001, expected ok"), "{why}");
    }

    #[test]
    fn health_that_is_not_told_is_no_fault() {
        let code = |code| Err(Fault::Code { code, call: "dcmi_get_device_health" });
        assert_eq!(judge(&code(-8002), &[]), Health::Healthy);
        assert_eq!(judge(&code(-8255), &[]), Health::Healthy);
        assert!(matches!(judge(&code(-8005), &[]), Health::Unhealthy(_)));
    }
}
