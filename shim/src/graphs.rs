//! Memory nodes of graphs: the driver keeps one store of memory for all graphs of a card, and tells its size.
//!
//! A node costs nothing while it is written down, captured or copied. The store grows when a graph is instantiated, uploaded
//! or launched, as the driver likes, and shrinks when it is trimmed: so the books follow it. What all memory nodes of a graph
//! want is reserved before it is instantiated; what it took beyond that and does not fit is taken away again. Growth by a
//! launch can only be charged, and nothing more is granted until it fits.

use crate::account::{self, Account, Bytes, Ledger};
use crate::meter::{self, Ended, Kind, Meter, Running, State};
use crate::pools::{self, Place};
use crate::sys::{self, KeepErrno};
use crate::vendor::{self, Device, MemoryNodeParameters, OUT_OF_MEMORY, SUCCESS};

/// CU_GRAPH_NODE_TYPE_MEM_ALLOC
const MEMORY_NODE: u32 = 10;

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
        (self.location_kind == vendor::LOCATION_DEVICE).then_some(Device(self.location))
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

/// Brings the books to what the driver says of its stores; the ledger that holds more now than its limit leaves.
fn settle() -> Option<Ledger> {
    let mut over = None;
    meter::each_charged(|meter, _, ledger| {
        if matches!(meter, Meter::Graphs(_)) && meter.refresh(ledger) == Ended::Over {
            over = Some(ledger);
        }
    });
    over
}

/// Cards of one graph that are asked for beforehand; what it takes of others is charged afterwards.
const CARDS_MAX: usize = 8;
/// Nodes that are looked at without a mapping of their own.
const NODES_FEW: usize = 128;

/// What the memory nodes of a graph want, by card.
#[derive(Clone, Copy, Default)]
struct Wanted([(i32, u64); CARDS_MAX]);

impl Wanted {
    /// By the nodes of a graph. Graphs inside it are not looked into.
    fn of(graph: u64) -> Self {
        let mut wanted = Self::default();
        let mut count = 0;
        if vendor::cuGraphGetNodes(graph, core::ptr::null_mut(), &raw mut count) != Some(SUCCESS) {
            return wanted;
        }
        let mut few = [0_u64; NODES_FEW];
        if count <= NODES_FEW {
            wanted.add_all(graph, &mut few);
        } else {
            sys::with_words(count, |nodes| wanted.add_all(graph, nodes));
        }
        wanted
    }

    fn add_all(&mut self, graph: u64, nodes: &mut [u64]) {
        let mut count = nodes.len();
        if vendor::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) == Some(SUCCESS) {
            nodes.iter().take(count).for_each(|node| self.add(*node));
        }
    }

    fn add(&mut self, node: u64) {
        let (mut kind, mut told) = (0, MemoryNodeParameters::EMPTY);
        let is_memory =
            vendor::cuGraphNodeGetType(node, &raw mut kind) == Some(SUCCESS) && kind == MEMORY_NODE;
        if !is_memory
            || vendor::cuGraphMemAllocNodeGetParams(node, &raw mut told) != Some(SUCCESS)
            || told.location_kind != vendor::LOCATION_DEVICE
        {
            return;
        }
        let place = self.0.iter_mut().find(|(card, bytes)| *bytes == 0 || *card == told.location);
        if let Some((card, bytes)) = place {
            (*card, *bytes) = (told.location, bytes.saturating_add(told.bytes));
        }
    }

    /// Reserves all of it. An error: it does not fit in the limit of that ledger.
    fn enter(self) -> Result<[Option<Running>; CARDS_MAX], Ledger> {
        let mut running = [const { None }; CARDS_MAX];
        for (place, (card, bytes)) in running.iter_mut().zip(self.0).filter(|(_, (_, bytes))| *bytes > 0) {
            let meter = Meter::Graphs(Device(card));
            let Account::Counted(ledger) = account::of(Device(card)) else { continue };
            if meter.known().is_none() {
                continue;
            }
            *place = meter.enter(ledger, Bytes(bytes));
            if place.is_none() {
                // Nothing was asked for.
                end_all(running, OUT_OF_MEMORY);
                return Err(ledger);
            }
        }
        Ok(running)
    }
}

/// The vendor's call is over, with this answer; the ledger that holds more now than its limit leaves.
fn end_all(running: [Option<Running>; CARDS_MAX], answer: i32) -> Option<Ledger> {
    let mut over = None;
    for running in running.into_iter().flatten() {
        let ledger = running.ledger();
        if running.end(answer) == Ended::Over {
            over = Some(ledger);
        }
    }
    over
}

/// A graph is instantiated; `destroy` is the vendor's way back.
pub(crate) fn instantiate(
    (exec, graph): (Place, u64),
    real: impl Fn() -> i32,
    destroy: impl Fn(u64) -> i32,
) -> i32 {
    if exec.is_null() || !Kind::Graphs.is_there() {
        return real();
    }
    let running = {
        let _errno = KeepErrno::new();
        match Wanted::of(graph).enter() {
            Ok(running) => running,
            Err(ledger) => return ledger.refuse(),
        }
    };
    let before = exec.read();
    let answer = real();
    let _errno = KeepErrno::new();
    let over = end_all(running, answer);
    if answer != SUCCESS {
        return answer;
    }
    let Some(over) = over.or_else(settle) else { return answer };
    let _destroyed = destroy(exec.read());
    exec.write(before);
    pools::trim_graphs();
    over.refuse()
}

/// The driver's store may have changed.
pub(crate) fn changed() {
    if Kind::Graphs.is_there() {
        let _errno = KeepErrno::new();
        // What is held is charged, whether it fits or not.
        let _over = settle();
    }
}
