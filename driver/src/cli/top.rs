//! `aliquot top`: present use of cards, partitions and shares by process, live in a terminal or once.

mod json;
mod keys;
mod live;
mod refusals;
mod screen;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::card::Inventory;

use crate::config::state_homes;
use crate::view::Looker;
use crate::view::model::{Picture, picture};
use crate::view::snapshot::{Region, Snapshot};

use super::cluster_input::LiveArgs;
use super::cluster_summary::{self, NodeOrder, SummaryView};
use super::failure::{CommandAnswer, Failure};
use super::nodes::{NodeArgs, catalogue};
use super::output::{Format, ListFormat, RedrawMode, Terminal};
use crate::error_text::chain;
use crate::hardware::Hardware;
use crate::hardware::node_spec;
use crate::kube::listing::NamespaceScope;
use crate::state_dir::must_exist;

/// Exit code if a named state directory cannot be read; the others are shown all the same.
const UNREAD: u8 = 3;
/// Longest time between two looks.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Shortest time between two looks of the live form: faster updates cannot be read and cost processor time.
const LIVE_INTERVAL_MIN: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  aliquot top                                    live; q ends
  aliquot top --once --interval 0                once, at once, without rates
  aliquot top --refusals default/llama           the last refused calls of a claim, and why
  aliquot top -o json | jq '.cards[].shares[] | select(.enforcement.state == \"bypassed\")'
  aliquot top --state /tmp/node --node mixed     what `aliquot prepare` made there
  aliquot top --cluster                          what claims hold on nodes of a cluster";

/// Long help.
pub(super) const ABOUT: &str = "\
Show present use: cards, partitions, shares, processes, and whether limits are enforced

Reads from disk and changes nothing: the journal of each state directory, the region of each \
share, and the driver's figures of simulated cards and of this machine's own cards. \
Live in a terminal; once if standard output is no terminal, with --once or with -o.

USED     bytes reserved by the processes of grants
DRIVER   bytes in use, as the driver reports
PEAK     the greatest use so far
LIMIT    the memory limit
DENIED   allocations refused
REAPED   exited processes with released memory
UNKNOWN  calls of driver functions that are unknown to the shim
SHARE    guaranteed compute; NOW: granted at this moment
TIME     device time used since the last look

Percent are of the whole card, also inside a partition.

STATE of a partition: made, not made (yet, or any more), or why it takes no claims

STATE of a share:
observed   its processes use the shim
unseen     no process has used the shim or the card yet
bypassed   a process of it is on the card without the shim
contradicted
           its processes use the shim, but the driver reports more of them than their usage
           file or limits allow; the warning gives the figures
unlimited  all of the card is granted, there is no limit to enforce
hardware   all of a partition is granted, the hardware is its limit
absent     no limits are enforced here
broken     its region cannot be used, the warning gives the reason

STATE of a process:
shim      it uses the shim: it holds a process slot of its grant
named     a process slot names it
dead      it has exited, its process slot is not free yet
no shim   of a grant, on the card without a process slot
no grant  of no grant

Columns give way to a narrow terminal; docs/user/top.md has the keys of -o json, with units.";

const CODES: &str = "\
Keys of the live form:
  q, Ctrl-C       end                      space           look now
  arrows, j, k    scroll                   page up, down, home, end

Exit codes:
  0  shown, whatever there is to show
  2  the command line or a file is not what it should be
  3  a directory given with --state is not there (nothing is shown), or its journal cannot be read
     (the rest is shown; live: when it was last looked at); or the terminal is gone

Ended by SIGTERM, SIGHUP or SIGQUIT, the live form gives the terminal back as it was and ends by
that signal.
Standard output carries the answer alone; NO_COLOR=1 switches colours off.";

/// Show present use: cards, partitions, shares, processes, and whether limits are enforced
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{CODES}"))]
pub(super) struct Args {
    /// State directory to look at; repeatable. Default: root's and this user's own, with those of local runs
    #[arg(long = "state", value_name = "DIR")]
    states: Vec<PathBuf>,

    /// Node file, built-in node, or COUNTxMODEL that says which cards there are; without it, this machine's own cards
    /// and cards that are simulated or granted are shown
    #[arg(long, value_name = "NODE")]
    node: Option<String>,

    /// Directory of card models (TOML) for --node, beside the built-in catalogue
    #[arg(long, value_name = "DIR", requires = "node")]
    catalogue: Option<PathBuf>,

    /// Directory of simulated cards to ask, beside those in state directories; repeatable
    #[arg(long = "cards", value_name = "DIR")]
    cards: Vec<PathBuf>,

    /// Seconds between two looks, and over which device time is measured; 0 with --once or -o: one look, no rates
    #[arg(short = 'n', long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,

    /// Show the last refused calls of a claim (NAMESPACE/NAME, name or UID; without one, of all) and what was in their way
    #[arg(long, value_name = "CLAIM", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["output", "live"])]
    refusals: Option<String>,

    /// Show once, also in a terminal
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    live: LiveArgs,

    /// Namespace of a cluster whose claims are read where rights end there
    #[arg(long, value_name = "NAMESPACE", requires = "live")]
    namespace: Option<String>,

    /// All namespaces of a cluster, or none: without the right to read their claims the command fails
    #[arg(short = 'A', long, requires = "live", conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Form of the answer; any form is shown once
    #[arg(short, long, value_enum, value_name = "FORM")]
    output: Option<ListFormat>,
}

/// Columns if the output is no terminal.
const PRINTED_COLUMNS: usize = 80;

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 1 or 0.5".to_owned())?;
    let found = Duration::try_from_secs_f64(seconds).ok().filter(|found| *found <= INTERVAL_MAX);
    found.ok_or_else(|| format!("expected 0 to {} seconds", INTERVAL_MAX.as_secs()))
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let scope = match &args.namespace {
        Some(name) => NamespaceScope::Named(name.clone()),
        None if args.all_namespaces => NamespaceScope::All,
        None => NamespaceScope::Readable,
    };
    if let Some(manifests) = args.live.read(&scope, terminal)? {
        let nodes: Vec<String> = args.node.iter().cloned().collect();
        let form = args.output.unwrap_or_default();
        let view = SummaryView { nodes: &nodes, order: NodeOrder::Fullest, form };
        return cluster_summary::show(&manifests, &view, terminal);
    }
    let inventory = described(args)?;
    args.states.iter().try_for_each(|state| must_exist(state))?;
    let homes = if args.states.is_empty() { state_homes() } else { Vec::new() };
    for cards in &args.cards {
        std::fs::read_dir(cards)
            .map_err(|source| Failure::path("read directory of cards", cards, source, "Check --cards"))?;
    }
    let looker = Looker::new(args.states.clone(), homes, args.cards.clone(), inventory);
    // With --node or --cards this machine's own cards are not shown.
    let looker = if args.node.is_none() && args.cards.is_empty() { looker.with_machine() } else { looker };
    if let Some(claim) = &args.refusals {
        let mut looker = looker;
        let picture = picture(None, &looker.look());
        refusals::print(&picture, claim, terminal)?;
        return Ok(answer(args, &picture));
    }
    let live = terminal.screen == RedrawMode::Drawable && !args.once && args.output.is_none();
    if live {
        let every = args.interval.max(LIVE_INTERVAL_MIN);
        let last = live::run(looker, every, terminal.colour)?;
        return Ok(last.map_or(CommandAnswer::Yes, |last| answer(args, &last)));
    }
    once(args, looker, terminal)
}

/// The cards that `--node` describes; no state is written.
fn described(args: &Args) -> Result<Inventory, Failure> {
    let Some(node) = &args.node else { return Ok(Inventory::default()) };
    let models = catalogue(&NodeArgs { catalogue: args.catalogue.clone(), ..NodeArgs::default() })?;
    let spec = node_spec(node, &models)?;
    if spec.copies > 1 {
        return Err(Failure::Usage("state belongs to one node: leave out the number of copies".to_owned()));
    }
    Hardware::in_memory(&spec, &models)?.discover().map_err(|error| Failure::Node(chain(&error)))
}

fn once(args: &Args, mut looker: Looker, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let first = looker.look();
    let picture = if args.interval.is_zero() || !anything_moves(&first) {
        picture(None, &first)
    } else {
        std::thread::sleep(args.interval);
        picture(Some(&first), &looker.look())
    };
    match args.output.unwrap_or_default() {
        ListFormat::Table | ListFormat::Wide => print(&picture, terminal)?,
        ListFormat::Name => {
            let mut cards = picture.cards.iter();
            cards.try_for_each(|card| terminal.line(format_args!("card/{}", card.uuid)))?;
        }
        ListFormat::Json => terminal.value(Format::Json, &json::value(&picture))?,
        ListFormat::Yaml => terminal.value(Format::Yaml, &json::value(&picture))?,
    }
    Ok(answer(args, &picture))
}

/// An unreadable state directory is an error only if the user named it; the default ones may belong to other users.
fn answer(args: &Args, picture: &Picture) -> CommandAnswer {
    let unread = !args.states.is_empty() && picture.states.iter().any(|state| state.shares.is_none());
    if unread { CommandAnswer::Code(UNREAD) } else { CommandAnswer::Yes }
}

/// Whether there is a counter to measure a rate of.
fn anything_moves(look: &Snapshot) -> bool {
    let promised = || look.states.iter().filter_map(|state| state.promised.as_ref().ok());
    let region = promised().flat_map(|p| &p.shares).any(|s| matches!(s.region, Region::There(_)));
    region || !look.drivers.is_empty()
}

fn print(picture: &Picture, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let terminal_columns = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    let columns = match terminal.screen {
        RedrawMode::Drawable => terminal_columns().unwrap_or(PRINTED_COLUMNS),
        RedrawMode::None => PRINTED_COLUMNS,
    };
    for line in table::lines(picture, Some(columns)) {
        let text = match line.tone {
            Some(tone) => terminal.toned(tone, &line.text),
            None => line.text,
        };
        terminal.line(text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
