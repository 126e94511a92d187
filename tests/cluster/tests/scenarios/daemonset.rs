//! Scenario 8: the committed manifest, installed as a DaemonSet with its own account and admission policy.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use aliquot_cluster::{AGENT_IMAGE, Api, ApiError, ClusterError, Image, Namespace};
use serde_json::{Value, json};

use crate::install::{Installed, Manifest, NAMESPACE};
use crate::shares::share;
use crate::stage::{PATIENCE, SLICES, Stage, built, pod, template};
use crate::world::needs_own;

const MEMORY: u64 = 2 << 30;
const BINDING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/aliquot-resourceslices";

/// The committed manifest without its classes, for the cluster of a stage: the local image, and the machine's network, as Pods
/// here reach no API server through a service.
pub(crate) fn manifest(stage: &Stage) -> Manifest {
    let mut manifest = Manifest::without_classes(stage.client());
    let (host, port) = stage.cluster().server();
    manifest.set_image(AGENT_IMAGE);
    manifest.set_variable("KUBERNETES_SERVICE_HOST", &host);
    manifest.set_variable("KUBERNETES_SERVICE_PORT", &port);
    manifest.pod_spec()["hostNetwork"] = json!(true);
    manifest.set_port(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    manifest
}

/// What users install: the base with glibc and nothing else that runs, and the program. `None`, with the reason printed: this
/// machine cannot make it.
pub(crate) fn agent_image(stage: &Stage) -> Option<Image> {
    match Image::agent(&built("aliquot"), &stage.cluster().place().path("")) {
        Ok(image) => Some(image),
        Err(ClusterError::Missing(why)) => {
            println!("stood aside: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The API server with the rights of the agent's Pod: a token that is bound to it, as the kubelet mounts it.
fn with_rights_of_agent(stage: &Stage, agent: &Value) -> Api {
    let (name, uid) = (&agent["metadata"]["name"], &agent["metadata"]["uid"]);
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}});
    let path = format!("{NAMESPACE}/serviceaccounts/aliquot/token");
    let token = stage.api().create(&path, &request).unwrap()["status"]["token"].clone();
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
    if needs_own() {
        return;
    }
    let Some(stage) = Stage::empty("daemonset") else { return };
    let Some(image) = agent_image(&stage) else { return };
    stage.cluster().import(&image).unwrap();
    let mut manifest = manifest(&stage);
    manifest.set_variable("ALIQUOT_NODE", "t4-2");
    let installed = Installed::new(stage.client(), &manifest);
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

    let api = with_rights_of_agent(&stage, &installed.agent_pod());
    let own = stage.cluster().node();
    try_write(&api, &slice("aliquot.dev", &own)).unwrap();
    for (driver, node, why) in
        [("aliquot.dev", "other", "slice of node 'other'"), ("other.dev", &own, "driver aliquot.dev only")]
    {
        let refused = try_write(&api, &slice(driver, node)).unwrap_err();
        assert!(refused.to_string().contains(why), "{driver} {node}: {refused}");
    }
    for refused in ["/api/v1/pods", "/api/v1/namespaces/kube-system/secrets"] {
        let read = api.get(refused);
        assert!(read.is_err(), "the agent reads {refused}: {read:?}");
    }
    // Without the policy's binding the slice of another node is written: the refusal is the policy's.
    stage.api().delete(BINDING, None).unwrap();
    let until = Instant::now() + PATIENCE;
    while let Err(error) = try_write(&api, &slice("aliquot.dev", "other")) {
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    space.delete().unwrap();
    drop(installed);
    let left = stage.api().get(NAMESPACE);
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
