use aliquot_core::dra::SharedValue;

use super::*;

/// A slice that has every field of the API that Aliquot knows.
fn full() -> ResourceSlice {
    let amount = |text: &str| text.parse::<Quantity>().unwrap();
    let counters = BTreeMap::from([("memory".to_owned(), amount("80Gi"))]);
    let values = [
        ("int", AttributeValue::Int(-3)),
        ("bool", AttributeValue::Bool(true)),
        ("string", AttributeValue::String("H100".to_owned())),
        ("version", AttributeValue::Version("570.86.15".to_owned())),
        ("ints", AttributeValue::Ints(vec![1, 2])),
        ("bools", AttributeValue::Bools(vec![true])),
        ("strings", AttributeValue::Strings(vec!["a".to_owned()])),
        ("versions", AttributeValue::Versions(vec!["1.2.3".to_owned()])),
    ];
    let policies = [
        None,
        Some(CapacityRestriction::None),
        Some(CapacityRestriction::Values(vec![amount("1"), amount("2")])),
        Some(CapacityRestriction::Range {
            min: amount("1"),
            max: Some(amount("40Gi")),
            step: Some(amount("1")),
        }),
        Some(CapacityRestriction::Range { min: amount("1"), max: None, step: None }),
    ];
    let capacity = policies.into_iter().enumerate().map(|(number, restriction)| {
        let policy =
            restriction.map(|restriction| CapacityPolicy { default: Some(amount("1")), restriction });
        (format!("c{number}"), DeviceCapacity { value: amount("80Gi"), policy })
    });
    let effects = [
        TaintEffect::None,
        TaintEffect::NoSchedule,
        TaintEffect::NoExecute,
        TaintEffect::Other("Later".to_owned()),
    ];
    let taint = |effect| Taint { key: "aliquot.dev/card".to_owned(), value: "unhealthy".to_owned(), effect };
    let device = DeviceDescription {
        attributes: values.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
        capacity: capacity.collect(),
        consumes: SharedValue::from(vec![CounterConsumption {
            counter_set: "card-0".to_owned(),
            counters: counters.clone(),
            compatibility_groups: vec!["g1".to_owned()],
        }]),
        node: Some(NodeSelection::Selector(every_operator())),
        taints: effects.into_iter().map(taint).collect(),
        binds_to_node: true,
        binding_conditions: vec!["example.com/ready".to_owned()],
        binding_failure_conditions: vec!["example.com/failed".to_owned()],
        sharing: Sharing::Shareable,
        ..DeviceDescription::named("card-0")
    };
    ResourceSlice {
        name: "n1-0".to_owned(),
        driver: "aliquot.dev".to_owned(),
        pool: Pool { name: "n1".to_owned(), generation: 7, slice_count: 2 },
        node: NodeSelection::PerDevice,
        devices: vec![device.into(), Device::named("card-1")].into(),
        shared_counters: vec![CounterSet { name: "card-0".to_owned(), counters }].into(),
    }
}

/// A selector with every operator, over labels and fields.
fn every_operator() -> NodeSelector {
    let requirement = |operator, values: &[&str]| NodeRequirement {
        key: "zone".to_owned(),
        operator,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let term = NodeSelectorTerm {
        expressions: vec![
            requirement(SelectorOperator::In, &["a", "b"]),
            requirement(SelectorOperator::NotIn, &["c"]),
            requirement(SelectorOperator::Exists, &[]),
            requirement(SelectorOperator::DoesNotExist, &[]),
            requirement(SelectorOperator::Gt, &["1"]),
            requirement(SelectorOperator::Lt, &["9"]),
        ],
        ..NodeSelector::for_node("n1").terms.remove(0)
    };
    NodeSelector { terms: vec![term] }
}

#[test]
fn slice_of_the_server_is_the_one_that_was_sent() {
    let full = full();
    for node in [
        NodeSelection::PerDevice,
        NodeSelection::All,
        NodeSelection::Name("n1".to_owned()),
        NodeSelection::Selector(NodeSelector::for_node("n1")),
    ] {
        let sent = ResourceSlice { node, ..full.clone() };
        assert_eq!(from_api(&to_api(&sent).unwrap()).as_ref(), Some(&sent));
    }
}

#[test]
fn slice_with_what_is_not_understood_has_no_value() {
    let object = to_api(&full()).unwrap();
    let breaks: [fn(&mut api::ResourceSliceSpec); 6] = [
        |spec| spec.all_nodes = Some(true),
        |spec| spec.per_device_node_selection = None,
        |spec| spec.devices.as_mut().unwrap()[0].taints.as_mut().unwrap()[0].effect.clear(),
        |spec| spec.devices.as_mut().unwrap()[1].all_nodes = None,
        |spec| {
            let attributes = spec.devices.as_mut().unwrap()[0].attributes.as_mut().unwrap();
            attributes.get_mut("int").unwrap().bool = Some(true);
        },
        |spec| {
            let capacity = spec.devices.as_mut().unwrap()[0].capacity.as_mut().unwrap();
            capacity.get_mut("c0").unwrap().value.0 = "many".to_owned();
        },
    ];
    for (number, break_it) in breaks.into_iter().enumerate() {
        let mut broken = object.clone();
        break_it(&mut broken.spec);
        // Breaking nothing is understood.
        assert_eq!(from_api(&broken).is_some(), number == 3, "{number}");
    }
}
