//! Claims, claim status, Events and `--cluster`, against a server in this process.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::time::{Duration, Instant, SystemTime};

use aliquot_core::disposition::Disposition;
use aliquot_core::dra::DeviceId;
use aliquot_core::id::ClaimUid;
use aliquot_core::orphans::Knowledge;
use aliquot_driver::kube::{ApiClaims, ApiStatus, ClusterAccess, Connection, EventQueue};
use aliquot_driver::manifest::Object;
use aliquot_driver::ports::{
    AgentEvent, ClaimReader, ClaimReference, Condition, DeviceStatus, EventObject, EventSeverity, EventSink,
    StatusWriter, Truth,
};
use aliquot_tests::command_line::{Ran, ran};
use aliquot_tests::fake_apiserver::{Effect, FakeApiServer, Fault, Request};
use aliquot_tests::scenes::scenes;
use serde_json::{Value, json};

const UID: &str = "11111111-2222-4333-8444-555555555555";

async fn connect(server: &FakeApiServer) -> Connection {
    let access = ClusterAccess::Kubeconfig { file: Some(server.kubeconfig()), context: None };
    Connection::open(&access).await.unwrap()
}

fn reference(name: &str, uid: &str) -> ClaimReference {
    ClaimReference { namespace: "team".to_owned(), name: name.to_owned(), uid: ClaimUid::new(uid).unwrap() }
}

fn result(driver: &str, device: &str) -> Value {
    json!({"request": "r", "driver": driver, "pool": "n1/p", "device": device})
}

/// A claim that the scheduler allocated.
fn allocated(name: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "uid": UID, "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "share.aliquot.dev",
            "allocationMode": "ExactCount", "count": 1, "aFieldOfTheFuture": {"x": 1}}}]}},
        "status": {
            "allocation": {"devices": {"results": [result("aliquot.dev", "d0"), result("net.example.com", "eth0")]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}},
            "reservedFor": [{"resource": "pods", "name": "train", "uid": "p1"}],
            "devices": [{"driver": "net.example.com", "pool": "n1/p", "device": "eth0",
                "networkData": {"interfaceName": "eth0"}}],
        },
    })
}

fn status(truth: Truth) -> DeviceStatus {
    DeviceStatus {
        device: DeviceId {
            driver: "aliquot.dev".to_owned(),
            pool: "n1/p".to_owned(),
            device: "d0".to_owned(),
        },
        share: None,
        conditions: vec![Condition {
            kind: "Ready",
            status: truth,
            reason: "Prepared".to_owned(),
            message: "1/4 of card 0".to_owned(),
            changed: SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600),
        }],
        data: json!({"card": "GPU-1", "memoryBytes": 8_589_934_592_u64}),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_read_and_checked() {
    let mut server = FakeApiServer::start();
    server.put(allocated("whole"));
    let mut pending = allocated("pending");
    pending["status"] = json!({});
    server.put(pending);
    let claims = ApiClaims::new(&connect(&server).await);
    let claim = claims.read(&reference("whole", UID)).await.unwrap();
    let allocation = claim.allocation.unwrap();
    assert_eq!(allocation.devices.len(), 2);
    assert_eq!(allocation.devices[0].device.to_string(), "aliquot.dev/n1/p/d0");
    assert_eq!(allocation.devices[1].device.driver, "net.example.com");

    let refused = [
        (reference("whole", "another"), "expected another"),
        (reference("pending", UID), "found no status.allocation"),
        (reference("absent", UID), "found nothing"),
        (reference("../../nodes/n1", UID), "expected a namespace and an object name"),
    ];
    for (claim, expected) in refused {
        let error = claims.read(&claim).await.unwrap_err();
        assert_eq!(error.disposition, Disposition::Refuse, "{error}");
        assert!(error.message.contains(expected), "{error}");
    }
    for (code, disposition) in
        [(500, Disposition::Retry), (429, Disposition::Retry), (403, Disposition::Broken)]
    {
        server.inject(Fault::once("get", "resourceclaims", Effect::Status(code)));
        assert_eq!(claims.read(&reference("whole", UID)).await.unwrap_err().disposition, disposition);
    }
    server.stop();
    let error = claims.read(&reference("whole", UID)).await.unwrap_err();
    assert_eq!(error.disposition, Disposition::Retry, "{error}");
    server.resume();
    claims.read(&reference("whole", UID)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_is_absent_by_the_word_of_the_server_alone() {
    let mut server = FakeApiServer::start();
    let mut deleted = allocated("deleted");
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut pending = allocated("pending");
    pending["status"] = json!({});
    for claim in [allocated("whole"), deleted, pending] {
        server.put(claim);
    }
    let claims = ApiClaims::new(&connect(&server).await);
    for name in ["whole", "deleted", "pending"] {
        assert_eq!(claims.find(&reference(name, UID)).await.unwrap(), Knowledge::Known, "{name}");
    }
    for (name, uid) in [("whole", "another"), ("absent", UID)] {
        assert_eq!(claims.find(&reference(name, uid)).await.unwrap(), Knowledge::Absent, "{name}");
    }
    claims.find(&reference("../../nodes/n1", UID)).await.unwrap_err();
    // A proxy without a server behind it, or a server that does not serve claims yet, names no claim.
    for code in [404, 410, 403, 500] {
        server.inject(Fault::once("get", "resourceclaims", Effect::Status(code)));
        claims.find(&reference("absent", UID)).await.unwrap_err();
    }
    server.stop();
    claims.find(&reference("absent", UID)).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_status_is_merged_and_written_once() {
    let server = FakeApiServer::start();
    server.put(allocated("whole"));
    let writer = ApiStatus::new(&connect(&server).await);
    let claim = reference("whole", UID);
    server.inject(Fault::once("patch", "resourceclaims/status", Effect::Status(409)));
    writer.write(&claim, &[status(Truth::True)]).await.unwrap();
    let stored = server.objects("resourceclaims").remove(0);
    let devices = stored["status"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[0]["networkData"]["interfaceName"], "eth0");
    assert_eq!(devices[1]["conditions"][0]["status"], "True");
    assert_eq!(devices[1]["data"]["card"], "GPU-1");
    assert_eq!(stored["status"]["allocation"], allocated("whole")["status"]["allocation"]);
    assert_eq!(stored["spec"], allocated("whole")["spec"], "fields of a later version survive");

    server.forget_requests();
    writer.write(&claim, &[status(Truth::True)]).await.unwrap();
    assert!(!server.requests().iter().any(Request::is_write), "{:?}", server.requests());
    writer.write(&claim, &[status(Truth::False)]).await.unwrap();
    writer.write(&claim, &[]).await.unwrap();
    let stored = server.objects("resourceclaims").remove(0);
    assert_eq!(stored["status"]["devices"].as_array().unwrap().len(), 1);

    let error = writer.write(&reference("whole", "another"), &[]).await.unwrap_err();
    assert_eq!(error.disposition, Disposition::Refuse);
    // Only an answer about the claim itself is final.
    for (code, disposition) in [
        (401, Disposition::Broken),
        (403, Disposition::Broken),
        (404, Disposition::Refuse),
        (422, Disposition::Refuse),
        (503, Disposition::Retry),
    ] {
        server.inject(Fault::once("patch", "resourceclaims/status", Effect::Status(code)));
        let error = writer.write(&claim, &[status(Truth::True)]).await.unwrap_err();
        assert_eq!(error.disposition, disposition, "{code}: {error}");
    }
    server.inject(Fault { times: 9, ..Fault::once("patch", "resourceclaims/status", Effect::Status(409)) });
    let error = writer.write(&claim, &[status(Truth::True)]).await.unwrap_err();
    assert_eq!(error.disposition, Disposition::Retry);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_aggregated_and_never_block() {
    let mut server = FakeApiServer::start();
    let queue = EventQueue::start(&connect(&server).await, "n1");
    let event = |message: &str| AgentEvent {
        about: EventObject::Node,
        severity: EventSeverity::Warning,
        reason: "CardLost",
        message: message.to_owned(),
    };
    let about_claim =
        AgentEvent { about: EventObject::Claim(reference("whole", UID)), ..event("\u{1b}[31mred\nline") };
    for _ in 0..5 {
        queue.publish(event("card 0 is lost"));
    }
    queue.publish(event("card 1 is lost"));
    queue.publish(about_claim);
    server.wait_for("events", |found| found.len() == 3).await;
    let events = server.objects("events");
    let of_claim = events.iter().find(|event| event["regarding"]["kind"] == "ResourceClaim").unwrap();
    assert_eq!(of_claim["metadata"]["namespace"], "team");
    assert_eq!(of_claim["regarding"]["uid"], UID);
    assert!(!of_claim["note"].as_str().unwrap().contains(['\u{1b}', '\n']), "{of_claim}");
    let of_node = events.iter().find(|event| event["note"] == "card 0 is lost").unwrap();
    assert_eq!(of_node["metadata"]["namespace"], "default");
    assert_eq!(of_node["type"], "Warning");
    assert_eq!(of_node["regarding"]["name"], "n1");
    // The repeats are one update, written when the queue ends at the latest.
    drop(queue);
    server
        .wait_for("events", |found| {
            found.iter().any(|e| e["note"] == "card 0 is lost" && e["series"]["count"] == 5)
        })
        .await;

    server.stop();
    let queue = EventQueue::start(&connect(&server).await, "n1");
    for number in 0..2_000 {
        queue.publish(event(&format!("card {number} is lost")));
    }
    assert!(queue.dropped() >= 2_000 - 280, "{}", queue.dropped());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_event_delays_no_other() {
    let server = FakeApiServer::start();
    let queue = EventQueue::start(&connect(&server).await, "n1");
    let event = |message: &str| AgentEvent {
        about: EventObject::Node,
        severity: EventSeverity::Warning,
        reason: "CardLost",
        message: message.to_owned(),
    };
    // The client gives an attempt up after 5 s.
    server.inject(Fault::once("create", "events", Effect::Delay(Duration::from_secs(60))));
    queue.publish(event("card 0 is lost"));
    while !server.requests().iter().any(|request| request.resource == "events") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    queue.publish(event("card 1 is lost"));
    let is_second = |found: &Value| found["note"] == "card 1 is lost";
    server.wait_for("events", |found| found.iter().any(is_second)).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

/// A cluster of two nodes with 700 Pods, one of which waits for a card that no node has.
fn cluster() -> FakeApiServer {
    let server = FakeApiServer::start();
    let scene = scenes().unwrap().into_iter().find(|scene| scene.name == "h100-8 shared 1.36").unwrap();
    for slice in &scene.slices {
        server.put(Object::Slice(slice).json());
    }
    for class in &scene.classes {
        server.put(Object::Class(class).json());
    }
    server.put(json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": scene.node.name, "labels": scene.node.labels}}));
    for number in 0..700 {
        server.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("idle-{number}")},
            "spec": {"containers": [{"name": "main", "image": "x"}]}}));
    }
    let mut claim = allocated("wish");
    claim["status"] = json!({});
    claim["spec"] = json!({"devices": {"requests": [{"name": "r", "exactly": {
        "deviceClassName": "share.aliquot.dev", "allocationMode": "ExactCount", "count": 1,
        "capacity": {"requests": {"memory": "900Gi"}}}}]}});
    server.put(claim);
    server.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits", "namespace": "team"},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "wish"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}]},
        "status": {"phase": "Pending"}}));
    server
}

fn aliquot(server: &FakeApiServer, words: &[&str]) -> Ran {
    let kubeconfig = server.kubeconfig().into_os_string();
    let words = words.iter().map(std::ffi::OsString::from);
    ran(std::iter::once("aliquot".into()).chain(words).chain(["--kubeconfig".into(), kubeconfig]))
}

#[test]
fn explain_reads_a_live_cluster() {
    let server = cluster();
    let explained = aliquot(&server, &["explain", "--cluster", "team/waits"]);
    assert_eq!(explained.code, 1, "{}", explained.err);
    assert!(explained.out.contains("team/waits"), "{}", explained.out);
    assert!(explained.out.contains("900Gi") && explained.out.contains("memory"), "{}", explained.out);
    let pages = server.requests().iter().filter(|request| request.resource == "pods").count();
    assert_eq!(pages, 2, "701 Pods are two pages");
    assert!(!server.requests().iter().any(Request::is_write));
}

#[test]
fn plan_places_manifests_on_a_live_cluster() {
    let server = cluster();
    let file = server.directory().join("pod.yaml");
    let text = "\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: fits, namespace: team}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: share.aliquot.dev}}]}}
";
    std::fs::write(&file, text).unwrap();
    let planned = aliquot(&server, &["plan", "--cluster=fake", "-f", file.to_str().unwrap()]);
    assert_eq!(planned.code, 1, "{}{}", planned.out, planned.err);
    assert!(planned.out.contains("team/fits"), "{}", planned.out);
    assert!(planned.out.contains("team/waits"), "{}", planned.out);
}

#[test]
fn clusters_that_cannot_be_read_are_explained() {
    let mut server = cluster();
    let failures: &[(&[&str], &str, u16, &str)] = &[
        (&["plan", "--cluster=other"], "", 0, "found no context `other`, expected one of: fake"),
        (
            &["plan", "--cluster"],
            "deviceclasses",
            403,
            "found no verb `list` on deviceclasses.resource.k8s.io",
        ),
        (&["plan", "--context", "fake"], "resourceslices", 403, "such as `aliquot-viewer` of the chart"),
        (&["plan", "--cluster"], "nodes", 500, "nodes: list failed: found status 500"),
        (&["plan", "--cluster"], "resourceclaims", 401, "the server refuses the credentials"),
    ];
    for (words, resource, code, expected) in failures {
        if *code > 0 {
            server.inject(Fault {
                resource: Some(resource),
                verb: None,
                times: 1,
                effect: Effect::Status(*code),
            });
        }
        let failed = aliquot(&server, words);
        assert!(failed.err.contains(expected), "{words:?}: {}", failed.err);
        assert!(matches!(failed.code, 2 | 3), "{}", failed.code);
        assert_eq!(failed.out, "");
    }
    // Resources that are not served, on a server without the device API.
    server.inject(Fault {
        resource: Some("resourceslices"),
        verb: None,
        times: 3,
        effect: Effect::Status(404),
    });
    let failed = aliquot(&server, &["explain", "--cluster"]);
    assert!(
        failed.err.contains("found no resourceslices.resource.k8s.io (Kubernetes v1.36.3)"),
        "{}",
        failed.err
    );
    server.stop();
    let failed = aliquot(&server, &["explain", "--cluster"]);
    assert!(failed.err.contains("the API server does not answer"), "{}", failed.err);
    assert_eq!(failed.code, 3);
    std::fs::remove_file(server.kubeconfig()).unwrap();
    let failed = aliquot(&server, &["explain", "--cluster"]);
    assert!(failed.err.contains("found no kubeconfig"), "{}", failed.err);
    assert_eq!(failed.code, 2);
}

/// The server refuses lists of all namespaces from now on, once for each, and lists of what lies in none.
fn tenant_of(server: &FakeApiServer) {
    for resource in
        ["pods", "resourceclaims", "resourceclaimtemplates", "nodes", "namespaces", "devicetaintrules"]
    {
        server.inject(Fault::once("list", resource, Effect::Status(403)));
    }
}

#[test]
fn explain_with_a_tenants_rights_says_what_it_could_not_read() {
    let server = cluster();
    tenant_of(&server);
    let explained = aliquot(&server, &["explain", "--context", "fake", "-n", "team", "pod/waits"]);
    assert_eq!(explained.code, 1, "{}{}", explained.out, explained.err);
    assert!(explained.out.contains("pod team/waits") && explained.out.contains("900Gi"), "{}", explained.out);
    for note in [
        "note: pods are read of namespace team alone: found no right to list those of all",
        "note: resourceclaims.resource.k8s.io are read of namespace team alone",
        "note: nodes are not read: found no right to list them",
        "note: so this is not decided here: which devices claims of other namespaces hold; labels, taints, free CPU",
        "CPU, memory and ports that Pods of other namespaces use",
        "taints that rules put on devices",
    ] {
        assert!(explained.err.contains(note), "{note}: {}", explained.err);
    }
    assert!(!server.requests().iter().any(Request::is_write));
    // What fits by the slices may be held by a claim that may not be read.
    let file = server.directory().join("claim.yaml");
    let text = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: fits, namespace: team}\n\
                spec: {devices: {requests: [{name: r, exactly: {deviceClassName: share.aliquot.dev}}]}}\n";
    std::fs::write(&file, text).unwrap();
    tenant_of(&server);
    let words = ["explain", "--cluster", "-n", "team", "claim/fits", "-f", file.to_str().unwrap()];
    let fitting = aliquot(&server, &words);
    assert_eq!(fitting.code, 0, "{}{}", fitting.out, fitting.err);
    assert!(fitting.out.contains("claim team/fits: its devices fit, on node "), "{}", fitting.out);
    assert!(
        fitting.out.contains("not decided here: which devices claims of other namespaces"),
        "{}",
        fitting.out
    );
    // All namespaces, or none.
    tenant_of(&server);
    let refused = aliquot(&server, &["explain", "--cluster", "-A"]);
    assert_eq!((refused.code, refused.out.as_str()), (3, ""), "{}", refused.err);
    assert!(
        refused.err.contains("found no verb `list` on resourceclaims.resource.k8s.io"),
        "{}",
        refused.err
    );
}

#[test]
fn namespace_and_output_are_named_as_kubectl_names_them() {
    let server = cluster();
    let out = |words: &[&str], code: u8| {
        let ran = aliquot(&server, words);
        assert_eq!(ran.code, code, "{words:?}: {}{}", ran.out, ran.err);
        ran.out
    };
    assert_eq!(out(&["explain", "--cluster", "-o", "name"], 1), "pod/waits\n");
    assert_eq!(out(&["explain", "--cluster", "-n", "team", "-o", "name"], 1), "pod/waits\n");
    assert_eq!(out(&["explain", "--cluster", "-A", "-o", "name", "pods/waits"], 1), "pod/waits\n");
    assert_eq!(out(&["explain", "--cluster", "-o", "name", "resourceclaims/wish"], 1), "pod/waits\n");
    assert!(out(&["explain", "--cluster", "-n", "other"], 0).starts_with("nothing to place"));
    let wide = out(&["explain", "--cluster", "-o", "wide"], 1);
    assert!(wide.contains("pod team/waits") && !wide.contains("nodes more"), "{wide}");
    let none = aliquot(&server, &["explain", "--cluster", "-n", "other", "pod/waits"]);
    assert_eq!(none.code, 2, "{}", none.out);
    for words in
        [&["explain", "--cluster", "-A", "-n", "team"][..], &["explain", "--cluster=fake", "--context=fake"]]
    {
        let ran = aliquot(&server, words);
        assert_eq!(ran.code, 2, "{words:?}");
        assert!(ran.err.contains("cannot be used with"), "{}", ran.err);
    }
}

#[test]
fn expired_page_tokens_begin_the_list_again() {
    let server = cluster();
    // The second page of the Pods.
    server.inject(Fault {
        resource: Some("pods"),
        verb: Some("list"),
        times: 1,
        effect: Effect::Status(410),
    });
    let planned = aliquot(&server, &["plan", "--cluster"]);
    assert_eq!(planned.code, 1, "{}", planned.err);
    assert!(planned.out.contains("team/waits"), "{}", planned.out);
}
