//! The world: what is published, which classes and nodes there are, what is held, and what was learnt so far.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::candidates::{CandidateSet, Lane, LaneNo, SetNo};
use super::constraints::AttributeValues;
use super::demand::{BaseNo, DemandNo, Demands};
use super::explain::ReleaseOrder;
use super::holders::HolderIndex;
use super::index::{EntryNo, Index, NumberMap};
use super::memo::{Memo, Neighbourhoods};
use super::numbers::NodeIndex;
use super::options::{Limits, Memory, Release};
use super::pools::{Completeness, Directory, View};
use super::problem::InputProblem;
use super::selectors::Selectors;
use super::state::State;
use crate::dra::{Device, DeviceClass, DeviceId, Node, ResourceSlice};

/// Devices, classes, nodes and holders; see the module text of [`super`].
#[derive(Debug)]
pub struct World {
    pub(super) index: Arc<Index>,
    pub(super) directory: Arc<Directory>,
    pub(super) classes: Arc<BTreeMap<String, DeviceClass>>,
    pub(super) nodes: Arc<Vec<Node>>,
    pub(super) node_numbers: Arc<HashMap<String, NodeIndex>>,
    pub(super) neighbourhoods: Neighbourhoods,
    pub(super) state: State,
    pub(super) held: HolderIndex,
    /// Kept until something is held or released for good.
    pub(super) release_order: Option<Arc<ReleaseOrder>>,
    pub(super) selectors: Selectors,
    pub(super) attributes: AttributeValues,
    pub(super) demands: Demands,
    pub(super) views: Vec<Option<Arc<View>>>,
    pub(super) sets: Vec<CandidateSet>,
    pub(super) set_numbers: NumberMap<(BaseNo, NodeIndex), SetNo>,
    pub(super) lanes: Vec<Lane>,
    pub(super) lane_numbers: NumberMap<(DemandNo, NodeIndex), LaneNo>,
    pub(super) memo: Memo,
    pub(super) limits: Limits,
    pub(super) release: Release,
    /// Steps of searches and devices looked at since the world was made.
    pub(super) work: u64,
}

/// What was learnt of the nodes through one directory.
#[derive(Debug)]
pub(super) struct Learnt {
    directory: Arc<Directory>,
    views: Vec<Option<Arc<View>>>,
    sets: Vec<CandidateSet>,
    set_numbers: NumberMap<(BaseNo, NodeIndex), SetNo>,
    lanes: Vec<Lane>,
    lane_numbers: NumberMap<(DemandNo, NodeIndex), LaneNo>,
    memo: Memo,
}

// === impl World ===

impl World {
    /// A world in which nothing is held. Broken input is reported and left out; the rest is usable.
    #[must_use]
    pub fn new(
        slices: Vec<ResourceSlice>,
        classes: Vec<DeviceClass>,
        nodes: Vec<Node>,
    ) -> (Self, Vec<InputProblem>) {
        let (index, mut problems) = Index::new(slices);
        let directory = Directory::new(&index, Completeness::Required, Release::default());
        let mut selectors = Selectors::default();
        let classes = known_classes(classes, &mut selectors, &mut problems);
        let (nodes, node_numbers) = known_nodes(nodes, &mut problems);
        let neighbourhoods = Neighbourhoods::new(&index, &node_numbers, nodes.len());
        let mut world = Self {
            state: State::new(&index),
            memo: Memo::new(&index),
            views: vec![None; nodes.len()],
            index: Arc::new(index),
            directory: Arc::new(directory),
            classes: Arc::new(classes),
            nodes: Arc::new(nodes),
            node_numbers: Arc::new(node_numbers),
            neighbourhoods,
            held: HolderIndex::default(),
            release_order: None,
            selectors,
            attributes: AttributeValues::default(),
            demands: Demands::default(),
            sets: Vec::new(),
            set_numbers: NumberMap::default(),
            lanes: Vec::new(),
            lane_numbers: NumberMap::default(),
            limits: Limits::default(),
            release: Release::default(),
            work: 0,
        };
        world.report_pools(&mut problems);
        (world, problems)
    }

    /// Sets the bounds of later searches, and forgets what was learnt.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.memo = Memo::new(&self.index);
        self.sets.clear();
        self.set_numbers.clear();
        self.lanes.clear();
        self.lane_numbers.clear();
    }

    /// Decides as this release does from now on, and forgets what was learnt.
    pub fn follow(&mut self, release: Release) {
        self.release = release;
        self.state.release = release;
        self.look_through(Arc::new(Directory::new(&self.index, Completeness::Required, release)));
    }

    /// The nodes, in the order in which they are tried.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeIndex> {
        self.node_numbers.get(name).copied()
    }

    /// The class of this name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<&DeviceClass> {
        self.classes.get(name)
    }

    /// The device of this name as its driver describes it; in the newest generation where there are several.
    #[must_use]
    pub fn device(&self, id: &DeviceId) -> Option<&Device> {
        let device = self.index.device(&id.driver, &id.pool, &id.device)?;
        let generation =
            |entry: &EntryNo| self.index.slices[self.index.entries[entry.at()].slice.at()].pool.generation;
        self.index.entries_of(device).max_by_key(generation).map(|entry| self.index.described(entry))
    }

    /// All slices, as given.
    #[must_use]
    pub fn slices(&self) -> &[ResourceSlice] {
        &self.index.slices
    }

    /// What the node sees; worked out on first use.
    pub(super) fn view(&mut self, node: NodeIndex) -> Option<Arc<View>> {
        let slot = self.views.get_mut(node.0 as usize)?;
        if slot.is_none() {
            let described = self.nodes.get(node.0 as usize)?;
            let view = self.directory.view(&self.index, described);
            self.work += view.entries.len() as u64;
            *slot = Some(Arc::new(view));
        }
        slot.clone()
    }

    /// Reads the slices through another directory, with nothing learnt; returns the one used so far, and what was learnt
    /// through it.
    pub(super) fn look_through(&mut self, directory: Arc<Directory>) -> Learnt {
        let views = vec![None; self.nodes.len()];
        Learnt {
            directory: std::mem::replace(&mut self.directory, directory),
            views: std::mem::replace(&mut self.views, views),
            sets: std::mem::take(&mut self.sets),
            set_numbers: std::mem::take(&mut self.set_numbers),
            lanes: std::mem::take(&mut self.lanes),
            lane_numbers: std::mem::take(&mut self.lane_numbers),
            memo: std::mem::replace(&mut self.memo, Memo::new(&self.index)),
        }
    }

    /// Undoes [`Self::look_through`]; nothing may have been released in between.
    pub(super) fn look_back(&mut self, learnt: Learnt) {
        let Learnt { directory, views, sets, set_numbers, lanes, lane_numbers, memo } = learnt;
        self.directory = directory;
        self.views = views;
        self.sets = sets;
        self.set_numbers = set_numbers;
        self.lanes = lanes;
        self.lane_numbers = lane_numbers;
        self.memo = memo;
    }

    /// The candidates of a base on a node; worked out on first use.
    pub(super) fn set(&mut self, base: BaseNo, node: NodeIndex, view: &View) -> Option<SetNo> {
        let number = match self.set_numbers.get(&(base, node)) {
            Some(known) => *known,
            None => {
                let number = SetNo::after(self.sets.len());
                let described = self.nodes.get(node.0 as usize)?;
                let asked = &self.demands.bases[base.at()];
                self.work += view.entries.len() as u64;
                self.sets.push(CandidateSet::new(&self.index, view, described, asked, &mut self.selectors));
                self.set_numbers.insert((base, node), number);
                number
            }
        };
        let epoch = match self.limits.memory {
            Memory::Kept => self.memo.epoch(node, &self.neighbourhoods),
            Memory::Off => self.memo.next_epoch(),
        };
        self.sets[number.at()].refresh(epoch);
        Some(number)
    }

    /// What the demand knows of its base's candidates on a node.
    pub(super) fn lane(&mut self, demand: DemandNo, node: NodeIndex, view: &View) -> Option<LaneNo> {
        let set = self.set(self.demands.demands[demand.at()].base, node, view)?;
        let of = &self.sets[set.at()];
        if let Some(known) = self.lane_numbers.get(&(demand, node)) {
            self.lanes[known.at()].refresh(of);
            return Some(*known);
        }
        for profile in &of.profiles {
            self.demands.demands[demand.at()].prepare(*profile, &self.index);
        }
        let number = LaneNo::after(self.lanes.len());
        self.lanes.push(Lane::new(set, of));
        self.lane_numbers.insert((demand, node), number);
        Some(number)
    }

    fn report_pools(&mut self, problems: &mut Vec<InputProblem>) {
        for node in 0..self.views.len() {
            // Only nodes with slices of their own or that roam can see faults which are not reported yet.
            let node = NodeIndex(u32::try_from(node).unwrap_or(u32::MAX));
            let Some(view) = self.view(node) else { continue };
            for (pool, fault) in &view.faults {
                let facts = &self.index.pools[pool.at()];
                let problem = InputProblem::pool(&facts.driver, &facts.name, fault.clone());
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
    }
}

fn known_classes(
    classes: Vec<DeviceClass>,
    selectors: &mut Selectors,
    problems: &mut Vec<InputProblem>,
) -> BTreeMap<String, DeviceClass> {
    let mut known = BTreeMap::new();
    for class in classes {
        if known.contains_key(&class.name) {
            problems.push(InputProblem::DuplicateClass { class: class.name });
            continue;
        }
        for (index, text) in class.selectors.iter().enumerate() {
            let number = selectors.number(text);
            if let Some(message) = selectors.compile_error(number) {
                let (class, message) = (class.name.clone(), message.to_owned());
                problems.push(InputProblem::Selector { class, index, message });
            }
        }
        known.insert(class.name.clone(), class);
    }
    known
}

fn known_nodes(
    nodes: Vec<Node>,
    problems: &mut Vec<InputProblem>,
) -> (Vec<Node>, HashMap<String, NodeIndex>) {
    let mut known: Vec<Node> = Vec::new();
    let mut numbers = HashMap::new();
    for node in nodes {
        if numbers.contains_key(&node.name) {
            problems.push(InputProblem::DuplicateNode { node: node.name });
            continue;
        }
        numbers.insert(node.name.clone(), NodeIndex(u32::try_from(known.len()).unwrap_or(u32::MAX)));
        known.push(node);
    }
    (known, numbers)
}
