//! Reading and rendering through the front door: defaults, rules with their messages, dumps, hostile text.

mod round_trip;

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
    let spelt = CLAIM.replacen("share.aliquot.dev\n", "share.aliquot.dev\n        allocationMode: ''\n", 1);
    assert_eq!(sound(&spelt).claims[0].requests, claim.requests);
}

#[test]
fn memory_below_one_mebibyte_is_a_warning() {
    let cases = [
        ("memory: 8Gi", "memory: 8000", "capacity.requests.memory: found 8000 bytes, less than 1Mi"),
        ("memory: 8Gi", "memory: \"8000\"", "such as 8000Mi"),
        ("memory: 8Gi", "aliquot.dev/memory: 16", "requests[aliquot.dev/memory]: found 16 bytes"),
    ];
    for (was, is, expected) in cases {
        let (manifests, problems) = read("m.yaml", &CLAIM.replace(was, is));
        assert_eq!(manifests.claims.len(), 1, "{is}");
        let found: Vec<_> = problems.iter().map(|p| (p.severity, p.to_string())).collect();
        let [(ProblemSeverity::Warning, text)] = found.as_slice() else { panic!("{is}: {found:?}") };
        assert!(text.contains(expected), "{text}");
    }
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
fn lists_and_groups_of_later_versions_are_read() {
    let listed =
        SLICE.replace("index: {int: 0}", "zones: {strings: [a, b]}\n      sizes: {ints: [1, 2]}").replace(
            "counters: {memory: {value: 80Gi}}}]",
            "counters: {memory: {value: 80Gi}}, compatibilityGroups: [a, b]}]",
        );
    let (manifests, found) = read("m.yaml", &listed);
    assert!(found.iter().all(|problem| problem.severity == ProblemSeverity::Warning), "{found:?}");
    let gates = ["DRAListTypeAttributes", "DRADeviceCompatibilityGroups"];
    assert!(gates.iter().all(|gate| found.iter().any(|problem| problem.message.contains(gate))), "{found:?}");
    let device = &manifests.slices[0].devices[0];
    assert_eq!(device.attributes["sizes"], AttributeValue::Ints(vec![1, 2]));
    assert_eq!(device.consumes[0].compatibility_groups, ["a", "b"]);
    let stored = listed.replace("{name: s1}", "{name: s1, resourceVersion: '7'}");
    assert_eq!(problems(&stored), "", "a server has taken it");
    for (from, to, message) in [
        ("[1, 2]", "[]".to_owned(), "attributes.sizes.ints: is empty; expected at least one value"),
        ("[1, 2]", "[1, x]".to_owned(), "found the text \"x\", expected a whole number"),
        (
            "[1, 2]",
            format!("{:?}", vec![0; 45]),
            "50 values of attributes, members of lists among them; at most 48",
        ),
        ("[a, b]}]", "[a, b, c]}]".to_owned(), "3 items; at most 2 are allowed"),
        ("[a, b]}]", "[a, a]}]".to_owned(), "the group name \"a\" appears twice"),
    ] {
        let found = problems(&listed.replace(from, &to));
        assert!(found.contains(message), "{to}: expected\n  {message}\nfound\n  {found}");
    }
    let each = claim_with("model == \"h100\"", "model.exists(m, m == \"h100\")");
    assert!(each.contains("compiles only on servers with the gate DRAListTypeAttributes"), "{each}");
}

#[test]
fn selector_beyond_the_cost_limit_is_refused() {
    let own = "device.attributes[\"aliquot.dev\"].model == \"h100\"";
    let each = "device.attributes.exists";
    let walk = format!(
        "{each}(d, {each}(e, device.attributes[d].exists(k, device.attributes[e].exists(l, k == l))))"
    );
    let found = claim_with(own, &walk);
    let cost = "found an estimated cost of 10790115, expected at most 1000000; compare attributes";
    assert!(found.contains(&walk[..60]) && found.contains(cost), "{found}");
    let unbounded = claim_with(own, "device.driver.split(\"e\").join(\"\") == \"a\"");
    assert!(unbounded.contains("found an estimated cost without a bound"), "{unbounded}");
}

#[test]
fn labels_and_annotations_are_held_against_the_rules() {
    let long = "x".repeat(64);
    let cases = [
        ("labels: {a/b/c: x}", "metadata.labels[a/b/c]: found \"a/b/c\", expected 1 to 63 letters"),
        ("labels: {-a: x}", "metadata.labels.-a: found \"-a\", expected 1 to 63 letters"),
        ("labels: {Example.com/a: x}", "expected a DNS name before the /"),
        ("labels: {a: 'b c'}", "metadata.labels.a: found \"b c\", expected at most 63 letters"),
        (&format!("labels: {{a: {long}}}"), "expected at most 63 letters"),
        (&format!("labels: {{{long}: a}}"), "expected 1 to 63 letters"),
        ("annotations: {'a b': x}", "metadata.annotations.a b: found \"a b\", expected 1 to 63 letters"),
        ("annotations: {a/b/c: x}", "expected 1 to 63 letters"),
        (
            &format!("annotations: {{a: {}}}", "x".repeat(262_144)),
            "are 262145 bytes with their names; at most 262144",
        ),
    ];
    for (field, message) in cases {
        let found = claim_with("namespace: team", &format!("namespace: team, {field}"));
        assert!(found.contains(message), "{}: expected\n  {message}\nfound\n  {found}", tree::cut(field));
    }
    assert_eq!(claim_with("namespace: team", "namespace: team, annotations: {Example.com/A_b: 'x y'}"), "");
    let template = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  template:\n    \
                    metadata: {labels: {a: b c}}\n    spec: {containers: [{name: c}]}\n";
    assert!(
        problems(template).contains("spec.template.metadata.labels.a: found \"b c\""),
        "{}",
        problems(template)
    );
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
