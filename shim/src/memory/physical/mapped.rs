//! Mappings of physical memory, by address: each is a hold.

use super::{DroppedHolds, Number};
use crate::accounting::alloc_map::{AllocMap, Key, NoRoom};
use crate::loader::vendor::{OUT_OF_MEMORY, SUCCESS};

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    number: Number,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum State {
    Mapped = 0,
    Going = 1,
}

static MAPPINGS: AllocMap<Mapping> = AllocMap::new();

/// The mapping that holds an address, and where it ends.
fn mapping_at(address: u64) -> Option<(Number, u64)> {
    let end = |start: u64, mapping: &Mapping| (mapping.number, start.saturating_add(mapping.bytes));
    if let Some(mapping) = MAPPINGS.get(Key(address)) {
        return Some(end(address, &mapping));
    }
    MAPPINGS.find(|start, mapping| {
        let inside = start.0 <= address && address - start.0 < mapping.bytes;
        inside.then(|| end(start.0, mapping))
    })
}

/// The record of the mapping that holds an address.
pub(crate) fn mapped_at(address: u64) -> Option<Number> {
    mapping_at(address).map(|(number, _)| number).filter(|number| *number != Number::NONE)
}

/// cuMemMap.
pub(crate) fn map(
    (address, bytes): (u64, u64),
    handle: u64,
    call: impl FnOnce() -> i32,
    undo: impl FnOnce() -> i32,
) -> i32 {
    let number = match Number::of(handle).hold() {
        Ok(number) => number,
        Err(error) => return error,
    };
    let answer = call();
    if answer != SUCCESS {
        number.unhold();
        return answer;
    }
    match MAPPINGS.insert(Key(address), Mapping { bytes, number, state: State::Mapped }) {
        Ok(None) => {}
        // What was mapped there before is not any more.
        Ok(Some(stale)) => stale.number.unhold(),
        Err(NoRoom) => {
            if undo() == SUCCESS {
                number.unhold();
            }
            return OUT_OF_MEMORY;
        }
    }
    answer
}

/// The records of what is mapped in a range, one behind the other, up to the first gap; a pool's memory is the pool's.
pub(crate) fn mapped_in(address: u64, bytes: u64) -> impl Iterator<Item = Number> + Clone {
    let (mut at, until) = (address, address.saturating_add(bytes.max(1)));
    core::iter::from_fn(move || {
        let (number, end) = if at < until { mapping_at(at)? } else { return None };
        at = end.max(at + 1);
        Some(number)
    })
}

/// Others may have what is mapped in a range, from now on. False: nothing of this process is mapped there.
pub(crate) fn share_mapped(address: u64, bytes: u64) -> bool {
    mapped_in(address, bytes).inspect(|number| number.share()).count() > 0
}

/// Visits the mappings of a range, one behind the other.
fn walk(address: u64, bytes: u64, mut visit: impl FnMut(Key, Mapping)) {
    let end = address.saturating_add(bytes);
    let mut at = address;
    while at < end {
        let Some(mapping) = MAPPINGS.get(Key(at)) else { return };
        visit(Key(at), mapping);
        at = at.saturating_add(mapping.bytes.max(1));
    }
}

fn change_state(key: Key, from: State, to: State) -> bool {
    let changed = MAPPINGS.update(key, |mapping| {
        let fits = mapping.state == from;
        if fits {
            mapping.state = to;
        }
        fits
    });
    changed == Some(true)
}

/// cuMemUnmap: whole mappings, one or several in a row.
pub(crate) fn unmap(address: u64, bytes: u64, call: impl FnOnce() -> i32) -> i32 {
    let mut going = DroppedHolds::default();
    walk(address, bytes, |key, mapping| {
        if change_state(key, State::Mapped, State::Going) {
            mapping.number.begin_drop(&mut going);
        }
    });
    let (answer, seen, _moving) = going.ask(call);
    walk(address, bytes, |key, mapping| {
        if mapping.state != State::Going {
            return;
        }
        if answer == SUCCESS {
            if MAPPINGS.take(key).is_some() {
                mapping.number.dropped(seen);
            }
        } else if change_state(key, State::Going, State::Mapped) {
            mapping.number.keep();
        }
    });
    answer
}
