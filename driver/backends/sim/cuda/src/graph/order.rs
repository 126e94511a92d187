//! Graphs in which nodes wait for the host: unblocked nodes are submitted first. Then functions are called
//! and words waited for, and then the nodes behind those are submitted.
//!
//! Of ready nodes, those that block no other come first, then functions on the host, then words. Of words
//! that are waited for together, the first to change wins. So no branch blocks another one, as far as a
//! serial card has branches.

use super::{Effect, Op, Step};
use crate::line::Turn;
use crate::word::{self, Batch};
use aliquot_sim_device::{Mark, monotonic_nanos};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes of a graph and of those inside it, each with what must be done before it, by number.
#[derive(Default)]
pub(super) struct Order {
    nodes: Vec<(NodeEffect, BTreeSet<usize>)>,
}

/// What a node does.
enum NodeEffect {
    Work(u64, Option<Effect>),
    Call(Effect),
    Words(Batch),
}

/// Whether a node waits for the host, or has one inside that does.
pub(super) fn holds(op: &Op) -> bool {
    match op {
        Op::Host(_) | Op::Words(_) => true,
        Op::Inside(steps) => steps.iter().any(|step| holds(&step.op)),
        _ => false,
    }
}

impl Order {
    pub(super) fn of(steps: &[Step]) -> Self {
        let mut order = Self::default();
        order.add(steps, &BTreeSet::new());
        order
    }

    /// Adds nodes behind others; the numbers of all of them.
    fn add(&mut self, steps: &[Step], behind: &BTreeSet<usize>) -> BTreeSet<usize> {
        let (mut numbers, mut all) = (BTreeMap::<u64, BTreeSet<usize>>::new(), BTreeSet::new());
        for step in steps {
            let mut after = behind.clone();
            after.extend(step.after.iter().filter_map(|node| numbers.get(node)).flatten());
            let own = match &step.op {
                // One without nodes hands on what it stands behind.
                Op::Inside(inside) if inside.is_empty() => after,
                Op::Inside(inside) => self.add(inside, &after),
                op => {
                    self.nodes.push((NodeEffect::of(op), after));
                    BTreeSet::from([self.nodes.len() - 1])
                }
            };
            all.extend(&own);
            numbers.insert(step.node, own);
        }
        all
    }

    /// A node that `wanted` says yes to and that nothing is before any more.
    fn ready(&self, wanted: impl Fn(&NodeEffect) -> bool) -> Option<usize> {
        self.nodes.iter().position(|(does, after)| after.is_empty() && wanted(does))
    }

    /// Marks the node as done: it never runs again, and blocks no other node.
    fn finish(&mut self, number: usize) {
        for (_, after) in &mut self.nodes {
            after.remove(&number);
        }
        if let Some((_, after)) = self.nodes.get_mut(number) {
            // Never ready again.
            after.insert(usize::MAX);
        }
    }

    /// All that nothing holds: its time together, and what it does to content.
    fn free(&mut self) -> Option<(u64, Vec<Effect>)> {
        let (mut found, mut nanos, mut effects) = (false, 0_u64, Vec::new());
        while let Some(number) = self.ready(|does| matches!(does, NodeEffect::Work(..))) {
            if let Some((NodeEffect::Work(one, effect), _)) = self.nodes.get(number) {
                nanos = nanos.saturating_add(*one);
                effects.extend(effect.clone());
            }
            found = true;
            self.finish(number);
        }
        found.then_some((nanos, effects))
    }

    /// Goes through it, at its turn; the mark behind it.
    pub(super) fn go(mut self, turn: &Turn<'_>) -> Mark {
        let (mut mark, mut begun) = (turn.before, monotonic_nanos());
        while !turn.is_over() {
            if let Some((nanos, effects)) = self.free() {
                mark = turn.submit(nanos);
                // As with single copies: an asynchronous error has no caller to return to.
                let _unreported = effects.iter().try_for_each(|effect| effect());
            }
            if self.ready(|_| true).is_none() {
                break;
            }
            turn.wait(mark);
            if let Some(number) = self.ready(|does| matches!(does, NodeEffect::Call(_))) {
                if let Some((NodeEffect::Call(call), _)) = self.nodes.get(number) {
                    let _always_well = call();
                }
                self.finish(number);
            } else if self.look() {
                begun = monotonic_nanos();
            } else {
                word::pause(begun);
            }
        }
        mark
    }

    /// Whether any of the words that are waited for is there.
    fn look(&mut self) -> bool {
        let mut open = self.nodes.iter_mut().enumerate().filter(|(_, (_, after))| after.is_empty());
        let found = open.find_map(|(number, (does, _))| {
            let NodeEffect::Words(batch) = does else { return None };
            batch.go().then_some(number)
        });
        found.into_iter().for_each(|number| self.finish(number));
        found.is_some()
    }
}

impl NodeEffect {
    fn of(op: &Op) -> Self {
        match op {
            Op::Work { nanos, effect, .. } => Self::Work(*nanos, effect.clone()),
            Op::Host(call) => Self::Call(call.clone()),
            Op::Words(batch) => Self::Words(batch.clone()),
            Op::Alloc { .. } | Op::Free(_) | Op::Child(_) | Op::Inside(_) | Op::Empty => Self::Work(0, None),
        }
    }
}
