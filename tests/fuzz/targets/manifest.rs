//! Any text: objects and problems; what is read as a slice is judged without a panic.

#![no_main]

use aliquot_core::offer::validate::violations;
use aliquot_driver::manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (manifests, problems) = manifest::read("fuzz.yaml", text);
    for problem in &problems {
        assert!(!problem.to_string().is_empty());
    }
    // A person's slices may break any rule that the reader leaves to the judge of slices.
    let _violations = violations(&manifests.slices);
});
