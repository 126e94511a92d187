//! `read(render(x)) == x`, through YAML and through JSON.

use aliquot_core::dra::{
    Access, AllocatedConfig, AllocationResult, CapacityPolicy, CapacityRestriction, ConfigSource,
    ConstraintRule, CounterConsumption, CounterSet, Device, DeviceCapacity, DeviceConstraint,
    DeviceDescription, DeviceId, DeviceRequest, DeviceResult, ExactRequest, OpaqueConfig, Pool, ShareId,
    SubRequest, Taint, TaintEffect, Toleration,
};
use aliquot_core::quantity::{Format, Quantity};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;

fn label() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?"
}

/// Names that a careless writer would leave unquoted: numbers, booleans, nulls.
fn tricky_label() -> impl Strategy<Value = String> {
    prop_oneof![label(), Just("true".into()), Just("1e9".into()), Just("null".into()), Just("007".into())]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[ -~]{0,20}", Just("yes".into()), Just("~".into()), Just("- a: b #".into())]
}

/// A selector that compiles, around any text.
fn selector() -> impl Strategy<Value = String> {
    text().prop_map(|text| {
        let quoted: String = text.chars().map(|c| format!("\\U{:08X}", u32::from(c))).collect();
        format!("device.driver != \"{quoted}\" || \"- a: b #\" == '~'")
    })
}

fn quantity() -> impl Strategy<Value = Quantity> {
    let format = prop_oneof![Just(Format::BinarySi), Just(Format::DecimalSi), Just(Format::DecimalExponent)];
    (0_i64..=1 << 40, format).prop_map(|(units, format)| Quantity::from_units(units, format))
}

fn toleration() -> impl Strategy<Value = Toleration> {
    let effect = prop_oneof![Just(TaintEffect::NoSchedule), Just(TaintEffect::NoExecute)];
    (option::of(label()), option::of(label()), option::of(effect), option::of(any::<i64>())).prop_map(
        |(key, value, effect, seconds)| {
            let operator = match (&key, value) {
                (Some(_), Some(value)) => TolerationOperator::Equal(value),
                _ => TolerationOperator::Exists,
            };
            Toleration { key, operator, effect, seconds }
        },
    )
}

fn opaque() -> impl Strategy<Value = OpaqueConfig> {
    let value = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<bool>().prop_map(|b| b.to_string()),
        text().prop_map(|t| serde_json::Value::from(t).to_string()),
        Just("null".to_owned()),
        Just("[1,{\"a\":[]},{}]".to_owned()),
    ];
    btree_map(text(), value, 0..4).prop_map(|fields| {
        let field = |(k, v): (&String, &String)| format!("{}:{v}", serde_json::Value::from(k.as_str()));
        let fields: Vec<String> = fields.iter().map(field).collect();
        OpaqueConfig { driver: "d.example".into(), parameters: format!("{{{}}}", fields.join(",")) }
    })
}

fn exact() -> impl Strategy<Value = ExactRequest> {
    let mode = prop_oneof![(1_u32..9).prop_map(AllocationMode::ExactCount), Just(AllocationMode::All)];
    let capacity = btree_map("[a-z_]{1,8}", quantity(), 0..3);
    (tricky_label(), vec(selector(), 0..3), mode, vec(toleration(), 0..3), capacity).prop_map(
        |(device_class, selectors, mode, tolerations, capacity)| ExactRequest {
            device_class,
            selectors,
            mode,
            access: Access::Normal,
            tolerations,
            capacity,
        },
    )
}

fn spec() -> impl Strategy<Value = ClaimSpec> {
    let kind = prop_oneof![
        exact().prop_map(RequestKind::Exactly),
        exact().prop_map(|e| RequestKind::Exactly(ExactRequest { access: Access::Admin, ..e })),
        vec(exact(), 1..4).prop_map(|list| {
            let sub = |(i, request)| SubRequest { name: format!("s{i}"), request };
            RequestKind::FirstAvailable(list.into_iter().enumerate().map(sub).collect())
        }),
    ];
    (vec(kind, 1..4), vec(any::<bool>(), 0..3), vec(opaque(), 0..3)).prop_map(|(kinds, rules, config)| {
        let request = |(i, kind)| DeviceRequest { name: format!("r{i}"), kind };
        let rule = |same: bool| match same {
            true => ConstraintRule::Match("a.example/b".into()),
            false => ConstraintRule::Distinct("a.example/b".into()),
        };
        ClaimSpec {
            requests: kinds.into_iter().enumerate().map(request).collect(),
            constraints: rules
                .into_iter()
                .map(|same| DeviceConstraint { requests: vec!["r0".into()], rule: rule(same) })
                .collect(),
            config: config.into_iter().map(|opaque| RequestConfig { requests: vec![], opaque }).collect(),
        }
    })
}

fn allocation() -> impl Strategy<Value = AllocationResult> {
    let consumed = btree_map("[a-z]{1,8}", quantity(), 0..3);
    let device = (label(), label(), consumed, vec(toleration(), 0..2), any::<bool>()).prop_map(
        |(pool, device, consumed_capacity, tolerations, shared)| DeviceResult {
            request: "r0/s0".into(),
            device: DeviceId { driver: "d.example".into(), pool, device },
            access: if shared { Access::Normal } else { Access::Admin },
            tolerations,
            binding_conditions: vec!["ready".into()],
            binding_failure_conditions: vec!["failed".into()],
            share_id: shared.then(|| ShareId("8f0d-1".into())),
            consumed_capacity,
        },
    );
    (vec(device, 0..3), vec(opaque(), 0..2)).prop_map(|(devices, config)| AllocationResult {
        devices,
        config: config
            .into_iter()
            .map(|opaque| AllocatedConfig {
                source: ConfigSource::Class,
                requests: vec!["r0".into()],
                opaque,
            })
            .collect(),
        node_selector: Some(aliquot_core::dra::NodeSelector::for_node("n1")),
    })
}

fn device() -> impl Strategy<Value = Device> {
    let attribute = prop_oneof![
        any::<i64>().prop_map(AttributeValue::Int),
        any::<bool>().prop_map(AttributeValue::Bool),
        "[ -~]{0,64}".prop_map(AttributeValue::String),
        Just(AttributeValue::Version("1.2.3-rc.1+b7".into())),
        vec(any::<i64>(), 1..3).prop_map(AttributeValue::Ints),
        vec("[ -~]{0,9}", 1..3).prop_map(AttributeValue::Strings),
    ];
    let capacity = (1_i64..1 << 30, 0_u8..3).prop_map(|(units, form)| {
        let value = Quantity::from_units(units, Format::BinarySi);
        let one = Quantity::from_units(1, Format::DecimalSi);
        let restriction = match form {
            0 => CapacityRestriction::None,
            1 => CapacityRestriction::Range { min: Quantity::ZERO, max: Some(value), step: Some(one) },
            _ => CapacityRestriction::Values(vec![value]),
        };
        DeviceCapacity { value, policy: Some(CapacityPolicy { default: Some(value), restriction }) }
    });
    (btree_map("[a-z_]{1,8}", attribute, 0..4), btree_map("[a-z_]{1,8}", capacity, 0..3), any::<bool>())
        .prop_map(|(attributes, capacity, tainted)| {
            let taint = Taint { key: "k".into(), value: String::new(), effect: TaintEffect::NoExecute };
            let counters = BTreeMap::from([("vg0".into(), Quantity::from_units(1, Format::DecimalSi))]);
            DeviceDescription {
                attributes: attributes.into(),
                capacity: capacity.into(),
                taints: if tainted { vec![taint] } else { vec![] },
                consumes: vec![CounterConsumption {
                    counter_set: "c".into(),
                    counters,
                    compatibility_groups: vec!["a".into()],
                }]
                .into(),
                binds_to_node: tainted,
                node: tainted.then_some(NodeSelection::All),
                sharing: Sharing::Shareable,
                ..DeviceDescription::named("d")
            }
            .into()
        })
}

/// Lists as attributes are read back, with a warning.
fn is_of_a_gate(problem: &ManifestProblem) -> bool {
    problem.severity == ProblemSeverity::Warning && problem.message.contains("the gate DRA")
}

fn reads_back(object: Object<'_>) -> Manifests {
    let value = object.json();
    let yaml = yaml_document(&value);
    let (from_yaml, problems) = read("r.yaml", &yaml);
    assert!(problems.iter().all(is_of_a_gate), "{problems:?} in {yaml}");
    let (from_json, problems) = read("r.json", &value.to_string());
    assert!(problems.iter().all(is_of_a_gate), "{problems:?} in {value}");
    assert_eq!(from_yaml, from_json);
    from_yaml
}

proptest! {
    #[test]
    fn of_claims(name in tricky_label(), spec in spec(), held in option::of(allocation())) {
        let claim = spec.claim("default".into(), name.clone(), made_up_uid("default", &name), held);
        prop_assert_eq!(&reads_back(Object::Claim(&claim)).claims, &[claim]);
    }

    #[test]
    fn of_templates(name in tricky_label(), spec in spec()) {
        let template = ClaimTemplate { namespace: "ns".into(), name, spec };
        prop_assert_eq!(&reads_back(Object::Template(&template)).templates, &[template]);
    }

    #[test]
    fn of_classes(name in tricky_label(), selectors in vec(selector(), 0..3), config in vec(opaque(), 0..2), note in text()) {
        let annotations = BTreeMap::from([("aliquot.dev/spelling".to_owned(), note)]);
        let extended_resource_name = Some("aliquot.dev/x".to_owned());
        let extended_resource_capacity = BTreeMap::new();
        let class =
            DeviceClass { name, selectors, config, extended_resource_name, extended_resource_capacity, annotations };
        prop_assert_eq!(&reads_back(Object::Class(&class)).classes, &[class]);
    }

    #[test]
    fn of_slices(name in tricky_label(), device in device(), generation in 0_i64..9) {
        let counters = BTreeMap::from([("vg0".to_owned(), Quantity::from_units(1, Format::DecimalSi))]);
        let of = |devices: Vec<Device>, shared_counters| ResourceSlice {
            name: name.clone(),
            driver: "d.example".into(),
            pool: Pool { name: "p/q".into(), generation, slice_count: 2 },
            node: NodeSelection::PerDevice,
            devices: devices.into(),
            shared_counters: Vec::into(shared_counters),
        };
        for slice in [of(vec![device], vec![]), of(vec![], vec![CounterSet { name: "c".into(), counters }])] {
            prop_assert_eq!(&reads_back(Object::Slice(&slice)).slices, &[slice]);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_and_nothing_else(text in "[-a-z:{}\\[\\]&*?|>'\"#%@` \n\t0-9,!]{0,200}") {
        let (_, problems) = read("any.yaml", &text);
        prop_assert!(problems.iter().all(|p| p.line > 0));
    }
}
