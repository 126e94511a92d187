//! `aliquot health`: shows the health records of cards, and clears them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use aliquot_core::card::Health;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::health::{Cause, Notes, Rediscovery};
use aliquot_core::id::CardUuid;
use serde_json::{Value, json};

use crate::config::state_home;
use crate::health::{HealthBook, era};

use super::devices::part_text;
use super::failure::{CommandAnswer, Failure};
use super::manual::manual;
use super::output::{Format, Side, Terminal};
use crate::error_text::chain;
use crate::hardware::{MachineCards, node_spec};
use crate::state_dir::{check, must_exist};

const EXAMPLES: &str = "\
Examples:
  aliquot health
  aliquot health -o json
  sudo nvidia-smi --gpu-reset -i 3 && sudo aliquot health --clear GPU-8f4e0a2b
  aliquot health --clear all
  kubectl -n aliquot exec POD -- aliquot health --clear GPU-8f4e0a2b";

/// Show health records of cards, and clear them
///
/// While the node agent runs, and while a command of `aliquot run` is on a card, the card's driver events are recorded. An Xid that is an error of the card, or
/// the loss of the card, excludes it from new claims: `aliquot run` and `aliquot prepare` refuse it, and its devices are tainted
/// `aliquot.dev/unhealthy` in the slices. An Xid that names a MIG instance excludes the placement of that instance. Claims that
/// already use it stay, and are not disturbed. Xids that are errors of programs, such as 13 and 31, exclude nothing.
///
/// Records end with a reboot, with a new load of the driver, and when a lost card answers again. No driver reports a reset with a
/// vendor's tool (nvidia-smi --gpu-reset, npu-smi set -t reset): after one, clear the card's records with --clear.
///
/// The file `xids` in the state directory overrides the meaning of Xids, a line each: `NUMBER ignore`, `NUMBER part` (the instance
/// that it names, or the card) or `NUMBER card`; `#` begins a comment. It applies to earlier records as well.
///
/// State lies below /var/lib/aliquot for root, else below $XDG_STATE_HOME/aliquot or ~/.local/state/aliquot.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Clear the records of this card: its UUID or the beginning of it, or `all`, which also removes unreadable records;
    /// repeatable
    #[arg(long, value_name = "CARD")]
    clear: Vec<String>,

    /// Simulated node: the records of its runs without --state
    #[arg(long, value_name = "NODE", conflicts_with = "state")]
    node: Option<String>,

    /// State directory; in the agent's container the agent's
    #[arg(long, env = "ALIQUOT_STATE", value_name = "DIR")]
    state: Option<PathBuf>,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

/// A health record of a part.
struct PartFaults {
    card: CardUuid,
    part: String,
    why: String,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let state = state(args)?;
    if args.state.is_some() {
        must_exist(&state)?;
    }
    if !args.clear.is_empty() && state.exists() {
        check(&state)?;
    }
    let book = HealthBook::of(&state);
    let failed = |error: &dyn std::error::Error| Failure::Node(chain(error));
    for text in &args.clear {
        if text == "all" {
            book.clear_all().map_err(|error| failed(&error))?;
            continue;
        }
        let notes = book.notes(&era(None)).map_err(|error| failed(&error))?;
        book.clear(&named(text, &notes)?).map_err(|error| failed(&error))?;
    }
    let machine = if args.node.is_none() { machine() } else { None };
    let (driver, answering) = machine.unwrap_or_default();
    let notes = book.notes(&era(driver)).map_err(|error| failed(&error))?;
    let (xids, problems) = book.xids();
    for problem in problems {
        terminal.note(format_args!("warning: {problem}"))?;
    }
    let of = |card: &CardUuid| {
        let found = if answering.contains(card) { Rediscovery::Answering } else { Rediscovery::Described };
        let held = notes.held_against(card, found, &xids).into_iter();
        held.map(|u| PartFaults { card: card.clone(), part: part_text(&u.part), why: u.why })
            .collect::<Vec<_>>()
    };
    let held: Vec<PartFaults> = notes.cards().flat_map(of).collect();
    let silent = notes.all().filter(|(_, _, cause, _)| *cause == Cause::Silent);
    let silent: Vec<&CardUuid> = silent.map(|(card, ..)| card).collect();
    show(&held, &silent, args.output, terminal)?;
    Ok(if held.is_empty() { CommandAnswer::Yes } else { CommandAnswer::No })
}

fn show(
    held: &[PartFaults],
    silent: &[&CardUuid],
    output: Format,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    if output != Format::Table {
        let held = held.iter().map(|h| json!({ "card": h.card.as_str(), "part": h.part, "why": h.why }));
        let silent: Vec<&str> = silent.iter().map(|card| card.as_str()).collect();
        let value = json!({ "held": held.collect::<Vec<Value>>(), "silent": silent });
        return Ok(terminal.value(output, &value)?);
    }
    if held.is_empty() {
        terminal.line("no card has a health record")?;
    } else {
        let columns = [("CARD", Side::Left), ("PART", Side::Left), ("WHY", Side::Left)];
        let row = |held: &PartFaults| vec![held.card.to_string(), held.part.clone(), held.why.clone()];
        terminal.table(&columns, held.iter().map(row).collect())?;
    }
    for card in silent {
        terminal.line(format_args!("card {card} does not report its errors"))?;
    }
    Ok(())
}

/// State directory of the records.
fn state(args: &Args) -> Result<PathBuf, Failure> {
    if let Some(state) = &args.state {
        return Ok(state.clone());
    }
    let home = state_home().ok_or_else(|| {
        Failure::Usage("neither HOME nor XDG_STATE_HOME is set: name a directory with --state".to_owned())
    })?;
    let Some(name) = &args.node else { return Ok(home) };
    let spec = node_spec(name, &Catalogue::embedded())?;
    let name = spec.file.node_name().map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(home.join("simulated").join(name.as_str()))
}

/// The load of the driver for this machine's cards, and the cards that answer; `None`: there are none, or no driver.
fn machine() -> Option<(Option<String>, BTreeSet<CardUuid>)> {
    let cards = MachineCards::open(&Catalogue::embedded()).ok()?.backend();
    let found = cards.discover().unwrap_or_default().cards.into_iter();
    let answering = found.filter(|card| card.health == Health::Healthy).map(|card| card.uuid);
    Some((cards.driver_load(), answering.collect()))
}

/// The card with this beginning of its UUID, among those with records.
fn named(text: &str, notes: &Notes) -> Result<CardUuid, Failure> {
    let cards: Vec<&CardUuid> = notes.cards().collect();
    let begin: Vec<&CardUuid> =
        cards.iter().copied().filter(|card| !text.is_empty() && card.as_str().starts_with(text)).collect();
    if let [only] = begin[..] {
        return Ok(only.clone());
    }
    let of = if begin.is_empty() { &cards } else { &begin };
    let known: Vec<&str> = of.iter().map(|card| card.as_str()).collect();
    Err(Failure::Usage(format!(
        "--clear {text}: found {} cards with health records that begin like this, expected one{}",
        begin.len(),
        if known.is_empty() { String::new() } else { format!(" of {}", known.join(", ")) }
    )))
}
