//! A sign that this image of this process lives, which no process can lose: where numbers of processes say nothing, it does.
//!
//! A record lock goes with the first descriptor of its file that the program closes. A lock of an open file description lives as
//! long as the description, and a mapping keeps that: so a page of the usage file is mapped through a description that has a
//! lock of its own, and its descriptor is closed. The kernel takes the mapping away when the process ends or becomes another
//! program, in whichever pid namespace, and gives it to no forked child.
//!
//! The kernel frees what a driver has for a process when the last descriptor of its files is closed: a child that it forked,
//! and that did not become another program, has them, too. So there is a second lock, of a descriptor that is left open as the
//! driver's are and goes wherever they go: while it is there, what a dead process had is on the card.
//!
//! To close the descriptor drops the record locks of this process on the file. So it is done before there are any: when the
//! process takes its first slot, while no other thread of it reaps.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aliquot_abi::layout::{slot, usage};

use crate::accounting::life::Identity;
use crate::grants::{GRANTS_MAX, Usage};
use crate::sys::process::{Pid, Start};
use crate::sys::{self, File};

/// Bytes that are mapped; any page would do.
const PAGE: usize = 4096;
/// Turns of the processor given away while another thread of this process reaps.
const TURNS_MAX: u32 = 10_000;

/// The sign of this process in a grant, and its owner: a forked child finds its parent's here.
struct Sign {
    pid: AtomicU32,
    namespace: AtomicU64,
    byte: AtomicU64,
}

static SIGNS: [Sign; GRANTS_MAX] =
    [const { Sign { pid: AtomicU32::new(0), namespace: AtomicU64::new(0), byte: AtomicU64::new(0) } };
        GRANTS_MAX];

fn sign(usage: Usage) -> Option<&'static Sign> {
    SIGNS.get(usize::try_from(usage.number()).ok()?)
}

/// The byte that is locked as long as this process lives; 0: there is none.
pub(crate) fn shown(usage: Usage, me: Identity) -> u64 {
    let Some(sign) = sign(usage) else { return 0 };
    let is_mine = Pid(sign.pid.load(Ordering::Acquire)) == me.pid
        && sign.namespace.load(Ordering::Acquire) == me.namespace;
    if is_mine { sign.byte.load(Ordering::Acquire) } else { 0 }
}

/// Shows the sign, once for each image at most: this process has no slot yet, and so no record lock. `reaping` keeps its
/// reapers out.
pub(crate) fn show(usage: Usage, me: Identity, start: Start, reaping: &AtomicU32) {
    let Some(sign) = sign(usage) else { return };
    let was_shown = Pid(sign.pid.load(Ordering::Acquire)) == me.pid
        && sign.namespace.load(Ordering::Acquire) == me.namespace;
    if was_shown {
        return;
    }
    // A process that gives up shows none later, either: by then there may be locks of IPC-shared memory.
    sign.byte.store(0, Ordering::Release);
    sign.namespace.store(me.namespace, Ordering::Release);
    sign.pid.store(me.pid.0, Ordering::Release);
    let mut turns = 0;
    while reaping.swap(1, Ordering::AcqRel) != 0 {
        turns += 1;
        if turns == TURNS_MAX {
            return;
        }
        sys::yield_now();
    }
    let byte = byte_of(me, start);
    if lock(usage, byte).is_some() {
        sign.byte.store(byte, Ordering::Release);
        keep_files(usage, byte);
    }
    reaping.store(0, Ordering::Release);
}

/// Whether the sign of a slot's owner was shown and is gone: then so is the owner.
pub(crate) fn is_gone(file: i32, byte: u64) -> bool {
    slot::SIGNS.contains(&byte) && !sys::locked_by_another(file, byte)
}

/// Whether a slot's owner shows its sign at this moment, for sure.
pub(crate) fn is_shown(file: i32, byte: u64) -> bool {
    slot::SIGNS.contains(&byte) && sys::is_locked(file, byte)
}

/// Whether a process has the files that the owner of a slot had, for sure.
pub(crate) fn has_files(file: i32, byte: u64) -> bool {
    slot::lock_of_files(byte).is_some_and(|byte| sys::is_locked(file, byte))
}

/// Without a descriptor for it the process has none that is seen, as one that closed all.
fn keep_files(usage: Usage, byte: u64) {
    let (file, byte) = (usage.file().and_then(File::again), slot::lock_of_files(byte));
    if let Some(file) = file.filter(|file| byte.is_some_and(|byte| file.lock_description(byte))) {
        let _left_open = file.keep();
    }
}

fn lock(usage: Usage, byte: u64) -> Option<()> {
    let file = File::again(usage.file()?)?;
    if !file.lock_description(byte) {
        return None;
    }
    file.map_for_this_process(PAGE).map(|_| ())
}

/// A byte that no other process has: two processes with one would keep each other alive, no more.
fn byte_of(me: Identity, start: Start) -> u64 {
    let words = [u64::from(me.pid.0), me.namespace, start.0];
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let sum = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    usage::SIGNS + (sum & (slot::SIGNS.end - slot::SIGNS.start - 1))
}
