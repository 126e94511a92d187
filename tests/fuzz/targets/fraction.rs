//! Any text: an ask for a part of a card, or an error; an ask is answered or refused with what there is.

#![no_main]

use std::sync::LazyLock;

use aliquot_core::catalogue::{CardModel, Catalogue};
use aliquot_core::fraction::{parse_ask, resolve};
use libfuzzer_sys::fuzz_target;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::embedded);

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(ask) = parse_ask(text) else { return };
    let models: Vec<&CardModel> = CATALOGUE.models().iter().collect();
    match resolve(&ask, &models) {
        Ok(answers) => assert!(!answers.is_empty(), "an answer has something in it"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
