//! `aliquot convert`: manifests and configurations of other systems as Aliquot's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use aliquot_core::catalogue::{CardModel, Catalogue};
use aliquot_core::dra::{AttributeValue, Device};
use aliquot_core::offer::{CAPACITY_MEMORY, DRIVER};
use aliquot_core::units::Bytes;
use serde_json::json;

use crate::convert::{Cards, ConvertError, KnownCard, Settings, Source, System, convert};
use crate::kube::listing::NamespaceScope;
use crate::manifest::{Manifests, yaml_document};

use super::cluster_input::{self, read_live};
use super::failure::{CommandAnswer, Failure};
use super::input::{self, FileArgs};
use super::manual::manual;
use super::nodes::{Fleet, NodeArgs};
use super::output::Terminal;

const EXAMPLES: &str = "\
Examples:
  aliquot convert -f deployment.yaml
  aliquot convert -f deployment.yaml --cluster | kubectl apply -f -
  aliquot convert -f pod.yaml --node 8xh100 | aliquot plan -f - --node 8xh100
  aliquot convert -f mig-parted.yaml --select all-balanced > policy.toml

Exit codes here: 0 everything was carried, 1 something was not, 2 an input cannot be read.";

/// Label of nodes with the product of their NVIDIA cards, by GPU feature discovery.
const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";

/// Turn manifests written for other systems that share cards into Aliquot's
///
/// Reads Pods and whatever makes Pods, claims, and configurations, as written for HAMi, NVIDIA's device plugin, DRA
/// driver and mig-parted, vgpu-manager, Volcano, KAI, Run:ai, TensorFusion, Koordinator, Aliyun, Tencent, GKE and
/// Huawei. Prints what to apply instead; everything that is not about cards stays. Each field that could not be carried is one line of
/// standard error: file, field, value, reason, remedy. A configuration alone becomes a policy file. Nothing else is
/// written. A percentage of memory is an amount only for known card models: name them by --cluster or --node.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    #[command(flatten)]
    files: FileArgs,

    /// Read the words of this system alone; without it, those of all
    #[arg(long, value_enum, value_name = "SYSTEM")]
    from: Option<FromSystem>,

    /// One of several named configurations
    #[arg(long, value_name = "NAME")]
    select: Option<String>,

    /// MIG profile that nvidia.com/gpu stands for, under strategy `single` of NVIDIA's plugin
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,

    /// Node file, built-in node, or COUNTxMODEL that has the cards; repeatable
    #[arg(long = "node", value_name = "NODE", conflicts_with = "cluster")]
    nodes: Vec<String>,

    /// Take the card models from a live cluster. Without CONTEXT, the kubeconfig's current one
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    cluster: Option<String>,

    /// Kubeconfig for --cluster instead of those that kubectl reads
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,

    /// Directory of card models (TOML) that add to the built-in catalogue or replace models of it
    #[arg(long, value_name = "DIR")]
    catalogue: Option<PathBuf>,
}

/// The system that a manifest was written for.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FromSystem {
    Hami,
    /// NVIDIA's device plugin
    Nvidia,
    /// NVIDIA's DRA driver
    NvidiaDra,
    MigParted,
    VgpuManager,
    Volcano,
    /// KAI and Run:ai
    Kai,
    TensorFusion,
    Koordinator,
    Aliyun,
    Tencent,
    Gke,
    Huawei,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let mut files = args.files.clone();
    let context = cluster_input::context_of(args.cluster.as_deref(), &mut files.more);
    if files.files.is_empty() && files.more.is_empty() {
        let message = "found no input, expected manifests; name them with -f FILE (- is standard input)";
        return Err(Failure::Usage(message.to_owned()));
    }
    let texts = input::texts(&files, terminal)?;
    let fleet = fleet(args, terminal)?;
    let live = match &context {
        Some(context) => {
            Some(read_live(context, args.kubeconfig.clone(), &NamespaceScope::Readable, terminal)?)
        }
        None => None,
    };
    let cards = Cards {
        at_hand: at_hand(&fleet, live.as_ref()),
        catalogue: fleet.catalogue.models().iter().collect(),
    };
    let sources: Vec<Source<'_>> = texts.iter().map(|(name, text)| Source { name, text }).collect();
    let settings = Settings {
        from: args.from.map(FromSystem::system),
        select: args.select.clone(),
        profile: args.profile.clone(),
    };
    let mut converted = convert(&sources, &cards, &settings)
        .map_err(|ConvertError { file, what }| Failure::input(file, what))?;
    if let Some(policy) = converted.policy.take() {
        if converted.documents.is_empty() {
            terminal.out.write_all(policy.as_bytes())?;
        } else {
            converted.documents.push(json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": { "name": "aliquot-policy" },
                "data": { "policy.toml": policy },
            }));
        }
    }
    for document in &converted.documents {
        terminal.line("---")?;
        terminal.out.write_all(yaml_document(document).as_bytes())?;
    }
    for note in &converted.notes {
        terminal.note(format_args!("note: {note}"))?;
    }
    for loss in &converted.losses {
        terminal.note(loss)?;
    }
    Ok(if converted.losses.is_empty() { CommandAnswer::Yes } else { CommandAnswer::No })
}

/// The nodes of the command line, or none, with the catalogue.
fn fleet(args: &Args, terminal: &mut Terminal<'_>) -> Result<Fleet, Failure> {
    let nodes =
        NodeArgs { nodes: args.nodes.clone(), catalogue: args.catalogue.clone(), ..NodeArgs::default() };
    Fleet::load(&nodes, terminal)
}

/// Models of the nodes, of the published cards and of labelled nodes, each once.
fn at_hand<'c>(fleet: &'c Fleet, live: Option<&Manifests>) -> Vec<KnownCard<'c>> {
    let mut found: BTreeMap<&str, KnownCard<'c>> = BTreeMap::new();
    let mut take = |model: &'c CardModel, memory: Bytes| {
        let known = found.entry(model.id.as_str()).or_insert(KnownCard { model, memory });
        // What fits on the smallest fits on all.
        known.memory = known.memory.min(memory);
    };
    for card in fleet.nodes.iter().flat_map(|node| &node.inventory.cards) {
        if let Some(model) = fleet.catalogue.model(&card.model) {
            take(model, card.memory);
        }
    }
    let Some(live) = live else { return found.into_values().collect() };
    let ours = live.slices.iter().filter(|slice| slice.driver == DRIVER);
    for device in ours.flat_map(|slice| &slice.devices) {
        if let Some((model, memory)) = published(device, &fleet.catalogue) {
            take(model, memory);
        }
    }
    for product in live.nodes.iter().filter_map(|node| node.labels.get(PRODUCT_LABEL)) {
        for model in of_product(product, &fleet.catalogue) {
            take(model, model.memory);
        }
    }
    found.into_values().collect()
}

fn published<'c>(device: &Device, catalogue: &'c Catalogue) -> Option<(&'c CardModel, Bytes)> {
    let text = |name: &str| match device.attributes.get(name) {
        Some(AttributeValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let model = text("type").filter(|kind| *kind == "card").and(text("model"))?;
    let model = catalogue.models().iter().find(|known| known.id.as_str() == model)?;
    let memory = device.capacity.get(CAPACITY_MEMORY)?.value;
    Some((model, Bytes(u64::try_from(memory.units_rounded_up()).ok()?)))
}

/// Models of a product as the label has it: dashes for spaces, and how it is shared behind it.
fn of_product<'c>(label: &str, catalogue: &'c Catalogue) -> Vec<&'c CardModel> {
    let product = label.split("-MIG-").next().unwrap_or(label);
    let product = product.strip_suffix("-SHARED").unwrap_or(product);
    let is = |model: &&CardModel| {
        model.matching.product_names.iter().any(|name| name.replace(' ', "-").eq_ignore_ascii_case(product))
    };
    catalogue.models().iter().filter(is).collect()
}

// === impl FromSystem ===

impl FromSystem {
    const fn system(self) -> System {
        match self {
            Self::Hami => System::Hami,
            Self::Nvidia => System::Nvidia,
            Self::NvidiaDra => System::NvidiaDra,
            Self::MigParted => System::MigParted,
            Self::VgpuManager => System::VgpuManager,
            Self::Volcano => System::Volcano,
            Self::Kai => System::Kai,
            Self::TensorFusion => System::TensorFusion,
            Self::Koordinator => System::Koordinator,
            Self::Aliyun => System::Aliyun,
            Self::Tencent => System::Tencent,
            Self::Gke => System::Gke,
            Self::Huawei => System::Huawei,
        }
    }
}
