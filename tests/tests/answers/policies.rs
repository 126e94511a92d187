//! Request policies are judged as the API server judges them, and applied as the scheduler applies them.

use aliquot_core::dra::{CapacityPolicy, CapacityRestriction, DeviceCapacity, Sharing};
use aliquot_core::quantity::Quantity;
use aliquot_core::rounding::{consumption, policy_problems};
use aliquot_tests::generate::Random;
use aliquot_tests::oracle::Oracle;
use serde_json::{Value, json};

const SEED: u64 = 20_261_121;
const POLICIES: usize = 6_000;
const AMOUNTS: [&str; 22] = [
    "0", "1", "2", "3", "4", "5", "10", "12", "16", "64", "100", "500m", "1500m", "2.5", "1Ki", "1Gi", "2Gi",
    "1536Mi", "10500Mi", "16Gi", "1G", "1e3",
];

/// A capacity of a shareable device, good or bad, as ours and as the API's JSON.
fn capacity(random: &mut Random) -> (DeviceCapacity, Value) {
    let mut amount = || (*random.pick(&AMOUNTS)).to_owned();
    let (value, default, min, max, step) = (amount(), amount(), amount(), amount(), amount());
    let mut values: Vec<String> = (0..4).map(|_| amount()).collect();
    values.truncate(random.between(1, 4));
    if random.percent(80) {
        values.sort_by_key(|text| read(text));
    }
    let mut policy = json!({});
    let has_default = random.percent(90);
    if has_default {
        // Where everything has to fit together, the least amount fits best.
        let fitting = if random.percent(50) { values[0].clone() } else { default };
        policy["default"] = json!(if random.percent(50) { fitting } else { min.clone() });
    }
    let restriction = match random.below(5) {
        0 => CapacityRestriction::None,
        1 => {
            policy["validValues"] = json!(values);
            CapacityRestriction::Values(values.iter().map(|text| read(text)).collect())
        }
        _ => {
            let max = random.percent(40).then_some(max);
            // Upstream 1.36 divides by a step of zero.
            let step = (random.percent(60) && read(&step) > Quantity::ZERO).then_some(step);
            policy["validRange"] = json!({"min": min});
            for (field, text) in [("max", &max), ("step", &step)] {
                if let Some(text) = text {
                    policy["validRange"][field] = json!(text);
                }
            }
            let optional = |text: Option<String>| text.map(|text| read(&text));
            CapacityRestriction::Range { min: read(&min), max: optional(max), step: optional(step) }
        }
    };
    let default = policy.get("default").and_then(Value::as_str).map(read);
    let ours = DeviceCapacity { value: read(&value), policy: Some(CapacityPolicy { default, restriction }) };
    (ours, json!({"value": value, "requestPolicy": policy}))
}

#[expect(clippy::unwrap_used, reason = "the texts are this test's own constants, or upstream's answers")]
fn read(text: &str) -> Quantity {
    text.parse().unwrap()
}

fn slice(capacity: &Value) -> Value {
    let device = json!({"name": "d", "allowMultipleAllocations": true, "capacity": {"memory": capacity}});
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": "gpu.example.com", "pool": pool, "nodeName": "n1", "devices": [device]});
    json!({"metadata": {"name": "s"}, "spec": spec})
}

#[test]
fn bad_policies_are_refused_for_the_reasons_of_the_api_server() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let mut random = Random::new(SEED);
    let capacities: Vec<(DeviceCapacity, Value)> = (0..POLICIES).map(|_| capacity(&mut random)).collect();
    let questions = capacities
        .iter()
        .map(|(_, json)| json!({"op": "validate", "kind": "ResourceSlice", "object": slice(json)}));
    let answers = oracle.ask_all(questions).unwrap();
    let mut good = 0;
    let mut differences = Vec::new();
    for ((ours, json), answer) in capacities.iter().zip(&answers) {
        let mut problems: Vec<String> = policy_problems(ours, Sharing::Shareable)
            .iter()
            .map(|problem| format!("spec.devices[0].capacity[memory].{problem}"))
            .collect();
        let mut errors: Vec<String> = serde_json::from_value(answer["errors"].clone()).unwrap();
        good += usize::from(errors.is_empty());
        problems.sort();
        errors.sort();
        if problems != errors {
            differences.push(format!("{json}\n  ours       {problems:#?}\n  upstream's {errors:#?}"));
        }
    }
    let shown = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "seed {SEED}: {} of {POLICIES} differ\n{shown}", differences.len());
    assert!(good > POLICIES / 10 && good < POLICIES * 9 / 10, "{good} of {POLICIES} policies are good");
}

#[test]
fn shares_take_what_the_scheduler_gives_them() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let mut random = Random::new(SEED + 1);
    let mut cases = Vec::new();
    while cases.len() < POLICIES {
        let (ours, json) = capacity(&mut random);
        let asked = random.percent(90).then(|| *random.pick(&AMOUNTS));
        if policy_problems(&ours, Sharing::Shareable).is_empty() {
            cases.push((ours, json, asked));
        }
    }
    let answers = oracle.ask_all(cases.iter().map(|(_, json, asked)| allocation(json, *asked))).unwrap();
    let mut taken = 0;
    let mut differences = Vec::new();
    for ((ours, json, asked), answer) in cases.iter().zip(&answers) {
        assert!(answer.get("error").is_none(), "{answer}\n{json}");
        let theirs = answer
            .pointer("/allocations/0/devices/results/0/consumedCapacity/memory")
            .and_then(Value::as_str);
        let takes = consumption(ours, asked.map(read)).ok().filter(|takes| *takes <= ours.value);
        taken += usize::from(takes.is_some());
        // Upstream repeats the spelling of an amount that it did not have to round.
        let same = match (takes, theirs) {
            (Some(ours), Some(theirs)) => {
                ours == read(theirs) && [theirs, &read(theirs).to_string()].contains(&&*ours.to_string())
            }
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        if !same {
            differences.push(format!("{json} asked {asked:?}: ours {takes:?}, upstream's {theirs:?}"));
        }
    }
    let shown = differences.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "seed {}: {} of {POLICIES} differ\n{shown}", SEED + 1, differences.len());
    assert!(taken > POLICIES / 10 && taken < POLICIES * 9 / 10, "{taken} of {POLICIES} shares are given");
}

/// One claim for a share of that much, or of the default, of the one device.
fn allocation(capacity: &Value, asked: Option<&str>) -> Value {
    let mut exactly = json!({"deviceClassName": "any"});
    if let Some(asked) = asked {
        exactly["capacity"] = json!({"requests": {"memory": asked}});
    }
    json!({
        "op": "allocate",
        "node": {"metadata": {"name": "n1"}},
        "slices": [slice(capacity)],
        "classes": [{"metadata": {"name": "any"}}],
        "claims": [{"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}],
    })
}
