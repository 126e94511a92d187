//! `aliquot demo --cluster`: Pods with 1/4 of an NPU and with shares of a GPU on a cluster that stays.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Agent, AgentOptions, Cluster, ClusterError, Image, Parts, Place};

/// The image that `deploy/examples` names; nothing is pulled.
pub const EXAMPLE_IMAGE: &str = "registry.example/inference:1";
/// The agent's image, as a container runtime completes the name in `deploy/manifests/aliquot.yaml`.
pub const AGENT_IMAGE: &str = "docker.io/library/aliquot:0.1.0";
/// The demo's simulated cards: those of `aliquot demo`.
const NODE: &str = "mixed";
const POLICY: &str = "default = \"dynamic\"\n";
/// Manifests of `deploy/examples`.
const EXAMPLES: [&str; 2] = ["ascend-310p-quarter.yaml", "shares.yaml"];

/// What is shown: title and kubectl's words. Pods of the Deployment are named by their label.
const SCENES: [(&str, &[&str]); 5] = [
    ("Devices that the agent published", &["get", "resourceslices"]),
    ("Three Pods", &["get", "pods", "--output=wide"]),
    ("Their claims", &["get", "resourceclaims"]),
    (
        "The first Pod has one virtual NPU, as the NPU's driver reports it",
        &["exec", "quarter", "--", "sh", "-c", "ls /dev | grep davinci; tenant npu"],
    ),
    (
        "A Pod with a share asks NVML, and then for all the memory",
        &["exec", "deployment/share", "--", "sh", "-c", "tenant smi; tenant fill"],
    ),
];

fn checkout(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// Makes the image of the examples known to the node, and creates the device classes of `deploy/manifests`.
///
/// # Errors
/// [`ClusterError::Failed`] without a C compiler, or if the cluster refuses.
pub fn install_examples(cluster: &Cluster, aliquot: &Path) -> Result<(), ClusterError> {
    cluster.import(&Image::tenant(EXAMPLE_IMAGE, aliquot)?)?;
    let file = checkout("deploy/manifests/aliquot.yaml");
    let manifest = fs::read_to_string(&file).map_err(|error| ClusterError::file(&file, &error))?;
    let classes: Vec<&str> =
        manifest.split("\n---\n").filter(|object| object.contains("\nkind: DeviceClass\n")).collect();
    cluster.client().kubectl(&["apply", "-f", "-"], &classes.join("\n---\n")).map(drop)
}

/// Starts the demo's agent on a cluster.
///
/// # Errors
/// It does not get ready.
pub fn start_agent(cluster: &Cluster, aliquot: &Path) -> Result<Agent, ClusterError> {
    install_examples(cluster, aliquot)?;
    let policy = cluster.place().path("policy.toml");
    fs::write(&policy, POLICY).map_err(|error| ClusterError::file(&policy, &error))?;
    let (node, state) = (Some(NODE.to_owned()), "demo".to_owned());
    Agent::start(cluster, AgentOptions { program: aliquot.to_owned(), node, policy: Some(policy), state })
}

/// Creates the demo's Pods on a cluster with an agent, and prints what they have.
///
/// # Errors
/// A Pod does not run, or kubectl fails.
pub fn show(place: &Place, parts: &Parts) -> Result<(), ClusterError> {
    for example in EXAMPLES {
        let file = checkout("deploy/examples").join(example);
        kubectl(place, parts, &["apply", "-f", &file.display().to_string()])?;
    }
    let wait = ["wait", "--for=condition=Ready", "--timeout=60s", "pod/quarter"];
    kubectl(place, parts, &wait)?;
    kubectl(place, parts, &["rollout", "status", "deployment/share", "--timeout=60s"])?;
    for (title, words) in SCENES {
        println!("\n== {title}\n$ kubectl {}", words.join(" "));
        kubectl(place, parts, words)?;
    }
    println!("\nThe cluster stays. Use it with:");
    println!("  export KUBECONFIG={}", place.kubeconfig().display());
    println!("  export PATH=$PATH:{}", parts.directory().display());
    println!("Take it down with: aliquot demo --cluster --down");
    Ok(())
}

fn kubectl(place: &Place, parts: &Parts, words: &[&str]) -> Result<(), ClusterError> {
    let status = Command::new(parts.program("kubectl"))
        .arg(format!("--kubeconfig={}", place.kubeconfig().display()))
        .args(words)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| ClusterError::failed("kubectl", error))?;
    if status.success() {
        return Ok(());
    }
    Err(ClusterError::failed(
        format!("kubectl {}", words.join(" ")),
        format!("found {status}, expected success"),
    ))
}
