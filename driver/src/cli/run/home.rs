//! Where the local runs of one node keep things, and the node opened for them.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::checkpoint::Making;
use crate::config::state_home;
use crate::node::{Access, Node};
use crate::run::cards::Cards;
use crate::run::record::{Swept, sweep};
use crate::run::simulated::Simulated;

use super::super::failure::Failure;
use super::super::node_spec::node_spec;
use super::super::nodes::{Fleet, NodeArgs, catalogue};
use super::super::output::Terminal;
use super::super::state::chain;
use super::Args;

/// One node's local runs.
pub(super) struct Home {
    pub(super) node: NodeArgs,
    pub(super) state: PathBuf,
    /// Below it libraries are installed.
    pub(super) libraries: PathBuf,
    pub(super) cards: Box<dyn Cards>,
}

// === impl Home ===

impl Home {
    /// Where the runs on these cards keep things; makes the directories above.
    pub(super) fn of(args: &Args) -> Result<Self, Failure> {
        let Some(node) = &args.node else {
            return Err(Failure::Usage(
                "there is no backend for real cards in this version: name simulated ones, such as --node h100-8"
                    .to_owned(),
            ));
        };
        let mut node = NodeArgs {
            nodes: vec![node.clone()],
            policy: args.layouts.clone(),
            catalogue: args.catalogue.clone(),
            ..NodeArgs::default()
        };
        let (state, libraries) = match &args.state {
            Some(state) => (state.clone(), state.join("lib")),
            None => {
                let home = state_home().ok_or_else(|| {
                    Failure::Usage(
                        "neither HOME nor XDG_STATE_HOME is set: name a directory with --state".to_owned(),
                    )
                })?;
                let spec = node_spec(&node.nodes[0], &catalogue(&node)?)?;
                let name = spec.file.node_name().map_err(|error| Failure::Usage(error.to_string()))?;
                let above = home.join("simulated");
                let advice = "Name another directory with --state";
                fs::create_dir_all(&above).map_err(|source| Failure::path("make", &above, source, advice))?;
                (above.join(name.as_str()), home.join("lib"))
            }
        };
        node.state = Some(state.clone());
        let cards = Box::new(Simulated { state: state.clone(), libraries: libraries.clone() });
        Ok(Self { node, state, libraries, cards })
    }

    /// Opens the node for changes, and cleans up after runs that died.
    pub(super) fn open(&self, terminal: &mut Terminal<'_>) -> Result<(Node, Fleet), Failure> {
        loop {
            let (mut node, fleet) = Fleet::open_one(&self.node, Access::Change, terminal)?;
            let swept = sweep(&mut node, &self.state).map_err(|error| self.failed("clean up", error))?;
            let mut released = false;
            for swept in swept {
                match swept {
                    Swept::Released(_) => released = true,
                    Swept::Running(_) => {}
                    Swept::Stuck(uid, error) => {
                        terminal
                            .note(format_args!("warning: {uid} cannot be given back: {}", chain(&*error)))?;
                    }
                }
            }
            if !released {
                return Ok((node, fleet));
            }
            self.forget_partitions(&node)?;
        }
    }

    /// Takes away what was made for partitions that are no more.
    pub(super) fn forget_partitions(&self, node: &Node) -> Result<(), Failure> {
        let there: Vec<&str> = node
            .partitions()
            .filter_map(|(_, making)| match making {
                Making::Made(handle) => Some(handle.uuid.as_str()),
                Making::Planned => None,
            })
            .collect();
        self.cards
            .remove_others(&|uuid| there.contains(&uuid))
            .map_err(|error| self.failed("clean up", error))
    }

    pub(super) fn failed(&self, verb: &'static str, source: io::Error) -> Failure {
        Failure::path(verb, &self.state, source, "Check the directory given with --state")
    }
}
