//! What an implementation of a function is.

use crate::meter::Meter;
use crate::value::{Fault, Outcome, Value};

/// An implementation.
pub(crate) type Builtin = fn(&[Value], &mut Meter) -> Outcome;

/// "These arguments fit no signature": the caller adds the name.
pub(super) fn misfit<T>() -> Outcome<T> {
    Err(Fault::Error(String::new()))
}
