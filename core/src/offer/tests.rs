use super::*;
use crate::card::{Supply, Topology, Unwell};
use crate::catalogue::{CardIdentity, Catalogue};
use crate::dra::{AttributeValue, CapacityRestriction, DeviceId, TaintEffect};
use crate::id::{ModelId, PciAddress};
use crate::partition::Part;
use crate::quantity::Quantity;

/// A card of the catalogue in a slot of the node.
pub(super) fn card(model: &str, index: u32) -> Card {
    let catalogue = Catalogue::embedded();
    let model = catalogue.model(&ModelId::new(model).unwrap()).unwrap_or_else(|| panic!("no model {model}"));
    model.card(CardIdentity {
        uuid: CardUuid::new(format!("GPU-8f4e0a2b-77aa-4c1d-9e00-{index:012x}")).unwrap(),
        index,
        product_name: None,
        memory: None,
        driver_version: "580.95.05".to_owned(),
        pci: Some(PciAddress::new(format!("0000:{:02x}:00.0", 0x10 + index)).unwrap()),
        pcie_root: Some(format!("pci0000:{:02x}", index / 2)),
        numa_node: Some(index / 4),
        topology: Topology { nvlink_domain: Some("0".to_owned()), ..Topology::default() },
        mode: None,
        health: Health::Healthy,
        found: Vec::new(),
    })
}

pub(super) fn cards(model: &str, count: u32) -> Inventory {
    Inventory { cards: (0..count).map(|index| card(model, index)).collect() }
}

pub(super) fn node() -> NodeName {
    NodeName::new("node-1").unwrap()
}

pub(super) const V135: ServerVersion = ServerVersion::with_default_gates(35, 4);
pub(super) const V136: ServerVersion = ServerVersion::with_default_gates(36, 3);
pub(super) const V137: ServerVersion = ServerVersion::with_default_gates(37, 0);

fn offered(inventory: &Inventory, policy: &str, server: ServerVersion) -> Offers {
    let policy = text::parse(policy).unwrap();
    offers(&node(), inventory, &policy, server, &UsageHint::default())
}

fn devices(offers: &Offers) -> Vec<&crate::dra::Device> {
    offers.slices.iter().flat_map(|slice| &slice.devices).collect()
}

#[test]
fn card_limited_to_new_parts_is_offered_in_parts_or_not_at_all() {
    let mut inventory = cards("nvidia-h100-80gb-sxm", 1);
    inventory.cards[0].supply = Supply::NewParts;
    let place = |template: &str, placement: &str| Part::Partition {
        template: template.parse().unwrap(),
        placement: crate::partition::PlacementName(placement.to_owned()),
    };
    let all = offered(&inventory, "", V137);
    assert_eq!((all.parts.len(), all.cards[0].layout), (25, Some(LayoutKind::Dynamic)));
    assert!(all.parts.values().all(|part| part.part != Part::Card));
    inventory.cards[0].found = vec![place("1g.10gb", "0")];
    let beside = offered(&inventory, "", V137);
    let id = |part: Part| beside.parts.iter().find(|(_, p)| p.part == part).map(|(id, _)| id.device.clone());
    let tainted = |part: Part| {
        let name = id(part).unwrap();
        let devices = devices(&beside);
        let device = devices.iter().find(|device| device.name == name).unwrap();
        device.taints.iter().any(|taint| taint.key == TAINT_OCCUPIED)
    };
    // A partition made outside Aliquot is not offered, nor is what overlaps it.
    assert!(
        tainted(place("1g.10gb", "0")) && tainted(place("2g.20gb", "0")) && tainted(place("7g.80gb", "0"))
    );
    assert!(!tainted(place("1g.10gb", "1")) && !tainted(place("3g.40gb", "4")));
    inventory.cards[0].found.clear();
    let many = V136.among(CounterNodes::Many(21));
    for (policy, server) in [("whole", V137), ("shared", V137), ("auto", many)] {
        let none = offered(&inventory, &format!("[default]\nlayout = \"{policy}\"\n"), server);
        assert_eq!((none.parts.len(), none.cards[0].layout), (0, None), "{policy}");
        assert!(
            none.cards[0].problems.contains(&OfferProblem::PartsOnly),
            "{policy}: {:?}",
            none.cards[0].problems
        );
    }
}

#[test]
fn auto_is_what_serves_best_on_each_server() {
    let h100 = cards("nvidia-h100-80gb-sxm", 1);
    let t4 = cards("nvidia-t4-16gb", 1);
    let npu = cards("huawei-310p-24gb", 1);
    for (inventory, server, layout, count) in [
        (&h100, V137, LayoutKind::Dynamic, 26),
        (&h100, V136, LayoutKind::Dynamic, 26),
        (&h100, V136.among(CounterNodes::Many(21)), LayoutKind::Shared, 1),
        (&h100, ServerVersion::with_default_gates(36, 1), LayoutKind::Shared, 1),
        (&h100, V136.among(CounterNodes::Unknown), LayoutKind::Shared, 1),
        (&h100, V137.among(CounterNodes::Many(500)), LayoutKind::Dynamic, 26),
        (&h100, V135, LayoutKind::Whole, 1),
        (&t4, V137, LayoutKind::Shared, 1),
        (&t4, V135, LayoutKind::Whole, 1),
        (&npu, V136, LayoutKind::Dynamic, 33),
        (&npu, V136.among(CounterNodes::Many(21)), LayoutKind::Whole, 1),
        (&npu, V137, LayoutKind::Dynamic, 33),
    ] {
        let offers = offered(inventory, "", server);
        let outcome = &offers.cards[0];
        assert_eq!((outcome.layout, outcome.devices), (Some(layout), count), "{server} {outcome:?}");
        assert_eq!(devices(&offers).len(), count);
        assert!(offers.problems.is_empty() && outcome.problems.is_empty(), "{offers:?}");
    }
}

/// Every embedded model, every layout that a file can say, every server, healthy and not: nothing breaks a rule.
#[test]
fn all_that_is_offered_is_legal() {
    let catalogue = Catalogue::embedded();
    let slots =
        "slots\"\nslots = [\"s\"]\n[[slot]]\nname = \"s\"\nmemory = \"2Gi\"\ncores = 10\ncopies = 3\n#";
    for model in catalogue.models() {
        let mut inventory = cards(model.id.as_str(), 2);
        inventory.cards[1].health = Health::Unhealthy("fell off the bus".to_owned());
        let first = model.table().map_or("1g.5gb".to_owned(), |table| table.templates[0].name.to_string());
        let split = format!("split\"\npartitions = [\"2x{first}\"]\n#");
        for layout in ["auto", "whole", "shared", "dynamic", slots, &split] {
            let policy = format!("[[rule]]\nmodel = \"*\"\nlayout = \"{layout}\"");
            for server in [V135, V136, V137] {
                let offers = offered(&inventory, &policy, server);
                assert_eq!(validate::violations(&offers.slices), [], "{} {layout} {server}", model.id);
                let published: BTreeSet<&str> = devices(&offers).iter().map(|d| d.name.as_str()).collect();
                let named: BTreeSet<&str> = offers.parts.keys().map(|id| id.device.as_str()).collect();
                assert_eq!(published, named);
                assert_eq!(offers.cards.iter().map(|card| card.devices).sum::<usize>(), published.len());
            }
        }
    }
}

#[test]
fn offers_do_not_depend_on_the_order_of_discovery() {
    let mut inventory = cards("nvidia-a30-24gb", 3);
    inventory.cards.extend((3..6).map(|index| card("nvidia-t4-16gb", index)));
    let expected = offered(&inventory, "", V137);
    let mut state = 0x5eed_u64;
    for round in 0..1_000 {
        for at in (1..inventory.cards.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            inventory.cards.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
        }
        for (index, card) in inventory.cards.iter_mut().enumerate() {
            card.index = u32::try_from(index).unwrap();
        }
        let offers = offered(&inventory, "", V137);
        assert!(
            offers.slices == expected.slices && offers.parts == expected.parts,
            "seed 0x5eed, round {round}"
        );
    }
}

#[test]
fn other_hardware_never_gets_a_name_again() {
    let mut names = BTreeMap::new();
    for index in 0..40 {
        let inventory = Inventory { cards: vec![card("nvidia-h100-80gb-sxm", index)] };
        for (id, part) in offered(&inventory, "", V137).parts {
            let there = names.insert(id.device.clone(), (part.card.clone(), part.part.clone()));
            assert_eq!(there, None, "{id}");
        }
    }
    let slots = |memory: &str| {
        let slot = format!("[[slot]]\nname = \"s\"\nmemory = \"{memory}\"\n");
        let policy = format!("{slot}[[rule]]\nlayout = \"slots\"\nslots = [\"s\"]");
        offered(&cards("nvidia-t4-16gb", 1), &policy, V136).parts.into_keys().next().unwrap()
    };
    assert_ne!(slots("2Gi"), slots("3Gi"), "a slot of another size is another device");
}

#[test]
fn a_shareable_device_has_two_capacities_with_policies() {
    let policy = "default = { layout = \"shared\", default-memory = \"8Gi\", min-memory = \"512Mi\", max-memory = \"32Gi\", default-cores = 10 }";
    let offers = offered(&cards("nvidia-h100-80gb-sxm", 1), policy, V136);
    let device = devices(&offers)[0];
    assert_eq!(device.sharing, Sharing::Shareable);
    assert_eq!(device.capacity.keys().collect::<Vec<_>>(), ["cores", "memory"]);
    let quantity = |text: &str| text.parse::<Quantity>().unwrap();
    let policy = device.capacity["memory"].policy.clone().unwrap();
    assert_eq!(policy.default, Some(quantity("8Gi")));
    let range = CapacityRestriction::Range {
        min: quantity("512Mi"),
        max: Some(quantity("32Gi")),
        step: Some(quantity("1Mi")),
    };
    assert_eq!(policy.restriction, range);
    let cores = &device.capacity["cores"];
    assert_eq!((cores.value, cores.policy.clone().unwrap().default), (quantity("100"), Some(quantity("10"))));
}

#[test]
fn partitions_take_only_binding_counters_and_the_card_takes_all() {
    let offers = offered(&cards("nvidia-h100-80gb-sxm", 9), "", V137);
    let sets: Vec<_> = offers.slices.iter().filter(|s| !s.shared_counters.is_empty()).collect();
    assert_eq!(sets.iter().map(|s| s.shared_counters.len()).collect::<Vec<_>>(), [8, 1]);
    for device in devices(&offers) {
        let [takes] = device.consumes.as_slice() else { panic!("{device:?}") };
        let set = sets.iter().flat_map(|s| &s.shared_counters).find(|s| s.name == takes.counter_set).unwrap();
        let whole = device.attributes["profile"] == AttributeValue::String("whole".to_owned());
        assert_eq!(takes.counters == set.counters, whole || device.name.starts_with("7g"), "{device:?}");
        assert_eq!(takes.counters["memory"], device.capacity["memory"].value, "{device:?}");
        assert!(takes.counters.values().all(|amount| *amount > Quantity::ZERO));
    }
    let last = offers.slices.last().unwrap();
    let tail = last.devices.iter().rev().take(9);
    assert!(tail.clone().all(|device| device.name.starts_with("card-")), "cards are tried last");
    let pool = &last.pool;
    assert_eq!(
        (pool.name.as_str(), pool.slice_count),
        ("node-1/aliquot-5-dynamic-080-nvidia-h100-80gb-sxm", 7)
    );
}

#[test]
fn shares_land_on_shared_cards_before_they_break_a_dynamic_one() {
    let mut inventory = cards("nvidia-h100-80gb-sxm", 2);
    inventory.cards.push(card("nvidia-t4-16gb", 2));
    let offers = offered(&inventory, "", V137);
    let pools: BTreeSet<&str> = offers.slices.iter().map(|slice| slice.pool.name.as_str()).collect();
    assert_eq!(
        pools.into_iter().collect::<Vec<_>>(),
        ["node-1/aliquot-3-shared-016-nvidia-t4-16gb", "node-1/aliquot-5-dynamic-080-nvidia-h100-80gb-sxm"]
    );
    assert_eq!(
        offers.outcome(&inventory.cards[2].uuid).unwrap().pool.as_deref(),
        Some("node-1/aliquot-3-shared-016-nvidia-t4-16gb")
    );
}

#[test]
fn the_fullest_card_is_offered_first() {
    let inventory = cards("nvidia-t4-16gb", 3);
    let policy = text::parse("").unwrap();
    let held = BTreeMap::from([(inventory.cards[2].uuid.clone(), Bytes(1 << 30))]);
    let usage = UsageHint { held, ..UsageHint::default() };
    let first = |usage: &UsageHint| {
        let offers = offers(&node(), &inventory, &policy, V136, usage);
        let id = DeviceId {
            driver: DRIVER.to_owned(),
            pool: offers.slices[0].pool.name.clone(),
            device: devices(&offers)[0].name.clone(),
        };
        offers.parts[&id].card.clone()
    };
    assert_eq!(first(&usage), inventory.cards[2].uuid);
    assert_eq!(first(&UsageHint::default()), inventory.cards[0].uuid);
}

#[test]
fn bad_card_loses_no_other_card() {
    let mut inventory = cards("nvidia-h100-80gb-sxm", 3);
    inventory.cards[0].product_name = "é".repeat(33);
    inventory.cards[0].driver_version = "unknown".to_owned();
    inventory.cards[1].health = Health::Unhealthy("XID 79".to_owned());
    inventory.cards[2].uuid = inventory.cards[0].uuid.clone();
    let offers = offered(&inventory, "", V137);
    assert_eq!(validate::violations(&offers.slices), []);
    assert!(
        matches!(offers.problems[..], [OfferProblem::DuplicateUuid { index: 2, .. }]),
        "{:?}",
        offers.problems
    );
    let problems: Vec<String> = offers.cards[0].problems.iter().map(ToString::to_string).collect();
    assert!(problems.iter().any(|p| p.contains("productName has 66 bytes")), "{problems:?}");
    assert!(problems.iter().any(|p| p.contains("driver version `unknown`")), "{problems:?}");
    for device in devices(&offers) {
        let sick = offers
            .parts
            .iter()
            .any(|(id, part)| id.device == device.name && part.card == inventory.cards[1].uuid);
        let taints: Vec<_> = device.taints.iter().map(|t| (t.key.as_str(), t.effect.clone())).collect();
        let expected = if sick { vec![(TAINT_UNHEALTHY, TaintEffect::NoSchedule)] } else { vec![] };
        assert_eq!(taints, expected, "{}", device.name);
    }
    // A server that drops taints would hand the sick card out.
    let offers = offered(&inventory, "", V135);
    assert_eq!((offers.cards[1].layout, offers.cards[1].devices), (None, 0));
}

#[test]
fn faults_of_the_policy_evict_and_others_do_not() {
    let effects = |policy: &str, noted: &[NotedFault]| {
        let mut inventory = cards("nvidia-h100-80gb-sxm", 1);
        inventory.cards[0].health = Health::Unhealthy("XID 79".to_owned());
        inventory.cards[0].noted = noted.iter().copied().collect();
        let offers = offered(&inventory, policy, V137);
        assert_eq!(validate::violations(&offers.slices), []);
        devices(&offers)[0].taints.iter().map(|taint| taint.effect.clone()).collect::<Vec<_>>()
    };
    let (stays, ends) =
        (vec![TaintEffect::NoSchedule], vec![TaintEffect::NoSchedule, TaintEffect::NoExecute]);
    let lost = "evict = [\"lost\"]";
    assert_eq!(effects("", &[NotedFault::Lost]), stays);
    assert_eq!(effects(lost, &[NotedFault::Card]), stays);
    assert_eq!(effects(lost, &[NotedFault::Card, NotedFault::Lost]), ends);
    // Found broken by the backend alone, or by notes that cannot be read: a fault of a moment ends no Pod.
    let all = "evict = [\"part\", \"card\", \"lost\"]";
    assert_eq!(effects(all, &[]), stays);
    assert_eq!(effects(all, &[NotedFault::Unknown]), stays);
}

#[test]
fn overlap_with_an_unhealthy_part_takes_no_claims() {
    let place = |template: &str, placement: &str| Part::Partition {
        template: template.parse().unwrap(),
        placement: crate::partition::PlacementName(placement.to_owned()),
    };
    let mut inventory = cards("nvidia-h100-80gb-sxm", 2);
    let unwell = Unwell { part: place("2g.20gb", "2"), why: "XID 48".to_owned(), fault: NotedFault::Part };
    inventory.cards[0].unwell = vec![unwell];
    let sick = inventory.cards[0].uuid.clone();
    let offered_on = |server: ServerVersion, policy: &str| {
        let offers = offered(&inventory, policy, server);
        assert_eq!(validate::violations(&offers.slices), []);
        let told: Vec<String> = offers.cards[0].problems.iter().map(ToString::to_string).collect();
        assert!(
            told.iter().any(|told| told.contains("2g.20gb at 2 of the card") && told.contains("XID 48")),
            "{told:?}"
        );
        let tainted = |id: &DeviceId| {
            let device = devices(&offers).into_iter().find(|device| device.name == id.device).unwrap();
            device.taints.iter().any(|taint| taint.key == TAINT_UNHEALTHY)
        };
        let of_sick = offers.parts.iter().filter(|(_, part)| part.card == sick);
        let of_sick: Vec<(Part, bool)> = of_sick.map(|(id, part)| (part.part.clone(), tainted(id))).collect();
        assert!(offers.parts.iter().all(|(id, part)| part.card == sick || !tainted(id)));
        of_sick
    };
    let dynamic = offered_on(V137, "[[rule]]\nlayout = \"dynamic\"");
    let is = |part: &Part| dynamic.iter().find(|(of, _)| of == part).map(|(_, tainted)| *tainted);
    let parts = [Part::Card, place("2g.20gb", "2"), place("1g.10gb", "3"), place("7g.80gb", "0")];
    assert!(parts.iter().all(|part| is(part) == Some(true)), "{dynamic:?}");
    let parts = [place("1g.10gb", "1"), place("1g.10gb", "4"), place("3g.40gb", "4")];
    assert!(parts.iter().all(|part| is(part) == Some(false)), "{dynamic:?}");
    // A server that drops taints would hand them out.
    let split = offered_on(V135, "[[rule]]\nlayout = \"split\"\npartitions = [\"7x1g.10gb\"]");
    assert_eq!(split.len(), 5, "{split:?}");
    assert!(!split.iter().any(|(part, _)| [place("1g.10gb", "2"), place("1g.10gb", "3")].contains(part)));
}

#[test]
fn a_split_is_laid_without_overlap_or_not_at_all() {
    let split = |partitions: &str| {
        let policy = format!("[[rule]]\nlayout = \"split\"\npartitions = [{partitions}]");
        let offers = offered(&cards("nvidia-h100-80gb-sxm", 1), &policy, V136);
        let parts: Vec<String> = offers.parts.values().map(|part| part.part.to_string()).collect();
        (parts, offers.cards[0].problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    assert_eq!(split("\"7x1g.10gb\"").0.len(), 7);
    let (mut mixed, _) = split("\"1x3g.40gb\", \"1x2g.20gb\", \"2x1g.10gb\"");
    mixed.sort();
    assert_eq!(mixed.len(), 4, "{mixed:?}");
    assert_eq!(split("\"4g.40gb\", \"3g.40gb@4\"").0.len(), 2);
    let (nothing, why) = split("\"4g.40gb\", \"3g.40gb@0\"");
    assert!(nothing.is_empty() && why.contains("do not fit on the card together"), "{why}");
    assert!(split("\"8x1g.10gb\"").1.contains("7 placements"));
    assert!(split("\"1g.5gb\"").1.contains("no such template, expected one of 1g.10gb"));
    assert!(split("\"3g.40gb@1\"").1.contains("no such placement, expected one of 0, 4"));
}

#[test]
fn existing_instances_are_offered_and_never_overlaid() {
    let mut inventory = cards("nvidia-h100-80gb-sxm", 1);
    let found = Part::Partition {
        template: crate::id::TemplateName::new("3g.40gb").unwrap(),
        placement: crate::partition::PlacementName("4".to_owned()),
    };
    inventory.cards[0].found = vec![found.clone()];
    let offers = offered(&inventory, "", V136.among(CounterNodes::Many(21)));
    assert_eq!(offers.cards[0].reason, LayoutReason::CarriesInstances);
    assert_eq!(
        offers.parts.values().map(|part| part.part.clone()).collect::<Vec<_>>(),
        std::slice::from_ref(&found)
    );
    assert!(devices(&offers)[0].taints.is_empty());

    let offers = offered(&inventory, "", V137);
    for (id, part) in &offers.parts {
        let device = devices(&offers).into_iter().find(|device| device.name == id.device).unwrap();
        let free = part.part == found
            || matches!(&part.part, Part::Partition { template, placement }
                if template.as_str() != "7g.80gb" && placement.0.as_str() < "4" && template.as_str() != "3g.40gb")
            || matches!(&part.part, Part::Partition { template, placement }
                if template.as_str() == "3g.40gb" && placement.0 == "0");
        assert_eq!(device.taints.is_empty(), free, "{}", part.part);
    }
}

#[test]
fn slots_must_fit_on_the_card() {
    let policy = "[[slot]]\nname = \"s\"\nmemory = \"8Gi\"\ncores = 40\ncopies = 3\n[[rule]]\nlayout = \"slots\"\nslots = [\"s\"]";
    let offers = offered(&cards("nvidia-t4-16gb", 1), policy, V136);
    assert_eq!(offers.cards[0].layout, None);
    let why = offers.cards[0].problems[0].to_string();
    assert!(why.contains("24Gi") && why.contains("120%"), "{why}");
    let offers = offered(&cards("nvidia-h100-80gb-sxm", 1), &policy.replace("40", "30"), V135);
    assert_eq!(offers.cards[0].devices, 3);
    assert!(devices(&offers).iter().all(|d| d.sharing == Sharing::Exclusive && d.consumes.is_empty()));
    let offers = offered(&cards("huawei-310p-24gb", 1), &policy.replace("40", "30"), V136);
    assert!(offers.cards[0].problems[0].to_string().contains("nothing can hold a limit"));
}

#[test]
fn useless_rules_are_reported() {
    let policy = "[[rule]]\nvendor = \"nvidia\"\nlayout = \"whole\"\n[[rule]]\nmodel = \"*h100*\"\nlayout = \"shared\"\n[[rule]]\nindex = 7\nlayout = \"shared\"";
    let offers = offered(&cards("nvidia-h100-80gb-sxm", 2), policy, V136);
    let problems: Vec<String> = offers.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("rule 2 (model *h100*) never decides: rule 1"), "{problems:?}");
    assert!(problems[1].contains("rule 3 (index 7) matches no card"), "{problems:?}");
    assert_eq!(offers.cards[0].rule, Some(1));
}

#[test]
fn a_node_without_cards_says_so() {
    let offers = offered(&Inventory::default(), "", V137);
    let [slice] = offers.slices.as_slice() else { panic!("{offers:?}") };
    assert!(slice.devices.is_empty() && slice.shared_counters.is_empty());
    assert_eq!(validate::violations(&offers.slices), []);
}

#[test]
fn lost_fields_fall_back_and_say_so() {
    let lost = ServerVersion { counters: Support::Lost, ..V137 };
    let policy = "default = \"dynamic\"";
    let offers = offered(&cards("nvidia-h100-80gb-sxm", 1), policy, lost);
    assert_eq!(
        (offers.cards[0].layout, offers.cards[0].reason),
        (Some(LayoutKind::Shared), LayoutReason::FellBack)
    );
    assert!(offers.cards[0].problems[0].to_string().contains("drops shared counters; shared is used"));
    let lost = ServerVersion { shares: Support::Lost, ..lost };
    let offers = offered(&cards("nvidia-h100-80gb-sxm", 1), policy, lost);
    assert_eq!(offers.cards[0].layout, Some(LayoutKind::Whole));
    assert!(
        devices(&offers)
            .iter()
            .all(|d| d.sharing == Sharing::Exclusive && d.capacity.values().all(|c| c.policy.is_none()))
    );
}

#[test]
fn classes_name_what_is_offered() {
    let mut inventory = cards("nvidia-h100-80gb-sxm", 1);
    inventory.cards.push(card("huawei-310p-24gb", 1));
    inventory.cards.push(card("nvidia-rtx-pro-6000", 2));
    let classes = classes(&offered(&inventory, "", V137).slices);
    let class = |name: &str| {
        classes.iter().find(|class| class.name == name).unwrap_or_else(|| panic!("no {name} in {classes:#?}"))
    };
    assert_eq!(classes[0].name, "card.aliquot.dev");
    assert_eq!(classes[1].name, "share.aliquot.dev");
    assert_eq!(classes[2].name, "card-huawei.aliquot.dev");
    assert_eq!(classes[3].name, "card-nvidia.aliquot.dev");
    let quarter = class("ascend310p-quarter.aliquot.dev");
    assert_eq!(quarter.annotations[classes::SPELLING], "huawei.com/ascend-310p-1/4");
    assert_eq!(quarter.extended_resource_name.as_deref(), Some("aliquot.dev/ascend310p-quarter"));
    assert_eq!(
        quarter.selectors,
        ["device.driver == \"aliquot.dev\" && device.attributes[\"aliquot.dev\"].type == \"partition\" \
          && device.attributes[\"aliquot.dev\"].fraction == \"1/4\" \
          && (device.attributes[\"aliquot.dev\"].model == \"huawei-310p\" \
          || device.attributes[\"aliquot.dev\"].model.startsWith(\"huawei-310p-\"))"]
    );
    assert_eq!(class("mig-1g-10gb.aliquot.dev").annotations[classes::SPELLING], "1g.10gb");
    class("mig-1g-10gb-me.aliquot.dev");
    class("mig-1g-24gb-without-me.aliquot.dev");
    class("mig-1g-24gb-me.aliquot.dev");
    class("vnpu-vir02-1c.aliquot.dev");
    let names: BTreeSet<&String> = classes.iter().map(|class| &class.name).collect();
    assert_eq!(names.len(), classes.len());
}

#[test]
fn card_class_of_a_vendor_takes_only_its_cards() {
    use crate::cel::{DeviceView, Selector};
    let mut inventory = cards("huawei-310p-24gb", 1);
    inventory.cards.push(card("nvidia-t4-16gb", 1));
    let offers = offered(&inventory, "", V137);
    let classes = classes(&offers.slices);
    for vendor in ["huawei", "nvidia"] {
        let name = format!("card-{vendor}.aliquot.dev");
        let class = classes.iter().find(|class| class.name == name).unwrap();
        let selector = Selector::compile(&class.selectors[0]).unwrap();
        let taken =
            devices(&offers).into_iter().filter(|d| selector.matches(&DeviceView::new(DRIVER, d)).unwrap());
        let taken: Vec<_> = taken.map(|d| (&d.attributes["vendor"], &d.attributes["type"])).collect();
        let text = |text: &str| AttributeValue::String(text.to_owned());
        assert_eq!(taken, [(&text(vendor), &text("card"))]);
    }
}
