//! What was got of modules and libraries before: a driver that loads lazily takes memory when something is first got, so what
//! is asked again takes nothing and need not be measured. Looked up without a lock and without asking the driver.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::kept::Noted;
use crate::modules::Object;
use crate::sys::KeepErrno;
use crate::vendor;

/// Questions that are remembered; others are measured again.
const ASKED_MAX: usize = 1 << 13;

static ASKED: Noted<ASKED_MAX> = Noted::new();
/// Counts ends of modules, libraries and contexts: what was asked before one is not remembered after it.
static AGE: AtomicU64 = AtomicU64::new(1);

/// A question, told apart from all others by 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked(u64);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A function of a module, or a kernel of a library.
    Function = 1,
    /// A variable.
    Variable = 2,
    /// Its module, or its function.
    Itself = 3,
}

/// A number and bytes become a number: FNV-1a, and a last mixing.
fn digest(first: [u64; 3], bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let head = first.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    let sum = bytes.iter().fold(head, step);
    (sum ^ (sum >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93).max(1)
}

impl Asked {
    /// Of a module, which belongs to one context.
    pub(crate) fn of_module(what: What, module: Object, name: Option<&CStr>) -> Self {
        Self::at_age(AGE.load(Ordering::Acquire), what, module, name)
    }

    fn at_age(age: u64, what: What, module: Object, name: Option<&CStr>) -> Self {
        Self(digest([module.0, what as u64, age], name.map_or(&[], CStr::to_bytes)))
    }

    /// Of a library, which is loaded into every context anew. `None`: there is no context.
    pub(crate) fn of_library(what: What, library: Object, name: Option<&CStr>) -> Option<Self> {
        let _errno = KeepErrno::new();
        let context = vendor::current_context()?;
        Some(Self::of_module(what, Object(library.0 ^ context.rotate_left(32)), name))
    }

    /// Whether it was had before.
    pub(crate) fn is_known(self) -> bool {
        ASKED.has(self.0)
    }

    /// It was had.
    pub(crate) fn note(self) {
        ASKED.note(self.0);
    }
}

/// A module, a library or a context ended: its handle may name another one.
pub(crate) fn ended() {
    AGE.fetch_add(1, Ordering::AcqRel);
}

/// The caller's name; `None`: there is none.
#[expect(unsafe_code, reason = "a text of the caller")]
pub(crate) fn name<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null, and a text that ends in zero by the vendor's contract; it is used within the call.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_had_of_what_is_still_there_is_known() {
        // Other tests end contexts meanwhile, so ages are given.
        let of = |age, what, module, name| Asked::at_age(age, what, Object(module), Some(name));
        let had = of(1, What::Function, 0x5000, c"kernel");
        assert!(!had.is_known());
        had.note();
        assert!(had.is_known() && of(1, What::Function, 0x5000, c"kernel").is_known());
        assert!(!of(1, What::Variable, 0x5000, c"kernel").is_known());
        assert!(!of(1, What::Function, 0x5010, c"kernel").is_known());
        assert!(!of(1, What::Function, 0x5000, c"kernel2").is_known());
        assert!(!Asked::at_age(1, What::Function, Object(0x5000), None).is_known());
        assert!(!of(2, What::Function, 0x5000, c"kernel").is_known(), "something ended since");
    }

    #[test]
    fn an_end_makes_everything_older() {
        let before = AGE.load(Ordering::Acquire);
        ended();
        assert!(AGE.load(Ordering::Acquire) > before);
    }
}
