//! CEL selectors compile, fail and answer as they do upstream.

use std::collections::BTreeMap;

use aliquot_core::cel::{DeviceView, Selector};
use aliquot_core::dra::Device;
use aliquot_driver::manifest;
use aliquot_tests::generate::{Random, SELECTOR_DRIVER, selector_device, selectors};
use aliquot_tests::oracle::Oracle;
use serde_json::{Value, json};

const SEED: u64 = 20_261_121;
const EXPRESSIONS: usize = 5_000;
/// Differences that a failure shows in full.
const SHOWN: usize = 15;

/// The gate for attributes that are lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListAttributes {
    Off,
    On,
}

/// The device that the expressions are about.
fn described(lists: ListAttributes) -> Value {
    let mut device = selector_device();
    if lists == ListAttributes::On {
        device["attributes"]["sizes"] = json!({"ints": [1, 2, 3]});
        device["attributes"]["modes"] = json!({"strings": ["H100", "'", "é-ü"]});
        device["attributes"]["flags"] = json!({"bools": [true, false]});
        device["attributes"]["releases"] = json!({"versions": ["12.4.1", "2.0.0-rc.1"]});
    }
    device
}

/// The same, read from a slice.
fn device(lists: ListAttributes) -> Option<Device> {
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let devices = [described(lists)];
    let spec = json!({"driver": SELECTOR_DRIVER, "pool": pool, "nodeName": "n1", "devices": devices});
    let metadata = json!({"name": "s"});
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec});
    let (manifests, _) = manifest::read("slice", &slice.to_string());
    manifests.slices.first()?.devices.first().cloned()
}

/// What an expression comes to, in one word, and the words of its error.
fn ours(expression: &str, view: &DeviceView, lists: ListAttributes) -> (&'static str, String) {
    let compiled = match lists {
        ListAttributes::Off => Selector::compile_new(expression),
        ListAttributes::On => Selector::compile(expression),
    };
    match compiled.map(|selector| selector.matches(view)) {
        Err(error) => ("does not compile", error.to_string()),
        Ok(Err(error)) => ("fails", error.to_string()),
        Ok(Ok(true)) => ("true", String::new()),
        Ok(Ok(false)) => ("false", String::new()),
    }
}

fn upstream(answer: &Value) -> (&'static str, String) {
    let text = |field: &str| answer[field].as_str().map(str::to_owned);
    match (text("compileError"), text("runtimeError"), answer["result"] == json!(true)) {
        (Some(error), _, _) => ("does not compile", error),
        (None, Some(error), _) => ("fails", error),
        (None, None, true) => ("true", String::new()),
        (None, None, false) => ("false", String::new()),
    }
}

/// Puts every expression before both and returns how often each outcome came up.
#[expect(clippy::unwrap_used, reason = "a helper of the tests below: a judge that breaks ends them")]
fn compare(expressions: &[String], lists: ListAttributes) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return counts };
    let view = DeviceView::new(SELECTOR_DRIVER, &device(lists).unwrap());
    let features = json!({"listTypeAttributes": lists == ListAttributes::On});
    let question = |expression: &String| json!({"op": "cel", "driver": SELECTOR_DRIVER, "device": described(lists), "features": features, "expression": expression});
    let answers = oracle.ask_all(expressions.iter().map(question)).unwrap();
    let mut differences = Vec::new();
    for (expression, answer) in expressions.iter().zip(&answers) {
        let (ours, theirs) = (ours(expression, &view, lists), upstream(answer));
        *counts.entry(theirs.0).or_default() += 1;
        if ours.0 != theirs.0 {
            differences.push(format!("{expression}\n  ours       {ours:?}\n  upstream's {theirs:?}"));
        }
    }
    println!("{counts:?}");
    let shown = differences.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        differences.is_empty(),
        "{} of {} differ ({counts:?})\n{shown}",
        differences.len(),
        expressions.len()
    );
    counts
}

/// The expression with a few characters missing, doubled or from elsewhere.
fn spoil(random: &mut Random, expression: &str) -> String {
    const TOKENS: [&str; 22] = [
        "1", "'a'", "true", "null", "[]", "{}", "(", ")", "!", "-", ".", "?", ":", "==", "&&", ">", "in",
        "b'x'", "1u", "0x1F", "device", ".size",
    ];
    let mut characters: Vec<String> = expression.chars().map(String::from).collect();
    for _ in 0..random.between(1, 2) {
        let at = random.below(characters.len());
        match random.below(4) {
            0 => characters[at].clear(),
            1 => characters[at] = characters[at].repeat(2),
            2 => characters[at] = (*random.pick(&TOKENS)).to_owned(),
            _ => {
                let end = (at + random.between(1, 12)).min(characters.len());
                characters[at..end].fill(String::new());
                characters[at] = (*random.pick(&TOKENS)).to_owned();
            }
        }
    }
    characters.concat()
}

#[test]
fn well_formed_selectors_answer_as_upstream_answers() {
    let counts = compare(&selectors(SEED, EXPRESSIONS), ListAttributes::Off);
    assert!(
        counts.is_empty() || ["true", "false", "fails"].iter().all(|name| counts[name] >= 200),
        "{counts:?}"
    );
}

#[test]
fn spoilt_selectors_are_refused_where_upstream_refuses_them() {
    let mut random = Random::new(SEED);
    let expressions: Vec<String> =
        selectors(SEED + 1, EXPRESSIONS).iter().map(|expression| spoil(&mut random, expression)).collect();
    let counts = compare(&expressions, ListAttributes::Off);
    assert!(counts.is_empty() || counts["does not compile"] >= EXPRESSIONS / 2, "{counts:?}");
}

/// Every list of integers of a grown expression becomes an attribute that is one.
fn with_lists(expression: &str) -> String {
    const OWN: &str = "device.attributes['gpu.example.com']";
    let sizes = format!("{OWN}.sizes");
    ["[1, 2, 3]", "[7]", "[2, 7, 7]", "[0, -1, 5, 10]"]
        .iter()
        .fold(expression.to_owned(), |text, list| text.replace(list, &sizes))
}

#[test]
fn selectors_over_lists_answer_as_upstream_answers() {
    const OWN: &str = "device.attributes['gpu.example.com']";
    let by_hand = [
        ".modes.includes('H100')",
        ".model.includes('H100-80')",
        ".sizes.includes(2.0)",
        ".sizes.includes('2')",
        ".modes.exists(mode, mode.startsWith('H'))",
        ".modes.all(mode, mode.size() > 0)",
        ".modes == ['H100', '\\'', 'é-ü']",
        ".modes.join(',') == \"H100,',é-ü\"",
        ".releases.exists(v, v.isGreaterThan(semver('12.0.0')))",
        ".releases.includes(semver('12.4.1'))",
        ".releases[1].major() == 2",
        ".flags.exists(flag, !flag)",
        ".flags[0]",
        ".flags",
        ".flags.exists_one(flag, flag == 'x')",
        ".modes",
        ".modes.matches('a')",
        ".modes.size() == 3",
        ".sizes.sum() == 6",
        ".sizes == 1",
        ".sizes + [4] == [1, 2, 3, 4]",
        ".sizes.x",
        ".sizes[7] == 1",
        ".size.exists(x, x == 1)",
        ".exists(name, name == 'sizes')",
        ".missing.includes(1)",
        ".?sizes.orValue([]).exists(x, x == 3)",
        ".all(name, attribute, name == 'x' || attribute.includes(1) || true)",
    ];
    let mut expressions: Vec<String> = by_hand.iter().map(|rest| format!("{OWN}{rest}")).collect();
    expressions.push("dyn(true)".to_owned());
    expressions.push("dyn(device.driver)".to_owned());
    let grown = selectors(SEED + 2, EXPRESSIONS);
    expressions.extend(grown.iter().map(|text| with_lists(text)).filter(|text| text.contains(".sizes")));
    let counts = compare(&expressions, ListAttributes::On);
    assert!(
        counts.is_empty() || ["true", "false", "fails"].iter().all(|name| counts[name] >= 100),
        "{counts:?}"
    );
}
