//! Any text: a quantity or an error; what is read prints and reads back to the same amount.

#![no_main]

use aliquot_core::quantity::Quantity;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(quantity) = text.parse::<Quantity>() else { return };
    let printed = quantity.to_string();
    let again: Quantity = printed.parse().expect("what we print is a quantity");
    assert_eq!(again, quantity, "{text} -> {printed}");
    // 62.5Ki is printed as 64000, as upstream prints it, and that as 64k; from there on it stays.
    let settled = again.to_string();
    let last: Quantity = settled.parse().expect("what we print is a quantity");
    assert_eq!((last, last.to_string()), (quantity, settled), "{text} -> {printed}");
});
