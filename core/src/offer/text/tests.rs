use super::*;
use crate::catalogue::Catalogue;

const FULL: &str = r#"
evict = ["lost", "card"]
default = { layout = "shared", default-memory = "8Gi", default-cores = 10 }

[[slot]]
name = "small"
memory = "8Gi"
cores = 25
copies = 2

[[recipe]]
name = "mixed"
partitions = ["3g.40gb@4", "3 x 1g.10gb"]

[[rule]]
model = "nvidia-h100-*"
index = [0, 1]
layout = "split"
recipe = "mixed"

[[rule]]
uuid = "GPU-8f4e*"
layout = "slots"
slots = ["small"]

[[rule]]
vendor = "huawei"
index = 3
layout = "whole"
"#;

#[test]
fn a_full_file_says_what_it_means() {
    let policy = parse(FULL).unwrap();
    assert_eq!(policy.rules.len(), 3);
    let Layout::Split { recipe: Some(recipe), .. } = &policy.rules[0].layout else {
        panic!("{:?}", policy.rules[0])
    };
    let pieces: Vec<String> = recipe.pieces.iter().map(ToString::to_string).collect();
    assert_eq!(pieces, ["3g.40gb@4", "3x1g.10gb"]);
    assert_eq!(policy.rules[0].selector.to_string(), "model nvidia-h100-*, index 0 or 1");
    let Layout::Slots(slots) = &policy.rules[1].layout else { panic!("{:?}", policy.rules[1]) };
    assert_eq!((slots[0].memory, slots[0].copies), (Bytes(8 << 30), 2));
    assert_eq!(policy.rules[2].layout, Layout::Whole);
    assert_eq!(policy.default.terms().memory_default, Some(Bytes(8 << 30)));
    assert_eq!(policy.default.terms().cores_default.percent(), 10);
    assert_eq!(policy.evict, [NotedFault::Card, NotedFault::Lost].into());
    assert_eq!(parse("").unwrap(), LayoutPolicy::default());
}

#[track_caller]
fn refused(text: &str, says: &[&str]) {
    let error = parse(text).unwrap_err().to_string();
    for word in says {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn bad_field_is_named() {
    refused("evict = [\"unknown\"]", &["`evict`", "found `unknown`", "expected part, card or lost"]);
    let rule = |rest: &str| format!("[[rule]]\nmodel = \"*\"\n{rest}");
    let slot = |rest: &str| format!("[[slot]]\nname = \"s\"\n{rest}");
    refused("colour = 1", &["unknown field `colour`", "rule", "slot", "recipe"]);
    refused(&rule("layout = \"shared\"\nmemry = \"8Gi\""), &["unknown field `memry`", "default-memory"]);
    refused(&rule("layout = \"shard\""), &["rule[1].layout", "shard", "whole, shared", "choose"]);
    refused(&rule(""), &["missing field `layout`"]);
    refused(
        &rule("layout = \"whole\"\ndefault-memory = \"8Gi\""),
        &["rule[1].default-memory", "layout whole"],
    );
    refused(&rule("layout = \"shared\"\npartitions = [\"1g.10gb\"]"), &["rule[1].partitions", "split"]);
    refused(&rule("layout = \"split\"\npartitions = []"), &["rule[1].partitions", "empty"]);
    refused(&rule("layout = \"split\"\npartitions = [\"0x1g.10gb\"]"), &["`0x1g.10gb`", "7x1g.10gb"]);
    refused(&rule("layout = \"split\"\npartitions = [\"1g 10gb\"]"), &["`1g 10gb`"]);
    refused(&rule("layout = \"split\"\npartitions = [\"3g.40gb@A\"]"), &["`3g.40gb@A`"]);
    refused(&rule("layout = \"split\"\nrecipe = \"r\""), &["rule[1].recipe", "`r`", "[[recipe]]"]);
    refused(&rule("layout = \"slots\""), &["rule[1].slots", "nothing"]);
    refused(&rule("layout = \"slots\"\nslots = [\"big\"]"), &["`big`", "[[slot]]"]);
    refused(&rule("layout = \"shared\"\nindex = -1"), &["rule[1].index", "-1"]);
    refused(&rule("layout = \"shared\"\ndefault-cores = 101"), &["rule[1].default-cores", "101", "0 to 100"]);
    refused(&rule("layout = \"shared\"\ndefault-cores = 2.5"), &["2.5", "whole number"]);
    refused(
        &rule("layout = \"shared\"\nmin-memory = \"2Gi\"\nmax-memory = \"1Gi\""),
        &["min-memory", "2Gi", "1Gi"],
    );
    refused(
        &rule("layout = \"shared\"\ndefault-memory = \"2Gi\"\nmax-memory = \"1Gi\""),
        &["default-memory"],
    );
    refused(&slot("memory = \"-8Gi\""), &["slot[1].memory", "`-8Gi`", "positive"]);
    refused(&slot("memory = \"1500m\""), &["slot[1].memory", "`1500m`"]);
    refused(&slot("memory = \"1Mi\"\ncopies = 0"), &["slot[1].copies", "0"]);
    refused(&slot("memory = 1.5"), &["slot[1].memory", "1.5"]);
    refused("[[slot]]\nname = \"A b\"\nmemory = \"1Gi\"", &["slot[1].name", "`A b`"]);
    let twice = format!("{0}\n{0}", slot("memory = \"1Gi\""));
    refused(&twice, &["slot[2]", "`s` a second time"]);
    refused("rule = 3", &["the policy cannot be read"]);
    refused("default = \"best\"", &["default.layout", "best"]);
}

#[test]
fn errors_name_the_line_of_the_field() {
    let slots = "[[slot]]\nname = \"s\"\nmemory = \"1Gi\"\n";
    for (text, line) in [
        ("colour = 1", "line 1: the policy cannot be read: found `colour = 1`: unknown field"),
        ("default = \"auto\"\n\n  default = 1", "line 3: the policy cannot be read: found `default = 1`"),
        ("[[rule]]\nlayout = \"whole\"\n[[rule]]\nlayout = \"hole\"", "line 4: `rule[2].layout`: found hole"),
        ("[[rule]]\nmodel = \"*\"\nlayout = \"slots\"", "line 1: `rule[1].slots`: found nothing"),
        ("[[slot]]\nname = \"A b\"\nmemory = \"1Gi\"", "line 2: `slot[1].name`: found `A b`"),
        (&format!("# x\n{slots}\n{slots}"), "line 6: `slot[2]`: found `s` a second time"),
        ("rule = [\n  { layout = \"whole\" },\n  { layout = \"hole\" },\n]", "line 3: `rule[2].layout`"),
        ("\n[default]\nlayout = \"shared\"\nmin-memory = 0", "line 4: `default.min-memory`: found 0"),
        ("default = \"best\"", "line 1: `default.layout`: found best"),
        ("evict = [\n\"gone\"]", "line 1: `evict`: found `gone`"),
        ("default = \"auto", "line 1: the policy cannot be read"),
        ("", ""),
    ] {
        let error = parse(text).map_or_else(|error| error.to_string(), |_| String::new());
        assert!(error.starts_with(line) && !error.contains('\n'), "{text}: {error}");
    }
}

#[test]
fn check_names_what_no_model_of_the_catalogue_has() {
    let catalogue = Catalogue::embedded();
    let doubts = |text: &str| -> Vec<String> {
        check(text, &catalogue).unwrap().1.iter().map(ToString::to_string).collect()
    };
    assert_eq!(doubts(FULL), [""; 0]);
    let found = doubts(
        "[[rule]]\nmodel = \"nvidia-h1000-*\"\nlayout = \"whole\"\n\n[[rule]]\nvendor = \"huawei\"\nlayout = \"split\"\n\
         partitions = [\"7x1g.10gb\"]\n\n[[rule]]\nmodel = \"nvidia-h100-80gb*\"\nlayout = \"split\"\n\
         partitions = [\"3g.40gb@4\", \"1g.10gb@8\"]\n\n[[rule]]\nvendor = \"nvdia\"\nlayout = \"whole\"",
    );
    let starts = [
        "line 2: `rule[1].model`: found model nvidia-h1000-*, which matches none, expected a model",
        "line 8: `rule[2].partitions`: found `7x1g.10gb`, expected a partition of the models: vir",
        "line 13: `rule[3].partitions`: found `1g.10gb@8`, expected a partition of the models: 1g.10gb",
        "line 16: `rule[4].vendor`: found vendor nvdia, which matches none",
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(start), "{found}");
    }
    assert!(check("layuot = 1", &catalogue).is_err());
}
