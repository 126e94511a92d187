//! Logical endpoints: a number under which a card, or a team of them, has memory bound, which stays on its card as long as it is bound.
//!
//! None is exported: fabric handles take a fabric.

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::heap::BIG_PAGE;
use crate::process::{self, lock};
use crate::vmm::{self, Hold};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Most numbers that are reserved.
const IDS_MAX: u32 = 1 << 16;

struct Endpoint {
    /// Cards that it is to have.
    size: usize,
    cards: Vec<usize>,
    bytes: u64,
    /// It was asked whether it is.
    is_ready: bool,
    bound: Vec<EndpointBinding>,
}

struct EndpointBinding {
    from: u64,
    bytes: u64,
    memory: Hold,
}

/// What is said of one before it is made.
#[derive(Clone, Copy)]
pub(crate) enum EndpointKind {
    /// Of this card.
    Unicast(i32),
    /// Of so many.
    Multicast(u32),
}

/// Where in an endpoint: its number, the beginning, bytes.
#[derive(Clone, Copy)]
pub(crate) struct EndpointRange {
    pub(crate) id: u32,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

/// Numbers that are reserved, and what they stand for.
static IDS: Mutex<BTreeMap<u32, Option<Endpoint>>> = Mutex::new(BTreeMap::new());

fn index(device: i32) -> Answer<usize> {
    process::card(device)?;
    usize::try_from(device).map_err(|_| INVALID_DEVICE)
}

fn with<R>(id: u32, inside: impl FnOnce(&mut Endpoint) -> Answer<R>) -> Answer<R> {
    process::cards()?;
    let mut ids = lock(&IDS);
    ids.get_mut(&id).and_then(Option::as_mut).ok_or(INVALID_VALUE).and_then(inside)
}

/// cuLogicalEndpointIdReserve: the first of so many.
pub(crate) fn reserve(count: u32) -> Answer<u32> {
    process::cards()?;
    let mut ids = lock(&IDS);
    let first = ids.last_key_value().map_or(1, |(last, _)| last + 1);
    let end = first.checked_add(count).filter(|end| count > 0 && *end <= IDS_MAX).ok_or(INVALID_VALUE)?;
    ids.extend((first..end).map(|id| (id, None)));
    Ok(first)
}

/// cuLogicalEndpointIdRelease: of none there is an endpoint.
pub(crate) fn release(first: u32, count: u32) -> Answer {
    process::cards()?;
    let mut ids = lock(&IDS);
    let all = first..first.checked_add(count).ok_or(INVALID_VALUE)?;
    if !all.clone().all(|id| matches!(ids.get(&id), Some(None))) {
        return Err(INVALID_VALUE);
    }
    ids.retain(|id, _| !all.contains(id));
    Ok(())
}

/// cuLogicalEndpointCreate.
pub(crate) fn create(id: u32, kind: EndpointKind, bytes: u64) -> Answer {
    let (size, cards) = match kind {
        EndpointKind::Unicast(device) => (1, vec![index(device)?]),
        EndpointKind::Multicast(size) => (usize::try_from(size).map_err(|_| INVALID_VALUE)?, Vec::new()),
    };
    let is_right = size > 0 && size <= process::cards()?.len() && bytes > 0 && bytes.is_multiple_of(BIG_PAGE);
    let mut ids = lock(&IDS);
    match ids.get_mut(&id).filter(|_| is_right) {
        Some(free @ None) => {
            *free = Some(Endpoint { size, cards, bytes, is_ready: false, bound: Vec::new() });
            Ok(())
        }
        Some(Some(_)) | None => Err(INVALID_VALUE),
    }
}

/// cuLogicalEndpointAddDevice, to one of several cards.
pub(crate) fn add(id: u32, device: i32) -> Answer {
    let device = index(device)?;
    with(id, |endpoint| {
        if endpoint.cards.len() >= endpoint.size || endpoint.cards.contains(&device) {
            return Err(INVALID_DEVICE);
        }
        endpoint.cards.push(device);
        Ok(())
    })
}

/// cuLogicalEndpointQuery: whether so many are there whole.
pub(crate) fn query(first: u32, count: u32) -> Answer<bool> {
    let mut are_ready = true;
    for id in first..first.checked_add(count).ok_or(INVALID_VALUE)? {
        are_ready &= with(id, |endpoint| {
            endpoint.is_ready = endpoint.cards.len() == endpoint.size;
            Ok(endpoint.is_ready)
        })?;
    }
    Ok(are_ready)
}

/// cuLogicalEndpointBindMem, cuLogicalEndpointBindAddr: part of a memory, from `offset` on.
pub(crate) fn bind(part: EndpointRange, device: i32, (memory, offset): (Hold, u64)) -> Answer {
    let device = index(device);
    let bound = with(part.id, |endpoint| {
        let device = device?;
        let ends = |from: u64, all: u64| from.checked_add(part.bytes).is_some_and(|end| end <= all);
        let is_even = [part.from, part.bytes, offset].iter().all(|number| number.is_multiple_of(BIG_PAGE));
        let fits = part.bytes > 0 && ends(part.from, endpoint.bytes) && ends(offset, memory.1.bytes());
        let is_its = memory.1.device == device && endpoint.cards.contains(&device);
        let meets = |other: &EndpointBinding| {
            other.memory.1.device == device
                && other.from < part.from + part.bytes
                && part.from < other.from + other.bytes
        };
        if !is_even || !fits || !is_its || !endpoint.is_ready || endpoint.bound.iter().any(meets) {
            return Err(INVALID_VALUE);
        }
        endpoint.bound.push(EndpointBinding { from: part.from, bytes: part.bytes, memory: memory.clone() });
        Ok(())
    });
    if bound.is_err() {
        vmm::drop_hold(&memory);
    }
    bound
}

fn let_go(bound: &[EndpointBinding]) {
    bound.iter().for_each(|bound| vmm::drop_hold(&bound.memory));
    vmm::collect();
}

/// cuLogicalEndpointUnbind: whole bindings of a card.
pub(crate) fn unbind(part: EndpointRange, device: i32) -> Answer {
    let device = index(device)?;
    let end = part.from.checked_add(part.bytes).ok_or(INVALID_VALUE)?;
    let gone = with(part.id, |endpoint| {
        let is_there = |bound: &mut EndpointBinding| {
            bound.memory.1.device == device && bound.from >= part.from && bound.from + bound.bytes <= end
        };
        Ok(endpoint.bound.extract_if(.., is_there).collect::<Vec<_>>())
    })?;
    let_go(&gone);
    if gone.is_empty() { Err(INVALID_VALUE) } else { Ok(()) }
}

/// cuLogicalEndpointDestroy: the number is free again.
pub(crate) fn destroy(id: u32) -> Answer {
    process::cards()?;
    let gone = lock(&IDS).get_mut(&id).and_then(Option::take).ok_or(INVALID_VALUE)?;
    let_go(&gone.bound);
    Ok(())
}
