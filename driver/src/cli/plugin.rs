//! `aliquot plugin`: the node agent as the kubelet's DRA plugin.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::id::NodeName;
use tracing_subscriber::EnvFilter;

use crate::agent::card_owners::KubeletPlace;
use crate::agent::composition::AgentConfig;
use crate::agent::orphans::KubeletRecord;
use crate::agent::pace::AgentPace;
use crate::agent::start::{self, AgentSettings, HardwareSettings};
use crate::error_text::chain;
use crate::hardware::vendors::HostRoots;
use crate::kube::ClusterAccess;
use crate::kubelet::claim_state;
use crate::kubelet::sockets::KUBELET_ROOT;

use super::failure::{CommandAnswer, Failure};
use super::manual::manual;
use super::words::seconds;

const EXAMPLES: &str = "\
Examples:
  aliquot plugin --node-name worker-1
  aliquot plugin --node-name worker-1 --node mixed --kubeconfig admin.conf";

/// Run the node agent: publish this node's cards to Kubernetes and prepare claims for the kubelet
///
/// The agent owns the state directory while it runs. It ends at SIGTERM or SIGINT; claims stay prepared, and the next start
/// continues with them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Name of the Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: String,

    /// Simulated cards in the place of this machine's own: a node file or a built-in node, such as mixed
    #[arg(long, env = "ALIQUOT_NODE", value_name = "NODE")]
    node: Option<String>,

    /// Layout policy (TOML): what each card is published as. Without it every card is `auto`
    #[arg(long, env = "ALIQUOT_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Directory of card models (TOML) that add to the built-in catalogue or replace models of it
    #[arg(long, env = "ALIQUOT_CATALOGUE", value_name = "DIR")]
    catalogue: Option<PathBuf>,

    /// Where the host's root directory is seen; `/` outside of a container
    #[arg(long, env = "ALIQUOT_HOST_ROOT", value_name = "DIR", default_value = "/")]
    host_root: PathBuf,

    /// Root of the vendor's driver on the host: containers get its libraries from there. Without it /, /run/nvidia/driver, the
    /// directories of Google's and Flatcar's images and /usr/local/nvidia are tried
    #[arg(long, env = "ALIQUOT_DRIVER_ROOT", value_name = "DIR")]
    driver_root: Option<PathBuf>,

    /// Access to the cluster; without it the Pod's ServiceAccount, or what kubectl reads
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Directory of the kubelet
    #[arg(long, env = "ALIQUOT_KUBELET_ROOT", value_name = "DIR", default_value = KUBELET_ROOT)]
    kubelet_root: PathBuf,

    /// Directory of the service socket; without it `plugins/aliquot.dev` in the kubelet's
    #[arg(long, env = "ALIQUOT_PLUGIN_DIR", value_name = "DIR")]
    plugin_dir: Option<PathBuf>,

    /// Directory from which the container runtime reads CDI files
    #[arg(long, env = "ALIQUOT_CDI_DIR", value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,

    /// State directory: journal, grants, libraries. Paths below it are mounted into containers, so it is the same path on the
    /// host and in the agent's container
    #[arg(long, env = "ALIQUOT_STATE", value_name = "DIR", default_value = "/var/lib/aliquot")]
    state: PathBuf,

    /// Address of /metrics, /healthz and /readyz; `none` serves none of them
    #[arg(long, env = "ALIQUOT_METRICS_ADDRESS", value_name = "IP:PORT", default_value = "127.0.0.1:9465")]
    metrics_address: String,

    /// UID of the agent's Pod: lets two agents overlap while one replaces the other
    #[arg(long, env = "POD_UID", value_name = "UID")]
    pod_uid: Option<String>,

    /// Longest wait for another process that holds the state directory, in seconds
    #[arg(long, env = "ALIQUOT_STATE_WAIT", value_name = "SECONDS", default_value_t = 60, value_parser = seconds)]
    state_wait: u32,

    /// What is logged: error, warn, info, debug or trace, also by module as in info,aliquot_driver::kube=debug
    #[arg(long, env = "ALIQUOT_LOG", value_name = "FILTER", default_value = "info")]
    log: String,

    /// Form of log lines on standard error
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

pub(super) fn run(args: &Args) -> Result<CommandAnswer, Failure> {
    let settings = settings(args)?;
    start_log(args)?;
    start::run(settings).map_err(|error| Failure::Node(chain(&error)))?;
    Ok(CommandAnswer::Yes)
}

fn settings(args: &Args) -> Result<AgentSettings, Failure> {
    let node_name = NodeName::new(args.node_name.as_str());
    let node_name = node_name.map_err(|error| Failure::Usage(format!("--node-name: {error}")))?;
    let metrics = match args.metrics_address.as_str() {
        "none" => None,
        text => Some(text.parse::<SocketAddr>().map_err(|error| {
            Failure::Usage(format!("--metrics-address: found `{text}` ({error}), expected IP:PORT or none"))
        })?),
    };
    let plugin = args.plugin_dir.clone();
    Ok(AgentSettings {
        node_name: node_name.clone(),
        hardware: HardwareSettings {
            node: args.node.clone(),
            policy: args.policy.clone(),
            catalogue: args.catalogue.clone(),
            driver: HostRoots { host: args.host_root.clone(), driver: args.driver_root.clone() },
        },
        cluster: match &args.kubeconfig {
            Some(file) => ClusterAccess::Kubeconfig { file: Some(file.clone()), context: None },
            None => ClusterAccess::Inferred,
        },
        state: args.state.clone(),
        cdi: args.cdi_dir.clone(),
        state_wait: Duration::from_secs(args.state_wait.into()),
        agent: AgentConfig {
            node: node_name,
            registry: args.kubelet_root.join("plugins_registry"),
            plugin: plugin.unwrap_or_else(|| args.kubelet_root.join("plugins/aliquot.dev")),
            record: KubeletRecord {
                host: args.host_root.clone(),
                file: args.kubelet_root.join(claim_state::FILE),
            },
            // Simulated cards are of no other driver.
            kubelet: args
                .node
                .is_none()
                .then(|| KubeletPlace { host: args.host_root.clone(), root: args.kubelet_root.clone() }),
            pod: args.pod_uid.clone().filter(|uid| !uid.is_empty()),
            metrics,
            pace: AgentPace::SERVICE,
        },
    })
}

fn start_log(args: &Args) -> Result<(), Failure> {
    // The client repeats as an error what its callers report with the remedy, for as long as a server is away.
    let filter = EnvFilter::try_new(format!("kube_client::client::builder=off,{}", args.log));
    let filter = filter.map_err(|error| Failure::Usage(format!("--log: {error}")))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match args.log_format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    started.map_err(|error| Failure::Node(format!("the log cannot be started: {error}")))
}
