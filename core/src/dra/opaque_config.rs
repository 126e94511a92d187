//! Configuration for a driver, in classes, claims and results.

/// `opaque`: parameters for one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpaqueConfig {
    /// Driver that understands them.
    pub driver: String,
    /// A JSON object as compact text, at most 10 KiB.
    pub parameters: String,
}
