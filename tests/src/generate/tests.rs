use super::*;
use crate::oracle::Oracle;
use std::collections::BTreeMap;

#[test]
fn the_same_seed_gives_the_same_case_and_others_differ() {
    let request = |seed| Case::from_seed(seed, KnownDefects::Avoid).request().to_string();
    assert_eq!(request(7), request(7));
    assert_ne!(request(7), request(8));
    assert_eq!(selectors(7, 50), selectors(7, 50));
}

#[test]
fn splitmix64_gives_its_published_numbers() {
    let mut random = Random::new(1_234_567);
    assert_eq!([random.bits(), random.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
}

#[test]
fn nearly_every_object_is_valid() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    for defects in [KnownDefects::Avoid, KnownDefects::Touch] {
        let questions: Vec<Value> = (0..150)
            .flat_map(|seed| Case::from_seed(seed, defects).validations().collect::<Vec<_>>())
            .collect();
        let answers = oracle.ask_all(questions.iter().cloned()).unwrap();
        let wrong: Vec<String> = questions
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer["errors"] != json!([]))
            .map(|(question, answer)| format!("{} {question}", answer["errors"]))
            .collect();
        assert!(
            wrong.len() * 50 <= questions.len(),
            "{} of {} objects are invalid:\n{}",
            wrong.len(),
            questions.len(),
            wrong.iter().take(5).cloned().collect::<Vec<_>>().join("\n")
        );
    }
}

#[test]
fn cases_are_placed_refused_and_failed_and_quickly_decided() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let cases = 600;
    let begin = oracle.processor_time();
    let answers =
        oracle.ask_all((0..cases).map(|seed| Case::from_seed(seed, KnownDefects::Avoid).request())).unwrap();
    let seconds = (oracle.processor_time() - begin).as_secs_f64();
    let mut outcomes = BTreeMap::new();
    for answer in &answers {
        let outcome = if answer["placed"] == json!(true) {
            "placed"
        } else {
            answer.get("errorKind").and_then(Value::as_str).unwrap_or("refused")
        };
        *outcomes.entry(outcome).or_insert(0) += 1;
    }
    println!("{cases} cases in {seconds:.2} s of a processor: {outcomes:?}");
    for outcome in ["placed", "refused"] {
        assert!(outcomes.get(outcome).is_some_and(|count| count * 5 >= cases), "{outcomes:?}");
    }
    assert!(outcomes.contains_key("abort") && outcomes.contains_key("node"), "{outcomes:?}");
    assert!(!outcomes.contains_key("timeout"), "{outcomes:?}");
    assert!(
        seconds < 30.0,
        "{cases} cases took {seconds} s of a processor, expected 200 a second and never fewer than 20"
    );
}

#[test]
fn every_feature_appears_in_an_allocation() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let requests = (0..600).map(|seed| Case::from_seed(seed, KnownDefects::Touch).request());
    let placed = oracle
        .ask_all(requests)
        .unwrap()
        .into_iter()
        .filter(|answer| answer["placed"] == json!(true))
        .map(|answer| answer["allocations"].to_string())
        .collect::<Vec<_>>();
    for feature in [
        "\"shareID\"",
        "\"consumedCapacity\"",
        "/s1\"",
        "\"tolerations\"",
        "\"adminAccess\":true",
        "\"bindingConditions\"",
        "\"nodeSelector\"",
        "FromClass",
        "FromClaim",
        "matchFields",
        "matchExpressions",
    ] {
        let count = placed.iter().filter(|text| text.contains(feature)).count();
        assert!(count >= 3, "{feature} is in {count} of {} allocations", placed.len());
    }
}

#[test]
fn selectors_compile_and_have_every_outcome() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let expressions = selectors(1, 1_500);
    let question = |expression: &String| json!({"op": "cel", "driver": SELECTOR_DRIVER, "device": selector_device(), "expression": expression});
    let answers = oracle.ask_all(expressions.iter().map(question)).unwrap();
    let mut outcomes = BTreeMap::new();
    let mut rejected = Vec::new();
    for (expression, answer) in expressions.iter().zip(&answers) {
        let outcome = if answer["compileError"].is_string() {
            rejected.push(format!("{expression}\n{}", answer["compileError"]));
            "does not compile"
        } else if answer["runtimeError"].is_string() {
            "fails"
        } else if answer["result"] == json!(true) {
            "true"
        } else {
            "false"
        };
        *outcomes.entry(outcome).or_insert(0) += 1;
    }
    println!("{outcomes:?}");
    assert!(
        rejected.len() * 50 <= expressions.len(),
        "{outcomes:?}\n{}",
        rejected[..rejected.len().min(12)].join("\n")
    );
    for outcome in ["true", "false", "fails"] {
        assert!(outcomes.get(outcome).is_some_and(|count| count * 20 >= expressions.len()), "{outcomes:?}");
    }
}

#[test]
fn a_list_has_every_object_with_its_kind() {
    let case = Case::from_seed(11, KnownDefects::Avoid);
    let list = case.list();
    let items = list["items"].as_array().unwrap();
    let objects = [&case.nodes, &case.slices, &case.classes, &case.claims, &case.allocated];
    assert_eq!(items.len(), objects.iter().map(|list| list.len()).sum::<usize>());
    assert!(items.iter().all(|item| item["kind"].is_string() && item["apiVersion"].is_string()));
}

#[test]
fn mutations_are_refused_and_taken_in_good_numbers() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let mut random = Random::new(5);
    let mut questions = Vec::new();
    while questions.len() < 1_000 {
        let case = Case::from_seed(random.bits(), KnownDefects::Avoid);
        for mut question in case.validations().filter(|question| question["kind"] != "ResourceClaimStatus") {
            mutate(&mut random, &mut question["object"]);
            questions.push(question);
        }
    }
    let total = questions.len();
    let answers = oracle.ask_all(questions).unwrap();
    let refused = answers.iter().filter(|answer| answer["errors"] != json!([])).count();
    assert!(refused * 3 > total && refused * 10 < total * 9, "{refused} of {total} refused");
}
