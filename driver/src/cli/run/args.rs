//! The options of `aliquot run`.

use std::ffi::OsString;
use std::path::PathBuf;

use aliquot_core::grant::{ComputePolicy, FailMode, Priority, SettingWord};
use aliquot_core::units::{Bytes, Cores};

use super::super::nodes::NodeArgs;
use super::words::{cores, memory};

const EXAMPLES: &str = "\
Examples:
  aliquot run --memory 8Gi --cores 25 -- python serve.py
  aliquot run --node h100-8 --memory 8Gi --cores 25 -- python serve.py
  aliquot run --node h100-8 --template 1g.10gb -- ./train
  aliquot run --node t4-2 --fraction 1/4 --compute-policy burst -- ./batch";

const EXIT_CODES: &str = "\
Exit codes:
  those of the command; 128 and its number where a signal ended it
  125  the part cannot be had, or Aliquot itself failed: standard error says why
  126  the command cannot be run
  127  there is no such command

The part stays granted until the command and all its descendants have ended, also if
`aliquot run` itself is killed; the next call on the same state then releases it.
State lies below /var/lib/aliquot for root, else below $XDG_STATE_HOME/aliquot or
~/.local/state/aliquot.";

/// Run a command on a part of a card: no cluster needed
///
/// Several commands share a card; together they never get more than it has. The command sees its part and nothing else of
/// the card: memory beyond it is refused with the vendor's own error.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(in crate::cli) struct Args {
    /// Memory of the card, such as 8Gi; default: all of the part
    #[arg(long, value_name = "SIZE", value_parser = memory, allow_hyphen_values = true)]
    pub(super) memory: Option<Bytes>,

    /// Compute in percent of the whole card, 0 to 100; 0: only idle time. Default: 0 with --memory, else all of the part
    #[arg(long, value_name = "PERCENT", value_parser = cores, allow_hyphen_values = true)]
    pub(super) cores: Option<Cores>,

    /// Which card: its UUID, the beginning of it, or its index; without it any that `CUDA_VISIBLE_DEVICES` shows
    #[arg(long, value_name = "CARD", alias = "gpu", allow_hyphen_values = true)]
    pub(super) card: Option<String>,

    /// Partition of this template, such as 1g.10gb
    #[arg(long, value_name = "TEMPLATE", allow_hyphen_values = true)]
    pub(super) template: Option<String>,

    /// Part of a card, such as 1/4, 25%, `1/4 H100`
    #[arg(long, value_name = "PART", conflicts_with_all = ["memory", "cores", "template"], allow_hyphen_values = true)]
    pub(super) fraction: Option<String>,

    /// Use of others' idle compute: cap (none), burst (beyond the guarantee) or best-effort (idle compute only)
    #[arg(long = "compute-policy", alias = "policy", value_name = "POLICY", default_value = "cap", value_parser = policy)]
    pub(super) policy: Policy,

    /// Order in which runs get idle compute: low, normal or high
    #[arg(long, value_name = "PRIORITY", default_value = "normal", value_parser = spelled::<Priority>)]
    pub(super) priority: Priority,

    /// Behaviour if limits cannot be enforced: closed refuses calls, open lets them pass
    #[arg(long, value_name = "MODE", default_value = "closed", value_parser = spelled::<FailMode>)]
    pub(super) fail_mode: FailMode,

    /// Simulated cards: node file, built-in node, or COUNTxMODEL; without it, this machine's own cards
    #[arg(long, value_name = "NODE", visible_alias = "sim")]
    pub(super) node: Option<String>,

    /// Layout policy (TOML): what each card is published as. Without it every card is `auto`
    #[arg(long, value_name = "FILE")]
    pub(super) layouts: Option<PathBuf>,

    /// Directory of card models (TOML) that add to the built-in catalogue or replace models of it
    #[arg(long, value_name = "DIR")]
    pub(super) catalogue: Option<PathBuf>,

    /// State directory: runs with the same one share its cards
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,

    /// Name of the run; default: its program and process id
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(super) name: Option<String>,

    /// Command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    pub(super) command: Vec<OsString>,
}

/// Compute policy, as on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Of(ComputePolicy),
    BestEffort,
}

fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = (1..=63).contains(&text.len()) && text.chars().all(plain) && !text.starts_with('-');
    if fits { Ok(text.to_owned()) } else { Err("expected 1 to 63 of a-z, 0-9 and `-`".to_owned()) }
}

fn policy(text: &str) -> Result<Policy, String> {
    match text {
        "best-effort" => Ok(Policy::BestEffort),
        word => ComputePolicy::of_word(word)
            .map(Policy::Of)
            .ok_or_else(|| "expected cap, burst or best-effort".to_owned()),
    }
}

fn spelled<T: SettingWord>(text: &str) -> Result<T, String> {
    T::of_word(text).ok_or_else(|| format!("expected {}", T::words()))
}

// === impl Args ===

impl Args {
    pub(super) fn nodes(&self) -> NodeArgs {
        NodeArgs {
            nodes: self.node.iter().cloned().collect(),
            policy: self.layouts.clone(),
            catalogue: self.catalogue.clone(),
            state: self.state.clone(),
            ..NodeArgs::default()
        }
    }
}
