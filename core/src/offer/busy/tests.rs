use std::collections::BTreeMap;

use super::super::tests::{V136, V137, cards, node};
use super::super::validate::violations;
use super::super::{
    CounterNodes, CounterStance, LayoutKind, LayoutReason, OfferProblem, OfferedPart, Offers, ServerVersion,
    TAINT_LAYOUT, UsageHint, offers, text,
};
use super::*;
use crate::dra::Device;
use crate::units::Bytes;

/// Layouts of every kind, and others of the same kind.
const POLICIES: [&str; 9] = [
    "",
    "default = \"whole\"",
    "default = \"shared\"",
    "default = \"dynamic\"",
    "[[rule]]\nlayout = \"split\"\npartitions = [\"4x1g.6gb\"]",
    "[[rule]]\nlayout = \"split\"\npartitions = [\"1x2g.12gb\", \"2x1g.6gb\"]",
    "[[rule]]\nlayout = \"slots\"\nslots = [\"s\"]\n[[slot]]\nname = \"s\"\nmemory = \"4Gi\"\ncores = 20\ncopies = 3",
    "[[rule]]\nlayout = \"slots\"\nslots = [\"s\"]\n[[slot]]\nname = \"s\"\nmemory = \"6Gi\"\ncores = 20\ncopies = 2",
    "[[rule]]\nlayout = \"split\"\npartitions = [\"5x1g.6gb\"]",
];

fn offered(policy: &str, server: ServerVersion, usage: &UsageHint) -> Offers {
    let offers = offers(&node(), &cards("nvidia-a30-24gb", 2), &text::parse(policy).unwrap(), server, usage);
    assert_eq!(violations(&offers.slices), [], "{policy}");
    offers
}

/// One claim's share or whole of a device.
fn hold(offers: &Offers, device: &DeviceId) -> UsageHint {
    let part = &offers.parts[device];
    let (memory, cores) = match part.sharing {
        Sharing::Exclusive => (part.memory, part.cores),
        Sharing::Shareable => (Bytes(1 << 30), Cores::NONE),
    };
    let (sharing, device) = (part.sharing, device.clone());
    let held = HeldDevice { device, part: part.part.clone(), sharing, memory, cores };
    UsageHint { devices: BTreeMap::from([(part.card.clone(), vec![held])]), ..UsageHint::default() }
}

fn device<'a>(offers: &'a Offers, id: &DeviceId) -> &'a Device {
    let slices = offers.slices.iter().filter(|slice| slice.pool.name == id.pool);
    slices.flat_map(|slice| &slice.devices).find(|device| device.name == id.device).unwrap()
}

/// From every layout to every other, whatever is held: it stays, and until it is gone nothing of the card is offered
/// that was not there before.
#[test]
fn held_device_stays_published_and_closed_until_released() {
    let (mut kept, mut switched) = (0, 0);
    let without_counters = V136.among(CounterNodes::Many(21));
    for (server, policies) in [(V137, &POLICIES[1..]), (without_counters, &POLICIES[..3])] {
        for before in policies {
            let old = offered(before, server, &UsageHint::default());
            for after in policies {
                let idle = offered(after, server, &UsageHint::default());
                let first = &old.cards[0].card;
                for (held, part) in old.parts.iter().filter(|(_, part)| part.card == *first) {
                    let new = offered(after, server, &hold(&old, held));
                    let there = &new.parts[held];
                    assert_eq!(
                        (&there.part, there.sharing, &there.card),
                        (&part.part, part.sharing, &part.card)
                    );
                    let of = |offers: &Offers, mine: bool| -> Vec<DeviceId> {
                        let parts = offers.parts.iter().filter(|(_, p)| (p.card == part.card) == mine);
                        parts.map(|(id, _)| id.clone()).collect()
                    };
                    assert_eq!(
                        of(&new, false),
                        of(&idle, false),
                        "the other card has the policy's layout at once"
                    );
                    let outcome = new.outcome(&part.card).unwrap();
                    let tainted = device(&new, held).taints.iter().any(|taint| taint.key == TAINT_LAYOUT);
                    let same = idle.parts.get(held).is_some_and(|p| p.sharing == part.sharing);
                    assert_eq!(tainted, !same, "{before} -> {after}: {held}");
                    if same {
                        assert_eq!(of(&new, true), of(&idle, true));
                        switched += 1;
                    } else {
                        assert_eq!(of(&new, true), std::slice::from_ref(held), "{before} -> {after}");
                        assert_eq!((outcome.layout, outcome.reason), (Some(part.layout), LayoutReason::Busy));
                        let waits = |p: &OfferProblem| matches!(p, OfferProblem::LayoutWaits { given, .. } if *given == part.layout);
                        assert!(outcome.problems.iter().any(waits), "{outcome:?}");
                        kept += 1;
                    }
                }
            }
        }
    }
    assert!(kept > 50 && switched > 10, "{kept} kept, {switched} switched");
}

#[test]
fn several_claims_keep_all_that_they_hold_of_a_card() {
    let split = offered(POLICIES[4], V137, &UsageHint::default());
    let card = &split.parts.first_key_value().unwrap().1.card;
    let mine: Vec<&DeviceId> =
        split.parts.iter().filter(|(_, p)| p.card == *card).map(|(id, _)| id).take(2).collect();
    let mut usage = UsageHint::default();
    for id in &mine {
        for (card, held) in hold(&split, id).devices {
            usage.devices.entry(card).or_default().extend(held);
        }
    }
    let new = offered("default = \"shared\"", V137, &usage);
    for id in mine {
        assert!(device(&new, id).taints.iter().any(|taint| taint.key == TAINT_LAYOUT), "{id}");
    }
}

/// As 0.1 would have named it.
fn in_old_pool(held: &DeviceId, part: &OfferedPart) -> DeviceId {
    let pool = if part.layout == LayoutKind::Dynamic { "aliquot-2-dynamic" } else { "aliquot-1-shared" };
    DeviceId { pool: format!("{}/{pool}", node()), ..held.clone() }
}

#[test]
fn card_held_under_an_old_pool_stays_in_it_until_released() {
    for policy in POLICIES {
        let idle = offered(policy, V137, &UsageHint::default());
        for (id, part) in &idle.parts {
            let old = in_old_pool(id, part);
            assert_eq!(idle.other_parts.get(&old), Some(part), "allocated before the update: {old}");
            let mut usage = hold(&idle, id);
            usage.devices.get_mut(&part.card).unwrap()[0].device = old.clone();
            let now = offered(policy, V137, &usage);
            let (mine, others): (Vec<_>, Vec<_>) = now.parts.iter().partition(|(_, p)| p.card == part.card);
            // The card offers what it did, under the old name alone; the idle card has the new one.
            let all = idle.parts.iter().filter(|(_, p)| p.card == part.card);
            let expected: Vec<_> = all.map(|(id, p)| (in_old_pool(id, p), p)).collect();
            assert_eq!(
                mine.into_iter().map(|(id, p)| (id.clone(), p)).collect::<Vec<_>>(),
                expected,
                "{old}"
            );
            assert!(!others.is_empty() && others.iter().all(|(id, p)| idle.parts.get(id) == Some(*p)));
            assert!(now.other_parts.values().all(|p| p.card != part.card));
            assert!(device(&now, &old).taints.is_empty(), "{old}");
        }
    }
}

#[test]
fn broken_card_is_not_offered_if_no_taint_can_say_so() {
    let old = offered("default = \"whole\"", V137, &UsageHint::default());
    let (held, part) = old.parts.first_key_value().unwrap();
    let mut server = V137;
    server.taints = crate::offer::Support::Lost;
    let mut inventory = cards("nvidia-a30-24gb", 1);
    inventory.cards[0].uuid = part.card.clone();
    inventory.cards[0].health = crate::card::Health::Unhealthy("fell off the bus".to_owned());
    let policy = text::parse(POLICIES[4]).unwrap();
    let new = offers(&node(), &inventory, &policy, server, &hold(&old, held));
    assert_eq!((new.parts.len(), new.cards[0].layout), (0, None::<LayoutKind>));
}

#[test]
fn number_of_nodes_changes_idle_cards_alone() {
    let few = ServerVersion::with_default_gates(36, 3);
    let many = few.among(CounterNodes::Many(21));
    for (before, after, stance) in
        [(few, many, CounterStance::Withheld), (many, few, CounterStance::Published)]
    {
        let (old, idle) =
            (offered("", before, &UsageHint::default()), offered("", after, &UsageHint::default()));
        assert_eq!(idle.counter_stance, Some(stance));
        assert_ne!(old.cards[0].layout, idle.cards[0].layout);
        // A device that was allocated just before the change is still known.
        assert!(old.parts.iter().all(|(id, part)| idle.other_parts.get(id) == Some(part)));
        for held in old.parts.keys() {
            let new = offered("", after, &hold(&old, held));
            let card = &old.parts[held].card;
            let of = |offers: &Offers, mine: bool| -> BTreeMap<DeviceId, OfferedPart> {
                let parts = offers.parts.iter().filter(|(_, part)| (part.card == *card) == mine);
                parts.map(|(id, part)| (id.clone(), part.clone())).collect()
            };
            assert_eq!(of(&new, true), of(&old, true), "the busy card offers all that it did");
            assert_eq!(of(&new, false), of(&idle, false), "the idle card changes");
            let devices = new.slices.iter().flat_map(|slice| &slice.devices);
            assert!(devices.flat_map(|device| &device.taints).next().is_none());
            let outcome = new.outcome(card).unwrap();
            assert_eq!((outcome.reason, outcome.problems.as_slice()), (LayoutReason::Busy, &[][..]));
            assert!(new.other_parts.values().all(|part| part.card != *card));
            assert_eq!(new.counter_stance, Some(stance));
        }
    }
}
