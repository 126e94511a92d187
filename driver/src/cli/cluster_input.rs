//! Manifests, a live cluster (`--cluster`), or both: what `plan` and `explain` read.

use std::path::PathBuf;

use crate::kube::{ClusterAccess, ConnectError, Connection, listing};
use crate::manifest::{Manifests, Reader};

use super::failure::Failure;
use super::input;
use super::output::Terminal;
use super::progress::StatusLine;

/// Manifests and cluster to read.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct InputArgs {
    /// Manifest, directory of manifests (*.yaml, *.yml, *.json), or - for standard input; repeatable
    #[arg(short = 'f', long = "filename", value_name = "FILE", required_unless_present = "cluster")]
    files: Vec<PathBuf>,

    /// Read a live cluster: slices, classes, claims, templates, nodes, Pods, namespaces, taint rules. Without CONTEXT, the
    /// kubeconfig's current one; without a kubeconfig, the Pod's ServiceAccount
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    cluster: Option<String>,

    /// Kubeconfig for --cluster instead of those that kubectl reads
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,
}

/// Reads everything that the command line names: the cluster first, then the files.
pub(super) fn read(args: &InputArgs, terminal: &mut Terminal<'_>) -> Result<Manifests, Failure> {
    let mut reader = Reader::new();
    if let Some(context) = &args.cluster {
        read_cluster(&access(context, args.kubeconfig.clone()), &mut reader, terminal)?;
    }
    input::read_files(&mut reader, &args.files, terminal)?;
    input::finish(reader, terminal)
}

/// The objects of a live cluster.
pub(super) fn read_live(
    context: &str,
    kubeconfig: Option<PathBuf>,
    terminal: &mut Terminal<'_>,
) -> Result<Manifests, Failure> {
    let mut reader = Reader::new();
    read_cluster(&access(context, kubeconfig), &mut reader, terminal)?;
    input::finish(reader, terminal)
}

fn access(context: &str, file: Option<PathBuf>) -> ClusterAccess {
    let context = Some(context.to_owned()).filter(|context| !context.is_empty());
    if file.is_none() && context.is_none() {
        return ClusterAccess::Inferred;
    }
    ClusterAccess::Kubeconfig { file, context }
}

fn read_cluster(
    access: &ClusterAccess,
    reader: &mut Reader,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::Node(format!("cluster: no runtime can be started: {error}; free some memory"))
    })?;
    let mut line = StatusLine::new(&mut *terminal.err, terminal.progress);
    let read = runtime.block_on(async {
        let connection = Connection::open(access).await.map_err(|error| match error {
            ConnectError::NoKubeconfig { .. } | ConnectError::NoContext { .. } => {
                Failure::Usage(error.to_string())
            }
            other => Failure::Node(other.to_string()),
        })?;
        let listed =
            listing::read(&connection, reader, |done, all| line.at("reading the cluster", done, all)).await;
        listed.map_err(|error| Failure::Node(error.to_string()))
    })?;
    drop(line);
    for resource in read.unread {
        let message = "found no right to list them, so what depends on their labels is not decided here";
        terminal.note(format_args!("note: {resource} are not read: {message}"))?;
    }
    Ok(())
}
