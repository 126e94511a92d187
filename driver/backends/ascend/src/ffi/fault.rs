//! Why the library gave no answer, by its return codes.

use std::path::PathBuf;

/// Return codes with a meaning of their own here.
const BAD_PARAMETER: i32 = -8001;
const NOT_PERMITTED: i32 = -8002;
const MEMORY_FAILED: i32 = -8003;
const TIMEOUT: i32 = -8006;
const BAD_DEVICE: i32 = -8007;
const NO_DEVICE: i32 = -8008;
const IOCTL_FAILED: i32 = -8009;
const NOT_READY: i32 = -8012;
const IN_CONTAINER: i32 = -8013;
const UPGRADING: i32 = -8017;
const OCCUPIED: i32 = -8020;
const NOT_SUPPORTED: i32 = -8255;

/// Why the library gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not there or cannot be loaded.
    #[error("{0}")]
    NotLoaded(String),
    /// Another user could have written it.
    #[error("{path}: found {found}, expected {expected}")]
    Unsafe {
        /// The library.
        path: PathBuf,
        /// What is wrong.
        found: String,
        /// What must be.
        expected: String,
    },
    /// It lacks a function.
    #[error("no such function: {0}")]
    NoFunction(&'static str),
    /// It answered with an error.
    #[error("DCMI error {code} of {call}: {}", words(*code))]
    Code {
        /// The vendor's code.
        code: i32,
        /// The function.
        call: &'static str,
    },
    /// It answered with something that cannot be.
    #[error("{call}: found {found}, expected {expected}")]
    Garbage {
        /// The function.
        call: &'static str,
        /// What came.
        found: String,
        /// What could have come.
        expected: &'static str,
    },
    /// It did not answer in time; the call still runs.
    #[error("{call}: found no answer within {seconds} s, expected one")]
    Silent {
        /// What was called.
        call: &'static str,
        /// How long.
        seconds: u64,
    },
}

/// A return code in words.
pub(crate) fn words(code: i32) -> &'static str {
    match code {
        BAD_PARAMETER => "a parameter that it does not know",
        NOT_PERMITTED => "operation not permitted",
        MEMORY_FAILED => "memory operation failed",
        -8005 => "inner error",
        TIMEOUT => "timeout",
        BAD_DEVICE | NO_DEVICE => "no such device",
        IOCTL_FAILED => "the kernel's driver refused",
        NOT_READY => "device not ready",
        IN_CONTAINER => "not supported in a container",
        UPGRADING => "firmware is being upgraded",
        OCCUPIED => "resource occupied",
        -8023 => "configuration file missing",
        NOT_SUPPORTED => "not supported",
        _ => "unknown error",
    }
}

// === impl Fault ===

impl Fault {
    fn is(&self, codes: &[i32]) -> bool {
        matches!(self, Self::Code { code, .. } if codes.contains(code))
    }

    /// Whether the chip or the library has no such thing.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.is(&[NOT_SUPPORTED]) || matches!(self, Self::NoFunction(_))
    }

    /// Whether the parameter, such as a template, is unknown.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is(&[BAD_PARAMETER])
    }

    /// Whether the user or the mode does not allow it.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.is(&[NOT_PERMITTED, IN_CONTAINER])
    }

    /// Whether there is no such chip or vNPU.
    pub(crate) fn is_absent(&self) -> bool {
        self.is(&[BAD_DEVICE, NO_DEVICE])
    }

    /// Whether the chip, or what is asked for of it, is in use.
    pub(crate) fn is_occupied(&self) -> bool {
        self.is(&[OCCUPIED])
    }

    /// Whether the same call may succeed soon.
    pub(crate) fn is_passing(&self) -> bool {
        self.is(&[MEMORY_FAILED, IOCTL_FAILED, NOT_READY])
    }

    /// Whether the chip starts, or its firmware is replaced.
    pub(crate) fn is_not_ready(&self) -> bool {
        self.is(&[NOT_READY, UPGRADING])
    }

    /// Whether it is unknown if the call did its work.
    pub(crate) fn is_open(&self) -> bool {
        self.is(&[TIMEOUT]) || matches!(self, Self::Silent { .. })
    }
}
