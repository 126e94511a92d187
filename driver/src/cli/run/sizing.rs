//! Measures the size of a context on the card of a run, before its command starts and without the node's lock.

use aliquot_core::id::ClaimUid;

use crate::node::{Access, ContextMeasurement, Node};

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
    let unknown = node.to_measure(claim);
    say(&mut node, terminal);
    if unknown.is_empty() {
        return Ok((node, Ok(())));
    }
    drop(node);
    let measured: Vec<_> = unknown.into_iter().map(ContextMeasurement::take).collect();
    let (mut node, _) = home.open_as_it_is(Access::Change, terminal)?;
    let kept = measured.iter().try_for_each(|measured| node.keep_measured(claim, measured));
    say(&mut node, terminal);
    let Err(error) = kept else { return Ok((node, Ok(()))) };
    // A claim that cannot be released now stays in the journal, for the next call.
    match node.release(claim) {
        Ok(_) | Err(_) => Ok((node, Err(chain(&error)))),
    }
}

/// Prints the node's notes.
pub(super) fn say(node: &mut Node, terminal: &mut Terminal<'_>) {
    for note in node.take_notes() {
        terminal.last_note(format_args!("warning: {note}"));
    }
}
