//! Any text: notes of cards, an error that says what was found, or an admin's word on Xids with what is wrong with it. The same
//! text as the body of notes under the right sum, since a fuzzer seldom guesses that: what is read is written and read back, and
//! whatever it says keeps no error of a card from being held against it.

#![no_main]

use aliquot_backend_nvidia::xid::Xids;
use aliquot_core::health::{Cause, Codes as _, Rediscovery, Subject, UnixSeconds};
use aliquot_core::partition::Part;
use aliquot_driver::checkpoint::CardHealth;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let framed = format!("aliquot-health 1 {:08x}\n{text}", crc32c::crc32c(text.as_bytes()));
    for text in [text, &framed] {
        match CardHealth::decode(text) {
            Err(found) => assert!(found.starts_with("found ") && !found.contains('\n')),
            Ok(health) => {
                assert_eq!(CardHealth::decode(&health.encode()).as_ref(), Ok(&health));
                let xids = Xids::default();
                let mut notes = health.notes.clone();
                for card in health.notes.cards() {
                    for found in [Rediscovery::Answering, Rediscovery::Described] {
                        let held = health.notes.held_against(card, found, &xids);
                        assert!(held.iter().all(|unwell| !unwell.why.contains('\n')));
                    }
                    // Whatever is there, an error of the card is held against all of it.
                    let of = Subject { card: card.clone(), part: Part::Card };
                    notes.make_room(card, &xids);
                    notes.note(of, Cause::Code(95), UnixSeconds(0));
                    let held = notes.held_against(card, Rediscovery::Described, &xids);
                    assert!(held.iter().any(|unwell| unwell.part == Part::Card));
                }
            }
        }
    }
    let (xids, problems) = Xids::parse(text);
    assert!(problems.len() <= text.lines().count());
    assert_eq!(xids.meaning(79).name, "Xid 79");
});
