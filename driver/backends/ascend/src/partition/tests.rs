use super::*;
use crate::ffi::ChipAt;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::id::CardUuid;

fn model(id: &str) -> CardModel {
    Catalogue::embedded().resolve(id)[0].clone()
}

fn facts(phy: u32) -> Facts {
    Facts {
        at: ChipAt { card: 0, device: 0 },
        logic: phy,
        phy,
        die: [phy, 0, 0, 0, 0],
        chip: "310P3".to_owned(),
        ai_cores: 8,
        product: None,
        board_id: None,
        pci: None,
        memory_mib: Ok(1),
        health: Ok(0),
        codes: Vec::new(),
        vnpus: Ok(Vec::new()),
    }
}

fn vnpu(id: u32, template: &str, group: u32) -> Vnpu {
    Vnpu { id, template: template.to_owned(), group }
}

fn at(template: &str, placement: &str) -> PartitionAt {
    PartitionAt {
        card: CardUuid::new("NPU-1").unwrap(),
        template: TemplateName::new(template).unwrap(),
        placement: PlacementName(placement.to_owned()),
    }
}

fn named(model: &CardModel, phy: u32, vnpus: &[Vnpu]) -> Vec<(u32, String)> {
    let word = |part: &Part| match part {
        Part::Partition { template, placement } => format!("{template}@{placement}"),
        Part::Card | Part::Slot { .. } => unreachable!("{part:?}"),
    };
    parts(model, &facts(phy), vnpus).iter().map(|(vnpu, part)| (vnpu.id, word(part))).collect()
}

/// Every placement, made one after the other in any order, is found again at its place.
#[test]
fn placement_to_vnpu_and_back_is_the_same() {
    for id in ["huawei-310p-24gb", "huawei-910b3", "huawei-910b4", "huawei-910b4-1", "huawei-910c-20c"] {
        let model = model(id);
        let table = model.table().unwrap();
        let places: Vec<PartitionAt> = table
            .templates
            .iter()
            .flat_map(|template| {
                template.placements.iter().map(|place| at(template.name.as_str(), &place.name.0))
            })
            .collect();
        for first in &places {
            for second in places.iter().filter(|second| *second != first) {
                let mut vnpus = Vec::new();
                let mut expected = Vec::new();
                for at in [first, second] {
                    let wanted = wanted(&model, &facts(2), &vnpus, at, "25.2.0").unwrap();
                    assert!((132..148).contains(&wanted.id), "{wanted:?}");
                    vnpus.push(vnpu(wanted.id, at.template.as_str(), wanted.group.unwrap_or(0)));
                    expected.push((wanted.id, format!("{}@{}", at.template, at.placement)));
                }
                expected.sort();
                // Two that cannot exist together need not be told apart.
                let takes = |at: &PartitionAt| table.consumption(&at.template, &at.placement).unwrap();
                let both = takes(first).plus(&takes(second)).unwrap();
                if both.first_excess(&table.totals).is_none() {
                    assert_eq!(named(&model, 2, &vnpus), expected, "{id}");
                }
            }
        }
    }
}

#[test]
fn vnpus_made_elsewhere_get_places_of_their_own() {
    let model_310p = model("huawei-310p-24gb");
    // The driver numbers them as they come, and says which group they are in.
    let vnpus = [vnpu(100, "vir02", 3), vnpu(101, "vir01", 1), vnpu(103, "vir01", 1), vnpu(102, "vir77", 0)];
    let found = named(&model_310p, 0, &vnpus);
    let found: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(found, ["vir02@vg3", "vir01@vg1b", "vir77@id-102", "vir01@vg1a"]);
    let model = model("huawei-910b3");
    let vnpus = [vnpu(100, "vir05_1c_16g", 0), vnpu(101, "vir05_1c_16g", 0)];
    assert_eq!(named(&model, 0, &vnpus)[1].1, "vir05_1c_16g@1");
}

#[test]
fn older_spelling_of_a_template_is_the_same_template() {
    let model = model("huawei-910b4-1");
    assert_eq!(named(&model, 0, &[vnpu(100, "vir10_3c_16g", 0)])[0].1, "vir10_3c_32g@0");
    let table = model.table().unwrap();
    let half = &table.templates[0];
    assert_eq!(spellings(&model, half, "8.5.0")[0], "vir10_3c_16g");
    assert_eq!(spellings(&model, half, "25.2.0"), ["vir10_3c_32g", "vir10_3c_16g"]);
}

#[test]
fn chip_with_more_placements_than_ids_is_static() {
    let model = model("huawei-910a-30c");
    let table = model.table().unwrap();
    assert!(static_reason(table).unwrap().contains("26 placements"), "{:?}", static_reason(table));
    let vnpus = [vnpu(100, "vir08", 0), vnpu(101, "vir08", 0), vnpu(102, "vir02", 0)];
    let found: Vec<Part> = parts(&model, &facts(0), &vnpus).into_iter().map(|(_, part)| part).collect();
    let only = only_found(table, &found).unwrap();
    let count: Vec<usize> = only.templates.iter().map(|template| template.placements.len()).collect();
    assert_eq!(count, [1, 2]);
    assert_eq!(only_found(table, &[]), None);
}
