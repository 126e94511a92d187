//! What goes wrong on a simulated node, as data: cards that do not work, calls that fail.
//!
//! ```toml
//! [[card]]
//! model = "nvidia-t4"
//! health = [{ card = 0, unhealthy = "Xid 79: fell off the bus" }]
//!
//! [[fault]]                # the second and third creation fail
//! call = "create"          # discover | list | create | destroy
//! nth = 2                  # from 1, counted over all processes that use the state directory
//! times = 2
//! effect = "error"         # error | busy | lost-answer (done, but reported as failed) | slow (done after `millis`)
//! code = 15
//! message = "GPU is lost"
//! ```

use std::time::Duration;

use aliquot_core::ports::BackendError;

use crate::node_file::{CallText, EffectText, FaultText};

/// Longest that one slow call may take; more would look like a hang.
const SLOW_MILLIS_MAX: u64 = 60_000;

/// Which call of the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Asking for the cards.
    Discover,
    /// Asking for the partitions.
    List,
    /// Making one.
    Create,
    /// Destroying one.
    Destroy,
}

/// Calls `nth` to `nth + times - 1` of one kind go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which kind.
    pub call: Call,
    /// The first one, from 1.
    pub nth: u64,
    /// How many.
    pub times: u64,
    /// How.
    pub effect: Effect,
}

/// How a call goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is done, and the vendor's error comes back.
    Error {
        /// The vendor's code.
        code: i32,
        /// The vendor's words.
        message: String,
    },
    /// Nothing is done: in use.
    Busy,
    /// It is done, yet the vendor's error comes back.
    LostAnswer {
        /// The vendor's code.
        code: i32,
        /// The vendor's words.
        message: String,
    },
    /// It is done, later.
    Slow(Duration),
}

// === impl Call ===

impl Call {
    /// As written in node files and in the hardware's state.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Discover => "discover",
            Self::List => "list",
            Self::Create => "create",
            Self::Destroy => "destroy",
        }
    }
}

// === impl Fault ===

impl Fault {
    /// The fault as the node file has it.
    pub(crate) fn from_text(text: &FaultText) -> Self {
        let call = match text.call {
            CallText::Discover => Call::Discover,
            CallText::List => Call::List,
            CallText::Create => Call::Create,
            CallText::Destroy => Call::Destroy,
        };
        let (code, message) = (text.code, text.message.clone());
        let effect = match text.effect {
            EffectText::Error => Effect::Error { code, message },
            EffectText::Busy => Effect::Busy,
            EffectText::LostAnswer => Effect::LostAnswer { code, message },
            EffectText::Slow => Effect::Slow(Duration::from_millis(text.millis.min(SLOW_MILLIS_MAX))),
        };
        Self { call, nth: text.nth, times: text.times, effect }
    }

    /// Whether it hits the call with this number.
    pub(crate) fn hits(&self, call: Call, number: u64) -> bool {
        self.call == call && number.checked_sub(self.nth).is_some_and(|past| past < self.times)
    }
}

// === impl Effect ===

impl Effect {
    /// The error that comes back instead of an answer, where there is one.
    pub(crate) fn error(&self, what: &str) -> Option<BackendError> {
        let what = what.to_owned();
        match self {
            Self::Busy => Some(BackendError::Busy { what }),
            Self::Error { code, message } | Self::LostAnswer { code, message } => {
                Some(BackendError::Vendor { what, code: *code, message: message.clone() })
            }
            Self::Slow(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_hits_its_calls_and_no_other() {
        let fault = Fault { call: Call::Create, nth: 2, times: 2, effect: Effect::Busy };
        let hit: Vec<u64> = (1..6).filter(|n| fault.hits(Call::Create, *n)).collect();
        assert_eq!(hit, [2, 3]);
        assert!(!fault.hits(Call::Destroy, 2));
    }
}
