//! The committed manifest on a cluster: changed for a scenario, installed, and removed again.

use std::fs;

use aliquot_cluster::{Client, sample};
use serde_json::{Value, json};

use crate::stage::checkout;

const MANIFEST: &str = "deploy/manifests/aliquot.yaml";
/// Where the chart mounts the policy file (`deploy/helm/aliquot/templates/daemonset.yaml`).
const CONFIGURED: &str = "/etc/aliquot";
const CONFIGURATION: &str = "aliquot-policy";
pub(crate) const NAMESPACE: &str = "/api/v1/namespaces/aliquot";

/// The objects of a manifest.
pub(crate) struct Manifest {
    objects: Vec<Value>,
}

impl Manifest {
    /// The committed one, without its device classes.
    pub(crate) fn without_classes(client: &Client) -> Self {
        let text = fs::read_to_string(checkout(MANIFEST)).unwrap();
        let mut manifest = Self::read(client, &text);
        manifest.objects.retain(|object| object["kind"] != json!("DeviceClass"));
        manifest
    }

    /// A manifest in YAML or JSON.
    pub(crate) fn read(client: &Client, text: &str) -> Self {
        // Read by kubectl: the objects follow each other, or are items of a list.
        let json = client
            .kubectl(&["create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-"], text)
            .unwrap();
        let documents = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
        let objects = documents.flat_map(|document| {
            let document = document.unwrap();
            document["items"].as_array().cloned().unwrap_or_else(|| vec![document])
        });
        Self { objects: objects.collect() }
    }

    fn daemon_set(&mut self) -> &mut Value {
        let found = self.objects.iter_mut().find(|object| object["kind"] == json!("DaemonSet"));
        found.unwrap_or_else(|| panic!("manifest: found no DaemonSet, expected the agent's"))
    }

    /// The Pod of the DaemonSet.
    pub(crate) fn pod_spec(&mut self) -> &mut Value {
        &mut self.daemon_set()["spec"]["template"]["spec"]
    }

    fn agent(&mut self) -> &mut Value {
        &mut self.pod_spec()["containers"][0]
    }

    /// The agent's image.
    pub(crate) fn set_image(&mut self, image: &str) {
        self.agent()["image"] = json!(image);
    }

    /// A variable of the agent.
    pub(crate) fn set_variable(&mut self, name: &str, value: &str) {
        let all = self.agent()["env"].as_array_mut().unwrap();
        all.retain(|variable| variable["name"] != json!(name));
        all.push(json!({"name": name, "value": value}));
    }

    /// The port of metrics and probes.
    pub(crate) fn set_port(&mut self, port: u16) {
        self.set_variable("ALIQUOT_METRICS_ADDRESS", &format!("[::]:{port}"));
        self.agent()["ports"][0]["containerPort"] = json!(port);
    }

    /// Files beside the agent's policy, by their names; returns the directory in which it finds them.
    pub(crate) fn set_files(&mut self, files: &Value) -> &'static str {
        self.objects.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIGURATION, "namespace": "aliquot"},
            "data": files,
        }));
        let volume = json!({"name": "policy", "configMap": {"name": CONFIGURATION}});
        self.pod_spec()["volumes"].as_array_mut().unwrap().push(volume);
        let mount = json!({"name": "policy", "mountPath": CONFIGURED, "readOnly": true});
        self.agent()["volumeMounts"].as_array_mut().unwrap().push(mount);
        CONFIGURED
    }

    /// As `kubectl` reads it.
    pub(crate) fn text(&self) -> String {
        json!({"apiVersion": "v1", "kind": "List", "items": self.objects}).to_string()
    }
}

/// A manifest that is installed; removed with the value, also by a failure.
pub(crate) struct Installed {
    client: Client,
    manifest: String,
}

impl Installed {
    /// Installs a manifest and waits until its agents are ready.
    pub(crate) fn new(client: &Client, manifest: &Manifest) -> Self {
        let installed = Self { client: client.clone(), manifest: manifest.text() };
        client.kubectl(&["apply", "-f", "-"], &installed.manifest).unwrap();
        let rollout = ["-n", "aliquot", "rollout", "status", "daemonset/aliquot", "--timeout=60s"];
        client.kubectl(&rollout, "").unwrap_or_else(|error| {
            let said = client.kubectl(&["-n", "aliquot", "describe", "pods"], "").unwrap_or_default();
            panic!("{error}\n{said}");
        });
        installed
    }

    /// The Pod of the agent; there is one.
    pub(crate) fn agent_pod(&self) -> Value {
        self.client.api().get(&format!("{NAMESPACE}/pods")).unwrap()["items"][0].clone()
    }

    /// The value of a metric of the agent that has one sample, a whole number; read through the API server.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        let pod = self.agent_pod();
        let port = &pod["spec"]["containers"][0]["ports"][0]["containerPort"];
        let path = format!("{NAMESPACE}/pods/{}:{port}/proxy/metrics", pod["metadata"]["name"].as_str()?);
        sample(&self.client.api().text(&path).ok()?, name)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let delete = ["delete", "--ignore-not-found", "--wait=true", "--timeout=60s", "-f", "-"];
        if let Err(error) = self.client.kubectl(&delete, &self.manifest) {
            eprintln!("{error}");
        }
    }
}
