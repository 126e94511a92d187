//! The devices of one node that a request may pick from, in the order of search.
//!
//! What cannot change while the world stands is decided when the list is made: selectors, node, taints. What is found
//! to be held is buried, and stays so until something that the node sees is released: in the list for every demand of
//! the base when the whole device or a counter is held, in the demand's own *lane* when too little capacity is left.
//!
//! A list also knows a *ceiling*: the most that any device has left of each capacity. It only sinks until a release,
//! so an amount above it is refused without a look at the devices.

use super::demand::{Base, Demand};
use super::index::{EntryNo, Index, ProfileNo, numbered};
use super::pools::{View, device_concerns};
use super::selectors::{EvaluatedDevice, SelectorOutcome, Selectors};
use super::state::State;
use super::taints;
use crate::dra::Node;

numbered! {
    /// A list of candidates: a base on a node.
    SetNo,
    /// A demand on a node.
    LaneNo,
}

/// Candidates of one base on one node.
#[derive(Debug)]
pub(super) struct CandidateSet {
    pub(super) list: Vec<Candidate>,
    /// The profiles that occur in it.
    pub(super) profiles: Vec<ProfileNo>,
    /// Whether a selector fails on any of them.
    pub(super) soundness: Soundness,
    dead: Bits,
    /// The most left of each capacity, by place in `profiles`; an inner `None`: no device of the profile is left.
    ceiling: Option<Vec<Option<Vec<i128>>>>,
    /// The node's epoch in which `dead` and `ceiling` hold.
    epoch: u64,
}

/// One device that passes everything that does not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) entry: EntryNo,
    pub(super) kind: CandidateKind,
}

/// What choosing a candidate leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CandidateKind {
    Open,
    /// It has a taint that the request does not tolerate: fails mode `All`, passed over otherwise.
    Tainted,
    /// This selector (of the base's list) cannot be evaluated on it: ends the search.
    Broken(u32),
}

/// Whether a search of a list can end in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Soundness {
    Sound,
    Broken,
}

/// What one demand has learnt about a list.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) set: SetNo,
    dead: Bits,
    epoch: u64,
}

#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

// === impl CandidateSet ===

impl CandidateSet {
    pub(super) fn new(
        index: &Index,
        view: &View,
        node: &Node,
        base: &Base,
        selectors: &mut Selectors,
    ) -> Self {
        let mut set = Self {
            list: Vec::new(),
            profiles: Vec::new(),
            soundness: Soundness::Sound,
            dead: Bits::default(),
            ceiling: None,
            epoch: 0,
        };
        for entry in &view.entries {
            let kind = match judge(*entry, index, base, selectors) {
                StaticCheck::Fails => continue,
                StaticCheck::Broken(selector) => {
                    set.soundness = Soundness::Broken;
                    CandidateKind::Broken(selector)
                }
                StaticCheck::Passes if !device_concerns(index, *entry, node) => continue,
                StaticCheck::Passes => match taints::in_the_way(index.described(*entry), &base.tolerations) {
                    Some(_) => CandidateKind::Tainted,
                    None => CandidateKind::Open,
                },
            };
            let profile = index.entries[entry.at()].profile;
            if !set.profiles.contains(&profile) {
                set.profiles.push(profile);
            }
            set.list.push(Candidate { entry: *entry, kind });
        }
        set.revive();
        set
    }

    /// Forgets what was found to be held, if anything was released since.
    pub(super) fn refresh(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.ceiling = None;
            self.revive();
        }
    }

    fn revive(&mut self) {
        self.dead = Bits(vec![0; self.list.len().div_ceil(64)]);
        for (position, candidate) in self.list.iter().enumerate() {
            if candidate.kind == CandidateKind::Tainted {
                self.dead.set(position);
            }
        }
    }

    /// Passes this candidate over from now on, for every demand.
    pub(super) fn bury(&mut self, position: usize) {
        self.dead.set(position);
    }

    /// Whether what was learnt is of this epoch.
    pub(super) const fn is_of(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// Whether the demand asks more of some capacity than any device has left.
    pub(super) fn is_above_ceiling(&self, demand: &Demand) -> bool {
        let Some(ceiling) = &self.ceiling else { return false };
        self.profiles.iter().zip(ceiling).all(|(profile, left)| match (demand.amounts(*profile), left) {
            (Some(amounts), Some(left)) => amounts.iter().zip(left).any(|(asked, left)| asked > left),
            _ => true,
        })
    }

    /// Measures the ceiling anew.
    pub(super) fn measure(&mut self, index: &Index, state: &State) {
        let mut ceiling: Vec<Option<Vec<i128>>> = vec![None; self.profiles.len()];
        let mut position = 0;
        while let Some(found) = self.dead.next_clear(position, self.list.len()) {
            position = found + 1;
            let entry = &index.entries[self.list[found].entry.at()];
            let Some(at) = self.profiles.iter().position(|profile| *profile == entry.profile) else {
                continue;
            };
            let whole = &index.profiles[entry.profile.at()].whole;
            let left = whole.iter().zip(&state.used[entry.amounts()..]).map(|(whole, used)| whole - used);
            match &mut ceiling[at] {
                Some(highest) => {
                    for (high, left) in highest.iter_mut().zip(left) {
                        *high = left.max(*high);
                    }
                }
                unseen => *unseen = Some(left.collect()),
            }
        }
        self.ceiling = Some(ceiling);
    }
}

// === impl Lane ===

impl Lane {
    pub(super) fn new(set: SetNo, of: &CandidateSet) -> Self {
        Self { set, dead: of.dead.clone(), epoch: of.epoch }
    }

    /// Forgets what was found to be held, if anything was released since.
    pub(super) fn refresh(&mut self, of: &CandidateSet) {
        if self.epoch != of.epoch {
            self.epoch = of.epoch;
            self.dead.clone_from(&of.dead);
        }
    }

    /// Passes this candidate over from now on.
    pub(super) fn bury(&mut self, position: usize) {
        self.dead.set(position);
    }

    /// The first candidate at or after `position` that is worth trying.
    pub(super) fn next(&self, position: usize, of: &CandidateSet) -> Option<usize> {
        self.dead.next_clear(position, of.list.len())
    }
}

// === impl Bits ===

impl Bits {
    fn set(&mut self, position: usize) {
        self.0[position / 64] |= 1 << (position % 64);
    }

    fn next_clear(&self, position: usize, length: usize) -> Option<usize> {
        let mut word = position / 64;
        let mut clear = !*self.0.get(word)? & (u64::MAX << (position % 64));
        while clear == 0 {
            word += 1;
            clear = !*self.0.get(word)?;
        }
        let found = word * 64 + clear.trailing_zeros() as usize;
        (found < length).then_some(found)
    }
}

enum StaticCheck {
    Passes,
    Fails,
    Broken(u32),
}

/// The first selector that does not pass decides.
fn judge(entry: EntryNo, index: &Index, base: &Base, selectors: &mut Selectors) -> StaticCheck {
    let mut device = EvaluatedDevice::new(index, entry);
    for (position, (_, selector)) in base.selectors.iter().flatten().enumerate() {
        match selectors.verdict(*selector, &mut device) {
            SelectorOutcome::Passes => {}
            SelectorOutcome::Fails | SelectorOutcome::Unknown => return StaticCheck::Fails,
            SelectorOutcome::Broken => {
                return StaticCheck::Broken(u32::try_from(position).unwrap_or(u32::MAX));
            }
        }
    }
    StaticCheck::Passes
}
