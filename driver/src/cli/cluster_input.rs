//! Manifests, a live cluster (`--cluster`), or both: what `plan` and `explain` read.

use std::path::{Path, PathBuf};

use tokio::runtime::Runtime;

use crate::kube::listing::{self, ListingSummary, NamespaceScope, Unread};
use crate::kube::{ClusterAccess, ConnectError, Connection};
use crate::manifest::{Manifests, Reader};

use super::failure::Failure;
use super::input;
use super::output::Terminal;
use super::progress::StatusLine;

/// Manifests and cluster to read.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct InputArgs {
    /// Manifest, directory of manifests (*.yaml, *.yml, *.json), or - for standard input; repeatable
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    live: LiveArgs,
}

/// Cluster to read.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct LiveArgs {
    /// Read a live cluster: slices, classes, claims, templates, nodes, Pods, namespaces, taint rules. Without CONTEXT, the
    /// kubeconfig's current one; without a kubeconfig, the Pod's ServiceAccount
    #[arg(
        long,
        value_name = "CONTEXT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        group = "live"
    )]
    cluster: Option<String>,

    /// Read a live cluster by this context of the kubeconfig, as kubectl names it; the same as --cluster=CONTEXT
    #[arg(long, value_name = "CONTEXT", group = "live")]
    context: Option<String>,

    /// Kubeconfig for --cluster instead of those that kubectl reads
    #[arg(long, value_name = "FILE", requires = "live")]
    kubeconfig: Option<PathBuf>,
}

/// Namespaces of a cluster, as kubectl names them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct NamespaceArgs {
    /// Namespace that is asked about; where rights end there, it is read instead of all
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,

    /// All namespaces, or none: without the right to read them the command fails
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
}

// === impl NamespaceArgs ===

impl NamespaceArgs {
    /// What to read.
    pub(super) fn scope(&self) -> NamespaceScope {
        match (&self.namespace, self.all_namespaces) {
            (Some(name), _) => NamespaceScope::Named(name.clone()),
            (None, true) => NamespaceScope::All,
            (None, false) => NamespaceScope::Readable,
        }
    }
}

// === impl InputArgs ===

impl InputArgs {
    /// Whether a live cluster is read by the kubeconfig's current context.
    pub(super) fn names_no_context(&self) -> bool {
        self.live.cluster.as_deref() == Some("")
    }
}

// === impl LiveArgs ===

impl LiveArgs {
    /// Whether a cluster is named.
    pub(super) fn is_named(&self) -> bool {
        self.cluster.is_some() || self.context.is_some()
    }

    /// The context of the cluster to read, as [`context_of`].
    fn context(&self, more: &mut Vec<PathBuf>) -> Option<String> {
        self.context.clone().or_else(|| context_of(self.cluster.as_deref(), more))
    }

    /// The objects of the cluster; `None`: none is named.
    pub(super) fn read(
        &self,
        scope: &NamespaceScope,
        terminal: &mut Terminal<'_>,
    ) -> Result<Option<Manifests>, Failure> {
        let Some(context) = self.context(&mut Vec::new()) else { return Ok(None) };
        read_live(&context, self.kubeconfig.clone(), scope, terminal).map(Some)
    }
}

/// Reads everything that the command line names: the cluster first, then the files. `more` are words without an option: files,
/// or the context behind `--cluster`.
pub(super) fn read(
    args: &InputArgs,
    scope: &NamespaceScope,
    more: &[PathBuf],
    terminal: &mut Terminal<'_>,
) -> Result<Manifests, Failure> {
    let mut more = more.to_vec();
    let context = args.live.context(&mut more);
    let files: Vec<PathBuf> = args.files.iter().cloned().chain(more).collect();
    if context.is_none() && files.is_empty() {
        let message = "found no input, expected manifests; name them with -f FILE (- is standard input), or a live cluster with \
                       --cluster";
        return Err(Failure::Usage(message.to_owned()));
    }
    let (mut reader, mut read) = (Reader::new(), None);
    if let Some(context) = &context {
        read =
            Some(read_cluster(&access(context, args.live.kubeconfig.clone()), scope, &mut reader, terminal)?);
    }
    input::read_files(&mut reader, &files, terminal)?;
    let mut manifests = input::finish(reader, terminal)?;
    if let Some(read) = read {
        note_rest(&mut manifests, &read);
    }
    Ok(manifests)
}

/// Notes what a cluster's listing says beside its objects.
fn note_rest(manifests: &mut Manifests, read: &ListingSummary) {
    manifests.hidden = read.unread.iter().filter_map(Unread::hides).map(str::to_owned).collect();
    if manifests.kubelet.is_none() {
        // Nodes that may not be read have kubelets no newer than the server.
        manifests.kubelet = read.version.map(|server| format!("v1.{}.{}", server.minor, server.patch));
    }
}

/// The context of a cluster to read: that of `--cluster`, or else the first word without an option that is no file, which is taken
/// out of `more`. Empty: the kubeconfig's current one; `None`: no cluster.
pub(super) fn context_of(cluster: Option<&str>, more: &mut Vec<PathBuf>) -> Option<String> {
    let context = cluster?;
    match more.iter().position(|word| !is_file(word)).filter(|_| context.is_empty()) {
        Some(at) => Some(more.remove(at).display().to_string()),
        None => Some(context.to_owned()),
    }
}

/// The objects of a live cluster.
pub(super) fn read_live(
    context: &str,
    kubeconfig: Option<PathBuf>,
    scope: &NamespaceScope,
    terminal: &mut Terminal<'_>,
) -> Result<Manifests, Failure> {
    let mut reader = Reader::new();
    let read = read_cluster(&access(context, kubeconfig), scope, &mut reader, terminal)?;
    let mut manifests = input::finish(reader, terminal)?;
    note_rest(&mut manifests, &read);
    Ok(manifests)
}

/// Whether a word without an option is a file, or looks like one.
fn is_file(word: &Path) -> bool {
    word == Path::new("-") || word.exists() || is_manifest(word) || word.to_string_lossy().contains("://")
}

/// Whether a word ends as the name of a manifest does.
pub(super) fn is_manifest(word: &Path) -> bool {
    word.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e == *known))
}

fn access(context: &str, file: Option<PathBuf>) -> ClusterAccess {
    let context = Some(context.to_owned()).filter(|context| !context.is_empty());
    if file.is_none() && context.is_none() {
        return ClusterAccess::Inferred;
    }
    ClusterAccess::Kubeconfig { file, context }
}

/// A connection to a cluster, and the runtime that drives it. An empty context is the kubeconfig's current one.
pub(super) fn open(context: &str, kubeconfig: Option<PathBuf>) -> Result<(Runtime, Connection), Failure> {
    connect(&access(context, kubeconfig))
}

fn connect(access: &ClusterAccess) -> Result<(Runtime, Connection), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::Node(format!("cluster: no runtime can be started: {error}; free some memory"))
    })?;
    let connection = runtime.block_on(Connection::open(access)).map_err(|error| match error {
        ConnectError::NoKubeconfig { .. } | ConnectError::NoContext { .. } => {
            Failure::Usage(error.to_string())
        }
        other => Failure::Node(other.to_string()),
    })?;
    Ok((runtime, connection))
}

fn read_cluster(
    access: &ClusterAccess,
    scope: &NamespaceScope,
    reader: &mut Reader,
    terminal: &mut Terminal<'_>,
) -> Result<ListingSummary, Failure> {
    let (runtime, connection) = connect(access)?;
    let mut line = StatusLine::new(&mut *terminal.err, terminal.progress);
    let read = runtime.block_on(async {
        let at = |done, all| line.at("reading the cluster", done, all);
        let listed = listing::read(&connection, scope, reader, at).await;
        listed.map_err(|error| Failure::Node(error.to_string()))
    })?;
    drop(line);
    for Unread { resource, only, .. } in &read.unread {
        let of = match only {
            Some(namespace) => format!("{resource} are read of namespace {namespace} alone"),
            None => format!("{resource} are not read"),
        };
        terminal.note(format_args!("note: {of}: found no right to list {}", lists(only.as_ref())))?;
    }
    let hidden: Vec<&str> = read.unread.iter().filter_map(Unread::hides).collect();
    if !hidden.is_empty() {
        terminal.note(format_args!("note: so this is not decided here: {}", hidden.join("; ")))?;
    }
    Ok(read)
}

/// What a list without a right would have been of.
const fn lists(only: Option<&String>) -> &'static str {
    if only.is_some() { "those of all" } else { "them" }
}
