//! A launch, upload or instantiation: memory is reserved before it and settled after it.

use aliquot_enforce::backing::Source;

use super::execs::{self, Flight};
use super::wanted::{Amounts, CARDS_MAX, GraphDemand, NONE};
use super::{DriverAmounts, FlightCall, Reserved, grown, held, watch};
use crate::accounting::account::{self, Account, Bytes, Ledger};
use crate::loader::vendor::{Device, OUT_OF_MEMORY, SUCCESS};
use crate::memory::meter::{CallEnd, Meter, PendingCall};
use crate::sys::KeepErrno;

/// Why nothing was reserved.
pub(super) enum Refusal {
    /// The card is closed.
    Closed,
    /// It does not fit in this ledger.
    Full(Ledger),
}

impl Refusal {
    pub(super) fn answer(self) -> i32 {
        match self {
            Self::Closed => OUT_OF_MEMORY,
            Self::Full(ledger) => ledger.refuse(),
        }
    }
}

/// Reserves what a flight may take, in `into`.
#[inline(never)]
fn enter(flight: &Flight, into: &mut Reserved) -> Result<(), Refusal> {
    for (place, (card, worst)) in into.iter_mut().zip(flight.each()) {
        let (device, meter) = (Device(card), Meter::Graphs(Device(card)));
        let refusal = match account::of(device) {
            Account::Uncounted => continue,
            Account::Closed => Refusal::Closed,
            Account::Counted(ledger) => {
                *place = if !watch(device) {
                    None
                } else if flight.is_backed() {
                    meter.enter_idle(ledger)
                } else {
                    meter.enter_now(ledger, worst)
                };
                if place.is_some() {
                    continue;
                }
                Refusal::Full(ledger)
            }
        };
        // Nothing was asked for.
        end_all(flight, into, OUT_OF_MEMORY);
        return Err(refusal);
    }
    Ok(())
}

/// Changes what is reserved of each card.
fn each_of(reserved: &mut Reserved, amounts: &Amounts, change: impl Fn(&mut PendingCall, Bytes)) {
    for (waiting, bytes) in reserved.iter_mut().zip(amounts).filter(|(_, bytes)| **bytes > 0) {
        waiting.iter_mut().for_each(|waiting| change(waiting, Bytes(*bytes)));
    }
}

/// What was reserved for a flight that did not take place is free again.
fn give_back(flight: &Flight, amounts: &Amounts) {
    for ((card, _), bytes) in flight.wanted.each().zip(amounts).filter(|(_, bytes)| **bytes > 0) {
        if let Account::Counted(ledger) = account::of(Device(card)) {
            Meter::Graphs(Device(card)).adopt(ledger, Bytes(*bytes)).end(OUT_OF_MEMORY);
        }
    }
}

/// What it may take is in accounting from now on, and what others count on becomes theirs.
fn take_room(flight: &Flight, reserved: &mut Reserved) -> Result<(), Refusal> {
    match enter(flight, reserved) {
        Ok(()) => {
            each_of(reserved, &execs::cover(flight), PendingCall::hand_over);
            Ok(())
        }
        Err(refusal) => {
            // Before others are asked to give something back, as it is not under way.
            give_back(flight, &execs::cancel(flight));
            Err(refusal)
        }
    }
}

/// A flight begins, with what it may take in accounting: at once, or in memory that another graph has, or when pools have given
/// back what they only keep. `Ok(false)`: `begin` knows nothing of it.
#[inline(never)]
pub(super) fn take_off(
    (flight, reserved): (&mut Flight, &mut Reserved),
    begin: &dyn Fn(&mut Flight) -> bool,
    beside: &dyn Fn(&mut Flight) -> bool,
) -> Result<bool, Refusal> {
    let mut relieved = None;
    for _ in 0..=CARDS_MAX {
        if !begin(flight) {
            return Ok(false);
        }
        let ledger = match take_room(flight, reserved) {
            Err(Refusal::Full(ledger)) if relieved != Some(ledger.number()) => ledger,
            answer => return answer.map(|()| true),
        };
        if beside(flight) {
            return take_room(flight, reserved).map(|()| true);
        }
        ledger.relieve();
        relieved = Some(ledger.number());
    }
    Err(Refusal::Closed)
}

/// The vendor's call is over, with this answer: the ledger that holds more now than its limit leaves, and how it ended.
#[inline(never)]
pub(super) fn end_all(flight: &Flight, reserved: &mut Reserved, answer: i32) -> (Option<Ledger>, CallEnd) {
    let (mut over, mut how) = (None, CallEnd::Fits);
    for (place, (card, _)) in reserved.iter_mut().zip(flight.wanted.each()) {
        let Some(waiting) = place.take() else { continue };
        let ledger = waiting.ledger();
        match waiting.end(Device(card), answer) {
            CallEnd::Fits => {}
            CallEnd::Grew => how = CallEnd::Grew,
            CallEnd::Over => (over, how) = (Some(ledger), CallEnd::Grew),
        }
    }
    (over, how)
}

/// The vendor's call, with what it may take in accounting.
#[inline(never)]
pub(super) fn fly(flight: &Flight, reserved: &mut Reserved, real: &dyn Fn() -> i32) -> FlightCall {
    let before = {
        let _errno = KeepErrno::new();
        if flight.is_backed() { NONE } else { held(&flight.wanted) }
    };
    let answer = real();
    let _errno = KeepErrno::new();
    if flight.is_backed() {
        each_of(reserved, &execs::land(flight), PendingCall::take_over);
    }
    let (over, how) = end_all(flight, reserved, answer);
    if flight.is_backed() && how == CallEnd::Grew {
        execs::doubt();
    }
    let source = || if flight.is_backed() { Source::Kept } else { source(&flight.wanted, &before) };
    FlightCall { answer, source: (answer == SUCCESS).then(source), over }
}

/// Where memory came from, by what the driver held before.
fn source(wanted: &GraphDemand, before: &DriverAmounts) -> Source {
    let (mut is_kept, mut is_card) = (true, true);
    for ((card, bytes), before) in wanted.each().zip(before) {
        let grown = grown(card, *before);
        is_kept &= grown == Some(0);
        is_card &= grown.is_some_and(|grown| grown >= bytes);
    }
    match (is_kept, is_card) {
        (true, _) => Source::Kept,
        (false, true) => Source::Card,
        (false, false) => Source::Anywhere,
    }
}
