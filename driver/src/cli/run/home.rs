//! Where the local runs of one node keep things, and the node opened for them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::catalogue::Catalogue;

use crate::config::state_home;
use crate::node::{Access, Node};
use crate::run::cards::Cards;
use crate::run::machine::LocalMachine;
use crate::run::simulated::SimulatedCards;

use super::super::failure::Failure;
use super::super::leftovers;
use super::super::nodes::{Fleet, NodeArgs, catalogue};
use super::super::output::Terminal;
use crate::hardware::{MachineCards, node_spec, open_machine};
use crate::state_dir::loading::load_obstacle;
use crate::state_dir::{self, file::make_dirs};

/// One node's local runs.
pub(in crate::cli) struct Home {
    pub(super) node: NodeArgs,
    /// This machine's own cards, where the runs are on these.
    machine: Option<Arc<MachineCards>>,
    pub(in crate::cli) state: PathBuf,
    /// Below it libraries are installed.
    pub(super) libraries: PathBuf,
    pub(super) cards: Box<dyn Cards>,
}

// === impl Home ===

impl Home {
    /// Where the runs on these cards keep things; makes the directories above.
    pub(in crate::cli) fn of(node: NodeArgs) -> Result<Self, Failure> {
        match node.nodes.first().cloned() {
            Some(name) => Self::of_simulated(&name, node),
            None => Self::of_machine(node),
        }
    }

    fn of_simulated(name: &str, mut node: NodeArgs) -> Result<Self, Failure> {
        let (state, libraries) = match &node.state {
            Some(state) => (state.clone(), state.join("lib")),
            None => {
                let state = state_of(Some(name), &catalogue(&node)?)?;
                state.parent().map_or(Ok(()), make_all)?;
                (state, home_of_user()?.join("lib"))
            }
        };
        check_if_there(&state)?;
        node.state = Some(state.clone());
        let cards = Box::new(SimulatedCards { state: state.clone(), libraries: libraries.clone() });
        Ok(Self { node, machine: None, state, libraries, cards })
    }

    fn of_machine(node: NodeArgs) -> Result<Self, Failure> {
        let machine = open_machine(&catalogue(&node)?)?;
        let state = match &node.state {
            Some(state) => state.clone(),
            None => {
                let home = home_of_user()?;
                make_all(&home)?;
                home
            }
        };
        check_if_there(&state)?;
        let cards = Box::new(LocalMachine::of(&machine));
        Ok(Self { node, machine: Some(machine), libraries: state.join("lib"), state, cards })
    }

    /// Prints the problems of cards that are left out.
    pub(super) fn warn(&self, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        let trouble = self.machine.iter().flat_map(|machine| machine.backend().trouble());
        for trouble in trouble {
            terminal.note(format_args!("warning: {trouble}"))?;
        }
        Ok(())
    }

    /// Opens the node.
    pub(in crate::cli) fn open_as_it_is(
        &self,
        access: Access,
        terminal: &mut Terminal<'_>,
    ) -> Result<(Node, Fleet), Failure> {
        match &self.machine {
            None => Fleet::open_one(&self.node, access, terminal),
            Some(machine) => Fleet::open_machine(&self.node, machine, &self.state, access, terminal),
        }
    }

    /// Opens the node for changes, and cleans up after runs without a supervisor.
    pub(in crate::cli) fn open(&self, terminal: &mut Terminal<'_>) -> Result<(Node, Fleet), Failure> {
        loop {
            let (mut node, fleet) = self.open_as_it_is(Access::Change, terminal)?;
            if !self.gives_back(&mut node, terminal)? {
                return Ok((node, fleet));
            }
        }
    }

    /// Releases the claims of runs without a supervisor; returns whether there was any.
    pub(super) fn gives_back(&self, node: &mut Node, terminal: &mut Terminal<'_>) -> Result<bool, Failure> {
        leftovers::give_back(node, &self.state, &*self.cards, terminal)
    }

    /// Removes files made for partitions that no longer exist.
    pub(super) fn forget_partitions(&self, node: &Node) -> Result<(), Failure> {
        leftovers::forget_partitions(node, &self.state, &*self.cards)
    }

    /// Installs the shim where the loader of every program finds it. A path with separators of the loader, or on a `noexec` mount,
    /// would leave the command without limits, with one line on standard error at most.
    pub(super) fn install_shim(&self) -> Result<PathBuf, Failure> {
        let failed = |error| self.failed("write", error);
        let shim = aliquot_libraries::install_shim(&self.libraries).map_err(failed)?;
        let shim = shim.canonicalize().map_err(failed)?;
        match load_obstacle(&shim).map_err(|error| self.failed("examine", error))? {
            None => Ok(shim),
            Some(obstacle) => {
                let state = self.state.display();
                Err(Failure::Usage(format!("{state}: {obstacle}; name another directory with --state")))
            }
        }
    }

    pub(super) fn failed(&self, verb: &'static str, source: io::Error) -> Failure {
        Failure::path(verb, &self.state, source, "Check the directory given with --state")
    }
}

/// Where the runs of this user on a simulated node, or on this machine's own cards, keep their state.
pub(in super::super) fn state_of(node: Option<&str>, catalogue: &Catalogue) -> Result<PathBuf, Failure> {
    let home = home_of_user()?;
    let Some(node) = node else { return Ok(home) };
    let spec = node_spec(node, catalogue)?;
    let name = spec.file.node_name().map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(home.join("simulated").join(name.as_str()))
}

/// Checks a state directory before anything is installed in it.
fn check_if_there(state: &Path) -> Result<(), Failure> {
    if state.exists() {
        state_dir::check(state)?;
    }
    Ok(())
}

fn home_of_user() -> Result<PathBuf, Failure> {
    state_home().ok_or_else(|| {
        Failure::Usage("neither HOME nor XDG_STATE_HOME is set: name a directory with --state".to_owned())
    })
}

fn make_all(dir: &Path) -> Result<(), Failure> {
    let advice = "Name another directory with --state";
    make_dirs(dir).map_err(|source| Failure::path("make", dir, source, advice))
}
