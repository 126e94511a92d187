//! Parts of the precompiled core library name the function that unwinding would call. Nothing unwinds here, and it is called
//! never; hidden, so that no other library sees it.

// UNSAFETY: a symbol that only assembly can define on stable.
#![expect(unsafe_code, reason = "the symbol is defined in assembly")]

core::arch::global_asm!(
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality:",
    "ret",
);
