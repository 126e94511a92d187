//! Tolerations of device taints, in requests and in results.

use super::slice::TaintEffect;

/// A toleration of a device taint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Key; `None` with `Exists` bears every key.
    pub key: Option<String>,
    /// How the value is compared.
    pub operator: TolerationOperator,
    /// Effect; `None` bears all effects.
    pub effect: Option<TaintEffect>,
    /// `tolerationSeconds`, carried into the result and not looked at.
    pub seconds: Option<i64>,
}

/// How a toleration compares the taint's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TolerationOperator {
    /// Any value.
    Exists,
    /// This value.
    Equal(String),
}
