//! Scenario 8: the committed manifest, installed as a DaemonSet with its own account and admission policy.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use aliquot_cluster::{Api, ApiError, Cluster, Image, Namespace};
use serde_json::{Value, json};

use crate::shares::share;
use crate::stage::{PATIENCE, Stage, built, checkout, pod, template};

const IMAGE: &str = "localhost/aliquot:0.1.0";
const MEMORY: u64 = 2 << 30;
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const BINDING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/aliquot-resourceslices";

/// The committed manifest without its classes, for this cluster: the local image, simulated cards, and the machine's network,
/// as Pods here reach no API server through a service.
fn manifest(stage: &Stage) -> String {
    let text = fs::read_to_string(checkout("deploy/manifests/aliquot.yaml")).unwrap();
    let objects = text.split("\n---\n").filter(|object| !object.contains("\nkind: DeviceClass\n"));
    let text = objects.collect::<Vec<_>>().join("\n---\n");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (host, api_port) = stage.cluster().server();
    let variables: String = [
        ("ALIQUOT_NODE", "t4-2"),
        ("KUBERNETES_SERVICE_HOST", &host),
        ("KUBERNETES_SERVICE_PORT", &api_port),
    ]
    .iter()
    .map(|(name, value)| format!("        - {{name: {name}, value: \"{value}\"}}\n"))
    .collect();
    let changed = [
        ("image: aliquot:0.1.0", format!("image: {IMAGE}")),
        ("hostNetwork: false", "hostNetwork: true".to_owned()),
        ("9465", port),
        ("        env:\n", format!("        env:\n{variables}")),
    ];
    changed.iter().fold(text, |text, (from, to)| {
        assert!(text.contains(from), "deploy/manifests/aliquot.yaml: found no {from:?}");
        text.replace(from, to)
    })
}

/// The manifest, installed; removed with the value, also by a failure.
struct Installed<'a> {
    cluster: &'a Cluster,
    manifest: String,
}

impl<'a> Installed<'a> {
    fn new(cluster: &'a Cluster, manifest: String) -> Self {
        cluster.kubectl(&["apply", "-f", "-"], &manifest).unwrap();
        Self { cluster, manifest }
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        let delete = ["delete", "--ignore-not-found", "--wait=true", "--timeout=60s", "-f", "-"];
        if let Err(error) = self.cluster.kubectl(&delete, &self.manifest) {
            eprintln!("{error}");
        }
    }
}

fn agent_image() -> Image {
    let image = Image::busybox(IMAGE, &["/usr/bin/aliquot"]).unwrap();
    image.program(&built("aliquot"), "/usr/bin/aliquot").unwrap();
    image
}

/// The API server with the rights of the agent's Pod: a token that is bound to it, as the kubelet mounts it.
fn with_rights_of_agent(stage: &Stage, pod: &str) -> Api {
    let agent = stage.api().get(&format!("/api/v1/namespaces/aliquot/pods/{pod}")).unwrap();
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": agent["metadata"]["uid"]});
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}});
    let path = "/api/v1/namespaces/aliquot/serviceaccounts/aliquot/token";
    let token = stage.api().create(path, &request).unwrap()["status"]["token"].clone();
    let place = stage.cluster().place();
    let mut kubeconfig: Value =
        serde_json::from_str(&fs::read_to_string(place.kubeconfig()).unwrap()).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token});
    let file = place.path("config/agent.kubeconfig");
    fs::write(&file, kubeconfig.to_string()).unwrap();
    Api::connect(&file).unwrap()
}

fn slice(driver: &str, node: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "written-by-a-test"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": "written-by-a-test", "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    })
}

/// Asks whether a slice could be written; nothing is stored.
fn try_write(api: &Api, slice: &Value) -> Result<(), ApiError> {
    api.create(&format!("{SLICES}?dryRun=All"), slice).map(drop)
}

#[test]
fn installed_agent_serves_pods_and_its_own_node_alone() {
    let Some(stage) = Stage::empty("daemonset") else { return };
    stage.cluster().import(&agent_image()).unwrap();
    let manifest = manifest(&stage);
    let installed = Installed::new(stage.cluster(), manifest);
    let rollout = ["-n", "aliquot", "rollout", "status", "daemonset/aliquot", "--timeout=60s"];
    stage.cluster().kubectl(&rollout, "").unwrap_or_else(|error| {
        let said = stage.cluster().kubectl(&["-n", "aliquot", "describe", "pods"], "").unwrap_or_default();
        panic!("{error}\n{said}");
    });
    let space = stage.namespace("all");
    space
        .create_object(&space.devices("resourceclaimtemplates"), &template("share", &share(MEMORY, 10)))
        .unwrap();
    space.create_object(&space.core("pods"), &pod("tenant", &[("gpu", "share")])).unwrap();
    space.running("tenant", 1, PATIENCE).unwrap();
    let filled = space.exec("tenant", &["tenant", "fill"]).unwrap();
    assert!(
        filled.out.starts_with(&format!("total {MEMORY} ")) && filled.out.ends_with("code 2\n"),
        "{filled:?}"
    );
    status_is_written(&space, &stage);

    let agents = stage.api().get("/api/v1/namespaces/aliquot/pods").unwrap();
    let api = with_rights_of_agent(&stage, agents["items"][0]["metadata"]["name"].as_str().unwrap());
    let own = stage.cluster().node();
    try_write(&api, &slice("aliquot.dev", &own)).unwrap();
    for (driver, node, why) in
        [("aliquot.dev", "other", "slice of node 'other'"), ("other.dev", &own, "driver aliquot.dev only")]
    {
        let refused = try_write(&api, &slice(driver, node)).unwrap_err();
        assert!(refused.to_string().contains(why), "{driver} {node}: {refused}");
    }
    let nodes = api.get("/api/v1/nodes");
    assert!(nodes.is_err(), "the agent lists nodes: {nodes:?}");
    // Without the policy's binding the slice of another node is written: the refusal is the policy's.
    stage.api().delete(BINDING, None).unwrap();
    let until = Instant::now() + PATIENCE;
    while let Err(error) = try_write(&api, &slice("aliquot.dev", "other")) {
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    space.delete().unwrap();
    drop(installed);
    let left = stage.api().get("/api/v1/namespaces/aliquot");
    assert!(left.is_err(), "namespace aliquot is left: {left:?}");
    stage.finish();
}

/// The agent may write the device status of claims of its node.
fn status_is_written(space: &Namespace<'_>, stage: &Stage) {
    let waited = stage.api().wait(
        &space.devices("resourceclaims"),
        "the claim has a device status",
        PATIENCE,
        |claims| {
            let status = claims.values().next()?["status"]["devices"].as_array()?.first()?.clone();
            status["conditions"]
                .as_array()?
                .iter()
                .any(|c| c["type"] == json!("Ready") && c["status"] == json!("True"))
                .then_some(())
        },
    );
    waited.unwrap();
}
