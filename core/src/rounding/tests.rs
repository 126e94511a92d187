use proptest::prelude::*;

use super::*;

fn q(text: &str) -> Quantity {
    text.parse().unwrap()
}

fn range(
    value: &str,
    default: Option<&str>,
    min: &str,
    max: Option<&str>,
    step: Option<&str>,
) -> DeviceCapacity {
    let restriction = CapacityRestriction::Range { min: q(min), max: max.map(q), step: step.map(q) };
    DeviceCapacity { value: q(value), policy: Some(CapacityPolicy { default: default.map(q), restriction }) }
}

fn values(value: &str, default: Option<&str>, listed: &[&str]) -> DeviceCapacity {
    let restriction = CapacityRestriction::Values(listed.iter().map(|text| q(text)).collect());
    DeviceCapacity { value: q(value), policy: Some(CapacityPolicy { default: default.map(q), restriction }) }
}

#[track_caller]
fn takes(capacity: &DeviceCapacity, asked: Option<&str>, printed: &str) {
    assert_eq!(consumption(capacity, asked.map(q)).unwrap().to_string(), printed, "asked {asked:?}");
}

#[track_caller]
fn refused(capacity: &DeviceCapacity, asked: &str, message: &str) {
    assert_eq!(consumption(capacity, Some(q(asked))).unwrap_err().to_string(), message);
}

#[track_caller]
fn problems(capacity: &DeviceCapacity, expected: &[&str]) {
    let found: Vec<String> =
        policy_problems(capacity, Sharing::Shareable).iter().map(ToString::to_string).collect();
    assert_eq!(found, expected);
}

#[test]
fn without_a_policy_a_share_takes_what_it_asks_else_everything() {
    let capacity = DeviceCapacity { value: q("80Gi"), policy: None };
    takes(&capacity, None, "80Gi");
    takes(&capacity, Some("10e9"), "10e9");
    takes(&capacity, Some("500m"), "500m");
}

#[test]
fn an_unnamed_capacity_takes_the_default() {
    takes(&range("80Gi", Some("8Gi"), "1Gi", None, Some("1Gi")), None, "8Gi");
    takes(&range("80Gi", None, "1Gi", None, Some("1Gi")), None, "80Gi");
    // A default that could not have been published is charged all the same, as upstream does.
    takes(&range("80Gi", Some("100Gi"), "1Gi", Some("40Gi"), None), None, "100Gi");
}

#[test]
fn range_raises_to_minimum_and_rounds_up_to_the_binary_grid() {
    let capacity = range("80Gi", Some("1Gi"), "1Gi", Some("40Gi"), Some("1Gi"));
    takes(&capacity, Some("1"), "1Gi");
    takes(&capacity, Some("10500Mi"), "11Gi");
    takes(&capacity, Some("10240Mi"), "10Gi");
    takes(&capacity, Some("2e9"), "2Gi");
    takes(&capacity, Some("40Gi"), "40Gi");
    refused(
        &capacity,
        "41Gi",
        "asked 41Gi, which takes 41Gi, but at most 40Gi may be asked (min 1Gi, step 1Gi)",
    );
    // Without a step nothing is rounded and the format stays.
    takes(&range("80Gi", Some("1Gi"), "1Gi", None, None), Some("2e9"), "2e9");
    // Half a unit counts as one on the grid.
    takes(&range("100", Some("0"), "0", None, Some("10")), Some("500m"), "10");
}

#[test]
fn a_maximum_off_the_grid_refuses_what_rounds_past_it() {
    let capacity = range("80", Some("0"), "0", Some("25"), Some("10"));
    takes(&capacity, Some("20"), "20");
    refused(&capacity, "21", "asked 21, which takes 30, but at most 25 may be asked (min 0, step 10)");
}

#[test]
fn hostile_grids_are_refused_not_computed() {
    refused(
        &range("80", Some("0"), "0", None, Some("0")),
        "5",
        "asked 5, but the step 0 is not a positive number of units",
    );
    let huge = range("9223372036854775807", Some("0"), "0", None, Some("9223372036854775806"));
    refused(
        &huge,
        "9223372036854775807",
        "asked 9223372036854775807, and the next step of 9223372036854775806 above that is beyond 2^63 - 1",
    );
}

#[test]
fn listed_values_round_up_to_the_next() {
    let capacity = values("80Gi", Some("10Gi"), &["10Gi", "20Gi", "40Gi"]);
    takes(&capacity, None, "10Gi");
    takes(&capacity, Some("1"), "10Gi");
    takes(&capacity, Some("10241Mi"), "20Gi");
    takes(&capacity, Some("40960Mi"), "40Gi");
    refused(&capacity, "41Gi", "asked 41Gi, but the largest of the 3 values that may be asked is 40Gi");
}

#[test]
fn policies_are_judged_as_the_api_server_judges_them() {
    problems(&range("80Gi", Some("1Gi"), "1Gi", Some("80Gi"), Some("1Gi")), &[]);
    problems(&values("80Gi", Some("10Gi"), &["10Gi", "20Gi"]), &[]);
    problems(
        &range("80Gi", None, "1Gi", None, None),
        &["requestPolicy.default: Required value: required when validRange is defined"],
    );
    problems(
        &values("80Gi", None, &["1Gi"]),
        &["requestPolicy.default: Required value: required when validValues is defined"],
    );
    problems(
        &range("8", Some("3"), "9", Some("7"), None),
        &[
            "requestPolicy.validRange.min: Invalid value: \"9\": min is larger than capacity value: 8",
            "requestPolicy.validRange.min: Invalid value: \"3\": default is less than min: 9",
            "requestPolicy.validRange.max: Invalid value: \"9\": min is larger than max: 7",
        ],
    );
    problems(
        &range("8", Some("3"), "0", Some("5"), Some("2")),
        &[
            "requestPolicy.validRange.step: Invalid value: \"3\": value is not a multiple of a given step (2) from (0)",
            "requestPolicy.validRange.step: Invalid value: \"5\": value is not a multiple of a given step (2) from (0)",
        ],
    );
    problems(
        &range("8", Some("0"), "0", None, Some("9")),
        &["requestPolicy.validRange.step: Invalid value: \"9\": one step 9 is larger than capacity value: 8"],
    );
    problems(
        &range("8", Some("0"), "0", None, Some("0")),
        &["requestPolicy.validRange.step: Invalid value: \"0\": must be greater than 0"],
    );
    let negative = "requestPolicy.validRange.min: Invalid value: \"-1\": must be greater than or equal to 0 beside a step";
    problems(&range("8", Some("1"), "-1", None, Some("1")), &[negative]);
    problems(&range("8", Some("1"), "-1", None, None), &[]);
    let large = "must not be larger than 9223372036854775807 beside a step";
    problems(
        &range("1e20", Some("0"), "0", Some("1e20"), Some("1")),
        &[&format!("requestPolicy.validRange.max: Invalid value: \"{}\": {large}", q("1e20"))],
    );
    problems(
        &values("8", Some("5"), &["2", "1", "1500m", "9"]),
        &[
            "requestPolicy.validValues[1]: Invalid value: \"1\": values must be sorted in ascending order",
            "requestPolicy.validValues[3]: Invalid value: \"9\": option is larger than capacity value: 8",
            "requestPolicy.validValues[2]: Duplicate value: \"2\"",
            "requestPolicy.validValues: Invalid value: \"5\": default value is not valid according to the requestPolicy",
        ],
    );
    problems(
        &values("80", Some("1"), &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]),
        &[
            "requestPolicy.validValues: Too many: 11: must have at most 10 items",
            "requestPolicy.validValues: Invalid value: \"1\": default value is not valid according to the requestPolicy",
        ],
    );
    let exclusive = policy_problems(&range("8", Some("0"), "0", None, None), Sharing::Exclusive);
    assert_eq!(
        exclusive.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["requestPolicy: Forbidden: allowMultipleAllocations must be true"]
    );
}

proptest! {
    /// The grid point is found by walking, which shares no formula with the code.
    #[test]
    fn the_grid_is_walked(min in 0_i64..50, step in 1_i64..20, max in 0_i64..120, asked_milli in 0_i64..120_000) {
        let restriction = CapacityRestriction::Range {
            min: Quantity::from_units(min, Format::DecimalSi),
            max: Some(Quantity::from_units(max, Format::DecimalSi)),
            step: Some(Quantity::from_units(step, Format::DecimalSi)),
        };
        let capacity = DeviceCapacity {
            value: q("1000"),
            policy: Some(CapacityPolicy { default: Some(q("0")), restriction }),
        };
        let asked = Quantity::from_nanos(i128::from(asked_milli) * 1_000_000, Format::DecimalSi);
        let mut point = min;
        while point * 1000 < asked_milli {
            point += step;
        }
        let expected = (point <= max).then_some(point);
        let found = consumption(&capacity, Some(asked)).ok().map(Quantity::units_rounded_up);
        prop_assert_eq!(found, expected);
    }

    /// The amount taken is never less than the request, and requesting it again takes the same.
    #[test]
    fn rounding_is_up_and_idempotent(min in 0_i64..1_000, width in 0_i64..100, asked in 0_i64..100_000, kind in 0..3) {
        let unit = |n| Quantity::from_units(n, Format::BinarySi);
        let restriction = match kind {
            0 => CapacityRestriction::Range { min: unit(min), max: Some(unit(50_000)), step: None },
            1 => CapacityRestriction::Range { min: unit(min), max: None, step: Some(unit(width)) },
            _ => CapacityRestriction::Values((1..=10).map(|k| unit(k * (width + 1) * 50)).collect()),
        };
        let capacity = DeviceCapacity {
            value: unit(100_000),
            policy: Some(CapacityPolicy { default: None, restriction }),
        };
        if let Ok(takes) = consumption(&capacity, Some(unit(asked))) {
            prop_assert!(takes >= unit(asked));
            prop_assert_eq!(consumption(&capacity, Some(takes)), Ok(takes));
        }
    }

    /// A policy that the API server stores serves its own default, requested by name.
    #[test]
    fn a_sound_policy_serves_its_default(
        value in 1_i64..60, default in 0_i64..60, min in 0_i64..60, max in proptest::option::of(0_i64..60),
        step in proptest::option::of(0_i64..10),
    ) {
        let unit = |n| Quantity::from_units(n, Format::DecimalSi);
        let restriction = CapacityRestriction::Range { min: unit(min), max: max.map(unit), step: step.map(unit) };
        let policy = CapacityPolicy { default: Some(unit(default)), restriction };
        let capacity = DeviceCapacity { value: unit(value), policy: Some(policy) };
        if policy_problems(&capacity, Sharing::Shareable).is_empty() {
            prop_assert_eq!(consumption(&capacity, Some(unit(default))), Ok(unit(default)));
            prop_assert_eq!(consumption(&capacity, None), Ok(unit(default)));
        }
    }
}
