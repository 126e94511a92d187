//! `aliquot slices`: what nodes would publish.

use crate::manifest::Object;

use super::failure::{CommandAnswer, Failure};
use super::manual::manual;
use super::nodes::{Fleet, NodeArgs};
use super::output::{Format, Side, Terminal};

const EXAMPLES: &str = "\
Examples:
  aliquot slices --node 8xh100
  aliquot slices --node mixed --policy layouts.toml -o yaml | kubectl apply --dry-run=server -f -";

/// Print the `ResourceSlice`s that nodes would publish
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    #[command(flatten)]
    nodes: NodeArgs,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let fleet = Fleet::load(&args.nodes, terminal)?.some()?;
    let slices = || fleet.nodes.iter().flat_map(|n| &n.slices);
    if args.output != Format::Table {
        terminal.list(args.output, slices().map(|slice| Object::Slice(slice).json()), Vec::new())?;
        return Ok(fleet.answer(CommandAnswer::Yes));
    }
    let columns = [
        ("SLICE", Side::Left),
        ("POOL", Side::Left),
        ("DEVICES", Side::Right),
        ("COUNTER SETS", Side::Right),
        ("BYTES", Side::Right),
    ];
    let rows = slices()
        .map(|slice| {
            vec![
                slice.name.clone(),
                slice.pool.name.clone(),
                slice.devices.len().to_string(),
                slice.shared_counters.len().to_string(),
                Object::Slice(slice).json().to_string().len().to_string(),
            ]
        })
        .collect();
    terminal.table(&columns, rows)?;
    Ok(fleet.answer(CommandAnswer::Yes))
}
