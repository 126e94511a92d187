//! Claims generated for Pods, and missing objects.

use super::*;
use crate::manifest::read;

const OBJECTS: &str = r"
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {extendedResourceName: example.com/gpu}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.example.com}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.example.com}}]}}
---
";

fn pod(name: &str, spec: &str, status: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {spec}\nstatus: {status}\n---\n")
}

fn workload_of(pods: &[String]) -> (Workload, Vec<String>) {
    let (manifests, problems) = read("m.yaml", &format!("{OBJECTS}{}", pods.concat()));
    assert_eq!(problems, []);
    let workload = workload(&manifests, manifests.claims.clone(), &manifests.classes);
    let names = |unit: &Unit| {
        let claims: Vec<&str> = unit.claims.iter().map(|c| workload.claims[*c].name.as_str()).collect();
        format!(
            "{}: {} {}",
            unit.label(&manifests, &workload.claims),
            claims.join(","),
            unit.missing.join(",")
        )
    };
    let units = workload.units.iter().map(names).collect();
    (workload, units)
}

#[test]
fn template_makes_a_claim_per_pod_and_named_claim_is_shared() {
    let both =
        "{resourceClaims: [{name: own, resourceClaimTemplateName: t}, {name: s, resourceClaimName: shared}]}";
    let (workload, units) = workload_of(&[pod("a", both, "{}"), pod("b", both, "{}")]);
    assert_eq!(units, ["pod default/a: a-own,shared ", "pod default/b: b-own,shared "]);
    assert_eq!(workload.claims.len(), 3);
}

#[test]
fn capacity_of_extended_resource_counts_where_a_server_keeps_it() {
    let of = |metadata: &str| {
        let class = format!(
            "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: c{metadata}}}\nspec:\n  \
             extendedResourceName: example.com/share\n  extendedResourceCapacityRequests: {{requests: {{memory: \
             8Gi}}}}\n---\n"
        );
        let pod = pod("p", "{containers: [{name: c, resources: {limits: {example.com/share: 2}}}]}", "{}");
        let (manifests, problems) = read("m.yaml", &format!("{class}{pod}"));
        let workload = workload(&manifests, Vec::new(), &manifests.classes);
        let RequestKind::Exactly(exact) = &workload.claims[0].requests[0].kind else {
            unreachable!("{workload:?}")
        };
        (exact.capacity.get("memory").map(ToString::to_string), problems.len())
    };
    assert_eq!(of(", resourceVersion: '1'"), (Some("8Gi".to_owned()), 0));
    assert_eq!(of(""), (None, 1));
}

#[test]
fn a_claim_that_no_pod_names_is_placed_for_itself() {
    let (_, units) = workload_of(&[]);
    assert_eq!(units, ["claim default/shared: shared "]);
}

#[test]
fn missing_object_is_named() {
    let spec =
        "{resourceClaims: [{name: x, resourceClaimTemplateName: gone}, {name: y, resourceClaimName: away}]}";
    let (_, units) = workload_of(&[pod("a", spec, "{}")]);
    let expected = "pod default/a:  ResourceClaimTemplate default/gone does not exist,\
                    ResourceClaim default/away does not exist";
    assert_eq!(units[0], expected);
}

#[test]
fn extended_resources_become_one_claim_without_device_plugins() {
    let limits = "{containers: [{name: c, resources: {limits: {example.com/gpu: 2, other.example/x: 1}}}, \
                  {name: d, resources: {limits: {deviceclass.resource.kubernetes.io/gpu.example.com: 1}}}]}";
    let (workload, units) = workload_of(&[pod("a", limits, "{}")]);
    assert_eq!(units[0], "pod default/a: a-extended-resources ");
    let requests: Vec<_> = workload.claims[1].requests.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(requests, ["container-0-request-0", "container-1-request-0"]);
    assert_eq!(workload.foreign_resources["other.example/x"], 1);
}

#[test]
fn ended_pod_needs_nothing_and_running_pod_keeps_its_claims() {
    let spec = "{resourceClaims: [{name: own, resourceClaimTemplateName: t}]}";
    let (workload, units) = workload_of(&[
        pod("done", spec, "{phase: Succeeded}"),
        pod("runs", spec, "{resourceClaimStatuses: [{name: own, resourceClaimName: shared}]}"),
    ]);
    assert_eq!(units, ["pod default/runs: shared "]);
    assert_eq!(workload.claims.len(), 1);
}

#[test]
fn object_being_deleted_needs_nothing() {
    let gone = "deletionTimestamp: \"2026-01-01T00:00:00Z\"";
    let spec = "{resourceClaims: [{name: own, resourceClaimTemplateName: t}]}";
    let leaving =
        pod("leaving", spec, "{phase: Pending}").replace("name: leaving", &format!("name: leaving, {gone}"));
    let (workload, units) = workload_of(&[leaving, pod("stays", spec, "{}")]);
    assert_eq!(units, ["pod default/stays: stays-own ", "claim default/shared: shared "]);
    assert_eq!(workload.claims.len(), 2, "the shared claim, and that of the Pod that stays");
    let claim = format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: c, {gone}}}\nspec: {{devices: {{}}}}\n"
    );
    let (manifests, problems) = read("m.yaml", &claim);
    assert_eq!(manifests.claims.len(), 0);
    assert!(problems[0].to_string().contains("is being deleted and holds nothing"), "{}", problems[0]);
}

#[test]
fn names_that_are_taken_get_a_number() {
    let spec = "{resourceClaims: [{name: own, resourceClaimTemplateName: t}]}";
    let taken = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a-own}\nspec: {devices: {}}\n---\n";
    let (_, units) = workload_of(&[taken.to_owned(), pod("a", spec, "{}")]);
    assert_eq!(units[0], "pod default/a: a-own-1 ");
}

#[test]
fn near_names_are_sought_for_a_bounded_number_of_missing_names() {
    let claims: String = (0..500)
        .map(|n| {
            let meta = format!("metadata: {{name: data-{n:03}}}");
            format!(
                "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n{meta}\nspec: {{devices: {{}}}}\n---\n"
            )
        })
        .collect();
    let missing = |n: usize| {
        let spec = format!("{{resourceClaims: [{{name: r, resourceClaimName: dota-{n:03}}}]}}");
        // Two Pods of each name, as of a Deployment.
        pod(&format!("a-{n}"), &spec, "{}") + &pod(&format!("b-{n}"), &spec, "{}")
    };
    let few: Vec<String> = std::iter::once(claims.clone()).chain((0..32).map(missing)).collect();
    let (workload, units) = workload_of(&few);
    assert!(
        units[63].ends_with("ResourceClaim default/dota-031 does not exist; did you mean data-031?"),
        "{units:?}"
    );
    assert_eq!(workload.hints.note(), None);
    let many: Vec<String> = std::iter::once(claims).chain((0..500).map(missing)).collect();
    let (workload, units) = workload_of(&many);
    assert!(units[63].ends_with("did you mean data-031?"), "{}", units[63]);
    assert_eq!(units[64], "pod default/a-32:  ResourceClaim default/dota-032 does not exist");
    assert!(workload.hints.compared() <= 32 * 502, "{} comparisons", workload.hints.compared());
    let note = workload.hints.note().unwrap_or_default();
    assert!(note.starts_with("near names were sought for the first 32 missing names"), "{note}");
}

#[test]
fn mistyped_resources_share_the_bound_of_near_names() {
    let classes: String = (0..300)
        .map(|n| {
            format!(
                "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: c{n}}}\nspec: \
                 {{extendedResourceName: example.com/model-{n:03}}}\n---\n"
            )
        })
        .collect();
    let pods = (0..300).map(|n| {
        let limits =
            format!("{{containers: [{{name: c, resources: {{limits: {{example.com/m0del-{n:03}: 1}}}}}}]}}");
        pod(&format!("p-{n:03}"), &limits, "{}")
    });
    let texts: Vec<String> = std::iter::once(classes).chain(pods).collect();
    let (workload, units) = workload_of(&texts);
    assert!(units[0].ends_with("did you mean example.com/model-000?"), "{}", units[0]);
    assert!(!units[299].ends_with("?"), "{}", units[299]);
    assert!(workload.hints.compared() <= 32 * 301, "{} comparisons", workload.hints.compared());
}
