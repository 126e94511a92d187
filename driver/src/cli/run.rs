//! `aliquot run`: a command on a part of a card, with the same ledger, journal and grants as everything else.

mod answers;
pub(super) mod args;
mod following;
pub(super) mod home;
mod placing;
mod prepared;
mod sizing;
mod supervising;
mod vendor;
mod visible;
mod words;

pub(super) use home::state_of;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aliquot_core::card::Inventory;
use aliquot_core::grant::{ComputePolicy, FailMode, Grant, ShareSettings};
use aliquot_core::id::{CardUuid, NodeName};
use aliquot_core::units::{Bytes, Cores};

use crate::clock;
use crate::config::GRANTS_VARIABLE;
use crate::config::{prepended, visible_cards};
use crate::hardware::vendors::cuda;
use crate::node::Node;
use crate::prepare::CONTAINER_GRANTS;
use crate::region;
use crate::run::ask::{Alternative, Ask, On};
use crate::run::cards::CardAccess;
use crate::run::enforcement::LimitWatch;
use crate::run::governor::{Scope, leader_locks};
use crate::run::record::Run;

use super::failure::{CommandAnswer, Failure};
use super::nodes::Fleet;
use super::output::Terminal;
use crate::error_text::chain;
use answers::{fraction, template};
pub(super) use args::Args;
use args::Policy;
use following::{followed, visible_of};
use home::Home;
use placing::place_and_prepare;
use prepared::{Beside, Environment, GIVE_BACK_WITHIN, PreparedRun};
use supervising::supervise;
use vendor::{not_of_unshared, vendor_of};
use words::{card, not_of_slots, too_small};

/// Exit code if Aliquot itself failed before the command.
pub(super) const OWN_FAILURE: u8 = 125;
pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let code = match prepare(args, terminal) {
        Ok(Ok(prepared)) => supervise(args, prepared, terminal)?,
        Ok(Err(why)) => {
            why.lines().for_each(|line| terminal.last_note(line));
            OWN_FAILURE
        }
        Err(failure) => {
            terminal.last_note(format_args!("error: {failure}"));
            OWN_FAILURE
        }
    };
    Ok(CommandAnswer::Code(code))
}

/// Places and prepares the part; `Ok(Err(…))`: it does not fit.
fn prepare(args: &Args, terminal: &mut Terminal<'_>) -> Result<Result<PreparedRun, String>, Failure> {
    not_in_a_container(args, terminal)?;
    let home = Home::of(args.nodes())?;
    home.warn(terminal)?;
    let failed = |error| home.failed("write", error);
    let shim = home.install_shim()?;
    let began = clock::now();
    let (node, fleet) = home.open(terminal)?;
    let cards = node.inventory().map_err(|error| Failure::Node(chain(&error)))?;
    let ask = wanted(args, &home, (node.name(), &fleet), &cards)?;
    if let Some(policy) = &args.layouts {
        let offers = node.offers().map_err(|error| Failure::Node(chain(&error)))?;
        not_of_slots(policy, &ask, &cards, offers)?;
    }
    let run = Run::register(&home.state).map_err(failed)?;
    let claim = ask.claim(&name_of(args), &run.uid);
    let (mut node, prepared) = place_and_prepare(&home, &claim, (node, fleet), terminal)?;
    if clock::now().duration_since(began) >= GIVE_BACK_WITHIN {
        // Runs that ended meanwhile did not wait.
        home.gives_back(&mut node, terminal)?;
    }
    if let Err(why) = prepared {
        // A claim that could not be released either is found by its record.
        if node.claim(&run.uid).is_none() {
            run.forget().map_err(failed)?;
        }
        return Ok(Err(why));
    }
    match reached(&home, &node, &run, &shim, &cards, terminal) {
        Ok((beside, environment)) => {
            let grants = node.grants_dir().join(run.uid.as_str());
            Ok(Ok(PreparedRun { home, run, grants, beside, environment }))
        }
        Err(failure) => {
            // No process has used the part: it is released at once. If that fails, the next call finds the record.
            match node.release(&run.uid) {
                Ok(_) => run.forget().map_err(failed)?,
                Err(error) => terminal.note(format_args!(
                    "warning: claim not released; the next call does it: {}",
                    chain(&error)
                ))?,
            }
            Err(failure)
        }
    }
}

/// Refuses a run in a container with claims: the shim enforces the container's grants, not those of the run.
fn not_in_a_container(args: &Args, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    if matches!(fs::symlink_metadata(CONTAINER_GRANTS), Err(error) if error.kind() == io::ErrorKind::NotFound)
    {
        return Ok(());
    }
    let found = format!(
        "{CONTAINER_GRANTS} is there: programs of this container are held to the parts of its claims, and to no other one"
    );
    if args.fail_mode == FailMode::Open {
        terminal.note(format_args!("warning: {found}; the run's limits are not held"))?;
        return Ok(());
    }
    Err(Failure::Usage(format!("{found}: start the command as it is, or say --fail-mode open")))
}

/// The work beside the command and its environment, for a prepared claim.
fn reached(
    home: &Home,
    node: &Node,
    run: &Run,
    shim: &Path,
    cards: &Inventory,
    terminal: &mut Terminal<'_>,
) -> Result<(Beside, Environment), Failure> {
    let failed = |error| home.failed("write", error);
    let grants = node.grants_dir().join(run.uid.as_str());
    let record = node.claim(&run.uid);
    let Some(grant) = record.and_then(|record| record.plan.grants.first()) else {
        return Err(Failure::Node("the claim was prepared and is not in the journal".to_owned()));
    };
    let place = region::GrantPaths {
        dir: grants.join(grant.share.as_str()),
        lock: node.grants_dir().with_file_name("limits.lock"),
    };
    let limits = match region::read(&place.limits()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.map_err(failed)?),
    };
    let visible = match &limits {
        Some(limits) => {
            CardUuid::new(limits.card.as_str()).map_err(|error| Failure::Node(error.to_string()))?
        }
        None => visible_of(node, grant),
    };
    let variables = node.variables(grant).map_err(|error| Failure::Node(chain(&error)))?;
    warn_of_others(home, node, grant, &visible, cards, terminal)?;
    let reach = home.cards.reach(grant, &visible, cards).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Failure::Node(error.to_string()),
        _ => failed(error),
    })?;
    if let Some(limits) = &limits {
        if let Some(footprint) = reach.footprint {
            place.publish_context(footprint).map_err(failed)?;
        }
        // Else a measured size is published already.
        let measured = (limits.context_bytes > 0).then_some(Bytes(limits.context_bytes));
        let context = reach.footprint.map(|footprint| footprint.context).or(measured);
        if let Some(warning) = too_small(limits.memory, context) {
            terminal.note(warning)?;
        }
    }
    let followed = followed(home, node, grant, &visible, terminal)?;
    // Without limits there is nothing for the shim to hold.
    let environment = environment(limits.is_some().then_some(shim), &grants, variables, &reach);
    let all_grants = node.grants_dir().to_owned();
    let is_limited = limits.as_ref().is_some_and(region::limits_anything);
    let watched = reach.processes.clone().filter(|_| is_limited).map(|driver| {
        let share = region::GrantPaths { dir: place.dir.clone(), lock: place.lock.clone() };
        LimitWatch::new(share, all_grants.clone(), driver)
    });
    let scope = limits.is_some().then(|| Scope {
        visible: visible.to_string(),
        grants: all_grants,
        share: place.dir,
        writers: place.lock,
        election: leader_locks(&home.state).join(visible.as_str()),
        meter: reach.meter,
        processes: reach.processes,
    });
    Ok((Beside { scope, limits: watched, followed }, environment))
}

/// Warns of processes without a grant that hold granted memory: the ledger has the grants, the driver all processes.
fn warn_of_others(
    home: &Home,
    node: &Node,
    grant: &Grant,
    visible: &CardUuid,
    cards: &Inventory,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let sum = |sum: u64, bytes: Bytes| sum.saturating_add(bytes.0);
    let others = home.cards.others(visible, node.grants_dir());
    let held = others.iter().map(|(_, held)| *held).fold(0, sum);
    let promised =
        node.grants().filter(|other| other.card == grant.card).map(|other| other.memory).fold(0, sum);
    let memory = cards.card(&grant.card).map_or(0, |card| card.memory.0);
    if held == 0 || promised.saturating_add(held) <= memory {
        return Ok(());
    }
    let pids = others.iter().map(|(pid, _)| pid.to_string()).collect::<Vec<_>>().join(", ");
    terminal.note(format_args!(
        "warning: card {visible}: found {} granted in this state and {} used without a grant of it, of {} in all; the card may refuse \
         granted memory until these processes end: {pids}",
        Bytes(promised), Bytes(held), Bytes(memory)
    ))?;
    Ok(())
}

/// The command's environment: the shim, the driver libraries, its grants, the variables of its card.
fn environment(
    shim: Option<&Path>,
    grants: &Path,
    variables: Vec<(String, String)>,
    reach: &CardAccess,
) -> Environment {
    let listed = |name: &str, first: &Path| (name.to_owned(), prepended(name, first.as_os_str()));
    let preload = shim.map(|shim| listed("LD_PRELOAD", shim));
    let libraries = reach.libraries.as_deref().map(|libraries| listed("LD_LIBRARY_PATH", libraries));
    let grants = (GRANTS_VARIABLE.to_owned(), grants.as_os_str().to_owned());
    let variables = variables.into_iter().map(|(name, value)| (name, OsString::from(value)));
    let others = reach.environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    preload.into_iter().chain(libraries).chain([grants]).chain(variables).chain(others).collect()
}

/// The request of the arguments.
fn wanted(
    args: &Args,
    home: &Home,
    (node, fleet): (&NodeName, &Fleet),
    cards: &Inventory,
) -> Result<Ask, Failure> {
    let vendor = vendor_of(args, home, (node, fleet), cards)?;
    not_of_unshared(args, &vendor, cards)?;
    let compute = match (args.policy, args.cores) {
        (Policy::Of(policy), _) => policy,
        (Policy::BestEffort, None | Some(Cores::NONE)) => ComputePolicy::default(),
        (Policy::BestEffort, Some(_)) => {
            return Err(Failure::Usage(
                "best-effort has no guaranteed compute: leave --cores out".to_owned(),
            ));
        }
    };
    let cores = if args.policy == Policy::BestEffort { Some(Cores::NONE) } else { args.cores };
    let settings = ShareSettings { compute, priority: args.priority, fail_mode: args.fail_mode };
    let on = match (&args.card, visible_cards()) {
        (Some(text), _) => On::Card(card(text, cards)?),
        (None, Some(text)) if vendor == cuda() => On::AnyOf(visible::shown(&text, &vendor, cards)?),
        (None, _) => On::Any,
    };
    let plain = |template| Alternative { model: None, template, memory: args.memory, cores };
    let alternatives = match (&args.fraction, &args.template) {
        (Some(text), _) => fraction(text, &vendor, fleet)?,
        (None, Some(text)) => {
            let known = template(text, &vendor, home, fleet)?;
            vec![plain(Some(known))]
        }
        (None, None) => vec![plain(None)],
    };
    Ok(Ask { vendor, on, alternatives, settings })
}

/// The name of the run: its program and process id by default.
fn name_of(args: &Args) -> String {
    if let Some(name) = &args.name {
        return name.clone();
    }
    let program = args.command.first().map(PathBuf::from).unwrap_or_default();
    let stem =
        program.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let plain: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
    format!("{}-{}", plain.trim_matches('-'), std::process::id()).trim_start_matches('-').to_owned()
}
