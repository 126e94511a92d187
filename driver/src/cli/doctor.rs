//! `aliquot doctor`: what keeps Pods with devices, or local runs, from starting on this machine, one line a check.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use aliquot_core::catalogue::Catalogue;
use serde_json::{Value, json};

use super::failure::{CommandAnswer, Failure};
use super::machine_args::MachineArgs;
use super::manual::manual;
use super::output::{Format, Terminal, Tone};
use super::run::state_of;
use crate::doctor::{
    CardsAt, CheckVerdict, ClusterSight, Finding, MachineAnswer, NodePaths, Purpose, examine, examine_local,
    judge_cluster,
};
use crate::error_text::chain;
use crate::hardware::vendors::HostRoots;
use crate::hardware::{Hardware, MachineCards, node_spec};
use crate::kube::{Connection, survey};
use crate::kubelet::sockets::KUBELET_ROOT;

/// State directory of the agent.
pub(super) const AGENT_STATE: &str = "/var/lib/aliquot";

const EXAMPLES: &str = "\
Examples:
  sudo aliquot doctor --node-name worker-1 --kubeconfig admin.conf
  kubectl -n aliquot exec POD -- aliquot doctor
  aliquot doctor -o json
  aliquot doctor --local";

/// Check whether Pods with devices, or local runs, can start on this machine, and say what to do where they cannot
///
/// One line a check: its verdict, what was found, and the remedy. The checks are those of the first installation: kubelet,
/// container runtime and CDI, other drivers of the same cards, driver libraries, device files, permissions, disks, SELinux,
/// prepared claims after a reboot, sockets, the shim, metrics; and with access to the cluster: versions, feature gates,
/// webhooks, and the published slices against the hardware.
///
/// A machine without directories of a kubelet is checked for `aliquot run`: driver libraries, device files and this user's
/// permissions for them, the state directory, its disk and records, the shim. With --node-name or --kubelet-root the machine is
/// a node; with --local it is not.
///
/// Nothing is changed; a dry run of the API server shows which fields it keeps. What this user cannot see is `not checked`, and
/// never `ok`. The exit code is 1 if a check failed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Check for `aliquot run` alone, also on a node
    #[arg(long)]
    local: bool,

    #[command(flatten)]
    machine: MachineArgs,

    /// State directory; without it the agent's on a node (/var/lib/aliquot), else that of `aliquot run`
    #[arg(long, env = "ALIQUOT_STATE", value_name = "DIR")]
    state: Option<PathBuf>,

    /// Address of the agent's /metrics; `none` does not ask it
    #[arg(long, env = "ALIQUOT_METRICS_ADDRESS", value_name = "IP:PORT", default_value = "127.0.0.1:9465")]
    metrics_address: String,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let purpose = purpose(args);
    let site = site(purpose, args)?;
    let findings = match purpose {
        Purpose::LocalRuns => examine_local(&site),
        Purpose::Pods => examine_node(args, &site)?,
    };
    show(&findings, args.output, terminal)?;
    let failed = findings.iter().any(|finding| finding.verdict == CheckVerdict::Failed);
    Ok(if failed { CommandAnswer::No } else { CommandAnswer::Yes })
}

fn purpose(args: &Args) -> Purpose {
    match args.machine.node_name.is_some() || args.machine.kubelet_root.is_some() {
        _ if args.local => Purpose::LocalRuns,
        true => Purpose::Pods,
        false => Purpose::of_machine(&args.machine.host_root),
    }
}

/// The checks of the node, then those of its cluster.
fn examine_node(args: &Args, site: &NodePaths) -> Result<Vec<Finding>, Failure> {
    let (sight, node) = match args.machine.node_name()? {
        Some(node) => (sight(args, node)?, node),
        None => (Err("no --node-name was given".to_owned()), ""),
    };
    let of_cluster = judge_cluster(&sight, node, &site.cards);
    Ok(examine(site).into_iter().chain(of_cluster).collect())
}

fn site(purpose: Purpose, args: &Args) -> Result<NodePaths, Failure> {
    let metrics = match args.metrics_address.as_str() {
        "none" => None,
        text => Some(text.parse::<SocketAddr>().map(reachable).map_err(|error| {
            Failure::Usage(format!("--metrics-address: found `{text}` ({error}), expected IP:PORT or none"))
        })?),
    };
    let absolute = |name: &str, path: &Path| match path.is_absolute() {
        true => Ok(()),
        false => {
            Err(Failure::Usage(format!("{name}: found `{}`, expected an absolute path", path.display())))
        }
    };
    let kubelet = args.machine.kubelet_root.clone().unwrap_or_else(|| KUBELET_ROOT.into());
    absolute("--kubelet-root", &kubelet)?;
    absolute("--cdi-dir", &args.machine.cdi_dir)?;
    let state = match (&args.state, purpose) {
        (Some(state), _) => state.clone(),
        (None, Purpose::Pods) => AGENT_STATE.into(),
        (None, Purpose::LocalRuns) => state_of(args.machine.node.as_deref(), &Catalogue::embedded())?,
    };
    absolute("--state", &state)?;
    Ok(NodePaths {
        root: args.machine.host_root.clone(),
        kubelet,
        state,
        cdi: args.machine.cdi_dir.clone(),
        driver: args.machine.driver_root.clone(),
        metrics,
        cards: cards(purpose, args)?,
    })
}

/// The address for a call: the agent may listen on all addresses of its Pod, of which one is here.
fn reachable(listens: SocketAddr) -> SocketAddr {
    match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, listens.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((Ipv6Addr::LOCALHOST, listens.port())),
        _ => listens,
    }
}

/// The cards as the agent opens them, with the driver's files of the host, and not with what a container happens to have; or as
/// `aliquot run` opens them.
fn cards(purpose: Purpose, args: &Args) -> Result<CardsAt, Failure> {
    let catalogue = Catalogue::embedded();
    let Some(node) = &args.machine.node else {
        let place =
            HostRoots { host: args.machine.host_root.clone(), driver: args.machine.driver_root.clone() };
        let machine = match purpose {
            Purpose::Pods => MachineCards::open_for_containers(&catalogue, &place),
            Purpose::LocalRuns => MachineCards::open(&catalogue),
        };
        let machine = machine.map_err(|error| error.to_string());
        let answer = machine.and_then(|machine| {
            let cards = machine.backend().discover().map_err(|error| chain(&error))?;
            Ok(MachineAnswer { cards, trouble: machine.backend().trouble() })
        });
        return Ok(CardsAt::Machine(answer));
    };
    let hardware = Hardware::in_memory(&node_spec(node, &catalogue)?, &catalogue)?;
    let cards = hardware.discover().map_err(|error| Failure::Node(chain(&error)))?;
    Ok(CardsAt::Simulated(cards))
}

/// What the cluster says; the inner error is a reason for not checking it.
fn sight(args: &Args, node: &str) -> Result<Result<ClusterSight, String>, Failure> {
    let access = args.machine.cluster();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::Node(format!("cluster: no runtime can be started: {error}; free some memory"))
    })?;
    Ok(runtime.block_on(async {
        let connection = Connection::open(&access).await.map_err(|error| chain(&error))?;
        Ok(survey::survey(&connection, node).await)
    }))
}

fn show(findings: &[Finding], output: Format, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    if output != Format::Table {
        let value = |finding: &Finding| {
            json!({
                "check": finding.check,
                "verdict": finding.verdict.word(),
                "found": finding.found,
                "remedy": finding.remedy,
            })
        };
        let checks: Vec<Value> = findings.iter().map(value).collect();
        return Ok(terminal.value(output, &json!({ "checks": checks }))?);
    }
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    for finding in findings {
        let word = format!("{:<11}", finding.verdict.word());
        let word = match finding.verdict {
            CheckVerdict::Ok => terminal.toned(Tone::Good, &word),
            CheckVerdict::Failed | CheckVerdict::Warning => terminal.toned(Tone::Bad, &word),
            CheckVerdict::NotChecked => word,
        };
        let remedy = if finding.remedy.is_empty() { String::new() } else { format!("; {}", finding.remedy) };
        // One line a check, whatever a file or a server said.
        let text = format!("{}{remedy}", finding.found).replace('\n', " ");
        terminal.line(format_args!("{word}  {:<width$}  {text}", finding.check))?;
    }
    Ok(())
}
