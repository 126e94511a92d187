use super::*;
use crate::catalogue::{CardIdentity, Catalogue};
use crate::id::{PciAddress, TemplateName};
use crate::partition::PlacementName;

/// Even numbers are a program's, those above 100 the card's.
struct Table;

impl Codes for Table {
    fn meaning(&self, code: u64) -> Meaning {
        let harm = match code {
            100.. => Harm::Card,
            code if code % 2 == 0 => Harm::Program,
            _ => Harm::Part,
        };
        Meaning { name: format!("Oops {code}"), what: "it hurts", harm }
    }
}

fn card() -> Card {
    let catalogue = Catalogue::embedded();
    let model = catalogue.resolve("nvidia-h100-80gb-sxm")[0];
    model.card(CardIdentity {
        uuid: uuid(),
        index: 0,
        product_name: None,
        memory: None,
        driver_version: "1".to_owned(),
        pci: None::<PciAddress>,
        pcie_root: None,
        numa_node: None,
        topology: Default::default(),
        mode: None,
        health: Health::Healthy,
        found: Vec::new(),
    })
}

fn uuid() -> CardUuid {
    CardUuid::new("GPU-0").unwrap()
}

fn at(template: &str, placement: &str) -> Part {
    Part::Partition {
        template: TemplateName::new(template).unwrap(),
        placement: PlacementName(placement.to_owned()),
    }
}

fn noted(notes: &[(Part, Cause)]) -> Notes {
    let mut made = Notes::default();
    for (part, cause) in notes {
        made.note(Subject { card: uuid(), part: part.clone() }, *cause, UnixSeconds(1_000_000_000));
    }
    made
}

/// The card with these notes held against it.
fn after(found: Rediscovery, notes: &[(Part, Cause)]) -> Card {
    let mut inventory = Inventory { cards: vec![card()] };
    hold_against(&mut inventory, &noted(notes), found, &Table);
    inventory.cards.remove(0)
}

#[test]
fn program_errors_harm_nothing_card_errors_harm_the_card() {
    let fine = after(Rediscovery::Answering, &[(Part::Card, Cause::Code(2)), (Part::Card, Cause::Silent)]);
    assert_eq!((fine.health, fine.unwell), (Health::Healthy, vec![]));
    for part in [Part::Card, at("1g.10gb", "0")] {
        let sick = after(Rediscovery::Answering, &[(part, Cause::Code(101))]);
        let Health::Unhealthy(why) = &sick.health else { panic!("{:?}", sick.health) };
        let (begins, says) =
            ("Oops 101: it hurts, seen on 2001-09-09 01:46:40 UTC; ", "aliquot health --clear");
        assert!(why.starts_with(begins) && why.contains(says), "{why}");
        assert_eq!(sick.why_unwell(&at("1g.10gb", "6")), Some(why.as_str()));
    }
}

#[test]
fn an_error_of_an_instance_is_held_against_what_overlaps_it() {
    let sick = after(Rediscovery::Answering, &[(at("2g.20gb", "2"), Cause::Code(7))]);
    assert_eq!(sick.health, Health::Healthy);
    for (template, placement, well) in [
        ("2g.20gb", "2", false),
        ("1g.10gb", "2", false),
        ("1g.10gb", "3", false),
        ("3g.40gb", "0", false),
        ("7g.80gb", "0", false),
        ("1g.10gb", "1", true),
        ("1g.10gb", "4", true),
        ("3g.40gb", "4", true),
    ] {
        let part = at(template, placement);
        assert_eq!(sick.why_unwell(&part).is_none(), well, "{part}");
    }
    assert!(sick.why_unwell(&Part::Card).is_some());
    let of_what_overlaps = sick.noted_of(&at("1g.10gb", "3"));
    assert_eq!(
        (of_what_overlaps, sick.noted_of(&at("1g.10gb", "1"))),
        ([NotedFault::Part].into(), [].into())
    );
    // Where it lies is not known any more: it may be anywhere.
    let elsewhere = after(Rediscovery::Answering, &[(at("9g.90gb", "2"), Cause::Code(7))]);
    assert_eq!(elsewhere.noted_of(&at("1g.10gb", "1")), [NotedFault::Unknown].into());
    assert!(matches!(elsewhere.health, Health::Unhealthy(_)), "{:?}", elsewhere.health);
}

#[test]
fn a_card_that_was_lost_and_answers_again_was_reset() {
    let notes = [(Part::Card, Cause::Code(101)), (Part::Card, Cause::Lost)];
    assert_eq!(after(Rediscovery::Answering, &notes).health, Health::Healthy);
    // A card that is described and not queried is as lost as before.
    let described = after(Rediscovery::Described, &notes);
    assert!(matches!(described.health, Health::Unhealthy(_)));
    assert_eq!(described.noted, [NotedFault::Card, NotedFault::Lost].into());
    assert!(matches!(after(Rediscovery::Answering, &notes[..1]).health, Health::Unhealthy(_)));
}

#[test]
fn noted_loss_gives_an_unanswering_card_cause_and_time() {
    let mut inventory = Inventory { cards: vec![card()] };
    inventory.cards[0].health = Health::Unhealthy("no answer".to_owned());
    let why = |inventory: &Inventory| inventory.cards[0].why_unwell(&Part::Card).unwrap().to_owned();
    hold_against(&mut inventory, &noted(&[(Part::Card, Cause::Code(2))]), Rediscovery::Described, &Table);
    assert_eq!(why(&inventory), "no answer");
    hold_against(&mut inventory, &noted(&[(Part::Card, Cause::Lost)]), Rediscovery::Described, &Table);
    assert!(why(&inventory).starts_with("lost: it answers no more, seen on 2001-"), "{}", why(&inventory));
}

#[test]
fn endless_events_are_bounded_and_keep_their_first_time() {
    let mut notes = Notes::default();
    let of = |card: u64| Subject { card: CardUuid::new(format!("GPU-{card}")).unwrap(), part: Part::Card };
    for code in 0..1_000 {
        let expected = if code < 64 { NoteOutcome::New } else { NoteOutcome::Known };
        assert_eq!(notes.note(of(0), Cause::Code(code), UnixSeconds(code)), expected, "{code}");
    }
    assert_eq!(notes.note(of(0), Cause::Code(5), UnixSeconds(9_999)), NoteOutcome::Known);
    assert!(notes.all().any(|(_, _, cause, at)| (cause, at) == (Cause::Code(5), UnixSeconds(5))));
    for card in 1..1_000 {
        notes.note(of(card), Cause::Lost, UnixSeconds(0));
    }
    assert_eq!(notes.cards().count(), CARDS_MAX);
    notes.clear(&of(0).card);
    assert_eq!(notes.note(of(0), Cause::Lost, UnixSeconds(0)), NoteOutcome::New);
}

#[test]
fn program_errors_do_not_displace_card_errors() {
    let mut notes = Notes::default();
    let of = |part: Part| Subject { card: uuid(), part };
    let mut tell = |part: Part, code: u64| {
        notes.make_room(&uuid(), &Table);
        notes.note(of(part), Cause::Code(code), UnixSeconds(0))
    };
    for code in (0..100).step_by(2) {
        for placement in ["0", "1", "2"] {
            assert_eq!(tell(at("1g.10gb", placement), code), NoteOutcome::New);
        }
    }
    assert_eq!(tell(Part::Card, 101), NoteOutcome::New);
    // Programs go on; what the card did stays.
    for code in (0..100).step_by(2) {
        for placement in ["3", "4", "5"] {
            tell(at("1g.10gb", placement), code);
        }
    }
    assert!(notes.all().count() <= NOTES_OF_A_CARD_MAX);
    assert_eq!(notes.held_against(&uuid(), Rediscovery::Answering, &Table).len(), 1);
}

#[test]
fn card_with_more_events_than_kept_is_unhealthy_as_a_whole() {
    let mut notes = Notes::default();
    let silent = Subject { card: uuid(), part: Part::Card };
    notes.note(silent, Cause::Silent, UnixSeconds(0));
    let told = |notes: &mut Notes, number: u64| {
        notes.make_room(&uuid(), &Table);
        let part = at("1g.10gb", if number.is_multiple_of(2) { "5" } else { "6" });
        notes.note(Subject { card: uuid(), part }, Cause::Code(number / 2 * 2 + 1), UnixSeconds(0))
    };
    let of_place = |notes: &Notes| {
        let mut inventory = Inventory { cards: vec![card()] };
        hold_against(&mut inventory, notes, Rediscovery::Answering, &Table);
        inventory.cards[0].why_unwell(&at("1g.10gb", "0")).map(str::to_owned)
    };
    for number in 0..62 {
        assert_eq!(told(&mut notes, number), NoteOutcome::New);
    }
    assert_eq!(of_place(&notes), None);
    assert_eq!((told(&mut notes, 62), told(&mut notes, 63)), (NoteOutcome::New, NoteOutcome::Known));
    let why = of_place(&notes).unwrap();
    assert!(why.starts_with("more errors than are noted; stop what uses the card"), "{why}");
}

#[test]
fn cards_against_which_nothing_is_held_keep_out_no_other() {
    let mut notes = Notes::default();
    let of = |card: u64| Subject { card: CardUuid::new(format!("GPU-{card}")).unwrap(), part: Part::Card };
    for card in 0..256 {
        let code = if card == 7 { 101 } else { 2 };
        notes.note(of(card), Cause::Code(code), UnixSeconds(0));
    }
    notes.make_room(&of(256).card, &Table);
    assert_eq!(notes.note(of(256), Cause::Code(101), UnixSeconds(0)), NoteOutcome::New);
    assert_eq!(notes.cards().collect::<Vec<_>>(), [&of(256).card, &of(7).card]);
}

#[test]
fn observed_event_counts_for_one_boot_and_one_driver_load() {
    let era =
        |boot: &str, driver: Option<&str>| Era { boot: boot.to_owned(), driver: driver.map(str::to_owned) };
    let now = era("b", Some("580/1"));
    assert!([era("b", Some("580/1")), era("b", None)].iter().all(|seen| seen.counts_in(&now)));
    assert!(![era("a", Some("580/1")), era("b", Some("580/2"))].iter().any(|seen| seen.counts_in(&now)));
}

#[test]
fn times_are_written_as_dates() {
    for (seconds, text) in [
        (0, "1970-01-01 00:00:00 UTC"),
        (951_782_399, "2000-02-28 23:59:59 UTC"),
        (951_782_400, "2000-02-29 00:00:00 UTC"),
        (1_709_251_199, "2024-02-29 23:59:59 UTC"),
        (1_767_225_599, "2025-12-31 23:59:59 UTC"),
        (4_107_542_400, "2100-03-01 00:00:00 UTC"),
    ] {
        assert_eq!(UnixSeconds(seconds).to_string(), text);
    }
    // Whatever a file says is a text.
    assert!(UnixSeconds(u64::MAX).to_string().ends_with("UTC"));
}

#[test]
fn loss_counts_until_proof_and_later_notes_beyond() {
    let mut notes = Notes::default();
    let of = || Subject { card: uuid(), part: Part::Card };
    notes.note(of(), Cause::Code(101), UnixSeconds(10));
    notes.note(of(), Cause::Lost, UnixSeconds(11));
    notes.note(of(), Cause::Code(103), UnixSeconds(12));
    notes.answers_again(&uuid());
    let causes = |notes: &Notes| notes.all().map(|(_, _, cause, _)| cause).collect::<Vec<_>>();
    assert_eq!(causes(&notes), [Cause::Code(103), Cause::Lost]);
    notes.is_proven(&uuid());
    assert_eq!(causes(&notes), [Cause::Code(103)]);
    // Without a loss nothing was reset.
    notes.answers_again(&uuid());
    assert_eq!(causes(&notes), [Cause::Code(103)]);
    let mut lost = noted(&[(Part::Card, Cause::Lost)]);
    lost.is_proven(&uuid());
    assert!(lost.is_empty());
}
