use super::*;
use crate::card::{Health, Topology};
use crate::id::TemplateName;
use crate::partition::{Certainty, Isolation, PartitionTable, ShareSupport};
use crate::units::{Bytes, Cores, Fraction};

#[test]
fn every_embedded_file_is_good() {
    let (catalogue, refused) = Catalogue::load(embedded::FILES.iter().copied());
    assert_eq!(refused, []);
    assert_eq!(catalogue.models().len(), embedded::FILES.len());
    for (model, (file, _)) in catalogue.models().iter().zip(embedded::FILES) {
        assert_eq!(format!("{}.toml", model.id), *file, "a file is named after its model");
    }
}

/// A good file of each form; the bad ones below differ from it in one place.
const GOOD: &str = r#"
schema = 1
id = "acme-one"
vendor = "acme"
names = ["One"]
architecture = "First"
memory = "8Gi"

[match]
pci-ids = ["1234:abcd"]
board-ids = [0x10]
memory-min = "7Gi"
memory-max = "9Gi"

[share]
support = "enforceable"

[partitioning]
fraction-of = "slots"
compute-of = "units"
isolation = "hardware"
shares = "none"
slots = { prefix = "mem", count = 4 }
max-partitions = 3

[partitioning.totals]
units = 8

[[partitioning.template]]
name = "small"
aliases = [{ name = "little", drivers-before = "2.0" }]
fraction = "1/4"
memory = "2Gi"
consumes = { units = 2 }
capacity = { video-engines = 1 }
placements = { starts = [0, 1, 2, 3], size = 1 }

[[partitioning.template]]
name = "half"
fraction = "1/2"
memory = "4Gi"
consumes = { units = 4 }
placements = { at = [{ name = "low", takes = { mem0 = 1, mem1 = 1 } }, { name = "high", takes = { mem2 = 1, mem3 = 1 } }] }

[[rule]]
kind = "same-mode"
scope = "card"

[[source]]
covers = ["card", "templates", "memory", "placements"]
certainty = "derived"
text = "Made up."
"#;

/// A card with two modes that exclude each other: one accelerator, or eight equal parts.
const MODES: &str = r#"
schema = 1
id = "acme-modes"
vendor = "acme"
names = []
architecture = "Second"
memory = "192Gi"

[share]
support = "none"

[[mode]]
name = "spx-nps1"

[mode.partitioning]
fraction-of = "xcd"
compute-of = "xcd"
isolation = "hardware"
shares = "none"

[[mode.partitioning.template]]
name = "spx_nps1"
fraction = "1"
memory = "192Gi"
consumes = { xcd = 8 }
placements = { copies = 1 }

[[mode]]
name = "cpx-nps4"

[mode.partitioning]
fraction-of = "xcd"
compute-of = "xcd"
isolation = "hardware"
shares = "none"
totals = { xcd = 8 }

[[mode.partitioning.template]]
name = "cpx_nps4"
fraction = "1/8"
memory = "24Gi"
consumes = { xcd = 1 }
placements = { copies = 8 }

[[source]]
covers = ["card", "templates", "memory", "placements"]
certainty = "derived"
text = "Made up."
"#;

#[test]
fn a_file_becomes_a_model() {
    let model = CardModel::parse("one.toml", GOOD).unwrap();
    let table = model.table().unwrap();
    let totals: Vec<(String, u64)> = table.totals.iter().map(|(n, a)| (n.to_string(), a)).collect();
    let expected = [("mem0", 1), ("mem1", 1), ("mem2", 1), ("mem3", 1), ("partitions", 3), ("units", 8)];
    assert_eq!(totals, expected.map(|(n, a)| (n.to_owned(), a)));
    let small = &table.templates[0];
    assert_eq!((small.cores, small.fraction), (Cores::new(25).unwrap(), Fraction::new(1, 4).unwrap()));
    assert_eq!((small.isolation, small.shareable), (Isolation::Hardware, ShareSupport::No));
    assert_eq!(small.placements.iter().map(|p| p.name.0.as_str()).collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let extra: Vec<(&str, u64)> = small.extra_capacity.iter().map(|(n, a)| (n.as_str(), *a)).collect();
    assert_eq!(extra, [("units", 2), ("videoEngines", 1)]);
    assert_eq!(model.rules, [CardRule::SameMode(RuleScope::Card)]);
    assert_eq!(model.sources[0].certainty, Certainty::Derived);
    let name = &small.name;
    assert_eq!(model.spelling(name, "1.9.8").as_str(), "little");
    assert_eq!(model.spelling(name, "2.0").as_str(), "small");
    assert_eq!(model.spelling(name, "25.5.1").as_str(), "small");
}

#[test]
fn modes_exclude_each_other_and_one_is_current() {
    let model = CardModel::parse("modes.toml", MODES).unwrap();
    assert_eq!((model.table(), model.tables().len()), (None, 2));
    let card = |mode: Option<&str>| model.card(CardIdentity { mode: mode.map(str::to_owned), ..identity() });
    assert_eq!(card(None).table(), None);
    assert_eq!(card(Some("cpx-nps4")).table().unwrap().partitions().count(), 8);
    assert_eq!(card(Some("spx-nps1")).table().unwrap().templates[0].fraction, Fraction::WHOLE);
    let odd = card(Some("dpx"));
    assert_eq!(odd.table(), None);
    assert!(
        matches!(&odd.health, Health::Unhealthy(why) if why.contains("`dpx`") && why.contains("cpx-nps4"))
    );
}

fn identity() -> CardIdentity {
    CardIdentity {
        uuid: "card-0".parse().unwrap(),
        index: 0,
        product_name: None,
        memory: None,
        driver_version: "1".to_owned(),
        pci: None,
        pcie_root: None,
        numa_node: None,
        topology: Topology::default(),
        mode: None,
        health: Health::Healthy,
        found: Vec::new(),
    }
}

#[test]
fn discovery_wins_over_the_file() {
    let model = CardModel::parse("one.toml", GOOD).unwrap();
    let plain = model.card(identity());
    assert_eq!((plain.memory, plain.product_name.as_str()), (Bytes(8 << 30), "acme-one"));
    let (memory, product_name) = (Some(Bytes(7 << 30)), Some("Acme One Rev B".to_owned()));
    let seen = model.card(CardIdentity { memory, product_name, ..identity() });
    assert_eq!((seen.memory, seen.product_name.as_str()), (Bytes(7 << 30), "Acme One Rev B"));
}

/// The good file with `from` replaced by `to` must be refused with a message that has all the words.
#[track_caller]
fn refuse(from: &str, to: &str, words: &[&str]) {
    assert!(GOOD.contains(from), "{from}");
    let message = CardModel::parse("one.toml", &GOOD.replacen(from, to, 1)).unwrap_err().to_string();
    for word in ["one.toml", "expected"].iter().chain(words) {
        assert!(message.contains(word), "`{word}` is missing in: {message}");
    }
}

#[test]
fn a_bad_field_is_named_with_what_was_found_and_expected() {
    refuse("vendor =", "wendor =", &["line 4", "unknown field `wendor`", "`vendor`"]);
    refuse("schema = 1", "schema = 2", &["schema is 2", "expected 1"]);
    refuse("\"acme-one\"", "\"Acme One\"", &["id is `Acme One`", "DNS label"]);
    refuse("names = [\"One\"]", "names = [\"One\", \"ONE\"]", &["names[1] is `ONE`", "remove it"]);
    refuse("names = [\"One\"]", "names = [\"acme one\"]", &["names[0]", "differs from the id"]);
    refuse("memory = \"8Gi\"", "memory = \"-8Gi\"", &["memory is \"-8Gi\", which is negative"]);
    refuse("memory = \"8Gi\"", "memory = -8", &["memory is -8, which is negative"]);
    refuse("memory = \"8Gi\"", "memory = 8.5", &["memory is 8.5, which is not a whole number"]);
    refuse("memory = \"8Gi\"", "memory = \"100m\"", &["which is not whole"]);
    refuse("memory = \"8Gi\"", "memory = \"8GB\"", &["memory is \"8GB\", where its suffix is unknown"]);
    refuse("memory = \"8Gi\"", "memory = 8", &["multiple of 1Mi"]);
    refuse("memory = \"8Gi\"", "memory = \"16Ei\"", &["2^63 or more"]);
    refuse("architecture = \"First\"", "architecture = \"\"", &["architecture is", "1 to 64"]);
    refuse("1234:abcd", "1234:ABCD", &["match.pci-ids is `1234:ABCD`", "10de:2330"]);
    refuse("\"7Gi\"", "\"10Gi\"", &["match.memory-min is 10Gi", "memory-max (9Gi)"]);
    refuse("board-ids = [0x10]", "board-ids = [-1]", &["match.board-ids is -1"]);
    refuse("scope = \"card\"", "scope = \"rack\"", &["unknown variant `rack`", "`card`"]);
}

#[test]
fn an_impossible_profile_is_refused() {
    let half = "consumes = { units = 4 }";
    refuse(half, "consumes = { units = 9 }", &["`half`", "9 units at `low`", "at most the 8"]);
    refuse(
        "\"4Gi\"\nconsumes",
        "\"9Gi\"\nconsumes",
        &["`half` memory is 9Gi", "at most the 8Gi of the card"],
    );
    refuse(
        "fraction = \"1/2\"",
        "fraction = \"1/3\"",
        &["`half` fraction is 1/3", "2/4, what it takes of slots"],
    );
    refuse("fraction = \"1/2\"", "fraction = \"3/2\"", &["fraction is `3/2`", "such as 1/4"]);
    refuse(
        "fraction-of = \"slots\"",
        "fraction-of = \"cores\"",
        &["fraction-of is `cores`", "counter of this table"],
    );
    refuse(
        "starts = [0, 1, 2, 3], size = 1",
        "starts = [], size = 1",
        &["`small` placements", "at least one placement"],
    );
    refuse("size = 1", "size = 2", &["start 3 with size 2", "4 slots"]);
    refuse("size = 1", "size = 0", &["start 0 with size 0"]);
    refuse("starts = [0, 1, 2, 3]", "starts = [0, 1, 1, 3]", &["`1` twice", "each placement once"]);
    refuse("starts = [0, 1, 2, 3]", "copies = 2, starts = [0, 1, 2, 3]", &["another mix of keys"]);
    refuse("mem2 = 1, mem3 = 1", "mem0 = 1, mem1 = 1", &["low and high", "places that differ"]);
    refuse("\"high\"", "\"High\"", &["is `High`", "DNS label"]);
    refuse(
        "\"high\", takes = { mem2",
        "\"high\", takes = { units = 1, mem2",
        &["`units`, which consumes takes too"],
    );
    refuse(half, "consumes = { units = 4, mem0 = 1 }", &["is mem0", "counters that are not slots"]);
    refuse(half, "consumes = { units = -4 }", &["consumes.units is -4", "negative"]);
    refuse(half, "consumes = { units = 0.5 }", &["consumes.units is 0.5"]);
    refuse(half, "consumes = { Units = 4 }", &["`Units`", "DNS label"]);
    refuse(half, "cores = 50\nconsumes = { units = 4 }", &["cores is written", "compute-of"]);
    refuse("compute-of = \"units\"\n", "", &["cores is missing", "0 to 100"]);
    refuse("video-engines", "memory", &["`memory`", "other than memory and cores"]);
    refuse("max-partitions = 3", "max-partitions = 0", &["1 partitions at `0`", "at most the 0"]);
}

#[test]
fn names_that_collide_or_go_in_circles_are_refused() {
    refuse("name = \"half\"", "name = \"small\"", &["template[1].name is `small`", "a name no other has"]);
    let half = "name = \"half\"\n";
    for alias in ["small", "little", "half"] {
        let to = format!("{half}aliases = [{{ name = \"{alias}\" }}]\n");
        refuse(half, &to, &[&format!("`{alias}`, which is a name or alias already"), "one template alone"]);
    }
    refuse("name = \"small\"", "name = \"too small\"", &["`too small`", "letters, digits"]);
}

#[test]
fn facts_without_a_source_are_refused() {
    refuse("\"memory\", \"placements\"]", "\"memory\"]", &["source is without `placements`", "certainty"]);
    refuse("\"card\", \"templates\"", "\"card\", \"card\", \"templates\"", &["`card` again"]);
    refuse("text = \"Made up.\"", "text = \" \"", &["source[0].text is empty"]);
    refuse("certainty = \"derived\"", "certainty = \"sure\"", &["unknown variant `sure`", "`measured`"]);
}

#[test]
fn hostile_sizes_are_refused_at_once() {
    refuse("count = 4", "count = 4000000000", &["slots.count is 4000000000", "at most 32"]);
    refuse("count = 4", "count = 0", &["slots.count is 0"]);
    refuse("size = 1", "size = 9223372036854775807", &["at most 1024"]);
    refuse("size = 1", "size = 92233720368547758070", &["one.toml, line"]);
    refuse("starts = [0, 1, 2, 3], size = 1", "copies = 1000000000", &["at most 64"]);
    let many: Vec<String> = (0..33).map(|i| format!("c{i} = 1")).collect();
    refuse("units = 8", &format!("units = 8\n{}", many.join("\n")), &["totals is 39", "at most 32 counters"]);
    let long = format!("names = [{}]", "\"n\", ".repeat(1000));
    refuse("names = [\"One\"]", &long, &["names is a list of 1000", "at most 64"]);
    refuse("\"First\"", &format!("\"{}\"", "x".repeat(5000)), &["5000 characters"]);
    let huge = GOOD.replace("Made up.", &"x".repeat(1 << 20));
    let message = CardModel::parse("one.toml", &huge).unwrap_err().to_string();
    assert!(message.contains("one.toml") && message.contains("262144"), "{message}");
}

#[test]
fn a_file_cut_anywhere_is_refused_or_whole() {
    let whole = CardModel::parse("one.toml", GOOD).unwrap();
    for end in 0..GOOD.len() {
        if let Ok(model) = CardModel::parse("one.toml", &GOOD[..end]) {
            assert_eq!(model, whole, "cut at {end}");
        }
    }
}

#[test]
fn an_admins_files_override_by_id_and_a_bad_one_leaves_the_rest() {
    let t4 = embedded::FILES.iter().find(|(name, _)| *name == "nvidia-t4-16gb.toml").unwrap().1;
    let files = [
        ("t4.toml".to_owned(), t4.replace("15360Mi", "15109Mi")),
        ("one.toml".to_owned(), GOOD.to_owned()),
        ("again.toml".to_owned(), GOOD.to_owned()),
        ("bad.toml".to_owned(), GOOD.replace("schema = 1", "schema = 7")),
        ("thief.toml".to_owned(), MODES.replace("names = []", "names = [\"acme-one\"]")),
    ];
    let before = Catalogue::embedded();
    let (catalogue, refused) = before.clone().with_overrides(&files);
    assert_eq!(catalogue.models().len(), before.models().len() + 1);
    let memory = |id: &str| catalogue.model(&id.parse().unwrap()).map(|m| m.memory);
    assert_eq!(memory("nvidia-t4-16gb"), Bytes::from_mib(15109));
    assert_eq!(memory("acme-one"), Some(Bytes(8 << 30)));
    let messages: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages[0].contains("again.toml: id is `acme-one`, which one.toml has too"), "{}", messages[0]);
    assert!(messages[1].contains("bad.toml: schema is 7"), "{}", messages[1]);
    assert!(messages[2].contains("thief.toml: names has `acme-one`"), "{}", messages[2]);
}

#[test]
fn people_find_models_by_any_of_their_names() {
    let catalogue = Catalogue::embedded();
    let found =
        |text: &str| -> Vec<String> { catalogue.resolve(text).iter().map(|m| m.id.to_string()).collect() };
    assert_eq!(found("nvidia-h100-80gb-sxm"), ["nvidia-h100-80gb-sxm"]);
    assert_eq!(found("NVIDIA H100 80GB HBM3"), ["nvidia-h100-80gb-sxm"]);
    assert_eq!(found("A100-40"), ["nvidia-a100-40gb"]);
    assert_eq!(found("a100"), ["nvidia-a100-40gb", "nvidia-a100-80gb"]);
    assert_eq!(found("H100").len(), 3);
    let all_310p = ["huawei-310p-24gb", "huawei-310p-48gb", "huawei-310p-duo-24gb", "huawei-310p-duo-48gb"];
    for text in ["310p", "Ascend310P", "huawei.com/ascend-310p", "ASCEND 310P"] {
        assert_eq!(found(text), all_310p, "{text}");
    }
    assert_eq!(found("910b4-1"), ["huawei-910b4-1"]);
    assert_eq!(found("t4"), ["nvidia-t4-16gb"]);
    for text in ["", "/", "voodoo2"] {
        assert_eq!(found(text), [] as [&str; 0], "{text}");
    }
}

#[test]
fn discovery_finds_the_model_that_agrees_with_all_it_saw() {
    let catalogue = Catalogue::embedded();
    let found = |seen: &Sighting| -> Vec<String> {
        catalogue.matching(seen).iter().map(|m| m.id.to_string()).collect()
    };
    let by_pci = Sighting { pci_id: Some("10de:2330".to_owned()), ..Sighting::default() };
    assert_eq!(found(&by_pci), ["nvidia-h100-80gb-sxm"]);
    let chip = |memory_mib| Sighting {
        chip_name: Some("310P3".to_owned()),
        memory: Bytes::from_mib(memory_mib),
        ..Sighting::default()
    };
    assert_eq!(found(&chip(21_527)), ["huawei-310p-24gb", "huawei-310p-duo-24gb"]);
    assert_eq!(found(&chip(44_280)), ["huawei-310p-48gb", "huawei-310p-duo-48gb"]);
    let duo = Sighting { product_name: Some("Atlas 300I Duo".to_owned()), ..chip(21_527) };
    assert_eq!(found(&duo), ["huawei-310p-duo-24gb"]);
    let board =
        Sighting { chip_name: Some("910B4-1".to_owned()), board_id: Some(0x38), ..Sighting::default() };
    assert_eq!(found(&board), ["huawei-910b4-1"]);
    assert_eq!(found(&Sighting::default()), [] as [&str; 0]);
}

/// Names, PCI ids and total MiB as drivers report them, and the model of each.
const REPORTED: &[(&str, &str, u64, &str)] = &[
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "2bb5", 97_887, "nvidia-rtx-pro-6000"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "2bb1", 97_887, "nvidia-rtx-pro-6000"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "2bb4", 97_887, "nvidia-rtx-pro-6000"),
    ("NVIDIA RTX PRO 5000 Blackwell", "2bb3", 48_935, "nvidia-rtx-pro-5000-48gb"),
    ("NVIDIA RTX PRO 5000 72GB Blackwell", "2bb3", 73_415, "nvidia-rtx-pro-5000-72gb"),
    ("NVIDIA RTX PRO 4500 Blackwell", "2c31", 32_623, "nvidia-rtx-pro-4500-32gb"),
    ("NVIDIA A100-SXM4-40GB", "20b0", 40_960, "nvidia-a100-40gb"),
    ("NVIDIA A100-SXM-64GB", "20b3", 65_536, "nvidia-a100-64gb"),
    ("NVIDIA A800-SXM4-40GB", "20bd", 40_960, "nvidia-a800-40gb"),
    ("NVIDIA A800 40GB Active", "20f6", 40_960, "nvidia-a800-40gb"),
    ("NVIDIA A800-SXM4-80GB", "20f3", 81_920, "nvidia-a800-80gb"),
    ("NVIDIA A800 80GB PCIe", "20f5", 81_920, "nvidia-a800-80gb"),
    ("NVIDIA H100 80GB HBM3", "2330", 81_559, "nvidia-h100-80gb-sxm"),
    ("NVIDIA H800", "2324", 81_559, "nvidia-h800-80gb-sxm"),
    ("NVIDIA H800 PCIe", "2322", 81_559, "nvidia-h800-80gb-pcie"),
    ("NVIDIA H800 NVL", "233a", 95_830, "nvidia-h800-nvl-94gb"),
    ("NVIDIA H20", "2329", 97_871, "nvidia-h20-96gb"),
    ("NVIDIA H20-3e", "232c", 143_771, "nvidia-h20-3e-141gb"),
    ("NVIDIA H20 NVL16", "230e", 97_871, "nvidia-h20-96gb"),
    ("NVIDIA H20 NVL16", "230e", 143_771, "nvidia-h20-3e-141gb"),
    ("NVIDIA GH200 480GB", "2342", 97_871, "nvidia-h100-96gb"),
    ("NVIDIA GH200 120GB", "2342", 97_871, "nvidia-h100-96gb"),
    ("NVIDIA GH200 144G HBM3e", "2348", 146_831, "nvidia-gh200-144gb"),
    ("NVIDIA B200", "2901", 183_359, "nvidia-b200-180gb"),
    ("NVIDIA GB200", "2941", 189_471, "nvidia-gb200-186gb"),
    ("NVIDIA B300 SXM6 AC", "3182", 275_040, "nvidia-b300-269gb"),
    ("NVIDIA GB300", "31c2", 284_208, "nvidia-gb300-278gb"),
];

fn sighted(name: &str, id: &str, mib: u64) -> Vec<String> {
    let seen = Sighting {
        product_name: Some(name.to_owned()),
        pci_id: Some(format!("10de:{id}")),
        memory: Bytes::from_mib(mib),
        ..Sighting::default()
    };
    Catalogue::embedded().matching(&seen).iter().map(|m| m.id.to_string()).collect()
}

#[test]
fn names_and_ids_of_drivers_are_of_one_model() {
    for (name, id, mib, model) in REPORTED {
        assert_eq!(sighted(name, id, *mib), [*model], "{name} {id}");
        // Without the name or the id, the other one still finds it.
        let by_name = sighted(name, "ffff", *mib);
        assert_eq!(by_name, [*model], "{name} alone");
        let by_id = sighted("NVIDIA Board of Tomorrow", id, *mib);
        assert_eq!(by_id, [*model], "{id} alone");
    }
}

#[test]
fn name_and_id_of_two_models_are_of_none() {
    assert_eq!(sighted("NVIDIA H20", "2330", 81_559), [] as [&str; 0]);
    assert_eq!(sighted("NVIDIA A100-SXM4-80GB", "20b0", 40_960), [] as [&str; 0]);
}

#[test]
fn part_of_a_card_is_not_the_model_of_its_id() {
    assert_eq!(sighted("NVIDIA A100-10C", "20b5", 10_240), [] as [&str; 0]);
    assert_eq!(sighted("NVIDIA A10-4Q", "2236", 4_096), [] as [&str; 0]);
    // Error correction off.
    assert_eq!(sighted("NVIDIA A10", "ffff", 24_564), ["nvidia-a10-24gb"]);
}

#[test]
fn no_two_models_share_name_id_and_size() {
    let catalogue = Catalogue::embedded();
    for (i, one) in catalogue.models().iter().enumerate() {
        for other in &catalogue.models()[i + 1..] {
            let both = |of: fn(&ModelKeys) -> &[String]| {
                of(&one.matching).iter().any(|key| of(&other.matching).contains(key))
            };
            if both(|k| &k.product_names) && both(|k| &k.pci_ids) {
                assert!(one.memory.0.abs_diff(other.memory.0) > one.memory.0 / 5, "{} {}", one.id, other.id);
            }
        }
    }
}

#[test]
fn old_drivers_of_the_910b4_1_have_their_own_spelling() {
    let catalogue = Catalogue::embedded();
    let model = catalogue.model(&"huawei-910b4-1".parse().unwrap()).unwrap();
    let half = "vir10_3c_32g".parse().unwrap();
    assert_eq!(model.spelling(&half, "8.5.0").as_str(), "vir10_3c_16g");
    assert_eq!(model.spelling(&half, "9.0.0").as_str(), "vir10_3c_32g");
    assert_eq!(model.spelling(&half, "25.0.rc1").as_str(), "vir10_3c_32g");
    let old: TemplateName = "vir05_1c_8g".parse().unwrap();
    assert_eq!(model.table().unwrap().template(&old).unwrap().name.as_str(), "vir05_1c_16g");
}

#[test]
fn the_media_profile_fits_once_on_every_card_that_has_it() {
    for model in Catalogue::embedded().models() {
        for template in model.table().into_iter().flat_map(|t| &t.templates) {
            if template.name.as_str().contains("+me") {
                let table = model.table().unwrap();
                let twice = [template.name.clone(), template.name.clone()];
                assert_eq!(table.arrange(&twice), crate::partition::Arrangement::Impossible, "{}", model.id);
            }
        }
    }
}

proptest::proptest! {
    #[test]
    fn a_file_changed_anywhere_is_read_or_refused(
        at in 0..GOOD.len(),
        cut in 0_usize..24,
        put in "[-0-9a-z\"={}\\[\\].,\n]{0,12}",
    ) {
        let end = (at + cut).min(GOOD.len());
        let text = format!("{}{put}{}", &GOOD[..at], &GOOD[end..]);
        match CardModel::parse("one.toml", &text) {
            Err(error) => proptest::prop_assert!(error.to_string().contains("one.toml")),
            Ok(model) => for (template, placement) in model.table().into_iter().flat_map(PartitionTable::partitions) {
                let takes = template.consumes.plus(&placement.consumes).unwrap();
                proptest::prop_assert_eq!(takes.first_excess(&model.table().unwrap().totals), None);
            },
        }
    }
}
