//! Multicast objects: a team of cards, each with memory bound to it, which stays on its card as long as it is bound.
//!
//! The vendor's driver waits for the last card of a team before it binds or maps; here that is an error.

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::heap::BIG_PAGE;
use crate::process::{self, lock};
use crate::vmm::{self, FILE_DESCRIPTOR, Hold};
use std::sync::Mutex;

/// The cards of an object, and what they have bound.
pub(crate) struct Team {
    /// How many there are to be.
    size: usize,
    devices: Mutex<Vec<usize>>,
    bound: Mutex<Vec<Bound>>,
}

struct Bound {
    from: u64,
    bytes: u64,
    memory: Hold,
}

/// Memory that is to be bound.
pub(crate) enum Memory {
    Handle(u64),
    Address(u64),
}

/// Where in an object: its handle, the beginning, bytes.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) object: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

impl Bound {
    fn device(&self) -> usize {
        self.memory.1.device
    }
}

impl Team {
    pub(crate) fn is_complete(&self) -> bool {
        lock(&self.devices).len() == self.size
    }

    /// The object ends: it lets go of everything.
    pub(crate) fn end(&self) {
        let bound = std::mem::take(&mut *lock(&self.bound));
        bound.iter().for_each(|bound| vmm::drop_hold(&bound.memory));
    }
}

fn index(device: i32) -> Answer<usize> {
    process::card(device)?;
    usize::try_from(device).map_err(|_| INVALID_DEVICE)
}

/// cuMulticastCreate.
pub(crate) fn create(size: u32, bytes: u64, handle_types: u32) -> Answer<u64> {
    let cards = process::cards()?.len();
    let size = usize::try_from(size).map_err(|_| INVALID_VALUE)?;
    if size == 0 || size > cards || bytes == 0 || !bytes.is_multiple_of(BIG_PAGE) {
        return Err(INVALID_VALUE);
    }
    let team = Team { size, devices: Mutex::default(), bound: Mutex::default() };
    vmm::create_team(team, bytes, handle_types)
}

/// cuMulticastAddDevice.
pub(crate) fn add(object: u64, device: i32) -> Answer {
    let (object, device) = (vmm::get(object)?, index(device)?);
    let team = object.team().ok_or(INVALID_VALUE)?;
    let mut devices = lock(&team.devices);
    if devices.contains(&device) || devices.len() == team.size {
        return Err(INVALID_DEVICE);
    }
    devices.push(device);
    Ok(())
}

/// cuMulticastBindMem and cuMulticastBindAddr: part of a memory, from `offset` on; on `device`, where that is told.
pub(crate) fn bind(part: Part, device: Option<i32>, memory: &Memory, offset: u64) -> Answer {
    let told = device.map(index).transpose()?;
    let (hold, at) = match memory {
        Memory::Handle(handle) => (vmm::hold(*handle)?, offset),
        Memory::Address(address) => vmm::hold_at(*address)?,
    };
    let bound = bind_hold(part, told, &hold, at);
    if bound.is_err() {
        vmm::drop_hold(&hold);
    }
    bound
}

fn bind_hold(part: Part, told: Option<usize>, memory: &Hold, at: u64) -> Answer {
    let object = vmm::get(part.object)?;
    let team = object.team().ok_or(INVALID_VALUE)?;
    let is_even = [part.from, part.bytes, at].iter().all(|number| number.is_multiple_of(BIG_PAGE));
    let ends = |from: u64, all: u64| from.checked_add(part.bytes).is_some_and(|end| end <= all);
    let fits = part.bytes > 0 && ends(part.from, object.bytes()) && ends(at, memory.1.bytes());
    let shareable = |types: u32| types & FILE_DESCRIPTOR != 0;
    let is_shared = !shareable(object.properties.handle_types) || shareable(memory.1.properties.handle_types);
    let device = memory.1.device;
    let is_of_team = lock(&team.devices).contains(&device) && told.is_none_or(|told| told == device);
    if !is_even || !fits || !is_shared || !is_of_team || !team.is_complete() || memory.1.team().is_some() {
        return Err(INVALID_VALUE);
    }
    let mut bound = lock(&team.bound);
    let meets = |other: &Bound| {
        other.device() == device
            && other.from < part.from + part.bytes
            && part.from < other.from + other.bytes
    };
    if bound.iter().any(meets) {
        return Err(INVALID_VALUE);
    }
    bound.push(Bound { from: part.from, bytes: part.bytes, memory: memory.clone() });
    Ok(())
}

/// cuMulticastUnbind: whole bindings of a card.
pub(crate) fn unbind(part: Part, device: i32) -> Answer {
    let (object, device) = (vmm::get(part.object)?, index(device)?);
    let team = object.team().ok_or(INVALID_VALUE)?;
    let end = part.from.checked_add(part.bytes).ok_or(INVALID_VALUE)?;
    let is_there = |bound: &mut Bound| {
        bound.device() == device && bound.from >= part.from && bound.from + bound.bytes <= end
    };
    let gone = lock(&team.bound).extract_if(.., is_there).collect::<Vec<_>>();
    if gone.is_empty() {
        return Err(INVALID_VALUE);
    }
    gone.iter().for_each(|bound| vmm::drop_hold(&bound.memory));
    vmm::collect();
    Ok(())
}
