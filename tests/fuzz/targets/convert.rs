//! Any text: what is converted is read again, and every loss says what and why.

#![no_main]

use std::sync::LazyLock;

use aliquot_core::catalogue::Catalogue;
use aliquot_driver::convert::{Cards, KnownCard, Settings, Source, convert};
use aliquot_driver::manifest;
use libfuzzer_sys::fuzz_target;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::embedded);

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let catalogue = &*CATALOGUE;
    let at_hand = catalogue.models().iter().map(|model| KnownCard { model, memory: model.memory }).collect();
    let cards = Cards { at_hand, catalogue: catalogue.models().iter().collect() };
    let source = Source { name: "fuzz.yaml", text };
    let Ok(converted) = convert(&[source], &cards, &Settings::default()) else { return };
    for loss in &converted.losses {
        let line = loss.to_string();
        assert!(line.contains(": not carried: ") && !line.contains(char::is_control), "{line:?}");
    }
    let text: String =
        converted.documents.iter().map(|document| format!("---\n{}", manifest::yaml_document(document))).collect();
    let again = manifest::values(&text).expect("what is printed is YAML");
    assert_eq!(again.len(), converted.documents.iter().filter(|document| !document.is_null()).count());
});
