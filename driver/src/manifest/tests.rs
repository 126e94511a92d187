//! Reading and rendering through the front door: defaults, rules with their messages, dumps, hostile text.

use aliquot_core::dra::{
    AllocationMode, AttributeValue, NodeSelection, RequestKind, Sharing, TolerationOperator,
};

use super::*;

const CLAIM: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one, namespace: team}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: share.aliquot.dev
        selectors:
        - cel: {expression: 'device.attributes["aliquot.dev"].model == "h100"'}
        capacity: {requests: {memory: 8Gi, cores: 25}}
        tolerations: [{key: k}]
    - name: npu
      firstAvailable:
      - {name: a, deviceClassName: x, count: 2}
      - {name: b, deviceClassName: y, allocationMode: All}
    constraints:
    - {requests: [npu/a], matchAttribute: aliquot.dev/cardID}
    config:
    - {requests: [gpu], opaque: {driver: gpu.example.com, parameters: {kind: ShareConfig, n: 1, a: [true, null, "1"]}}}
"#;

/// Reads text that must have no problem.
fn sound(text: &str) -> Manifests {
    let (manifests, problems) = read("m.yaml", text);
    assert_eq!(problems, [], "{}", problems.iter().map(|p| format!("{p}\n")).collect::<String>());
    manifests
}

/// The problems of a text, one a line.
fn problems(text: &str) -> String {
    let lines = read("m.yaml", text).1.iter().map(ToString::to_string).collect::<Vec<_>>();
    lines.join("\n")
}

/// The problems of [`CLAIM`] with one text replaced by another.
fn claim_with(from: &str, to: &str) -> String {
    assert!(CLAIM.contains(from), "{from}");
    problems(&CLAIM.replacen(from, to, 1))
}

#[test]
fn a_claim_is_read_with_the_defaults_of_the_api_server() {
    let claim = sound(CLAIM).claims.remove(0);
    assert_eq!((claim.namespace.as_str(), claim.name.as_str()), ("team", "one"));
    let RequestKind::Exactly(exact) = &claim.requests[0].kind else { panic!() };
    assert_eq!(exact.mode, AllocationMode::ExactCount(1));
    assert_eq!(exact.tolerations[0].operator, TolerationOperator::Equal(String::new()));
    assert_eq!(exact.capacity["memory"].to_string(), "8Gi");
    let RequestKind::FirstAvailable(list) = &claim.requests[1].kind else { panic!() };
    assert_eq!(list[0].request.mode, AllocationMode::ExactCount(2));
    assert_eq!(list[1].request.mode, AllocationMode::All);
    assert_eq!(claim.config[0].opaque.parameters, r#"{"a":[true,null,"1"],"kind":"ShareConfig","n":1}"#);
    assert_eq!(claim.uid, made_up_uid("team", "one"));
}

#[test]
fn every_rule_names_field_found_and_expected() {
    let cases = [
        (
            "count: 2",
            "cout: 2",
            "m.yaml:17: ResourceClaim team/one: spec.devices.requests[1].firstAvailable[0].cout: unknown field; did you mean count?",
        ),
        ("exactly:", "exacty:", "spec.devices.requests[0].exacty: unknown field; did you mean exactly?"),
        ("count: 2", "count: 0", "firstAvailable[0].count: found 0, expected 1 or more"),
        ("count: 2", "count: \"2\"", "found the text \"2\", expected a whole number"),
        ("count: 2", "count: 2.5", "found the number 2.5, expected a whole number"),
        ("memory: 8Gi", "memory: -8Gi", "capacity.requests.memory: found -8Gi, expected a size of 0 or more"),
        ("memory: 8Gi", "memory: 0.5", "capacity.requests.memory: found 500m, expected whole bytes"),
        ("cores: 25", "cores: 12.5", "found 12500m, expected whole percent of a card; 13 is the next"),
        ("memory: 8Gi", "memory: 8GB", "`8GB` is not a quantity: its suffix is unknown"),
        ("allocationMode: All", "allocationMode: Some", "found \"Some\", expected ExactCount or All"),
        ("name: npu", "name: gpu", "the request name \"gpu\" appears twice"),
        ("name: b,", "name: a,", "the alternative name \"a\" appears twice"),
        ("name: gpu", "name: 1/4 Ascend", "found \"1/4 Ascend\", expected 1 to 63 of a-z, 0-9 and -"),
        (
            "requests: [npu/a]",
            "requests: [npu/c]",
            "found \"npu/c\", which is no request of this claim; it has gpu, npu",
        ),
        (
            "aliquot.dev/cardID",
            "cardID",
            "found \"cardID\", expected a qualified name such as aliquot.dev/cardID",
        ),
        (
            "model == \"h100\"",
            "model = \"h100\"",
            "spec.devices.requests[0].exactly.selectors[0].cel.expression: does not compile: line 1, column 40: unexpected character",
        ),
        ("device.attributes", "divice.attributes", "cel.expression: does not compile: line 1, column 1"),
        ("deviceClassName: x, ", "", "firstAvailable[0].deviceClassName: is missing"),
        (
            "deviceClassName: x, ",
            "deviceClassName: huawei.com/ascend-310p-1/4, ",
            "a name has no capitals, slashes",
        ),
        (
            "parameters: {kind: ShareConfig, n: 1, a: [true, null, \"1\"]}",
            "parameters: 7",
            "found the number 7, expected an object",
        ),
        ("name: gpu", "name: 7", "found the number 7, expected a text: put it in quotes"),
        ("namespace: team", "namspace: team", "metadata.namspace: unknown field; did you mean namespace?"),
        ("{key: k}", "{operator: Exists, value: v}", "found \"v\", expected none: the operator is Exists"),
        ("resource.k8s.io/v1", "resource.k8s.io/v1alpha3", "apiVersion resource.k8s.io/v1alpha3 is not read"),
    ];
    for (from, to, message) in cases {
        let found = claim_with(from, to);
        assert!(found.contains(message), "{to}: expected\n  {message}\nfound\n  {found}");
    }
}

#[test]
fn an_object_with_an_error_is_left_out_and_the_others_are_taken() {
    let (manifests, problems) =
        read("m.yaml", &format!("{}---{CLAIM}", CLAIM.replace("count: 2", "cout: 2")));
    assert_eq!(manifests.claims.len(), 0, "the second has the name of the first");
    assert!(problems[1].to_string().contains("appears twice; the first is at m.yaml:2"), "{}", problems[1]);
    let other = CLAIM.replace("name: one", "name: two");
    let (manifests, problems) =
        read("m.yaml", &format!("{}---{other}", CLAIM.replace("count: 2", "cout: 2")));
    assert_eq!((manifests.claims.len(), problems.len()), (1, 1));
    assert_eq!(manifests.claims[0].name, "two");
}

#[test]
fn limits_of_the_api_are_kept() {
    let many: String =
        (0..33).map(|i| format!("    - {{name: r{i}, exactly: {{deviceClassName: x}}}}\n")).collect();
    let text = format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: c}}\nspec:\n  devices:\n    requests:\n{many}"
    );
    assert!(problems(&text).contains("33 items; at most 32 are allowed"));
    let long = "x".repeat(10_241);
    assert!(
        claim_with("device.attributes[\"aliquot.dev\"].model == \"h100\"", &long)
            .contains("is 10241 bytes long; at most 10240 are allowed")
    );
}

const SLICE: &str = r#"
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s1}
spec:
  driver: gpu.example.com
  pool: {name: n1, generation: 3, resourceSliceCount: 1}
  nodeName: n1
  devices:
  - name: d0
    attributes:
      model: {string: h100}
      driver: {version: 570.86.15}
      index: {int: 0}
      nvlink: {bool: true}
    capacity:
      memory: {value: 80Gi, requestPolicy: {default: 80Gi, validRange: {min: 1Mi, step: 1Mi}}}
    allowMultipleAllocations: true
    consumesCounters: [{counterSet: c0, counters: {memory: {value: 80Gi}}}]
    taints: [{key: k, effect: NoSchedule, timeAdded: "2026-01-01T00:00:00Z"}]
"#;

#[test]
fn a_slice_of_any_driver_is_read() {
    let slice = sound(SLICE).slices.remove(0);
    assert_eq!(slice.node, NodeSelection::Name("n1".to_owned()));
    let device = &slice.devices[0];
    assert_eq!(device.attributes["driver"], AttributeValue::Version("570.86.15".to_owned()));
    assert_eq!(device.sharing, Sharing::Shareable);
    assert_eq!(device.consumes[0].counters["memory"].to_string(), "80Gi");
}

#[test]
fn rules_of_slices_name_what_is_wrong() {
    let long = "x".repeat(65);
    let cases = [
        ("string: h100", format!("string: {long}"), "is 65 bytes long; an attribute has at most 64"),
        (
            "index: {int: 0}",
            "a-b: {int: 0}".to_owned(),
            "found \"a-b\", expected 1 to 32 letters, digits and _",
        ),
        ("570.86.15", "v570.86".to_owned(), "expected a semantic version"),
        ("nodeName: n1", "allNodes: true\n  nodeName: n1".to_owned(), "says 2 times where its devices are"),
        ("nodeName: n1", "perDeviceNodeSelection: false".to_owned(), "says 0 times where its devices are"),
        ("min: 1Mi, ", String::new(), "validRange.min: is missing"),
        ("min: 1Mi, ", "min: 90Gi, ".to_owned(), "requestPolicy"),
        ("name: d0", "name: D0".to_owned(), "expected 1 to 63 of a-z"),
        ("effect: NoSchedule, ", String::new(), "effect: is missing"),
    ];
    for (from, to, message) in cases {
        let found = problems(&SLICE.replacen(from, &to, 1));
        assert!(found.contains(message), "{to}: expected\n  {message}\nfound\n  {found}");
    }
}

#[test]
fn a_dump_is_read_with_warnings_where_a_manifest_has_errors() {
    let indented = |text: &str| {
        let lines: Vec<String> = text.trim().lines().map(|l| format!("  {l}\n")).collect();
        lines.concat().replacen("  ", "- ", 1)
    };
    let newer =
        SLICE.replace("driver: gpu", "partitionTypeAttribute: x\n  futureField: {a: 1}\n  driver: gpu");
    let second = newer.replace("name: s1", "name: s2");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n{}{}", indented(&newer), indented(&second));
    let (manifests, problems) = read("dump.yaml", &list);
    assert_eq!(manifests.slices.len(), 2);
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(problems.iter().all(|p| p.severity == ProblemSeverity::Warning));
    assert!(lines[1].contains("spec.futureField: unknown field of a later API version"), "{}", lines[1]);
    assert!(lines[1].ends_with("(and 1 more like it)"), "{}", lines[1]);
}

#[test]
fn older_forms_of_the_api_are_read() {
    let text = r"
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: old}
spec: {devices: {requests: [{name: gpu, deviceClassName: x, count: 3}]}}
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceSlice
metadata: {name: old}
spec:
  driver: d.example
  pool: {name: p, resourceSliceCount: 1}
  allNodes: true
  devices: [{name: d, basic: {attributes: {a: {int: 1}}, capacity: {memory: {value: 1Gi}}}}]
";
    let manifests = sound(text);
    let RequestKind::Exactly(exact) = &manifests.claims[0].requests[0].kind else { panic!() };
    assert_eq!(exact.mode, AllocationMode::ExactCount(3));
    assert_eq!(manifests.slices[0].devices[0].capacity.len(), 1);
    assert!(
        claim_with("exactly:", "deviceClassName: x\n      exactly:").contains("belongs one level deeper")
    );
}

#[test]
fn pods_and_what_makes_them_are_read() {
    let text = r"
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeSelector: {zone: a}
  resourceClaims: [{name: g, resourceClaimTemplateName: t}]
  containers:
  - name: c
    image: x
    resources: {claims: [{name: g, request: r}], limits: {aliquot.dev/share: 2, cpu: 500m}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 3
  selector: {}
  template:
    metadata: {labels: {a: b}}
    spec:
      resourceClaims: [{name: g, resourceClaimName: c}]
      containers: [{name: c, image: x}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
";
    let manifests = sound(text);
    let names: Vec<&str> = manifests.pods.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["p", "d-0", "d-1", "d-2"]);
    assert_eq!(manifests.pods[0].containers[0].limits.len(), 1);
    assert_eq!(manifests.pods[1].claims[0].source, PodClaimSource::Claim("c".to_owned()));
    assert_eq!(manifests.ignored["ConfigMap (v1)"], 1);
    let broken = text.replace("claims: [{name: g, request: r}]", "claims: [{name: h}]");
    assert!(problems(&broken).contains("found \"h\", which spec.resourceClaims does not have"));
    let huge = text.replace("replicas: 3", "replicas: 4000000000");
    assert!(problems(&huge).contains("makes 4000000000 Pods; at most"));
}

#[test]
fn broken_text_is_a_problem_with_its_line_and_never_a_panic() {
    for text in
        ["\u{0}", "a: [", "- ", "7", "{", "apiVersion: v1", "%YAML 9\n---\n", "a: &a [*a]", "!!binary x"]
    {
        let (manifests, problems) = read("m.yaml", text);
        assert_eq!(manifests, Manifests::default());
        assert!(
            problems.iter().all(|p| p.line > 0 && p.severity == ProblemSeverity::Error),
            "{text:?}: {problems:?}"
        );
        assert!(!problems.is_empty(), "{text:?}");
    }
    assert!(
        problems("kind: List\napiVersion: v1\nitems:\n- 7\n")
            .contains("found the number 7 without apiVersion")
    );
    for end in 0..CLAIM.len() {
        let (manifests, _) = read("torn.yaml", &CLAIM[..end]);
        assert!(manifests.claims.len() <= 1);
    }
}

#[test]
fn ten_thousand_errors_are_bounded() {
    let one = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {nam: x}\n---\n";
    let (_, problems) = read("m.yaml", &one.repeat(2_000));
    assert_eq!(problems.len(), 1_000);
    assert!(problems.last().unwrap().more > 1_000);
}

mod round_trip {
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
        prop_oneof![
            any::<String>(),
            "[ -~]{0,20}",
            Just("yes".into()),
            Just("~".into()),
            Just("- a: b #".into())
        ]
    }

    /// A selector that compiles, around any text.
    fn selector() -> impl Strategy<Value = String> {
        text().prop_map(|text| {
            let quoted: String = text.chars().map(|c| format!("\\U{:08X}", u32::from(c))).collect();
            format!("device.driver != \"{quoted}\" || \"- a: b #\" == '~'")
        })
    }

    fn quantity() -> impl Strategy<Value = Quantity> {
        let format =
            prop_oneof![Just(Format::BinarySi), Just(Format::DecimalSi), Just(Format::DecimalExponent)];
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
                    consumes: vec![CounterConsumption { counter_set: "c".into(), counters }].into(),
                    binds_to_node: tainted,
                    node: tainted.then_some(NodeSelection::All),
                    sharing: Sharing::Shareable,
                    ..DeviceDescription::named("d")
                }
                .into()
            })
    }

    /// Lists as attributes are read back, with a warning.
    fn is_of_a_list(problem: &ManifestProblem) -> bool {
        problem.severity == ProblemSeverity::Warning && problem.message.starts_with("is a list")
    }

    fn reads_back(object: Object<'_>) -> Manifests {
        let value = object.json();
        let yaml = yaml_document(&value);
        let (from_yaml, problems) = read("r.yaml", &yaml);
        assert!(problems.iter().all(is_of_a_list), "{problems:?} in {yaml}");
        let (from_json, problems) = read("r.json", &value.to_string());
        assert!(problems.iter().all(is_of_a_list), "{problems:?} in {value}");
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
            let class = DeviceClass { name, selectors, config, extended_resource_name, annotations };
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
}
