//! The command line: arguments in, one answer out, an exit code that scripts can trust.
//!
//! ```text
//!   arguments ─▶ command ─▶ nodes (--node), manifests (-f) ─▶ cluster ─▶ answer: table │ json │ yaml
//!                                     │                                     │
//!                                     └▶ problems: standard error           └▶ exit code
//! ```
//!
//! A command reads everything before it decides anything, decides with the same core as the node agent, and writes
//! its answer to standard output and everything else (progress, warnings, failures) to standard error.

mod bundle;
mod classes;
mod cluster;
mod cluster_cards;
mod cluster_input;
mod cluster_summary;
mod convert;
mod demo;
mod devices;
mod doctor;
mod examples;
mod explain;
mod failure;
mod health;
mod held_by;
mod hold_context;
mod holders;
mod input;
mod layouts;
mod leftovers;
mod machine_args;
mod man;
mod manual;
mod node_args;
mod node_choice;
mod nodes;
mod object_name;
mod order;
mod output;
mod part;
mod plan;
mod plugin;
mod policy;
mod prepare;
mod progress;
mod release;
mod run;
mod slices;
mod state;
mod stop;
mod top;
mod version;
mod words;
mod workload;

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use failure::{CommandAnswer, Failure};
use manual::manual;
pub use output::{Colour, Format, Progress, RedrawMode, Terminal};

/// Width of help text if its stream is no terminal.
const COLUMNS_ELSEWHERE: usize = 100;

const EXAMPLES: &str = "\
Examples:
  aliquot devices --node mixed
  aliquot plan -f pod.yaml --node 8xh100
  kubectl get nodes,namespaces,deviceclasses,resourceslices,resourceclaims,pods -A -o yaml | \\
    aliquot plan -f -
  aliquot explain -f claim.yaml --node mixed
  aliquot classes --node ascend-310p 1/4 Ascend310P";

/// Cut GPUs and NPUs into exact parts, and see what fits where.
#[derive(Debug, Parser)]
#[command(name = "aliquot", version, after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
#[command(propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // What stands at an `Args` is its manual; a line here would take its place.
    /// Show cards: layout and its reason, free capacity, the largest hole, the claims
    Devices(devices::Args),
    Plan(plan::Args),
    Explain(explain::Args),
    /// Print DeviceClasses for what nodes offer
    Classes(classes::Args),
    Convert(convert::Args),
    /// Print the ResourceSlices that nodes would publish
    Slices(slices::Args),
    Prepare(prepare::Args),
    Release(release::Args),
    Run(run::Args),
    Stop(stop::Args),
    /// Show present use: cards, partitions, shares, processes, and whether limits are enforced
    #[command(long_about = top::ABOUT)]
    Top(top::Args),
    Health(health::Args),
    Order(order::Args),
    Policy(policy::Args),
    Plugin(plugin::Args),
    Doctor(doctor::Args),
    Bundle(bundle::Args),
    Demo(demo::Args),
    /// A program that uses a card, for the demo
    #[command(hide = true)]
    DemoTenant(demo::tenant::Args),
    /// A process with a context, to be measured
    #[command(hide = true)]
    HoldContext(hold_context::Args),
    /// Print a completion script for a shell
    Completions {
        /// Shell to print it for
        shell: clap_complete::Shell,
    },
    Man(man::Args),
    Version(version::Args),
}

/// Whether these arguments are those of a program that uses a card as any tenant does. `args` begins with the name of the program.
#[must_use]
pub fn is_tenant(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|name| name == "demo-tenant")
}

/// Runs one command; the answer is its exit code. `args` begins with the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>, terminal: &mut Terminal<'_>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    // A command that is run has exit codes of its own, so that ours must be another one.
    let wrong = if args.get(1).is_some_and(|name| name == "run") { run::OWN_FAILURE } else { 2 };
    let outcome = match parse(&args, terminal.screen) {
        Ok(cli) => dispatch(cli.command, terminal),
        Err(error) => match classes::signed_part(&error, &args) {
            Some(failure) => Err(failure),
            None => return refuse(&error, wrong, terminal),
        },
    };
    match outcome {
        Ok(answer) => answer.exit_code(),
        // The reader of the output has closed its pipe.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
        Err(failure) => {
            for text in failure.texts() {
                terminal.last_note(format_args!("error: {text}"));
            }
            failure.exit_code()
        }
    }
}

fn parse(args: &[OsString], screen: RedrawMode) -> Result<Cli, clap::Error> {
    let mut command = named_as(Cli::command(), args);
    if screen == RedrawMode::None {
        command = command.term_width(COLUMNS_ELSEWHERE);
    }
    let matches = command.try_get_matches_from_mut(args).map_err(without_values).map_err(words::with_tip)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// As a plugin of kubectl, the program is named as its user called it.
fn named_as(command: clap::Command, args: &[OsString]) -> clap::Command {
    let called = args.first().map(Path::new).and_then(Path::file_name);
    if called.is_some_and(|name| name == "kubectl-aliquot") {
        command.bin_name("kubectl aliquot")
    } else {
        command
    }
}

/// No value begins like an option here: to pass one as such would make it the command of a run.
fn without_values(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) else { return error };
    let others: Vec<_> = tips.into_iter().filter(|tip| !tip.to_string().starts_with("to pass ")).collect();
    if !others.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(others));
    }
    error
}

/// Help and version are answers; every other parser message is an error of the command line.
fn refuse(error: &clap::Error, wrong: u8, terminal: &mut Terminal<'_>) -> u8 {
    if error.use_stderr() {
        // It repeats arguments, which may be names of files.
        for line in error.render().to_string().trim_end().lines() {
            terminal.last_note(line);
        }
        return wrong;
    }
    let text = match terminal.colour {
        Colour::On => error.render().ansi().to_string(),
        Colour::Off => error.render().to_string(),
    };
    if write!(terminal.out, "{text}").is_ok() { 0 } else { 3 }
}

fn dispatch(command: Command, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    match command {
        Command::Devices(args) => devices::run(&args, terminal),
        Command::Plan(args) => plan::run(&args, terminal),
        Command::Explain(args) => explain::run(&args, terminal),
        Command::Classes(args) => classes::run(&args, terminal),
        Command::Convert(args) => convert::run(&args, terminal),
        Command::Slices(args) => slices::run(&args, terminal),
        Command::Prepare(args) => prepare::run(&args, terminal),
        Command::Release(args) => release::run(&args, terminal),
        Command::Run(args) => run::run(&args, terminal),
        Command::Stop(args) => stop::run(&args, terminal),
        Command::Top(args) => top::run(&args, terminal),
        Command::Health(args) => health::run(&args, terminal),
        Command::Order(args) => order::run(&args, terminal),
        Command::Policy(args) => policy::run(&args, terminal),
        Command::Plugin(args) => plugin::run(&args),
        Command::Doctor(args) => doctor::run(&args, terminal),
        Command::Bundle(args) => bundle::run(&args, terminal),
        Command::Demo(args) => demo::run(&args, terminal),
        Command::DemoTenant(args) => Ok(CommandAnswer::Code(demo::tenant::run(&args))),
        Command::HoldContext(args) => Ok(CommandAnswer::Code(hold_context::run(&args))),
        Command::Completions { shell } => {
            // The generator panics on a stream that fails.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "aliquot", &mut script);
            terminal.out.write_all(&script)?;
            Ok(CommandAnswer::Yes)
        }
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Version(args) => version::run(&args, terminal),
    }
}

#[cfg(test)]
mod tests;
