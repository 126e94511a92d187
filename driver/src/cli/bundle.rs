//! `aliquot bundle`: a support archive of this machine, its agent and its cluster.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_abi::layout::usage;
use aliquot_core::catalogue::Catalogue;

use super::doctor::AGENT_STATE;
use super::failure::{CommandAnswer, Failure};
use super::machine_args::MachineArgs;
use super::manual::manual;
use super::output::{Progress, Terminal};
use super::run::state_of;
use crate::bundle::commands::answer;
use crate::bundle::files::{Kept, file, names, tree};
use crate::bundle::{Archive, Contents, Entry, Sink};
use crate::clock;
use crate::error_text::chain;
use crate::kube::{Connection, node_objects};
use crate::kubelet::claim_state;
use crate::kubelet::sockets::KUBELET_ROOT;

const EXAMPLES: &str = "\
Examples:
  sudo aliquot bundle --node-name worker-1 --kubeconfig admin.conf
  kubectl -n aliquot exec POD -- aliquot bundle - > bundle.tar.gz
  aliquot bundle my-laptop.tar.gz";

/// What is read of each machine beside its state: the kernel and the vendor's driver.
const FACTS: &[(&str, &str)] = &[
    ("machine/kernel", "proc/version"),
    ("machine/os-release", "usr/lib/os-release"),
    ("machine/memory", "proc/meminfo"),
    ("machine/load", "proc/loadavg"),
    ("machine/uptime", "proc/uptime"),
    ("machine/modules", "proc/modules"),
    ("machine/nvidia-driver", "proc/driver/nvidia/version"),
];

/// Write a support archive: logs, checks, cards, present use, the journal, published slices, claims of the node
///
/// The archive is a tar.gz with a README.txt that lists each file, and each part that could not be read with the reason. Parts:
/// answers of `doctor`, `devices`, `top` and `health`; state directory with journal, grants and health records; CDI files of
/// Aliquot; the kubelet's record of claims and the names of its sockets; the agent's logs below /var/log/pods; kernel and driver
/// versions; and, with access to the cluster, the node, its slices, claims, Pods and Events, and all device classes.
///
/// Nothing is changed. Not read: Secrets, ConfigMaps, environments and arguments of processes and Pods. Names of claims,
/// Pods, images and the cluster's nodes are in the archive: look through it before it leaves your organisation.
///
/// What this user cannot read is left out and named; root on the node, or the agent's own container, reads all of it. A part
/// that hangs with a card is left after a minute.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Where to write it, `-` for standard output; without it aliquot-bundle.tar.gz, or aliquot-bundle-NODE.tar.gz. A file
    /// that exists is not replaced
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    #[command(flatten)]
    machine: MachineArgs,

    /// State directory; without it the agent's (/var/lib/aliquot), or that of `aliquot run` where there is none
    #[arg(long, env = "ALIQUOT_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
}

/// What is read, and where it is.
struct Place<'a> {
    machine: &'a MachineArgs,
    state: PathBuf,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let machine = &args.machine;
    let name = match machine.node_name()? {
        Some(node) => format!("aliquot-bundle-{node}"),
        None => "aliquot-bundle".to_owned(),
    };
    let state = match &args.state {
        Some(state) => state.clone(),
        None if machine.node_name.is_some() || Path::new(AGENT_STATE).is_dir() => AGENT_STATE.into(),
        None => state_of(machine.node.as_deref(), &Catalogue::embedded())?,
    };
    // Other commands want it so.
    let state = std::path::absolute(&state).map_err(|source| cannot("find", &state, source))?;
    let place = Place { machine, state };
    let file = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    // Progress that cannot be shown is no reason to stop.
    let (show, err) = (terminal.progress, &mut *terminal.err);
    let mut reading = |part: &str| {
        if show == Progress::On {
            drop(writeln!(err, "reading {part}"));
        }
    };
    if file == Path::new("-") {
        if io::stdout().is_terminal() {
            let why = "FILE: found `-` with a terminal as standard output, expected a pipe or a file";
            return Err(Failure::Usage(why.to_owned()));
        }
        let contents = place.write(&name, &mut *terminal.out, &mut reading)?;
        return said(contents, "standard output", terminal);
    }
    // Under its own name only as a whole.
    let mut partial = file.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    if file.symlink_metadata().is_ok() {
        return Err(cannot("create", &file, io::ErrorKind::AlreadyExists.into()));
    }
    let made = File::options().write(true).create_new(true).mode(0o600).open(&partial);
    let made = made.map_err(|source| cannot("create", &partial, source))?;
    let written = place.write(&name, BufWriter::new(&made), &mut reading).and_then(|contents| {
        made.sync_all()
            .and_then(|()| fs::rename(&partial, &file))
            .map(|()| contents)
            .map_err(|source| cannot("write", &file, source))
    });
    if written.is_err() {
        // What is said of the first failure matters.
        drop(fs::remove_file(&partial));
    }
    said(written?, &file.display().to_string(), terminal)
}

fn cannot(verb: &'static str, path: &Path, source: io::Error) -> Failure {
    let advice = "Name another file, or remove this one";
    Failure::Path { verb, path: path.to_owned(), source, advice }
}

fn said(contents: Contents, place: &str, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let Contents { files, absent } = contents;
    terminal.note(format!("{place}: {files} files; {absent} parts absent, README.txt has the reasons"))?;
    Ok(CommandAnswer::Yes)
}

// === impl Place ===

impl Place<'_> {
    /// Writes the archive, one part after the other; `reading` is told which.
    fn write(&self, name: &str, out: impl Write, reading: &mut dyn FnMut(&str)) -> Result<Contents, Failure> {
        let mut archive = Archive::new(out, name, clock::unix());
        let mut sink = |entry| archive.add(entry);
        reading("commands");
        self.commands().try_for_each(&mut sink)?;
        reading("cluster");
        self.cluster().into_iter().try_for_each(&mut sink)?;
        reading("logs");
        self.logs(&mut sink)?;
        reading("files");
        self.files(&mut sink)?;
        Ok(archive.finish(&self.about())?)
    }

    /// The head of README.txt.
    fn about(&self) -> String {
        let node = self.machine.node_name.as_deref().unwrap_or("not named");
        format!(
            "Support archive of aliquot {}, node {node}, made {} s after 1970-01-01 UTC.\nState {}, host root {}.\n\nNot read: \
         Secrets, ConfigMaps, environments and arguments of processes and Pods.\nWhat tenants wrote (usage files, names) is \
         copied as it was.\n",
            env!("CARGO_PKG_VERSION"),
            clock::unix().0,
            self.state.display(),
            self.machine.host_root.display(),
        )
    }

    /// State comes last, and of it little of what tenants can write.
    fn files(&self, sink: &mut Sink<'_>) -> io::Result<()> {
        let machine = self.machine;
        for (path, from) in FACTS {
            sink(file(path, &machine.host_root.join(from), Kept::FIRST))?;
        }
        let kubelet = machine.kubelet_root.as_deref().unwrap_or_else(|| Path::new(KUBELET_ROOT));
        sink(file("kubelet/claims", &kubelet.join(claim_state::FILE), Kept::FIRST))?;
        sink(names("kubelet/registry.txt", &kubelet.join("plugins_registry")))?;
        sink(names("kubelet/plugins.txt", &kubelet.join("plugins")))?;
        sink(names("cdi/names.txt", &machine.cdi_dir))?;
        let of_cdi = |path: &str| path.starts_with("aliquot.dev-claim-").then_some(Kept::FIRST);
        tree("cdi", &machine.cdi_dir, &of_cdi, sink)?;
        let of_state = |path: &str| match path.rsplit('/').next() {
            // Libraries are the program's own, and large.
            _ if path.ends_with(".so") || path.starts_with("cards/") => None,
            Some("usage") => Some(Kept::First(usage::BYTES)),
            _ => Some(Kept::FIRST),
        };
        tree("state", &self.state, &of_state, sink)
    }

    /// Logs of the agent's Pods, as the kubelet keeps them: NAMESPACE_POD_UID/CONTAINER/RESTART.log.
    fn logs(&self, sink: &mut Sink<'_>) -> io::Result<()> {
        let of_agent = |path: &str| {
            let pod = path.split('/').next().and_then(|directory| directory.split('_').nth(1));
            (pod.is_some_and(|pod| pod.starts_with("aliquot")) && path.contains(".log")).then_some(Kept::LAST)
        };
        tree("logs", &self.machine.host_root.join("var/log/pods"), &of_agent, sink)
    }

    /// Answers of this program's other commands, one after the other.
    fn commands(&self) -> impl Iterator<Item = Entry> {
        let node =
            self.machine.node.iter().flat_map(|node| ["--node".into(), node.into()]).collect::<Vec<_>>();
        let state: Vec<OsString> = vec!["--state".into(), self.state.clone().into_os_string()];
        let doctor = [self.machine.repeated(), state.clone()].concat();
        let rows: [(&str, &[&str], Vec<OsString>); 6] = [
            ("version.txt", &["--version"], Vec::new()),
            ("doctor.txt", &["doctor"], doctor.clone()),
            ("doctor.json", &["doctor", "-o", "json"], doctor),
            ("devices.json", &["devices", "-o", "json"], node),
            ("top.json", &["top", "-o", "json"], state.clone()),
            ("health.json", &["health", "-o", "json"], state),
        ];
        rows.into_iter().flat_map(|(path, words, more)| {
            let path = format!("commands/{path}");
            match std::env::current_exe() {
                Ok(program) => answer(&path, Command::new(program).args(words).args(more)),
                Err(error) => vec![Entry::absent(path, error.to_string())],
            }
        })
    }

    /// What the API server has of the node.
    fn cluster(&self) -> Vec<Entry> {
        let Some(node) = &self.machine.node_name else {
            return vec![Entry::absent("cluster", "no --node-name was given")];
        };
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return vec![Entry::absent("cluster", error.to_string())],
        };
        runtime.block_on(async {
            let connection = match Connection::open(&self.machine.cluster()).await {
                Ok(connection) => connection,
                Err(error) => return vec![Entry::absent("cluster", chain(&error))],
            };
            let entry = |(name, found): node_objects::NodeObjects| {
                let path = format!("cluster/{name}.json");
                match found.map(|value| serde_json::to_vec_pretty(&value)) {
                    Ok(Ok(bytes)) => Entry::of(path, bytes),
                    Ok(Err(error)) => Entry::absent(path, error.to_string()),
                    Err(why) => Entry::absent(path, why),
                }
            };
            node_objects::of_node(&connection, node).await.into_iter().map(entry).collect()
        })
    }
}
