//! Memory nodes of graphs: the driver keeps one store of memory for all graphs of a card, and tells its size.
//!
//! ```text
//!   instantiate: what do its nodes want ─▶ noted (execs)
//!   launch, upload: has it that? ─yes─▶ vendor call ─▶ the store's size into accounting
//!                        └─no─▶ reserve it ─▶ does not fit: trim all pools, once more ─▶ the vendor's out-of-memory
//! ```
//!
//! A node costs nothing while it is written down, captured or copied. The store grows when a graph is uploaded or launched, and
//! with some drivers when it is instantiated, and shrinks when it is trimmed: so accounting follows it. Until it was seen which
//! driver this is, an instantiation reserves as well, and for good where the driver did not keep to what was seen. Growth that
//! no thread foresaw is charged, and nothing more is granted until it fits; an instantiation is undone.

mod execs;
mod flight;
mod wanted;

use aliquot_enforce::backing::{AllocationTime, Source};

use crate::accounting::account::Ledger;
use crate::loader::vendor::{self, Device, OUT_OF_MEMORY, SUCCESS, StreamMode, Target};
use crate::memory::meter::{self, CallEnd, Meter, MeterKind, PendingCall, State};
use crate::memory::pools::{self, AddressOut};
use crate::sys::{self, KeepErrno};

use execs::{Flight, UnfreedUse};
use flight::{fly, take_off};
use wanted::{Amounts, CARDS_MAX, GraphDemand, MEMORY_NODE, NONE};

/// Turns that a trim waits for launches under way which it would take memory from.
const TRIM_TURNS_MAX: u32 = 64;

/// The vendor's description of a memory node: the head of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MemoryNode {
    allocation: u32,
    handle_types: u32,
    location_kind: u32,
    location: i32,
}

/// The vendor's description of a node of any kind, as far as a memory node is told from others.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AnyNode {
    kind: u32,
    reserved: [u32; 3],
    memory: MemoryNode,
}

/// A description of a node.
pub(crate) trait Described: Copy {
    /// 64-bit words of the vendor's whole structure.
    const WORDS: usize;

    /// The card whose memory the node takes; `None`: it takes none.
    fn device(self) -> Option<Device>;
}

/// Words of the longest.
pub(crate) const WORDS_MAX: usize = 32;

impl Described for MemoryNode {
    const WORDS: usize = 15;

    fn device(self) -> Option<Device> {
        vendor::card_of(self.location_kind, self.location)
    }
}

impl Described for AnyNode {
    const WORDS: usize = WORDS_MAX;

    fn device(self) -> Option<Device> {
        if self.kind == MEMORY_NODE { self.memory.device() } else { None }
    }
}

/// From now on graphs may take memory of this card, which has a limit. False: there is no place to count it.
pub(crate) fn watch(device: Device) -> bool {
    Meter::Graphs(device).note(device, State::Charged)
}

/// Brings accounting to what the driver says of its stores; the ledger that holds more now than its limit leaves, and whether any
/// store has grown by what no thread reserved.
fn settle() -> (Option<Ledger>, CallEnd) {
    let (mut over, mut how) = (None, CallEnd::Fits);
    meter::each_charged(|meter, _, ledger| {
        if matches!(meter, Meter::Graphs(_)) {
            match meter.refresh(ledger) {
                CallEnd::Fits => {}
                CallEnd::Grew => how = CallEnd::Grew,
                CallEnd::Over => (over, how) = (Some(ledger), CallEnd::Grew),
            }
        }
    });
    (over, how)
}

/// The vendor's call was made.
struct FlightCall {
    answer: i32,
    /// Where it had its memory from; `None`: it was refused.
    source: Option<Source>,
    /// The ledger that holds more now than its limit leaves.
    over: Option<Ledger>,
}

/// What the driver holds of each card of a flight, in bytes; no driver has [`UNTOLD`].
type DriverAmounts = Amounts;

/// It does not say.
const UNTOLD: u64 = u64::MAX;

fn held_of(card: i32) -> u64 {
    Meter::Graphs(Device(card)).reserved().unwrap_or(UNTOLD)
}

fn held(wanted: &GraphDemand) -> DriverAmounts {
    let mut held = NONE;
    for (place, (card, _)) in held.iter_mut().zip(wanted.each()) {
        *place = held_of(card);
    }
    held
}

/// By how much that has grown of a card which had `before`; `None`: unknown.
fn grown(card: i32, before: u64) -> Option<u64> {
    let after = held_of(card);
    if before == UNTOLD || after == UNTOLD { None } else { after.checked_sub(before) }
}

/// What is reserved for a flight, by the places of its cards. Large, so it lies where its caller has a place for it.
type Reserved = [Option<PendingCall>; CARDS_MAX];

const NOTHING: Reserved = [const { None }; CARDS_MAX];

/// An executable graph is launched: its memory is reserved before, unless it has it.
#[inline]
pub(crate) fn launch(exec: u64, target: Target, real: impl Fn() -> i32) -> i32 {
    if MeterKind::Graphs.is_there() { run(exec, target, UnfreedUse::Launch, &real) } else { real() }
}

/// The same for an upload.
pub(crate) fn upload(exec: u64, target: Target, real: impl Fn() -> i32) -> i32 {
    if MeterKind::Graphs.is_there() { run(exec, target, UnfreedUse::Upload, &real) } else { real() }
}

/// A graph that is to be launched for the first time is uploaded, into a stream at rest: what the driver takes for that is no
/// time of the card. One with memory of its own has that by its launch alone. What is wrong with it the launch says.
#[cold]
pub(crate) fn bring(exec: u64, target: Target) {
    let _errno = KeepErrno::new();
    if MeterKind::Graphs.is_there() && execs::knows(exec) {
        return;
    }
    let Target { stream, mode } = target;
    if vendor::is_at_rest(stream, mode) {
        let _whatever = vendor::relaxed(|| match mode {
            StreamMode::Legacy => vendor::cuGraphUpload(exec, stream),
            StreamMode::PerThread => vendor::cuGraphUpload_ptsz(exec, stream),
        });
    }
}

fn run(exec: u64, target: Target, does: UnfreedUse, real: &dyn Fn() -> i32) -> i32 {
    let is_known = {
        let _errno = KeepErrno::new();
        execs::knows(exec) && !vendor::is_capturing(target.stream, target.mode)
    };
    if is_known && let Some(answer) = run_known(exec, target, does, real) {
        return answer;
    }
    let answer = real();
    changed();
    answer
}

/// `None`: it is not known any more.
#[inline(never)]
fn run_known(exec: u64, target: Target, does: UnfreedUse, real: &dyn Fn() -> i32) -> Option<i32> {
    let (mut flight, mut reserved) = (Flight::NONE, NOTHING);
    let taken_off = {
        let _errno = KeepErrno::new();
        let lane = execs::lane(target);
        let begin = |flight: &mut Flight| execs::begin(flight, exec, lane, does);
        let beside = |flight: &mut Flight| execs::begin_beside(flight, lane);
        take_off((&mut flight, &mut reserved), &begin, &beside)
    };
    match taken_off {
        Ok(true) => {
            let flown = fly(&flight, &mut reserved, real);
            execs::end(&flight, flown.source);
            Some(flown.answer)
        }
        Ok(false) => None,
        Err(refusal) => Some(refusal.answer()),
    }
}

/// A graph is instantiated, and uploaded where that says so; `destroy` is the vendor's way back.
pub(crate) fn instantiate(
    (exec, graph): (AddressOut, u64),
    upload: Option<Target>,
    real: &dyn Fn() -> i32,
    destroy: fn(u64) -> i32,
) -> i32 {
    if exec.is_null() || !MeterKind::Graphs.is_there() {
        return real();
    }
    let mut flight = Flight::NONE;
    let (read, taken) = {
        let _errno = KeepErrno::new();
        (flight.wanted.read(graph), execs::taken())
    };
    match read {
        Ok(()) if flight.wanted.is_nothing() => return real(),
        Ok(()) => {}
        Err(_) => return OUT_OF_MEMORY,
    }
    let before = exec.before();
    let made = if taken == AllocationTime::AtLaunch && upload.is_none() {
        make_freely(exec, &flight.wanted, real)
    } else {
        make(exec, &mut flight, upload, real)
    };
    let _errno = KeepErrno::new();
    match made {
        InstantiationOutcome::Kept(answer) | InstantiationOutcome::Not(answer) => answer,
        InstantiationOutcome::Undone(refusal) => {
            let _destroyed = destroy(exec.read());
            exec.write(before);
            pools::trim_graphs();
            refusal
        }
    }
}

/// What came of an instantiation, and the answer.
enum InstantiationOutcome {
    /// What the driver made of it.
    Kept(i32),
    /// It made one that cannot stay.
    Undone(i32),
    /// It was not asked.
    Not(i32),
}

/// Instantiates with what that may take in accounting.
#[inline(never)]
fn make(
    exec: AddressOut,
    flight: &mut Flight,
    upload: Option<Target>,
    real: &dyn Fn() -> i32,
) -> InstantiationOutcome {
    let mut reserved = NOTHING;
    let taken_off = {
        let _errno = KeepErrno::new();
        let lane = upload.and_then(execs::lane);
        let begin = |flight: &mut Flight| execs::begin_new(flight, lane);
        take_off((flight, &mut reserved), &begin, &|_| false)
    };
    match taken_off {
        Ok(true) => {}
        Ok(false) => return InstantiationOutcome::Not(OUT_OF_MEMORY),
        Err(refusal) => return InstantiationOutcome::Not(refusal.answer()),
    }
    let flown = fly(flight, &mut reserved, real);
    let _errno = KeepErrno::new();
    let is_there = flown.answer == SUCCESS;
    let is_noted = !is_there || execs::add(exec.read(), &flight.wanted);
    if is_there {
        flight.made(exec.read());
    }
    let was_alone = execs::end(flight, flown.source);
    if let Some(source) = flown.source.filter(|_| was_alone && upload.is_none()) {
        learn(&flight.wanted, source);
    }
    InstantiationOutcome::of(exec, flown.answer, is_noted, flown.over.or_else(|| settle().0))
}

/// Instantiates with nothing reserved, where the driver was seen to take nothing then. If it does so after all, that was wrong.
#[inline(never)]
fn make_freely(exec: AddressOut, wanted: &GraphDemand, real: &dyn Fn() -> i32) -> InstantiationOutcome {
    let (since, before) = {
        let _errno = KeepErrno::new();
        (execs::moment(), held(wanted))
    };
    let answer = real();
    let _errno = KeepErrno::new();
    let is_noted = answer != SUCCESS || execs::add(exec.read(), wanted);
    let mut each = wanted.each().zip(&before);
    let has_grown = each.any(|((card, _), before)| grown(card, *before).is_some_and(|grown| grown > 0));
    let is_its = has_grown && execs::was_quiet(since);
    let (over, how) = settle();
    if is_its || how == CallEnd::Grew {
        execs::learn(AllocationTime::AtEither);
    }
    InstantiationOutcome::of(exec, answer, is_noted, over)
}

impl InstantiationOutcome {
    /// The driver has answered. `over` is a ledger that holds more now than its limit leaves.
    fn of(exec: AddressOut, answer: i32, is_noted: bool, over: Option<Ledger>) -> Self {
        match over.filter(|_| answer == SUCCESS) {
            Some(over) => {
                execs::take(exec.read());
                Self::Undone(over.refuse())
            }
            None if is_noted => Self::Kept(answer),
            None => Self::Undone(OUT_OF_MEMORY),
        }
    }
}

/// Something was instantiated, and nothing else was under way: has it its memory by now?
fn learn(wanted: &GraphDemand, source: Source) {
    let lacks = |(card, bytes)| held_of(card) < bytes;
    match source {
        Source::Kept if wanted.each().any(lacks) => execs::learn(AllocationTime::AtLaunch),
        Source::Card => execs::learn(AllocationTime::AtInstantiation),
        Source::Kept | Source::Anywhere => {}
    }
}

/// An executable graph is destroyed.
pub(crate) fn destroy(exec: u64, real: impl FnOnce() -> i32) -> i32 {
    // Before: the driver may give its handle to another at once.
    let known = if MeterKind::Graphs.is_there() { execs::take(exec) } else { None };
    let answer = real();
    if answer != SUCCESS
        && let Some(known) = known
    {
        execs::put_back(exec, known);
    }
    answer
}

/// An executable graph gets the nodes of another graph.
pub(crate) fn update(exec: u64, graph: u64, real: impl FnOnce() -> i32) -> i32 {
    let answer = real();
    if answer == SUCCESS && MeterKind::Graphs.is_there() && execs::knows(exec) {
        let _errno = KeepErrno::new();
        let mut wanted = GraphDemand::NOTHING;
        if wanted.read(graph).is_ok() {
            execs::change(exec, &wanted);
        }
    }
    answer
}

/// A store of graphs is trimmed, unless launches under way count on what it would give back.
pub(crate) fn trim(device: Device, real: impl FnOnce() -> Option<i32>) -> Option<i32> {
    let meter = Meter::Graphs(device);
    let begin = || {
        execs::begin_trim().or_else(|| {
            sys::yield_now();
            None
        })
    };
    let Some(trim) = (0..TRIM_TURNS_MAX).find_map(|_| begin()) else { return Some(SUCCESS) };
    let before = meter.reserved();
    let answer = real();
    execs::end_trim(trim, before.is_some() && meter.reserved() == before);
    answer
}

/// The same, as the program asks for it.
pub(crate) fn trim_for_program(device: Device, real: impl FnOnce() -> i32) -> i32 {
    if !MeterKind::Graphs.is_there() {
        return real();
    }
    let answer = trim(device, || Some(real())).unwrap_or(SUCCESS);
    changed();
    answer
}

/// The driver's store may have changed.
fn changed() {
    let _errno = KeepErrno::new();
    // What is held is charged, whether it fits or not.
    let _over = settle();
}
