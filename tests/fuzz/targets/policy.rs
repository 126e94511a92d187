//! Any text: a layout policy or an error that says what to do.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(error) = aliquot_core::offer::text::parse(text) {
        assert!(!error.to_string().is_empty());
    }
});
