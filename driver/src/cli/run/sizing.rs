//! Measures the size of a context on the card of a run, before its command starts and without the node's lock.

use std::collections::BTreeSet;
use std::io::{self, Write as _};

use aliquot_core::id::{CardUuid, ClaimUid};

use crate::contexts::MeasuringTurn;
use crate::node::{Access, Node};

use super::super::failure::Failure;
use super::super::output::Terminal;
use super::home::Home;
use crate::error_text::chain;

/// Measures unknown context sizes for a claim that was just prepared. `Ok((…, Err(…)))`: the result cannot be stored, and the claim
/// is released. If anything else fails, the next call finds the record of the run.
pub(super) fn measure(
    home: &Home,
    claim: &ClaimUid,
    mut node: Node,
    terminal: &mut Terminal<'_>,
) -> Result<(Node, Result<(), String>), Failure> {
    let reopened = |terminal: &mut Terminal<'_>| home.open_as_it_is(Access::Change, terminal);
    let mut looked_at = BTreeSet::new();
    let mut had: Option<(CardUuid, MeasuringTurn)> = None;
    loop {
        let next = node.to_measure(claim, &mut looked_at);
        say(&mut node, terminal);
        let Some(measuring) = next else { return Ok((node, Ok(()))) };
        let ground = measuring.ground().clone();
        if had.as_ref().is_none_or(|(card, _)| *card != ground.card) {
            // Never two of them.
            drop(had.take());
            let failed = |error| home.failed("lock", error);
            let Some(turn) = MeasuringTurn::now(&home.state, &ground.card).map_err(failed)? else {
                drop(node);
                let turn = MeasuringTurn::wait(&home.state, &ground.card, |holder| {
                    measuring.tell();
                    // A closed standard error is no reason to stop waiting.
                    drop(writeln!(
                        io::stderr(),
                        "waiting for {holder}, which measures on card {}",
                        ground.card
                    ));
                })
                .map_err(failed)?;
                had = Some((ground.card, turn));
                (node, _) = reopened(terminal)?;
                // The size may be known now, and the grants on the card may have changed.
                continue;
            };
            had = Some((ground.card.clone(), turn));
        }
        drop(node);
        let measured = measuring.take();
        (node, _) = reopened(terminal)?;
        let kept = node.keep_measured(&measured);
        say(&mut node, terminal);
        if let Err(error) = kept {
            let why = chain(&error);
            // A claim that cannot be released now stays in the journal, for the next call.
            return match node.release(claim) {
                Ok(_) | Err(_) => Ok((node, Err(why))),
            };
        }
        looked_at.insert(ground);
    }
}

/// Prints the node's notes.
pub(super) fn say(node: &mut Node, terminal: &mut Terminal<'_>) {
    for note in node.take_notes() {
        terminal.last_note(format_args!("warning: {note}"));
    }
}
