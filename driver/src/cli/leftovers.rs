//! Claims of runs without a supervisor: a command that changes the state releases those without a live process.

use std::path::Path;

use crate::checkpoint::PartitionProgress;
use crate::error_text::chain;
use crate::node::{Access, Node};
use crate::run::cards::Cards;
use crate::run::governor::remove_leader_locks;
use crate::run::record::{SweepOutcome, sweep};
use crate::run::simulated::SimulatedCards;

use super::failure::Failure;
use super::nodes::{Fleet, NodeArgs};
use super::output::Terminal;

/// The node of `--node` and `--state`, open for changes and without leftovers.
pub(super) fn open(args: &NodeArgs, terminal: &mut Terminal<'_>) -> Result<(Node, Fleet), Failure> {
    loop {
        let (mut node, fleet) = Fleet::open_one(args, Access::Change, terminal)?;
        // What is published depends on what is held.
        if !give_back_simulated(&mut node, args, terminal)? {
            return Ok((node, fleet));
        }
    }
}

/// As [`give_back`], on the simulated cards of `--node` and `--state`.
pub(super) fn give_back_simulated(
    node: &mut Node,
    args: &NodeArgs,
    terminal: &mut Terminal<'_>,
) -> Result<bool, Failure> {
    let Some(state) = &args.state else { return Ok(false) };
    give_back(node, state, &SimulatedCards { state: state.clone(), libraries: state.join("lib") }, terminal)
}

/// Gives back what runs of killed supervisors hold; whether there was any.
pub(super) fn give_back(
    node: &mut Node,
    state: &Path,
    cards: &dyn Cards,
    terminal: &mut Terminal<'_>,
) -> Result<bool, Failure> {
    let mut released = false;
    for swept in sweep(node, state).map_err(|error| failed(state, error))? {
        match swept {
            SweepOutcome::Released(_) => released = true,
            SweepOutcome::Running(_) => {}
            SweepOutcome::Stuck(uid, error) => {
                terminal.note(format_args!("warning: claim {uid}: not released: {}", chain(&*error)))?;
            }
            SweepOutcome::Odd(path, error) => {
                let path = path.display();
                terminal.note(format_args!(
                    "warning: {path}: found no usable record of a run: {error}; its claim is not released: remove the file"
                ))?;
            }
        }
    }
    if released {
        forget_partitions(node, state, cards)?;
    }
    Ok(released)
}

/// Removes what was made for partitions that are gone.
pub(super) fn forget_partitions(node: &Node, state: &Path, cards: &dyn Cards) -> Result<(), Failure> {
    let there: Vec<&str> = node
        .partitions()
        .filter_map(|(_, making)| match making {
            PartitionProgress::Made(handle) => Some(handle.uuid.as_str()),
            PartitionProgress::Planned => None,
        })
        .collect();
    let is_there = |uuid: &str| there.contains(&uuid);
    remove_leader_locks(state, &is_there)
        .and_then(|()| cards.remove_others(&is_there))
        .map_err(|error| failed(state, error))
}

fn failed(state: &Path, source: std::io::Error) -> Failure {
    Failure::path("clean up", state, source, "Check the directory given with --state")
}
