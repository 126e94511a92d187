//! Scenarios on the cluster that `KUBECONFIG` names. Each installs the manifest on one node, with simulated cards, and removes
//! it again.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use aliquot_cluster::Client;
use serde_json::{Value, json};

use crate::daemonset::{agent_image, manifest};
use crate::install::{Installed, Manifest, NAMESPACE};
use crate::stage::{SLICES, Stage, checkout};
use crate::world::needs_own;

/// The variable with a manifest other than the committed one, as your registry and network need it.
const MANIFEST_VARIABLE: &str = "ALIQUOT_CLUSTER_MANIFEST";
/// The variable with the node on which agents run; by default the first one that takes Pods.
const NODE_VARIABLE: &str = "ALIQUOT_CLUSTER_NODE";

/// The kubeconfig of a given cluster.
pub(crate) fn kubeconfig() -> Option<PathBuf> {
    env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A cluster that was started elsewhere. It has no agent of its own.
pub(crate) struct Given {
    client: Client,
    node: String,
    /// With which the scenarios' changes begin.
    manifest: String,
}

static GIVEN: OnceLock<Mutex<Given>> = OnceLock::new();

/// The given cluster, for one scenario at a time.
pub(crate) fn given(kubeconfig: &Path) -> MutexGuard<'static, Given> {
    let found = GIVEN.get_or_init(|| Mutex::new(Given::find(kubeconfig)));
    found.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Given {
    fn find(kubeconfig: &Path) -> Self {
        let client = Client::connect(kubeconfig, "kubectl").unwrap();
        let driver = format!("{SLICES}?fieldSelector=spec.driver=aliquot.dev");
        let published = client.api().get(&driver).unwrap();
        assert!(
            client.api().get(NAMESPACE).is_err() && published["items"] == json!([]),
            "KUBECONFIG: found Aliquot on the cluster, expected none: the scenarios install it with simulated cards, and \
             remove it; remove yours first, or use another cluster"
        );
        let node = env::var(NODE_VARIABLE).unwrap_or_else(|_| first_node(&client));
        let file = env::var_os(MANIFEST_VARIABLE)
            .map_or_else(|| checkout("deploy/manifests/aliquot.yaml"), PathBuf::from);
        let manifest =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self { client, node, manifest }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Installs an agent with a simulated node and a policy. Each has a state directory of its own, as the cards of one node are
    /// not those of another.
    pub(crate) fn install(&self, node: &str, policy: &str, scenario: &str) -> Installed {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let mut manifest = Manifest::read(&self.client, &self.manifest);
        let mut files = json!({"policy.toml": policy});
        let file = fs::read_to_string(node).ok();
        if let Some(file) = &file {
            files["node.toml"] = json!(file);
        }
        let directory = manifest.set_files(&files);
        let node = if file.is_some() { format!("{directory}/node.toml") } else { node.to_owned() };
        manifest.set_variable("ALIQUOT_NODE", &node);
        manifest.set_variable("ALIQUOT_POLICY", &format!("{directory}/policy.toml"));
        manifest.set_variable("ALIQUOT_STATE", &format!("/var/lib/aliquot/{scenario}-{began}"));
        manifest.pod_spec()["nodeSelector"]["kubernetes.io/hostname"] = self.label();
        Installed::new(&self.client, &manifest)
    }

    /// What DaemonSets select the node by.
    fn label(&self) -> Value {
        let node = self.client.api().get(&format!("/api/v1/nodes/{}", self.node)).unwrap();
        node["metadata"]["labels"]["kubernetes.io/hostname"].clone()
    }

    /// Removes the node's slices, which the kubelet does some time after the agent is gone.
    pub(crate) fn delete_slices(&self) {
        let path = format!("{SLICES}?fieldSelector=spec.driver=aliquot.dev,spec.nodeName={}", self.node);
        if let Err(error) = self.client.api().delete(&path, None) {
            eprintln!("{error}");
        }
    }
}

/// A node that is ready and without taints.
fn first_node(client: &Client) -> String {
    let nodes = client.api().get("/api/v1/nodes").unwrap();
    let ready = |node: &&Value| {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let mut ready = conditions.filter(|condition| condition["type"] == json!("Ready"));
        node["spec"]["taints"].is_null() && ready.any(|condition| condition["status"] == json!("True"))
    };
    let found = nodes["items"].as_array().into_iter().flatten().find(ready);
    let name = found.and_then(|node| node["metadata"]["name"].as_str());
    let name = name.unwrap_or_else(|| {
        panic!(
            "KUBECONFIG: found no node that is ready and without taints; name one with ALIQUOT_CLUSTER_NODE"
        )
    });
    name.to_owned()
}

/// One scenario in a process of its own, for which this cluster is one that was started elsewhere.
fn played(stage: &Stage, manifest: &Path, scenario: &str) -> Result<String, String> {
    let tools = Path::new(stage.client().kubectl_program()).parent().unwrap().display().to_string();
    let path = format!("{tools}:{}", env::var("PATH").unwrap_or_default());
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", scenario, "--show-output"]).env("PATH", path);
    command.env("KUBECONFIG", stage.client().kubeconfig()).env(MANIFEST_VARIABLE, manifest);
    let output = command.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() && said.contains("1 passed") && !said.contains("stood aside") {
        Ok(said)
    } else {
        Err(said)
    }
}

#[test]
fn scenario_plays_on_a_cluster_that_is_given() {
    if needs_own() {
        return;
    }
    let Some(stage) = Stage::empty("given") else { return };
    let Some(image) = agent_image(&stage) else { return };
    stage.cluster().import(&image).unwrap();
    let file = stage.cluster().place().path("given.json");
    fs::write(&file, manifest(&stage).text()).unwrap();
    let scenario = "quarters::fifth_quarter_of_an_npu_waits_with_a_reason";
    let said = played(&stage, &file, scenario).unwrap_or_else(|said| panic!("{said}"));
    // Indented: `tests/aside.awk` reads lines of this process's own results.
    said.lines().for_each(|line| println!("  {line}"));
    // An Aliquot that is there already is left alone.
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "aliquot"}});
    stage.api().create("/api/v1/namespaces", &space).unwrap();
    let refused = played(&stage, &file, scenario).unwrap_err();
    stage.api().delete(NAMESPACE, None).unwrap();
    assert!(refused.contains("found Aliquot on the cluster"), "{refused}");
    stage.finish();
}
