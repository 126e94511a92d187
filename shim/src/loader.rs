//! Addresses and calls of the vendor's functions, never through our own exports.

#[macro_use]
pub(crate) mod library;
pub(crate) mod resolve;
pub(crate) mod vendor;
