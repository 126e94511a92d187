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

/// The device that the expressions are about, read from a slice.
fn device() -> Option<Device> {
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let spec =
        json!({"driver": SELECTOR_DRIVER, "pool": pool, "nodeName": "n1", "devices": [selector_device()]});
    let metadata = json!({"name": "s"});
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec});
    let (manifests, _) = manifest::read("slice", &slice.to_string());
    manifests.slices.first()?.devices.first().cloned()
}

/// What an expression comes to, in one word, and the words of its error.
fn ours(expression: &str, view: &DeviceView) -> (&'static str, String) {
    match Selector::compile(expression).map(|selector| selector.matches(view)) {
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
fn compare(expressions: &[String]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return counts };
    let view = DeviceView::new(SELECTOR_DRIVER, &device().unwrap());
    let question = |expression: &String| json!({"op": "cel", "driver": SELECTOR_DRIVER, "device": selector_device(), "expression": expression});
    let answers = oracle.ask_all(expressions.iter().map(question)).unwrap();
    let mut differences = Vec::new();
    for (expression, answer) in expressions.iter().zip(&answers) {
        let (ours, theirs) = (ours(expression, &view), upstream(answer));
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
    let counts = compare(&selectors(SEED, EXPRESSIONS));
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
    let counts = compare(&expressions);
    assert!(counts.is_empty() || counts["does not compile"] >= EXPRESSIONS / 2, "{counts:?}");
}
