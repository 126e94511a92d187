//! Memory nodes of graphs: the driver keeps one store of memory for all graphs of a card, and tells its size.
//!
//! A node costs nothing while it is written down, captured or copied. The store grows when a graph is instantiated, uploaded
//! or launched, as the driver likes, and shrinks when it is trimmed: so the books follow it. What it took at instantiation
//! and does not fit is taken away again; growth by a launch can only be charged, and nothing more is granted until it fits.

use crate::account::{self, Account, Ledger};
use crate::meter::{self, Ended, Kind, Meter, State};
use crate::pools::{self, Place};
use crate::sys::KeepErrno;
use crate::vendor::{self, Device, SUCCESS};

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

/// From now on graphs may take memory of this card.
pub(crate) fn watch(device: Device) {
    if matches!(account::of(device), Account::Counted(_)) {
        // Without a place for it the driver's store stays uncounted; there are more places than cards.
        let _noted = Meter::Graphs(device).note(device, State::Charged);
    }
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

/// A graph is instantiated; `destroy` is the vendor's way back.
pub(crate) fn instantiate(exec: Place, real: impl Fn() -> i32, destroy: impl Fn(u64) -> i32) -> i32 {
    if exec.is_null() || !Kind::Graphs.is_there() {
        return real();
    }
    let before = exec.read();
    let answer = real();
    let _errno = KeepErrno::new();
    if answer != SUCCESS {
        return answer;
    }
    let Some(over) = settle() else { return answer };
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
