use aliquot_core::card::Health;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::{CardUuid, TemplateName};
use aliquot_core::partition::PlacementName;
use aliquot_core::ports::{BackendError, DeviceBackend, ExpectedPartition, PartitionAt};

use crate::{Call, Effect, Fault, NodeFile, Personality, SimNode};

fn node(name: &str) -> SimNode {
    let file = Personality::named(name).unwrap().load().unwrap();
    SimNode::in_memory(&file, &Catalogue::embedded()).unwrap()
}

fn at(node: &SimNode, card: usize, template: &str, placement: &str) -> PartitionAt {
    let card = node.discover().unwrap().cards[card].uuid.clone();
    let template = TemplateName::new(template).unwrap();
    PartitionAt { card, template, placement: PlacementName(placement.to_owned()) }
}

#[test]
fn every_personality_is_a_node_with_distinct_cards() {
    let catalogue = Catalogue::embedded();
    let mut uuids = std::collections::BTreeSet::new();
    for personality in Personality::all() {
        let file = personality.load().unwrap();
        let node = SimNode::in_memory(&file, &catalogue).unwrap();
        assert_eq!(node.name().as_str(), personality.name);
        assert!(!node.about().is_empty());
        let again = SimNode::in_memory(&file, &catalogue).unwrap().discover().unwrap();
        let inventory = node.discover().unwrap();
        assert_eq!(inventory, again, "{}: another look gives another node", personality.name);
        for card in &inventory.cards {
            assert!(uuids.insert(card.uuid.clone()), "{} is on two nodes", card.uuid);
            assert!(card.pci.is_some() && card.numa_node.is_some());
        }
    }
}

#[test]
fn node_file_with_one_pci_address_twice_is_refused() {
    let text = "schema = 1\nname = \"n\"\n[[card]]\nmodel = \"nvidia-t4-16gb\"\npci = [\"0000:11:00.0\"]\n\
                [[card]]\nmodel = \"nvidia-l4-24gb\"\npci = [\"0000:11:00.0\"]\n";
    let file = NodeFile::parse(text).unwrap();
    let error = SimNode::in_memory(&file, &Catalogue::embedded()).unwrap_err().to_string();
    assert!(error.contains("PCI address 0000:11:00.0 is given to two cards"), "{error}");
}

#[test]
fn hardware_refuses_counter_excess_and_unknown_templates() {
    let node = node("h100-8");
    let big = at(&node, 0, "7g.80gb", "0");
    let live = node.create_partition(&big).unwrap();
    assert_eq!(node.partitions().unwrap(), std::slice::from_ref(&live));
    assert!(matches!(node.create_partition(&big), Err(BackendError::AlreadyThere { .. })));
    let small = at(&node, 0, "1g.10gb", "0");
    let error = node.create_partition(&small).unwrap_err();
    assert!(matches!(&error, BackendError::NoRoom { left: 0, .. }), "{error}");
    let unknown = at(&node, 0, "9g.90gb", "0");
    assert!(matches!(node.create_partition(&unknown), Err(BackendError::UnknownPlace { .. })));
    let misplaced = at(&node, 0, "1g.10gb", "99");
    assert!(matches!(node.create_partition(&misplaced), Err(BackendError::UnknownPlace { .. })));
    let foreign = PartitionAt { card: CardUuid::new("GPU-none").unwrap(), ..big.clone() };
    assert!(matches!(node.create_partition(&foreign), Err(BackendError::UnknownCard(_))));

    node.destroy_partition(&big, &ExpectedPartition::Handle(live.handle)).unwrap();
    assert!(matches!(
        node.destroy_partition(&big, &ExpectedPartition::Any),
        Err(BackendError::Absent { .. })
    ));
    node.create_partition(&small).unwrap();
}

#[test]
fn a_partition_made_again_is_another_one() {
    let node = node("ascend-310p");
    let place = at(&node, 0, "vir02", "vg0");
    let first = node.create_partition(&place).unwrap();
    node.destroy_partition(&place, &ExpectedPartition::Any).unwrap();
    let second = node.create_partition(&place).unwrap();
    assert_eq!(first.handle.id, second.handle.id);
    assert_ne!(first.handle.uuid, second.handle.uuid);
    let error = node.destroy_partition(&place, &ExpectedPartition::Handle(first.handle)).unwrap_err();
    assert!(matches!(error, BackendError::Replaced { .. }));
    assert_eq!(node.partitions().unwrap(), [second]);
}

#[test]
fn partition_of_one_process_is_found_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let file = Personality::named("mixed").unwrap().load().unwrap();
    let catalogue = Catalogue::embedded();
    let here = SimNode::open(&file, &catalogue, &dir.path().join("hardware")).unwrap();
    let place = at(&here, 0, "3g.40gb", "4");
    let live = here.create_partition(&place).unwrap();
    let there = SimNode::open(&file, &catalogue, &dir.path().join("hardware")).unwrap();
    assert_eq!(there.partitions().unwrap(), [live]);
    let sick = Health::Unhealthy("fell off the bus".to_owned());
    there.set_health(&place.card, &sick).unwrap();
    let inventory = here.discover().unwrap();
    assert_eq!(inventory.cards[0].health, sick);
    assert_eq!(inventory.cards[0].found, [place.part()]);
}

#[test]
fn a_damaged_state_is_kept_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = Personality::named("t4-2").unwrap().load().unwrap();
    let node = SimNode::open(&file, &Catalogue::embedded(), dir.path()).unwrap();
    let path = dir.path().join("hardware.toml");
    std::fs::write(&path, "partition = 7").unwrap();
    let error = node.discover().unwrap_err().to_string();
    assert!(error.contains("hardware.toml is damaged"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "partition = 7");
}

#[test]
fn faults_hit_the_call_that_they_name() {
    let mut node = node("ascend-310p");
    node.inject(Fault {
        call: Call::Create,
        nth: 1,
        times: 1,
        effect: Effect::Error { code: -8, message: "no room in the vault".to_owned() },
    });
    node.inject(Fault {
        call: Call::Create,
        nth: 2,
        times: 1,
        effect: Effect::LostAnswer { code: -1, message: "timeout".to_owned() },
    });
    let place = at(&node, 0, "vir04", "vg0");
    let error = node.create_partition(&place).unwrap_err().to_string();
    assert!(error.contains("vendor error -8: no room in the vault"), "{error}");
    assert!(node.partitions().unwrap().is_empty());
    assert!(node.create_partition(&place).is_err());
    assert_eq!(node.partitions().unwrap().len(), 1, "done although reported as failed");
}

#[test]
fn node_file_may_bring_faults_partitions_and_models() {
    let text = r#"
schema = 1
name = "lab"
[[card]]
model = "nvidia-h100-80gb-sxm"
count = 2
memory = "81000Mi"
product-name = "H100 as read"
health = [{ card = 1, unhealthy = "Xid 79" }]
found = [{ card = 0, template = "3g.40gb", placement = "0" }]
[[fault]]
call = "destroy"
nth = 1
effect = "busy"
"#;
    let node = SimNode::in_memory(&NodeFile::parse(text).unwrap(), &Catalogue::embedded()).unwrap();
    let cards = node.discover().unwrap().cards;
    assert_eq!(cards[0].memory.0, 81_000 << 20);
    assert_eq!(cards[0].product_name, "H100 as read");
    assert_eq!(cards[0].found.len(), 1);
    assert_eq!(cards[1].health, Health::Unhealthy("Xid 79".to_owned()));
    let place = at(&node, 0, "3g.40gb", "0");
    assert!(matches!(
        node.destroy_partition(&place, &ExpectedPartition::Any),
        Err(BackendError::Busy { .. })
    ));
    node.destroy_partition(&place, &ExpectedPartition::Any).unwrap();
}
