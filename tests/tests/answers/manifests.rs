//! What is read from manifests is what the API server would take.
//!
//! Good objects, and the same with one thing changed, are put before both: the verdict has to be the same. The words
//! are not compared; ours name the line and what to do.

use std::collections::BTreeMap;

use aliquot_driver::manifest::{self, ProblemSeverity};
use aliquot_tests::generate::{Case, KnownDefects, Random, mutate};
use aliquot_tests::oracle::Oracle;
use serde_json::{Value, json};

const SEED: u64 = 20_261_121;
const OBJECTS: usize = 6_000;
/// Differences that a failure shows in full.
const SHOWN: usize = 12;
/// What we refuse on purpose and the API server takes, by our words: see `docs/developer/upstream-differences.md`.
const STRICTER: [&str; 11] = [
    "beside a step",
    "must be greater than 0",
    "expected a count that fits",
    "is missing; expected a quantity",
    "is not a quantity",
    "claim UID",
    "0 or more",
    "expected whole",
    "expected 1 or more",
    "items; at most 16 are allowed",
    "expected 1 to 32 letters, digits and _",
];

/// One object, what was done to it, and the judge's question about it.
struct Subject {
    change: String,
    question: Value,
}

fn subjects() -> Vec<Subject> {
    let mut random = Random::new(SEED);
    let mut subjects = Vec::new();
    while subjects.len() < OBJECTS {
        let case = Case::from_seed(random.bits(), KnownDefects::Avoid);
        for mut question in case.validations().filter(|question| question["kind"] != "ResourceClaimStatus") {
            question["object"]["apiVersion"] = json!("resource.k8s.io/v1");
            question["object"]["kind"] = question["kind"].clone();
            let change = match random.percent(10) {
                true => "nothing".to_owned(),
                false => mutate(&mut random, &mut question["object"]),
            };
            // The API server divides by it, which ends the question without an answer.
            if question["object"].to_string().contains(r#""step":"0""#) {
                continue;
            }
            subjects.push(Subject { change, question });
        }
    }
    subjects
}

/// What we would tell the person, for an object that is refused.
fn complaint(object: &Value) -> Option<String> {
    let (_, problems) = manifest::read("object", &object.to_string());
    let error = problems.iter().find(|problem| problem.severity == ProblemSeverity::Error);
    error.map(ToString::to_string)
}

#[test]
fn objects_are_refused_where_the_api_server_refuses_them() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let subjects = subjects();
    let answers = oracle.ask_all(subjects.iter().map(|subject| subject.question.clone())).unwrap();
    let mut counts: BTreeMap<(bool, bool), usize> = BTreeMap::new();
    let mut differences = Vec::new();
    for (Subject { change, question }, answer) in subjects.iter().zip(&answers) {
        let ours = complaint(&question["object"]);
        let refused = answer["errors"] != json!([]);
        *counts.entry((ours.is_some(), refused)).or_default() += 1;
        let on_purpose = match &ours {
            Some(message) => STRICTER.iter().any(|words| message.contains(words)),
            None => false,
        };
        if ours.is_some() != refused && !on_purpose {
            let place = change.split_once(' ').map_or("", |(place, _)| place);
            let value = question["object"].pointer(place);
            differences.push(format!(
                "{} {change}: {value:?}\n  ours       {ours:?}\n  upstream's {}",
                question["kind"], answer["errors"]
            ));
        }
    }
    let shown = differences.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        differences.is_empty(),
        "{} of {} differ ({counts:?})\n{shown}",
        differences.len(),
        subjects.len()
    );
    let count = |verdict| counts.get(&verdict).copied().unwrap_or(0);
    assert!(count((false, false)) > OBJECTS / 4 && count((true, true)) > OBJECTS / 4, "{counts:?}");
}
