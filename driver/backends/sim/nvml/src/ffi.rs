//! The exports: one row each, with the vendor's signature.

// UNSAFETY: exporting a C symbol is an unsafe attribute. Pointers are followed in `pointer` alone.
#![expect(unsafe_code, reason = "exported C symbols need an unsafe attribute")]

/// Rows of calls.
macro_rules! exports {
    ($( fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $body:block )*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::library::enter(stringify!($name), || -> $crate::code::Answer { $body })
        }
    )* };
}

mod card;
mod event;
mod mig;
#[expect(dead_code, reason = "one source for all simulated libraries; this one needs a part of it")]
#[path = "../../pointer.rs"]
mod pointer;
mod sample;
mod system;
mod usage;
mod stubs {
    //! Exports without behaviour.
    use crate::library::unsupported;
    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}
