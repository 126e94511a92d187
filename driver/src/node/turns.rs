//! Turns: one operation at a time for a claim, and one at a time for a card, in the order in which they lined up.
//!
//! ```text
//!  claim's turn ─▶ [state locked: decide, journal, line up for the cards] ─▶ cards' turn ─▶ steps ─▶ [state locked: journal]
//! ```
//!
//! An operation lines up for all of its cards at once and waits for a claim before it lines up for cards, so no two wait for
//! each other. Nothing else is locked while an operation waits for its turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use aliquot_core::id::{CardUuid, ClaimUid};
use parking_lot::{Condvar, Mutex};

/// What operations take turns at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A claim.
    Claim(ClaimUid),
    /// A card, with everything on it.
    Card(CardUuid),
}

/// The lines of a node.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lines: Mutex<Lines>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    next: u64,
    /// By subject, the operation that has the turn and those behind it. A subject without operations has none.
    waiting: BTreeMap<Subject, VecDeque<u64>>,
}

/// A place in some lines; given up when dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct QueuePlace<'t> {
    turns: &'t Turns,
    number: u64,
    subjects: BTreeSet<Subject>,
}

// === impl Turns ===

impl Turns {
    /// Takes the last place in the lines of all these subjects.
    pub(super) fn line_up(&self, subjects: impl IntoIterator<Item = Subject>) -> QueuePlace<'_> {
        let subjects: BTreeSet<Subject> = subjects.into_iter().collect();
        let mut lines = self.lines.lock();
        let number = lines.next;
        lines.next += 1;
        for subject in &subjects {
            lines.waiting.entry(subject.clone()).or_default().push_back(number);
        }
        QueuePlace { turns: self, number, subjects }
    }

    /// The turn of a subject that no operation uses or waits for.
    pub(super) fn try_turn(&self, subject: Subject) -> Option<QueuePlace<'_>> {
        let mut lines = self.lines.lock();
        if lines.waiting.contains_key(&subject) {
            return None;
        }
        let number = lines.next;
        lines.next += 1;
        lines.waiting.insert(subject.clone(), VecDeque::from([number]));
        drop(lines);
        Some(QueuePlace { turns: self, number, subjects: BTreeSet::from([subject]) })
    }

    /// Whether no operation uses or waits for these subjects.
    pub(super) fn are_free(&self, subjects: &BTreeSet<Subject>) -> bool {
        let lines = self.lines.lock();
        !subjects.iter().any(|subject| lines.waiting.contains_key(subject))
    }
}

// === impl QueuePlace ===

impl QueuePlace<'_> {
    /// Waits until the place is the first one of every line.
    pub(super) fn wait(&self) {
        let mut lines = self.turns.lines.lock();
        let is_first = |lines: &Lines| {
            let first = |subject| lines.waiting.get(subject).and_then(VecDeque::front);
            self.subjects.iter().all(|subject| first(subject) == Some(&self.number))
        };
        while !is_first(&lines) {
            self.turns.moved.wait(&mut lines);
        }
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut lines = self.turns.lines.lock();
        for subject in &self.subjects {
            if let Some(line) = lines.waiting.get_mut(subject) {
                line.retain(|number| *number != self.number);
                if line.is_empty() {
                    lines.waiting.remove(subject);
                }
            }
        }
        drop(lines);
        self.turns.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn card(name: &str) -> Subject {
        Subject::Card(CardUuid::new(name).unwrap())
    }

    #[test]
    fn turns_of_a_card_come_in_the_order_of_lining_up() {
        let turns = Turns::default();
        let (says, heard) = mpsc::channel();
        let first = turns.line_up([card("one"), card("two")]);
        first.wait();
        thread::scope(|scope| {
            for number in 0..4 {
                // Lined up here, so that the order is known.
                let place = turns.line_up([card(["one", "two"][number % 2])]);
                let says = says.clone();
                scope.spawn(move || {
                    place.wait();
                    says.send(number).unwrap();
                });
            }
            assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
            drop(first);
            let order: Vec<usize> = (0..4).map(|_| heard.recv().unwrap()).collect();
            let of = |rest| order.iter().copied().filter(|n| n % 2 == rest).collect::<Vec<_>>();
            assert_eq!((of(0), of(1)), (vec![0, 2], vec![1, 3]));
        });
        assert!(turns.lines.lock().waiting.is_empty());
    }

    #[test]
    fn turns_of_other_cards_do_not_wait() {
        let turns = Turns::default();
        let slow = turns.line_up([card("slow")]);
        slow.wait();
        let _behind = turns.line_up([card("slow")]);
        turns.line_up([card("free")]).wait();
    }
}
