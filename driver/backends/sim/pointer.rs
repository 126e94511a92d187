//! Pointers of the caller: each type says what may be done with it, and a null one is an error.
//!
//! Like the vendor's library this trusts that a pointer to an argument points to one; handles, device addresses and ranges to
//! be copied are never trusted.
//!
//! One source for every simulated library; each compiles it with its own `code` module, and so answers its own code.

// UNSAFETY: the caller's pointers are what a C interface has.
use crate::code::{Answer, INVALID_VALUE};
use std::ffi::{CStr, CString, c_char};

/// Where an answer goes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// Where an argument lies.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

/// A C string.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl<T: Copy> Out<T> {
    /// Gives the answer.
    pub(crate) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and a place for a T by the call's contract; unaligned is allowed for.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Gives the answer, where it is wanted.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null: a place for the answer by the vendor's contract.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Fails if there is no place for an answer; called before any effect.
    pub(crate) fn check(self) -> Answer {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Whether no answer is wanted.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Gives the answer number `index` of several.
    pub(crate) fn set_at(self, index: usize, value: T) -> Answer {
        self.check()?;
        // SAFETY: not null, and as many places as the caller said by the call's contract.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// What stands there, in calls that read and write.
    pub(crate) fn get(self) -> Answer<T> {
        In(self.0.cast_const()).get()
    }

    /// The same place, to be read.
    pub(crate) fn reader(self) -> In<T> {
        In(self.0.cast_const())
    }

    /// No place.
    pub(crate) const fn none() -> Self {
        Self(std::ptr::null_mut())
    }

    /// The same place for another type.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> In<T> {
    /// The argument.
    pub(crate) fn get(self) -> Answer<T> {
        self.get_at(0)
    }

    /// Argument number `index` of several.
    pub(crate) fn get_at(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and so many of T by the call's contract; unaligned is allowed for.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Several arguments; none where there are to be none.
    pub(crate) fn list(self, count: usize) -> Answer<Vec<T>> {
        (0..count).map(|index| self.get_at(index)).collect()
    }

    /// Whether there is none.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address, for content that is copied through the kernel.
    pub(crate) fn address(self) -> u64 {
        u64::try_from(self.0.expose_provenance()).unwrap_or(0)
    }

    /// An argument at an address that another argument gave.
    pub(crate) fn at(address: u64) -> Self {
        Self(std::ptr::with_exposed_provenance(usize::try_from(address).unwrap_or(0)))
    }
}

impl Text {
    /// The string.
    pub(crate) fn get(self) -> Answer<CString> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and ends with a zero by the call's contract.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_owned())
    }
}

/// Writes a string with its final zero into `size` bytes, cut where it does not fit.
pub(crate) fn write_text(target: Out<u8>, size: i32, text: &str) -> Answer {
    let size = usize::try_from(size).ok().filter(|size| *size > 0).ok_or(INVALID_VALUE)?;
    let kept = text.bytes().take(size - 1).chain([0]);
    kept.enumerate().try_for_each(|(index, byte)| target.set_at(index, byte))
}
