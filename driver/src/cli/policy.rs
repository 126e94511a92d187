//! `aliquot policy`: a layout policy, checked before a node gets it.

use std::path::{Path, PathBuf};

use aliquot_core::offer::{Layout, LayoutPolicy, text};
use serde_json::{Value, json};

use crate::hardware::{read_catalogue, read_text};

use super::failure::{CommandAnswer, Failure};
use super::input::standard_text;
use super::manual::manual;
use super::output::{Format, Side, Terminal};

/// Longest policy from standard input, in bytes, as for a file.
const BYTES_MAX: usize = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  aliquot policy --check policy.toml
  helm get values aliquot -n aliquot -o json | jq -r .policy | aliquot policy --check -";

/// Check a layout policy: its text, and whether any card model can have what it says
///
/// Nothing but the file is read. The answer is 2 with the line and the field if a node would refuse the file, and 1 if a rule is
/// for models that do not exist or for partitions that they do not have. `aliquot devices --node NODE --policy FILE` shows what
/// the cards of a node become.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Layout policy (TOML) to check, or - for standard input
    #[arg(long, value_name = "FILE", required = true)]
    check: PathBuf,

    /// Directory of card models (TOML) that add to the built-in catalogue or replace models of it
    #[arg(long, value_name = "DIR")]
    catalogue: Option<PathBuf>,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let catalogue = read_catalogue(args.catalogue.as_deref())?;
    let (name, policy) = match args.check == Path::new("-") {
        true => ("standard input".to_owned(), standard_text(terminal, BYTES_MAX)?),
        false => {
            let advice = "Check the name given with --check";
            (args.check.display().to_string(), read_text(&args.check, advice)?)
        }
    };
    let (policy, doubts) =
        text::check(&policy, &catalogue).map_err(|error| Failure::input(name.as_str(), error))?;
    for doubt in &doubts {
        terminal.note(format_args!("warning: {name}: {doubt}"))?;
    }
    match args.output {
        Format::Table => table(&policy, terminal)?,
        form => {
            let doubts: Vec<String> = doubts.iter().map(ToString::to_string).collect();
            terminal.value(form, &json!({ "rules": rules(&policy), "problems": doubts }))?;
        }
    }
    Ok(if doubts.is_empty() { CommandAnswer::Yes } else { CommandAnswer::No })
}

fn table(policy: &LayoutPolicy, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let columns = [("RULE", Side::Right), ("CARDS", Side::Left), ("LAYOUT", Side::Left)];
    let rule = |(number, rule): (usize, &aliquot_core::offer::policy::LayoutRule)| {
        vec![(number + 1).to_string(), rule.selector.to_string(), layout(&rule.layout)]
    };
    let mut rows: Vec<Vec<String>> = policy.rules.iter().enumerate().map(rule).collect();
    let others = if rows.is_empty() { "any card" } else { "other cards" };
    rows.push(vec!["-".to_owned(), others.to_owned(), layout(&policy.default)]);
    Ok(terminal.table(&columns, rows)?)
}

fn rules(policy: &LayoutPolicy) -> Vec<Value> {
    let rule = |cards: Option<String>, of: &Layout| json!({ "cards": cards, "layout": layout(of) });
    let rules = policy.rules.iter().map(|one| rule(Some(one.selector.to_string()), &one.layout));
    rules.chain([rule(None, &policy.default)]).collect()
}

/// A layout with its parts, in the words of the file.
fn layout(layout: &Layout) -> String {
    let kind = layout.kind();
    let parts: Vec<String> = match layout {
        Layout::Split { recipe: Some(recipe), .. } => recipe.pieces.iter().map(ToString::to_string).collect(),
        Layout::Slots(slots) => slots.iter().map(|slot| format!("{}x{}", slot.copies, slot.name)).collect(),
        _ => Vec::new(),
    };
    if parts.is_empty() { kind.to_string() } else { format!("{kind}: {}", parts.join(", ")) }
}
