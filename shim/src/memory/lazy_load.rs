//! What was got of modules and libraries before: a driver that loads lazily takes memory when something is first got, so what
//! is asked again takes nothing and need not be measured. Looked up without a lock and without asking the driver.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::loader::vendor;
use crate::memory::modules::Object;
use crate::sys::fork_private::NotedNumbers;
use crate::sys::{self, KeepErrno};

/// Questions that are remembered; others are measured again.
const ASKED_MAX: usize = 1 << 13;

static ASKED: NotedNumbers<ASKED_MAX> = NotedNumbers::new();
/// Counts ends of modules, libraries and contexts: what was asked before one is not remembered after it.
static AGE: AtomicU64 = AtomicU64::new(1);

/// Bytes of the longest name that is read where it may lie nowhere.
const NAME_MAX: usize = 1 << 16;
/// No page is smaller.
const PAGE: usize = 4096;

/// A question, told apart from all others by 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadKey {
    question: u64,
    /// The object itself: the driver knows it, as something was had of it.
    object: u64,
}

/// The caller's name of what is asked for; null: it has none.
pub(crate) type Name = *const c_char;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadSubject {
    /// A function of a module, or a kernel of a library.
    Function = 1,
    /// A variable.
    Variable = 2,
    /// Its module, or its function.
    Itself = 3,
    /// Anything.
    Any = 4,
    /// A reference to a texture, or to a surface.
    Texture = 5,
    Surface = 6,
    /// A function with one address on all cards.
    Unified = 7,
}

/// Numbers and bytes become a number: FNV-1a, and a last mixing.
fn head(first: [u64; 3]) -> u64 {
    first.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
        (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

fn step(sum: u64, byte: u8) -> u64 {
    (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}

fn mixed(sum: u64) -> u64 {
    (sum ^ (sum >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93).max(1)
}

impl LoadKey {
    /// Of a module, which belongs to one context. `None`: the name is no text, and the driver says what is wrong.
    pub(crate) fn of_module(what: LoadSubject, module: Object, name: Name) -> Option<Self> {
        Self::at_age(AGE.load(Ordering::Acquire), what, module, name)
    }

    fn at_age(age: u64, what: LoadSubject, module: Object, name: Name) -> Option<Self> {
        let object = mixed(head([module.0, LoadSubject::Any as u64, age]));
        let first = head([module.0, what as u64, age]);
        let has_name = !name.is_null();
        // Of what it does not know the driver never looks at the name, which may be anything.
        let is_safe = !has_name || ASKED.has(object);
        let sum = match (has_name, is_safe) {
            (false, _) => first,
            (true, true) => text(name).to_bytes().iter().copied().fold(first, step),
            (true, false) => read(name, first)?,
        };
        let question = mixed(sum);
        if !is_safe && ASKED.has(question) {
            ASKED.note(object);
        }
        Some(Self { question, object })
    }

    /// Of a library, which is loaded into every context anew. `None`: there is no context, or the name is no text.
    pub(crate) fn of_library(what: LoadSubject, library: Object, name: Name) -> Option<Self> {
        let _errno = KeepErrno::new();
        Self::named_in(what, library, vendor::current_context()?, name)
    }

    /// The same of what has no name, in this context.
    pub(crate) fn in_context(what: LoadSubject, library: Object, context: u64) -> Option<Self> {
        Self::named_in(what, library, context, core::ptr::null())
    }

    fn named_in(what: LoadSubject, library: Object, context: u64, name: Name) -> Option<Self> {
        Self::of_module(what, Object(library.0 ^ context.rotate_left(32)), name)
    }

    /// Whether it was had before.
    pub(crate) fn is_known(self) -> bool {
        ASKED.has(self.question)
    }

    /// It was had.
    pub(crate) fn note(self) {
        ASKED.note(self.question);
        ASKED.note(self.object);
    }
}

/// A module, a library or a context ended: its handle may name another one.
pub(crate) fn ended() {
    AGE.fetch_add(1, Ordering::AcqRel);
}

#[expect(unsafe_code, reason = "a text of the caller")]
fn text<'a>(name: Name) -> &'a CStr {
    // SAFETY: not null, and a text that ends in zero by the vendor's contract; it is used within the call.
    unsafe { CStr::from_ptr(name) }
}

/// The same of a name that may lie anywhere; `None`: it is no text.
#[cold]
#[inline(never)]
#[expect(unsafe_code, reason = "a text of the caller")]
fn read(name: Name, mut sum: u64) -> Option<u64> {
    for at in 0..NAME_MAX {
        let place = name.wrapping_byte_add(at).cast::<u8>();
        if (at == 0 || place.addr().is_multiple_of(PAGE)) && !is_there(place) {
            return None;
        }
        // SAFETY: there is something to read up to the end of this page.
        match unsafe { place.read() } {
            0 => return Some(sum),
            byte => sum = step(sum, byte),
        }
    }
    None
}

fn is_there(place: *const u8) -> bool {
    u64::try_from(place.addr()).is_ok_and(sys::is_readable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_had_of_what_is_still_there_is_known() {
        // Other tests end contexts meanwhile, so ages are given.
        let of = |age, what, module, name: &CStr| {
            LoadKey::at_age(age, what, Object(module), name.as_ptr()).unwrap()
        };
        let had = of(1, LoadSubject::Function, 0x5000, c"kernel");
        assert!(!had.is_known());
        had.note();
        assert!(had.is_known() && of(1, LoadSubject::Function, 0x5000, c"kernel").is_known());
        assert!(!of(1, LoadSubject::Variable, 0x5000, c"kernel").is_known());
        assert!(!of(1, LoadSubject::Function, 0x5010, c"kernel").is_known());
        assert!(!of(1, LoadSubject::Function, 0x5000, c"kernel2").is_known());
        assert!(
            !LoadKey::at_age(1, LoadSubject::Function, Object(0x5000), core::ptr::null()).unwrap().is_known()
        );
        assert!(!of(2, LoadSubject::Function, 0x5000, c"kernel").is_known(), "something ended since");
    }

    #[test]
    fn a_name_is_the_same_before_anything_was_had_and_after_it() {
        for length in [0, 1, 5000, NAME_MAX - 1] {
            let name = std::ffi::CString::new(vec![b'x'; length]).unwrap();
            let ask = || {
                LoadKey::at_age(
                    1,
                    LoadSubject::Function,
                    Object(0x7000 + u64::try_from(length).unwrap()),
                    name.as_ptr(),
                )
                .unwrap()
            };
            let first = ask();
            first.note();
            assert_eq!(ask(), first, "{length}");
        }
    }

    #[test]
    fn of_what_nothing_was_had_a_name_that_lies_nowhere_is_not_read() {
        let of = |name: usize| {
            LoadKey::at_age(1, LoadSubject::Function, Object(0x8000), core::ptr::without_provenance(name))
        };
        assert_eq!([1, 4095, usize::MAX, usize::MAX >> 1].map(of), [None; 4]);
        let endless = vec![b'x'; 2 * NAME_MAX];
        assert_eq!(LoadKey::at_age(1, LoadSubject::Function, Object(0x8000), endless.as_ptr().cast()), None);
    }

    #[test]
    fn an_end_makes_everything_older() {
        let before = AGE.load(Ordering::Acquire);
        ended();
        assert!(AGE.load(Ordering::Acquire) > before);
    }
}
