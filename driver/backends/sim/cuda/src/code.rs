//! Result codes of the driver API.

use std::ffi::CStr;

/// A result other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// What every call comes to.
pub(crate) type Answer<T = ()> = Result<T, Code>;

pub(crate) const INVALID_VALUE: Code = Code(1);
pub(crate) const OUT_OF_MEMORY: Code = Code(2);
pub(crate) const NOT_INITIALIZED: Code = Code(3);
pub(crate) const NO_DEVICE: Code = Code(100);
pub(crate) const INVALID_DEVICE: Code = Code(101);
pub(crate) const INVALID_CONTEXT: Code = Code(201);
pub(crate) const MAP_FAILED: Code = Code(205);
pub(crate) const INVALID_HANDLE: Code = Code(400);
pub(crate) const NOT_FOUND: Code = Code(500);
pub(crate) const NOT_READY: Code = Code(600);
pub(crate) const PRIMARY_CONTEXT_ACTIVE: Code = Code(708);
pub(crate) const NOT_SUPPORTED: Code = Code(801);
pub(crate) const CAPTURE_UNSUPPORTED: Code = Code(900);
pub(crate) const CAPTURE_INVALIDATED: Code = Code(901);
pub(crate) const CAPTURE_UNMATCHED: Code = Code(903);
pub(crate) const DEVICE_UNAVAILABLE: Code = Code(46);
pub(crate) const UNKNOWN: Code = Code(999);

static TEXTS: &[(u32, &CStr, &CStr)] = include!(concat!(env!("OUT_DIR"), "/codes.rs"));

/// Name and description of a code; `None` for one that is not known.
pub(crate) fn texts(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    TEXTS.iter().find(|row| row.0 == code).map(|row| (row.1, row.2))
}
