//! Placement of a run's claim on the cards.

use aliquot_core::allocate::{Change, NodesExplained};
use aliquot_core::dra::ResourceClaim;

use crate::checkpoint::ClaimKind;
use crate::manifest::Manifests;
use crate::node::Node;
use crate::run::ask;

use super::super::cluster::{Cluster, UnitOutcome};
use super::super::explain::{NODES_SHOWN, UnitExplanation};
use super::super::failure::Failure;
use super::super::holders;
use super::super::nodes::Fleet;
use super::super::output::{Colour, RedrawMode, Terminal};
use super::home::Home;
use super::sizing;
use super::words::in_options;

/// Most placements that are tried for one run, if processes with other ledgers take each first.
const PLACES_MAX: u32 = 8;

/// Places and prepares the claim. If a process with another ledger took its place first, the claim is placed again.
pub(super) fn place_and_prepare(
    home: &Home,
    claim: &ResourceClaim,
    (mut node, mut fleet): (Node, Fleet),
    terminal: &mut Terminal<'_>,
) -> Result<(Node, Result<(), String>), Failure> {
    let mut tries = 0;
    loop {
        let placed = match place(claim.clone(), &mut fleet, terminal)? {
            Ok(placed) => placed,
            Err(why) => return Ok((node, Err(why))),
        };
        tries += 1;
        let prepared = node.prepare_for(&placed, ClaimKind::Run);
        sizing::say(&mut node, terminal);
        match prepared {
            Ok(prepared) => return sizing::measure(home, &prepared.uid, node, terminal),
            Err(error) if error.is_late() && tries < PLACES_MAX => {
                drop(node);
                (node, fleet) = home.open(terminal)?;
            }
            Err(error) => {
                let why = holders::refusal(&error, &node, ClaimKind::Run, &home.node);
                return Ok((node, Err(why)));
            }
        }
    }
}

/// Allocates the claim; `Ok(Err(…))`: it does not fit, with the reason and a remedy.
fn place(
    claim: ResourceClaim,
    fleet: &mut Fleet,
    terminal: &mut Terminal<'_>,
) -> Result<Result<ResourceClaim, String>, Failure> {
    let manifests = Manifests { claims: vec![claim], classes: vec![ask::class()], ..Manifests::default() };
    let mut cluster = Cluster::new(manifests, fleet)?;
    for placement in cluster.place_all(|_, _| {}) {
        let unit = placement.unit;
        if let UnitOutcome::Refused(why) = placement.outcome {
            let label = cluster.label(unit);
            let explained = UnitExplanation::of(&mut cluster, unit, label, why, NodesExplained::All);
            let explained = explained.reworded(|change| match change {
                Change::ReleaseClaim { .. } => Some(holders::words(change, &cluster)),
                other => in_options(other),
            });
            let mut text = Vec::new();
            let mut unseen = Terminal {
                out: &mut text,
                err: &mut *terminal.err,
                input: &mut *terminal.input,
                // Colour codes would become part of the text.
                colour: Colour::Off,
                progress: terminal.progress,
                screen: RedrawMode::None,
            };
            explained.text(NODES_SHOWN, &mut unseen)?;
            return Ok(Err(String::from_utf8_lossy(&text).trim_end().to_owned()));
        }
        if let Some(claim) = cluster.claims_of(unit).next() {
            return Ok(Ok(claim.clone()));
        }
    }
    Err(Failure::Node("the claim was not looked at".to_owned()))
}
