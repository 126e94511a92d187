//! Nodes from the command line: node files, built-in personalities, any number of copies.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::Path;
use std::rc::Rc;

use aliquot_backend_sim::Personality;
use aliquot_core::card::Inventory;
use aliquot_core::catalogue::{CardModel, Catalogue, Maturity};
use aliquot_core::dra::{DeviceClass, Node as ClusterNode, ResourceClaim, ResourceSlice};
use aliquot_core::id::{CardUuid, NodeName};
use aliquot_core::ledger::Ledger;
use aliquot_core::offer::{
    CounterNodes, Layout, LayoutKind, LayoutPolicy, Offers, ServerVersion, ShareTerms, UsageHint, classes,
    offers,
};

use crate::error_text::chain;
use crate::hardware::{
    COPIES_MAX, Hardware, HardwareKind, MachineCards, NodeSpec, node_spec, read_catalogue, read_policy,
};
use crate::node::{Access, Node};
use crate::state_dir;

use super::failure::{CommandAnswer, Failure};
use super::held_by::HeldBy;
pub(super) use super::node_args::NodeArgs;
use super::node_args::ServerVersionArg;
use super::output::{Progress, Terminal};
use super::state;

/// Most nodes of one command.
const NODES_MAX: usize = COPIES_MAX;

/// Nodes with what they offer.
pub(super) struct Fleet {
    pub(super) catalogue: Catalogue,
    pub(super) policy: LayoutPolicy,
    pub(super) server: ServerVersion,
    pub(super) nodes: Vec<FleetNode>,
    names: BTreeSet<NodeName>,
}

/// One node.
pub(super) struct FleetNode {
    pub(super) name: NodeName,
    pub(super) kind: HardwareKind,
    pub(super) about: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) inventory: Rc<Inventory>,
    /// Its offers; copies of a node share those of the first.
    pub(super) offers: Rc<Offers>,
    /// Its slices, under its own name.
    pub(super) slices: Vec<ResourceSlice>,
    /// Claims' holdings on it; `None`: it cannot have any.
    pub(super) ledger: Option<Ledger>,
    /// Claims that are prepared on it.
    pub(super) held: Vec<ResourceClaim>,
    /// What holds these.
    pub(super) held_by: Vec<HeldBy>,
}

// === reading ===

/// The catalogue with the admin's files on top; files that are refused end the command.
pub(super) fn catalogue(args: &NodeArgs) -> Result<Catalogue, Failure> {
    Ok(read_catalogue(args.catalogue.as_deref())?)
}

fn policy(args: &NodeArgs) -> Result<LayoutPolicy, Failure> {
    Ok(read_policy(args.policy.as_deref())?)
}

/// Long work, on standard error while a person watches.
const fn slow(progress: Progress) -> fn(&CardUuid) {
    match progress {
        Progress::On => say_measuring,
        Progress::Off => say_nothing,
    }
}

fn say_measuring(card: &CardUuid) {
    // A closed standard error is no reason to stop.
    drop(writeln!(io::stderr(), "measuring what a context of card {card} takes"));
}

fn say_nothing(_: &CardUuid) {}

// === impl Fleet ===

impl Fleet {
    /// The nodes of the command line, each with its offers; none if none is named.
    pub(super) fn load(args: &NodeArgs, terminal: &mut Terminal<'_>) -> Result<Self, Failure> {
        if args.state.is_some() {
            return Ok(Self::open_one(args, Access::Read, terminal)?.1);
        }
        let fleet = Self::empty(args)?;
        let specs = args.nodes.iter().map(|name| node_spec(name, &fleet.catalogue));
        let specs = specs.collect::<Result<Vec<_>, _>>()?;
        let fleet = fleet.of_cluster(&specs)?;
        fleet.warn(terminal)?;
        Ok(fleet)
    }

    /// Adds all nodes as those of one cluster: their number decides whether layout `auto` uses counters.
    fn of_cluster(mut self, specs: &[NodeSpec]) -> Result<Self, Failure> {
        specs.iter().try_for_each(|spec| self.add_spec(spec))?;
        let counting = self.nodes.iter().filter(|node| node.offers.counter_stance.is_some()).count();
        let nodes = CounterNodes::judge(u32::try_from(counting).unwrap_or(u32::MAX), None);
        if counting <= 1 || self.server.counters_are_cheap() {
            return Ok(self);
        }
        self.server = self.server.among(nodes);
        self.nodes.clear();
        self.names.clear();
        specs.iter().try_for_each(|spec| self.add_spec(spec))?;
        Ok(self)
    }

    /// No nodes, with a catalogue and every card on `auto`.
    pub(super) fn with(catalogue: Catalogue) -> Self {
        let server = ServerVersionArg::default().0;
        Self { catalogue, policy: LayoutPolicy::default(), server, nodes: Vec::new(), names: BTreeSet::new() }
    }

    /// The models of the nodes' cards; without nodes, all that there are.
    pub(super) fn models(&self) -> Vec<&CardModel> {
        let cards = || self.nodes.iter().flat_map(|n| &n.inventory.cards);
        let here = |model: &&CardModel| self.nodes.is_empty() || cards().any(|c| c.model == model.id);
        self.catalogue.models().iter().filter(here).collect()
    }

    /// The classes of everything that any model of the catalogue can be published as, which the chart's are among.
    pub(super) fn classes_of_models(&self) -> Result<Vec<DeviceClass>, Failure> {
        let mut slices = Vec::new();
        for model in self.catalogue.models() {
            let layout = Layout::Dynamic(ShareTerms::default());
            let server = ServerVersionArg::default().0;
            let one =
                self.card_of(model, LayoutPolicy { default: layout, ..LayoutPolicy::default() }, server)?;
            slices.extend(one.nodes.into_iter().flat_map(|node| node.slices));
        }
        Ok(classes(&slices))
    }

    /// A node with one card of a model of this catalogue, published like this.
    pub(super) fn card_of(
        &self,
        model: &CardModel,
        policy: LayoutPolicy,
        server: ServerVersion,
    ) -> Result<Self, Failure> {
        let spec = node_spec(&format!("1x{}", model.id), &self.catalogue)?;
        let mut one = Self { policy, server, ..Self::with(self.catalogue.clone()) };
        one.add_spec(&spec)?;
        Ok(one)
    }

    /// Adds all copies of a node, with hardware that lives in memory.
    pub(super) fn add_spec(&mut self, spec: &NodeSpec) -> Result<(), Failure> {
        self.add(&Hardware::in_memory(spec, &self.catalogue)?, spec.copies)
    }

    /// Adds all copies of a node on which nothing can be held.
    fn add(&mut self, hardware: &Hardware, copies: usize) -> Result<(), Failure> {
        let inventory = hardware.discover().map_err(|error| Failure::Node(chain(&error)))?;
        if self.nodes.len() + copies > NODES_MAX {
            let found = self.nodes.len() + copies;
            return Err(Failure::Usage(format!("{found} nodes; at most {NODES_MAX} are planned at once")));
        }
        let inventory = Rc::new(inventory);
        let first = self.free_name(&hardware.name, 0, copies)?;
        let made = offers(&first, &inventory, &self.policy, self.server, &UsageHint::default());
        let made = Rc::new(made);
        for copy in 0..copies {
            let name = self.free_name(&hardware.name, copy, copies)?;
            let slices = made.slices_on(&inventory, &first, &name);
            self.names.insert(name.clone());
            self.nodes.push(FleetNode {
                name,
                kind: hardware.kind,
                about: hardware.about.clone(),
                labels: hardware.labels.clone(),
                inventory: Rc::clone(&inventory),
                offers: Rc::clone(&made),
                slices,
                ledger: None,
                held: Vec::new(),
                held_by: Vec::new(),
            });
        }
        Ok(())
    }

    fn empty(args: &NodeArgs) -> Result<Self, Failure> {
        let (catalogue, policy) = (catalogue(args)?, policy(args)?);
        Ok(Self { catalogue, policy, server: args.server(), nodes: Vec::new(), names: BTreeSet::new() })
    }

    /// The one node with its state in the directory of `--state`.
    pub(super) fn open_one(
        args: &NodeArgs,
        access: Access,
        terminal: &mut Terminal<'_>,
    ) -> Result<(Node, Self), Failure> {
        let fleet = Self::empty(args)?;
        let ([spec], Some(state)) = (args.nodes.as_slice(), &args.state) else {
            let message = "state belongs to one node: give --node once, and --state with its directory";
            return Err(Failure::Usage(message.to_owned()));
        };
        let spec = node_spec(spec, &fleet.catalogue)?;
        if spec.copies > 1 {
            return Err(Failure::Usage(
                "state belongs to one node: leave out the number of copies".to_owned(),
            ));
        }
        if access != Access::Read && !state.exists() {
            // What will be refused leaves no directory behind.
            let mut trial = Self::empty(args)?;
            trial.add_spec(&spec)?;
            trial.refuse_impossible(args)?;
        }
        state_dir::make(state, access)?;
        let hardware = Hardware::simulated(&spec, &fleet.catalogue, state)?;
        fleet.open(args, hardware, state, access, terminal)
    }

    /// This machine's own cards, with the claims of their state directory, if there is one; read-only.
    pub(super) fn look_at_machine(
        args: &NodeArgs,
        machine: &MachineCards,
        state: Option<&Path>,
        terminal: &mut Terminal<'_>,
    ) -> Result<Self, Failure> {
        if let Some(state) = state {
            return Ok(Self::open_machine(args, machine, state, Access::Read, terminal)?.1);
        }
        let mut fleet = Self::empty(args)?;
        fleet.catalogue = machine.catalogue().clone();
        fleet.add(&Hardware::machine(machine, slow(terminal.progress))?, 1)?;
        fleet.warn(terminal)?;
        Ok(fleet)
    }

    /// This machine's own cards, on their state.
    pub(super) fn open_machine(
        args: &NodeArgs,
        machine: &MachineCards,
        state: &Path,
        access: Access,
        terminal: &mut Terminal<'_>,
    ) -> Result<(Node, Self), Failure> {
        let mut fleet = Self::empty(args)?;
        fleet.catalogue = machine.catalogue().clone();
        state_dir::make(state, access)?;
        fleet.open(args, Hardware::machine(machine, slow(terminal.progress))?, state, access, terminal)
    }

    /// Opens a node on its state, and makes it the only node of the fleet.
    pub(super) fn open(
        mut self,
        args: &NodeArgs,
        hardware: Hardware,
        dir: &Path,
        access: Access,
        terminal: &mut Terminal<'_>,
    ) -> Result<(Node, Self), Failure> {
        let Hardware { kind, about, labels, .. } = &hardware;
        let (kind, about, labels) = (*kind, about.clone(), labels.clone());
        let setting =
            state::NodeSetup { catalogue: &self.catalogue, policy: &self.policy, server: self.server };
        let node = state::open(&setting, hardware, dir, access, terminal)?;
        let failed = |error| Failure::Node(chain(&error));
        let offers = node.offers().map_err(failed)?.clone();
        self.nodes.push(FleetNode {
            name: node.name().clone(),
            kind,
            about,
            labels,
            inventory: Rc::new(node.inventory().map_err(failed)?),
            slices: offers.slices.clone(),
            held: state::held_claims(&node, &offers),
            held_by: node.claims().map(|record| HeldBy::of(record, args)).collect(),
            offers: Rc::new(offers),
            ledger: Some(node.ledger().map_err(failed)?),
        });
        self.warn(terminal)?;
        Ok((node, self))
    }

    /// Ends a command that would change a node under a policy that asks for what a card cannot be.
    pub(super) fn refuse_impossible(&self, args: &NodeArgs) -> Result<(), Failure> {
        let faults = self.impossible();
        let (Some(file), Some((first, more))) = (&args.policy, faults.split_first()) else { return Ok(()) };
        let more = match more.len() {
            0 => String::new(),
            count => format!(" ({count} more; `aliquot devices` shows all)"),
        };
        Err(Failure::input(file.display().to_string(), format!("{first}{more}")))
    }

    /// The answer of a command that shows nodes. What can be had is shown, and the answer is no where the policy asks
    /// for what a card cannot be.
    pub(super) fn answer(&self, answer: CommandAnswer) -> CommandAnswer {
        if self.impossible().is_empty() { answer } else { CommandAnswer::No }
    }

    /// Cards that cannot have the layout of the policy. Cards with the default layout `auto` are left out.
    fn impossible(&self) -> Vec<String> {
        let cards = self.nodes.iter().flat_map(|n| &n.offers.cards);
        cards
            .filter(|card| card.asked != LayoutKind::Auto)
            .flat_map(|card| card.problems.iter().map(move |problem| (card, problem)))
            .filter(|(_, problem)| problem.is_impossible_policy())
            .map(|(card, problem)| format!("card {}: {problem}", card.card))
            .collect()
    }

    fn warn(&self, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        for problem in self.problems() {
            terminal.note(format_args!("warning: {problem}"))?;
        }
        Ok(())
    }

    /// A name that no other node has: a number behind it where there are several.
    fn free_name(&self, name: &NodeName, copy: usize, copies: usize) -> Result<NodeName, Failure> {
        let width = copies.saturating_sub(1).to_string().len();
        let mut wanted = if copies == 1 { name.to_string() } else { format!("{name}-{copy:0width$}") };
        let mut again = 2;
        while self.names.iter().any(|n| n.as_str() == wanted) {
            wanted = format!("{name}-{again}");
            again += 1;
        }
        NodeName::new(wanted).map_err(|error| Failure::Usage(error.to_string()))
    }

    /// Problems of the policy or a card, once for all copies of a node.
    fn problems(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut seen: Option<&Rc<Offers>> = None;
        for node in &self.nodes {
            if seen.is_some_and(|offers| Rc::ptr_eq(offers, &node.offers)) {
                continue;
            }
            seen = Some(&node.offers);
            let cards = node.offers.cards.iter().flat_map(|card| {
                let name = card.card.to_string();
                card.problems.iter().map(move |p| format!("card {name}: {p}"))
            });
            let models = node.inventory.cards.iter().filter_map(|card| self.catalogue.model(&card.model));
            let untried = models.filter_map(|model| match &model.maturity {
                Maturity::Experimental(why) => Some(format!("model {} is experimental: {why}", model.id)),
                Maturity::Settled => None,
            });
            let offered = node.offers.problems.iter().map(ToString::to_string);
            for line in offered.chain(cards).chain(untried) {
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
        lines
    }

    /// Ends a command that is about nodes when none is named.
    pub(super) fn some(self) -> Result<Self, Failure> {
        if self.nodes.is_empty() {
            let known: Vec<&str> = Personality::names().collect();
            let message =
                format!("no node is given; add --node with a node file or one of {}", known.join(", "));
            return Err(Failure::Usage(message));
        }
        Ok(self)
    }
}

impl FleetNode {
    /// The node as placement sees it.
    pub(super) fn as_node(&self) -> ClusterNode {
        let mut labels = self.labels.clone();
        labels.entry("kubernetes.io/hostname".to_owned()).or_insert_with(|| self.name.to_string());
        ClusterNode { name: self.name.to_string(), labels }
    }
}
