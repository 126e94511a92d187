//! Result codes of NVML.

use std::ffi::CStr;

/// A result other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// What every call comes to.
pub(crate) type Answer<T = ()> = Result<T, Code>;

pub(crate) const UNINITIALIZED: Code = Code(1);
/// An argument that cannot be; the name is the one that all simulated libraries share.
pub(crate) const INVALID_VALUE: Code = Code(2);
pub(crate) const NOT_SUPPORTED: Code = Code(3);
pub(crate) const NO_PERMISSION: Code = Code(4);
pub(crate) const NOT_FOUND: Code = Code(6);
pub(crate) const INSUFFICIENT_SIZE: Code = Code(7);
pub(crate) const DRIVER_NOT_LOADED: Code = Code(9);
pub(crate) const TIMEOUT: Code = Code(10);
pub(crate) const GPU_IS_LOST: Code = Code(15);
pub(crate) const IN_USE: Code = Code(19);
pub(crate) const INSUFFICIENT_RESOURCES: Code = Code(23);
pub(crate) const VERSION_MISMATCH: Code = Code(25);
pub(crate) const UNKNOWN: Code = Code(999);

/// A code in words.
pub(crate) fn text(code: u32) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient memory",
        21 => c"No data",
        23 => c"Insufficient Resources",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    }
}
