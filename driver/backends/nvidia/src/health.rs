//! Errors of the library, in words: the call, what it found, what was expected, what to do.

use aliquot_core::ports::BackendError;

use crate::driver_root::DriverRootError;
use crate::ffi::Fault;

/// The oldest driver with every library function in use.
pub const DRIVER_MIN: u32 = 510;

/// What helps a lost card.
const RESET: &str = "stop what uses it and reset it (nvidia-smi --gpu-reset), or restart the machine";

/// Why a machine has no NVIDIA cards for us.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The library is not there or cannot be loaded.
    #[error(
        "NVIDIA driver library: found no libnvidia-ml.so.1 that can be loaded, expected that of driver {DRIVER_MIN} or \
         newer: install NVIDIA's driver, or name the directory of its libraries in LD_LIBRARY_PATH"
    )]
    NoLibrary(#[source] Fault),
    /// The library finds no driver.
    #[error(
        "NVIDIA driver: found its library, and none in the kernel, expected {DRIVER_MIN} or newer: load it \
         (modprobe nvidia), or give this container the card's device files"
    )]
    NoDriver(#[source] Fault),
    /// The driver root that was named has no driver.
    #[error(transparent)]
    DriverRoot(DriverRootError),
    /// The driver is older than what we know.
    #[error("NVIDIA driver: found version {found}, expected {DRIVER_MIN} or newer: install a newer driver")]
    TooOld {
        /// Its version.
        found: String,
    },
    /// The library lacks a function that every driver of its version has.
    #[error(
        "NVIDIA driver library: found it without a function, expected all of driver {DRIVER_MIN}: library and driver may \
         be of different versions, install them anew"
    )]
    NoFunction(#[source] Fault),
    /// The library gives no answer.
    #[error(
        "NVIDIA driver library: {what}: found an error, expected an answer: see what nvidia-smi and the kernel's log say"
    )]
    NoAnswer {
        /// The query.
        what: &'static str,
        /// What came.
        #[source]
        source: Fault,
    },
    /// No card can be used.
    #[error("NVIDIA cards: found none, expected at least one{}", Reasons(trouble))]
    NoCards {
        /// What is wrong with those that there are.
        trouble: Vec<String>,
    },
}

/// Sentences behind a message.
struct Reasons<'a>(&'a [String]);

impl std::fmt::Display for Reasons<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|reason| write!(f, "; {reason}"))
    }
}

// === impl OpenError ===

impl OpenError {
    /// A fault in answer to a question.
    pub(crate) fn of(what: &'static str, fault: Fault) -> Self {
        match fault {
            Fault::NotLoaded(_) => Self::NoLibrary(fault),
            Fault::NoFunction(_) => Self::NoFunction(fault),
            _ if fault.is_no_driver() => Self::NoDriver(fault),
            source => Self::NoAnswer { what, source },
        }
    }

    /// Whether there is simply no NVIDIA driver on this machine.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        matches!(self, Self::NoLibrary(_) | Self::NoDriver(_))
    }
}

/// A fault as every backend reports it.
pub(crate) fn error(what: String, fault: Fault) -> BackendError {
    match fault {
        Fault::Code { code, text } => {
            BackendError::Vendor { what, code: i32::try_from(code).unwrap_or(i32::MAX), message: text }
        }
        other => BackendError::Unreachable { what, source: Box::new(other) },
    }
}

/// The same of a card that does not answer.
pub(crate) fn unread(what: String, fault: Fault) -> BackendError {
    match &fault {
        Fault::Code { code, text } if fault.is_lost() => BackendError::Vendor {
            what,
            code: i32::try_from(*code).unwrap_or(i32::MAX),
            message: format!("{text}: {RESET}"),
        },
        _ => error(what, fault),
    }
}

/// The same of something that not every user may do.
pub(crate) fn refused(what: String, fault: Fault) -> BackendError {
    match fault {
        Fault::Code { code, .. } if fault.is_forbidden() => BackendError::Vendor {
            what,
            code: i32::try_from(code).unwrap_or(i32::MAX),
            message: instances_unread(&fault),
        },
        fault => error(what, fault),
    }
}

/// Why a card in MIG mode accepts no claims: its instances cannot be read.
pub(crate) fn instances_unread(fault: &Fault) -> String {
    if fault.is_forbidden() {
        return "MIG mode: found on, and this user may not create MIG instances, expected a user with that right: run as \
                root, or let an administrator give this user read access to the device file of the capability mig/config \
                (/dev/nvidia-caps/nvidia-cap1, see /proc/driver/nvidia/capabilities)"
            .to_owned();
    }
    format!("MIG instances: found no answer, expected a list: {}", unanswered(fault))
}

/// What is wrong with a card that does not answer.
pub(crate) fn unanswered(fault: &Fault) -> String {
    if fault.is_lost() {
        return format!("{fault}: {RESET}");
    }
    format!("{fault}: see what nvidia-smi and the kernel's log say of it")
}
