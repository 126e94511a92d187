use super::*;
use crate::card::{Health, Supply, Topology};
use crate::catalogue::CardIdentity;
use crate::dra::ShareId;
use crate::id::TemplateName;
use crate::partition::{Part, PlacementName};
use crate::units::{Bytes, Cores};

pub(super) fn catalogue() -> Catalogue {
    Catalogue::embedded()
}

pub(super) fn card(model: &str, index: u32) -> Card {
    let catalogue = catalogue();
    let model = catalogue.model(&model.parse().unwrap()).unwrap();
    model.card(CardIdentity {
        uuid: format!("card-{index}").parse().unwrap(),
        index,
        product_name: None,
        memory: None,
        driver_version: "1.2.3".to_owned(),
        pci: None,
        pcie_root: None,
        numa_node: None,
        topology: Topology::default(),
        mode: None,
        health: Health::Healthy,
        found: Vec::new(),
    })
}

fn ledger_of(cards: Vec<Card>) -> Ledger {
    let (ledger, problems) = Ledger::new(&Inventory { cards }, &catalogue());
    assert_eq!(problems, []);
    ledger.invariants().unwrap();
    ledger
}

fn part(text: &str) -> Part {
    match text.split_once('@') {
        None if text == "card" => Part::Card,
        None => Part::Slot { name: text.to_owned(), copy: 0 },
        Some((template, placement)) => Part::Partition {
            template: TemplateName::new(template).unwrap(),
            placement: PlacementName(placement.to_owned()),
        },
    }
}

fn share(gib: u64, cores: u8) -> Take {
    Take::Share { memory: Bytes(gib << 30), cores: Cores::new(cores).unwrap() }
}

fn holding(claim: &str, card: u32, text: &str, take: Take) -> Holding {
    Holding {
        claim: claim.parse().unwrap(),
        request: "gpu".to_owned(),
        share: None,
        card: format!("card-{card}").parse().unwrap(),
        part: part(text),
        take,
    }
}

/// Holds, and recounts after it, whatever came of it.
fn hold(ledger: &mut Ledger, claim: &str, text: &str, take: Take) -> Result<HoldOutcome, HoldRefusal> {
    let result = ledger.hold(holding(claim, 0, text, take));
    ledger.invariants().unwrap();
    result
}

fn release(ledger: &mut Ledger, claim: &str) -> usize {
    let released = ledger.release(&claim.parse().unwrap()).len();
    ledger.invariants().unwrap();
    released
}

const ALL: Take = Take::Exclusive;

#[test]
fn whole_shares_and_partitions_exclude_each_other_in_any_order() {
    let mut ledger = ledger_of(vec![card("nvidia-h100-80gb-sxm", 0)]);
    hold(&mut ledger, "a", "1g.10gb@3", ALL).unwrap();
    for take in [ALL, share(1, 0)] {
        assert!(matches!(hold(&mut ledger, "b", "card", take), Err(HoldRefusal::Counter { .. })));
    }
    release(&mut ledger, "a");
    hold(&mut ledger, "b", "card", share(8, 25)).unwrap();
    assert!(matches!(hold(&mut ledger, "a", "1g.10gb@3", ALL), Err(HoldRefusal::Counter { .. })));
    assert!(matches!(hold(&mut ledger, "a", "card", ALL), Err(HoldRefusal::Occupied { .. })));
    hold(&mut ledger, "c", "card", share(64, 75)).unwrap();
    release(&mut ledger, "b");
    assert!(matches!(hold(&mut ledger, "a", "1g.10gb@3", ALL), Err(HoldRefusal::Counter { .. })));
    release(&mut ledger, "c");
    hold(&mut ledger, "a", "card", ALL).unwrap();
    assert!(matches!(hold(&mut ledger, "b", "card", share(1, 0)), Err(HoldRefusal::Occupied { .. })));
}

#[test]
fn a_partition_is_charged_once_for_all_its_shares() {
    let mut ledger = ledger_of(vec![card("nvidia-h100-80gb-sxm", 0)]);
    hold(&mut ledger, "a", "1g.10gb@0", share(3, 4)).unwrap();
    hold(&mut ledger, "b", "1g.10gb@0", share(3, 4)).unwrap();
    assert!(matches!(hold(&mut ledger, "c", "1g.10gb@0", share(4, 0)), Err(HoldRefusal::Memory { .. })));
    assert!(matches!(hold(&mut ledger, "c", "1g.10gb@0", share(1, 5)), Err(HoldRefusal::Cores { .. })));
    assert!(matches!(hold(&mut ledger, "c", "2g.20gb@0", ALL), Err(HoldRefusal::Counter { .. })));
    release(&mut ledger, "a");
    assert!(matches!(hold(&mut ledger, "c", "2g.20gb@0", ALL), Err(HoldRefusal::Counter { .. })));
    release(&mut ledger, "b");
    hold(&mut ledger, "c", "2g.20gb@0", ALL).unwrap();
}

#[test]
fn a_refusal_names_counter_amounts_and_holder() {
    let mut ledger = ledger_of(vec![card("nvidia-h100-80gb-sxm", 0)]);
    hold(&mut ledger, "holder", "3g.40gb@4", ALL).unwrap();
    let message = hold(&mut ledger, "late", "1g.20gb@6", ALL).unwrap_err().to_string();
    assert_eq!(
        message,
        "card card-0: 1g.20gb at 6 needs 1 of counter mem6, 0 of 1 are left; held by claim holder (request gpu, \
         3g.40gb at 4); ask for another part, or end one of them"
    );
    hold(&mut ledger, "s1", "1g.10gb@0", share(9, 0)).unwrap();
    let message = hold(&mut ledger, "s2", "1g.10gb@0", share(1, 0)).unwrap_err().to_string();
    assert!(
        message.contains("a share of 1Gi memory of 1g.10gb at 0 is asked, 768Mi of 9984Mi are left"),
        "{message}"
    );
    assert!(message.contains("claim s1 (request gpu, 1g.10gb at 0)"), "{message}");
    let message = hold(&mut ledger, "x", "9g.99gb@0", ALL).unwrap_err().to_string();
    assert!(
        message.contains("has no part `9g.99gb at 0`") && message.contains("1g.10gb, 1g.10gb+me"),
        "{message}"
    );
}

#[test]
fn holding_twice_changes_nothing_and_another_amount_is_refused() {
    let mut ledger = ledger_of(vec![card("nvidia-t4-16gb", 0)]);
    assert_eq!(hold(&mut ledger, "a", "card", share(8, 50)), Ok(HoldOutcome::New));
    assert_eq!(hold(&mut ledger, "a", "card", share(8, 50)), Ok(HoldOutcome::Already));
    assert!(matches!(hold(&mut ledger, "a", "card", share(4, 50)), Err(HoldRefusal::HeldDifferently { .. })));
    let second = Holding { share: Some(ShareId("two".to_owned())), ..holding("a", 0, "card", share(7, 50)) };
    assert_eq!(ledger.hold(second), Ok(HoldOutcome::New));
    ledger.invariants().unwrap();
    assert_eq!(release(&mut ledger, "a"), 2);
    assert_eq!(release(&mut ledger, "a"), 0);
    hold(&mut ledger, "b", "card", ALL).unwrap();
}

#[test]
fn admin_access_is_seen_and_holds_nothing() {
    let mut ledger = ledger_of(vec![card("nvidia-t4-16gb", 0)]);
    hold(&mut ledger, "admin", "card", Take::Nothing).unwrap();
    hold(&mut ledger, "a", "card", ALL).unwrap();
    hold(&mut ledger, "admin2", "card", Take::Nothing).unwrap();
    assert_eq!(ledger.holdings().count(), 3);
    let late = hold(&mut ledger, "b", "card", ALL).unwrap_err().to_string();
    assert!(late.contains("claim a") && !late.contains("admin"), "{late}");
}

#[test]
fn slots_are_shares_of_the_card_with_a_name() {
    let mut ledger = ledger_of(vec![card("huawei-310p-24gb", 0)]);
    hold(&mut ledger, "a", "small", share(12, 50)).unwrap();
    assert!(matches!(hold(&mut ledger, "b", "small", share(12, 50)), Err(HoldRefusal::Occupied { .. })));
    assert!(matches!(hold(&mut ledger, "b", "big", share(13, 50)), Err(HoldRefusal::Memory { .. })));
    assert!(matches!(hold(&mut ledger, "b", "big", ALL), Err(HoldRefusal::SlotWithoutSize { .. })));
    assert!(matches!(hold(&mut ledger, "b", "vir02@vg0", ALL), Err(HoldRefusal::Counter { .. })));
    assert!(matches!(hold(&mut ledger, "b", "card", share(1, 0)), Err(HoldRefusal::NotShareable { .. })));
    hold(&mut ledger, "b", "big", share(12, 50)).unwrap();
    release(&mut ledger, "a");
    release(&mut ledger, "b");
    hold(&mut ledger, "b", "vir02@vg0", ALL).unwrap();
    assert!(matches!(
        hold(&mut ledger, "c", "vir02@vg1", share(1, 0)),
        Err(HoldRefusal::NotShareable { .. })
    ));
}

#[test]
fn several_at_once_are_held_all_or_none() {
    let mut ledger = ledger_of(vec![card("nvidia-h100-80gb-sxm", 0), card("nvidia-t4-16gb", 1)]);
    let before = ledger.report(&"card-1".parse().unwrap());
    let all = vec![
        holding("a", 1, "card", ALL),
        holding("a", 0, "3g.40gb@0", ALL),
        holding("a", 0, "4g.40gb@0", ALL),
    ];
    assert!(matches!(ledger.hold_all(all.clone()), Err(HoldRefusal::Counter { .. })));
    ledger.invariants().unwrap();
    assert_eq!((ledger.holdings().count(), ledger.report(&"card-1".parse().unwrap())), (0, before));
    ledger.hold_all(all[..2].to_vec()).unwrap();
    ledger.invariants().unwrap();
    assert_eq!(ledger.holdings_of(&"a".parse().unwrap()).len(), 2);
}

#[test]
fn found_partitions_count_and_can_be_taken_over() {
    let mut with_found = card("nvidia-h100-80gb-sxm", 0);
    with_found.found = vec![part("2g.20gb@0"), part("2g.20gb@0")];
    let mut ledger = ledger_of(vec![with_found]);
    let refusal = hold(&mut ledger, "a", "3g.40gb@0", ALL).unwrap_err().to_string();
    assert!(refusal.contains("held by 2g.20gb at 0, found on the card"), "{refusal}");
    hold(&mut ledger, "a", "2g.20gb@0", share(4, 0)).unwrap();
    hold(&mut ledger, "b", "1g.10gb@2", ALL).unwrap();
    release(&mut ledger, "a");
    assert!(matches!(hold(&mut ledger, "a", "3g.40gb@0", ALL), Err(HoldRefusal::Counter { .. })));
    let report = ledger.report(&"card-0".parse().unwrap()).unwrap();
    assert_eq!(report.in_use.len(), 2);
    assert!(matches!(&report.in_use[1].holders[..], [Holder::Found { .. }] | [Holder::Claim { .. }]));
}

#[test]
fn found_parts_stay_on_a_card_limited_to_new_parts() {
    let mut cut = card("nvidia-h100-80gb-sxm", 0);
    cut.supply = Supply::NewParts;
    cut.found = vec![part("2g.20gb@0")];
    let mut ledger = ledger_of(vec![cut]);
    let theirs = hold(&mut ledger, "a", "2g.20gb@0", share(4, 0)).unwrap_err().to_string();
    assert!(theirs.contains("is held by 2g.20gb at 0, found on the card"), "{theirs}");
    for part in ["card", "slot"] {
        let refused = hold(&mut ledger, "a", part, share(1, 0)).unwrap_err().to_string();
        assert!(refused.contains("its mode gives partitions alone"), "{refused}");
    }
    hold(&mut ledger, "a", "1g.10gb@2", share(4, 0)).unwrap();
    let report = ledger.report(&"card-0".parse().unwrap()).unwrap();
    assert_eq!((report.share_room, report.in_use.len()), (None, 2));
    release(&mut ledger, "a");
    let empty = Card { supply: Supply::NewParts, ..card("nvidia-h100-80gb-sxm", 0) };
    let report = ledger_of(vec![empty]).report(&"card-0".parse().unwrap()).unwrap();
    assert_eq!(report.largest, Some(part("7g.80gb@0")), "never the card itself");
}

#[test]
fn unknown_partition_closes_the_card() {
    let mut odd = card("nvidia-h100-80gb-sxm", 0);
    odd.found = vec![part("5g.50gb@0")];
    let mut crowded = card("nvidia-h100-80gb-sxm", 1);
    crowded.found = vec![part("3g.40gb@0"), part("2g.20gb@0")];
    let (mut ledger, problems) = Ledger::new(&Inventory { cards: vec![odd, crowded] }, &catalogue());
    ledger.invariants().unwrap();
    assert!(matches!(problems[..], [LedgerProblem::UnknownFound { .. }, LedgerProblem::FoundTooMuch { .. }]));
    assert!(matches!(hold(&mut ledger, "a", "1g.10gb@6", ALL), Err(HoldRefusal::Unaccountable { .. })));
    assert!(matches!(hold(&mut ledger, "a", "card", ALL), Err(HoldRefusal::Unaccountable { .. })));
    assert!(matches!(ledger.hold(holding("a", 1, "1g.10gb@0", ALL)), Err(HoldRefusal::Counter { .. })));
    assert_eq!(ledger.hold(holding("a", 1, "1g.10gb@4", ALL)), Ok(HoldOutcome::New));
    ledger.invariants().unwrap();
}

#[test]
fn chips_of_a_duo_card_are_all_whole_or_all_split() {
    let duo = |index, board: &str| {
        let mut chip = card("huawei-310p-duo-24gb", index);
        chip.topology.card_id = Some(board.to_owned());
        chip
    };
    let mut ledger = ledger_of(vec![duo(0, "x"), duo(1, "x"), duo(2, "y")]);
    hold(&mut ledger, "a", "vir02@vg0", ALL).unwrap();
    let refusal = ledger.hold(holding("b", 1, "card", ALL)).unwrap_err();
    assert!(matches!(refusal, HoldRefusal::SameMode { .. }), "{refusal}");
    let report = ledger.report(&"card-1".parse().unwrap()).unwrap();
    assert_ne!(report.largest, Some(Part::Card));
    assert_eq!(ledger.hold(holding("b", 2, "card", ALL)), Ok(HoldOutcome::New));
    assert_eq!(ledger.hold(holding("c", 1, "vir04@vg1", ALL)), Ok(HoldOutcome::New));
    ledger.invariants().unwrap();
    release(&mut ledger, "a");
    release(&mut ledger, "c");
    assert_eq!(ledger.hold(holding("d", 1, "card", ALL)), Ok(HoldOutcome::New));
    let refusal = hold(&mut ledger, "a", "vir02@vg0", ALL).unwrap_err().to_string();
    assert!(refusal.contains("would mix whole and split chips with card card-1"), "{refusal}");
    let report = ledger.report(&"card-0".parse().unwrap()).unwrap();
    assert_eq!(report.largest, Some(Part::Card));
    assert!(report.room.iter().all(|room| room.together == 0));
}

#[test]
fn unlike_cards_in_one_server_are_not_split() {
    let mut ledger = ledger_of(vec![card("huawei-310p-24gb", 0), card("huawei-310p-48gb", 1)]);
    let refusal = hold(&mut ledger, "a", "vir02@vg0", ALL).unwrap_err();
    assert!(matches!(refusal, HoldRefusal::MixedServer { .. }), "{refusal}");
    hold(&mut ledger, "a", "card", ALL).unwrap();
    let mut like = ledger_of(vec![card("huawei-310p-24gb", 0), card("huawei-310p-duo-24gb", 1)]);
    hold(&mut like, "a", "vir02@vg0", ALL).unwrap();
}

#[test]
fn the_report_shows_room_and_the_largest_hole() {
    let mut ledger = ledger_of(vec![card("nvidia-h100-80gb-sxm", 0)]);
    let uuid = "card-0".parse().unwrap();
    let idle = ledger.report(&uuid).unwrap();
    assert_eq!((idle.largest, idle.in_use.len()), (Some(Part::Card), 0));
    assert_eq!(idle.share_room, Some((Bytes(81152 << 20), Cores::ALL)));
    hold(&mut ledger, "a", "1g.10gb@1", ALL).unwrap();
    let report = ledger.report(&uuid).unwrap();
    assert_eq!(report.largest, Some(part("3g.40gb@4")));
    assert_eq!(report.share_room, None);
    let of = |name: &str| report.room.iter().find(|r| r.template.as_str() == name).unwrap();
    assert_eq!((of("1g.10gb").together, of("2g.20gb").together, of("1g.10gb+me").together), (6, 2, 1));
    assert_eq!(of("4g.40gb").placements, []);
    hold(&mut ledger, "b", "3g.40gb@4", share(10, 10)).unwrap();
    let report = ledger.report(&uuid).unwrap();
    assert_eq!(report.largest, Some(part("2g.20gb@2")));
    assert_eq!(report.in_use[1].memory_used, Bytes(10 << 30));
}

/// Every way to put the quarters one after another on free groups must come to an end with all of them placed.
#[test]
fn compute_that_is_not_named_is_all_of_it_for_one_holder_alone() {
    let uuid = "card-0".parse().unwrap();
    let used = |takes: &[(&str, Take)]| {
        let mut ledger = ledger_of(vec![card("nvidia-h100-80gb-sxm", 0)]);
        for (number, (text, take)) in takes.iter().enumerate() {
            hold(&mut ledger, &format!("claim-{number}"), text, *take).unwrap();
        }
        let report = ledger.report(&uuid).unwrap();
        (report.in_use[0].cores_used.percent(), report.share_room.map(|(memory, _)| memory))
    };
    let all = Take::Share { memory: Bytes(81152 << 20), cores: Cores::NONE };
    assert_eq!(used(&[("card", all)]), (100, None));
    assert_eq!(
        used(&[("card", Take::Share { memory: Bytes(81152 << 20), cores: Cores::new(25).unwrap() })]).0,
        25
    );
    assert_eq!(used(&[("card", share(40, 0)), ("card", share(20, 0))]).0, 0, "best effort beside others");
    assert_eq!(used(&[("2g.20gb@0", ALL)]).0, 24);
    assert_eq!(used(&[("2g.20gb@0", share(8, 10)), ("2g.20gb@0", share(8, 10))]).0, 20);
}

fn all_orders(ledger: &mut Ledger, left: &[&str], placed: usize) -> u32 {
    if left.is_empty() {
        return 1;
    }
    let mut ends = 0;
    for (i, template) in left.iter().enumerate().filter(|(i, t)| !left[..*i].contains(t)) {
        let rest: Vec<&str> = left.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, t)| *t).collect();
        for group in 0..4 {
            let claim = format!("claim-{placed}");
            if hold(ledger, &claim, &format!("{template}@vg{group}"), ALL).is_ok() {
                let before = ends;
                ends += all_orders(ledger, &rest, placed + 1);
                assert!(ends > before, "{template} at group {group} leads nowhere");
                release(ledger, &claim);
            }
        }
    }
    ends
}

#[test]
fn four_quarters_fit_a_310p_in_every_order_and_placement() {
    let mut ledger = ledger_of(vec![card("huawei-310p-24gb", 0)]);
    let orders = all_orders(&mut ledger, &["vir02", "vir02", "vir02", "vir02_1c"], 0);
    assert_eq!(orders, 4 * 24, "four orders of arrival, each in every order of the groups");
    let mut ledger = ledger_of(vec![card("huawei-310p-24gb", 0)]);
    for (claim, part) in [("a", "vir02@vg0"), ("b", "vir02@vg1"), ("c", "vir02@vg2")] {
        hold(&mut ledger, claim, part, ALL).unwrap();
    }
    let refusal = hold(&mut ledger, "d", "vir02@vg3", ALL).unwrap_err().to_string();
    assert!(refusal.contains("vir02 at vg3 needs 2 of counter ai-cpu, 1 of 7 are left"), "{refusal}");
    hold(&mut ledger, "d", "vir02_1c@vg3", ALL).unwrap();
}

#[test]
fn halves_of_a_group_stay_usable_after_churn() {
    let mut ledger = ledger_of(vec![card("huawei-310p-24gb", 0)]);
    let eighths = ["vg0a", "vg0b", "vg1a", "vg1b", "vg2a", "vg2b", "vg3a"];
    for (i, at) in eighths.iter().enumerate() {
        hold(&mut ledger, &format!("c{i}"), &format!("vir01@{at}"), ALL).unwrap();
    }
    assert!(hold(&mut ledger, "late", "vir01@vg3b", ALL).is_err(), "AI CPUs are gone");
    for i in [0, 2, 4] {
        release(&mut ledger, &format!("c{i}"));
    }
    assert!(hold(&mut ledger, "late", "vir02_1c@vg0", ALL).is_err(), "every group is half taken");
    release(&mut ledger, "c1");
    hold(&mut ledger, "late", "vir02_1c@vg0", ALL).unwrap();
}
