//! The exports: one row each, with the vendor's signature. Handles come as numbers, pointers as checked types.

// UNSAFETY: exporting a C symbol is an unsafe attribute. Pointers are followed in `pointer` alone.
#![expect(unsafe_code, reason = "exported C symbols need an unsafe attribute")]

/// Rows of calls.
macro_rules! exports {
    ($( fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $body:block )*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::boundary::enter(stringify!($name), || -> $crate::code::Answer { $body })
        }
    )* };
}

/// Rows of calls that exist for the legacy and for the per-thread default stream.
macro_rules! streamed {
    ($( fn $legacy:ident, $thread:ident |$mode:ident| ( $($arg:ident : $ty:ty),* $(,)? ) $body:block )*) => { $(
        exports! {
            fn $legacy($($arg: $ty),*) { let $mode = $crate::table::Mode::Legacy; $body }
            fn $thread($($arg: $ty),*) { let $mode = $crate::table::Mode::PerThread; $body }
        }
    )* };
}

mod batch;
mod context;
mod copy;
mod device;
mod endpoint;
mod external;
mod graph;
mod green;
mod launch;
mod memory;
mod multicast;
#[path = "../../pointer.rs"]
mod pointer;
mod stream;
mod stubs {
    //! Exports without behaviour.
    use crate::boundary::unsupported;
    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}
mod word;

pub(crate) use batch::*;
pub(crate) use context::*;
pub(crate) use copy::*;
pub(crate) use device::*;
pub(crate) use endpoint::*;
pub(crate) use external::*;
pub(crate) use graph::*;
pub(crate) use green::*;
pub(crate) use launch::*;
pub(crate) use memory::*;
pub(crate) use multicast::*;
pub(crate) use stream::*;
pub(crate) use stubs::*;
pub(crate) use word::*;

// SAFETY: the address of a function, which never changes and is only handed out.
unsafe impl Sync for crate::table::Address {}
