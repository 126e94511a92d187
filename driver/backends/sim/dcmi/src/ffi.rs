//! The exports: one row each, with the vendor's signature.

// UNSAFETY: exporting a C symbol is an unsafe attribute. Pointers are followed in `pointer` alone.
#![expect(unsafe_code, reason = "exported C symbols need an unsafe attribute")]

/// Rows of calls.
macro_rules! exports {
    ($( fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $body:block )*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> i32 {
            $crate::library::enter(stringify!($name), || -> $crate::code::Answer { $body })
        }
    )* };
}

mod chip;
mod event;
#[expect(dead_code, reason = "one source for all simulated libraries; this one needs a part of it")]
#[path = "../../pointer.rs"]
mod pointer;
mod system;
mod vdevice;

use crate::code::Answer;
use crate::library;
use pointer::Out;

/// Gives an answer, or bytes of 0xff where the call is to answer garbage.
fn give<T: Copy>(target: Out<T>, value: T) -> Answer {
    if !library::is_garbage() {
        return target.set(value);
    }
    let bytes: Out<u8> = target.cast();
    (0..size_of::<T>()).try_for_each(|index| bytes.set_at(index, 0xff))
}

/// Gives a text with its final zero, or bytes of 0xff.
fn give_text(target: Out<u8>, size: i32, text: &str) -> Answer {
    if !library::is_garbage() {
        return pointer::write_text(target, size, text);
    }
    (0..usize::try_from(size).unwrap_or(0)).try_for_each(|index| target.set_at(index, 0xff))
}
