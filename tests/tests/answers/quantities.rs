//! Quantities are read, printed, compared and added as upstream does it, below 10^18 units.
//!
//! What lies beyond, and the other texts that are left out here, is in `docs/developer/upstream-differences.md`.

use aliquot_core::quantity::Quantity;
use aliquot_tests::generate::Random;
use aliquot_tests::oracle::Oracle;
use serde_json::{Value, json};

const SEED: u64 = 20_261_121;
const PAIRS: usize = 20_000;
const SUFFIXES: [&str; 23] = [
    "", "", "", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "E3", "e-3", "e0", "e6",
    "E+9", "e-9", "e4", "e2",
];
const WRONG: [&str; 12] = [" ", "x", "K", "ki", "gb", "e", "e+", "Mi ", "1.2.3", ".5Zi", "0x10", "1_000"];

/// Mostly a quantity, now and then nearly one.
fn text(random: &mut Random) -> String {
    if random.percent(4) {
        let number = if random.percent(50) { random.below(1000).to_string() } else { String::new() };
        return format!("{number}{}", random.pick(&WRONG));
    }
    let digits = |random: &mut Random, most: usize| -> String {
        (0..random.between(1, most)).map(|_| random.below(10).to_string()).collect()
    };
    let sign = *random.pick(&["", "", "", "", "-", "+"]);
    let whole = digits(random, 5);
    let fraction = match random.below(10) {
        0 | 1 => format!(".{}", digits(random, 4)),
        2 => format!(".{}", digits(random, 12)),
        3 => ".".to_owned(),
        _ => String::new(),
    };
    format!("{sign}{whole}{fraction}{}", random.pick(&SUFFIXES))
}

/// What we answer, in the judge's words; `None` where one of the texts is no quantity.
fn ours(left: &str, right: &str) -> Option<Value> {
    let (left, right) = (left.parse::<Quantity>().ok()?, right.parse::<Quantity>().ok()?);
    Some(json!({
        "canonical": left.to_string(),
        "value": if left < Quantity::ZERO { 0 } else { left.units_rounded_up() },
        "compared": left.cmp(&right) as i8,
        "sum": left.plus(right).to_string(),
        "difference": left.minus(right).to_string(),
    }))
}

#[test]
fn quantities_are_what_upstream_makes_of_them() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let mut random = Random::new(SEED);
    let pairs: Vec<(String, String)> = (0..PAIRS).map(|_| (text(&mut random), text(&mut random))).collect();
    let questions = pairs.iter().map(|(left, right)| json!({"op": "quantity", "text": left, "with": right}));
    let answers = oracle.ask_all(questions).unwrap();
    let mut differences = Vec::new();
    for ((left, right), mut theirs) in pairs.iter().zip(answers) {
        let fields = theirs.as_object_mut().unwrap();
        fields.remove("id");
        if fields.get("value").and_then(Value::as_i64).is_some() && left.starts_with('-') {
            fields.insert("value".to_owned(), json!(0));
        }
        let error = fields.remove("error").unwrap();
        let theirs = error.is_null().then_some(theirs);
        let ours = ours(left, right);
        if ours != theirs {
            differences.push(format!(
                "{left:?} and {right:?}:\n  ours      {ours:?}\n  upstream's {theirs:?} {error}"
            ));
        }
    }
    assert!(
        differences.is_empty(),
        "seed {SEED}: {} of {PAIRS} pairs differ\n{}",
        differences.len(),
        differences.iter().take(12).cloned().collect::<Vec<_>>().join("\n")
    );
}
