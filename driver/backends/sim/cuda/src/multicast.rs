//! Multicast objects: a team of cards, each with memory bound to it, which stays on its card as long as it is bound.
//!
//! Processes share an object by descriptors ([`crate::shared`]): each adds its cards and binds its memory.
//! All of that stays bound until the last process releases the object. A process without a handle or mapping
//! of it checks for other holders in calls that take or report memory.
//!
//! The vendor's driver waits for the last card of a team before it binds or maps; here that is an error.

use crate::code::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::heap::BIG_PAGE;
use crate::process::{self, lock};
use crate::shared::{self, ExportDescription, Group, Import, Maker};
use crate::vmm::{self, FILE_DESCRIPTOR, Hold, Physical};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The cards of an object, and what this process has bound.
pub(crate) struct Team {
    /// How many there are to be.
    size: usize,
    group: Group,
    /// While this process has it.
    held: Mutex<Option<Import>>,
    bound: Mutex<Vec<MulticastBinding>>,
}

/// What others have still and this process has not, with something of this process bound.
static LEFT: Mutex<Vec<Arc<Physical>>> = Mutex::new(Vec::new());
static ANY_LEFT: AtomicBool = AtomicBool::new(false);

struct MulticastBinding {
    from: u64,
    bytes: u64,
    memory: Hold,
}

/// Memory that is to be bound.
pub(crate) enum MemoryToBind {
    Handle(u64),
    Address(u64),
}

/// Where in an object: its handle, the beginning, bytes.
#[derive(Clone, Copy)]
pub(crate) struct MulticastRange {
    pub(crate) object: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

impl MulticastBinding {
    fn device(&self) -> usize {
        self.memory.1.device
    }
}

impl Team {
    fn of(told: &ExportDescription, group: Group) -> Answer<Self> {
        let size = usize::try_from(told.offset).map_err(|_| INVALID_VALUE)?;
        let held = Mutex::new(Some(group.hold()?));
        Ok(Self { size, group, held, bound: Mutex::default() })
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.group.cards().len() >= self.size
    }

    /// A descriptor of it.
    pub(crate) fn export(&self) -> Answer<i32> {
        self.group.descriptor().map(shared::give_away)
    }

    /// The object ends: it lets go of everything.
    fn end(&self) {
        let bound = std::mem::take(&mut *lock(&self.bound));
        bound.iter().for_each(|bound| vmm::drop_hold(&bound.memory));
    }
}

/// This process has an object no longer.
pub(crate) fn leave(object: &Arc<Physical>) {
    let Some(team) = object.team() else { return };
    drop(lock(&team.held).take());
    if team.group.is_held() {
        lock(&LEFT).push(Arc::clone(object));
        ANY_LEFT.store(true, Ordering::Release);
    } else {
        team.end();
    }
}

/// Unbinds memory from objects that no process has any more.
pub(crate) fn collect() {
    if !ANY_LEFT.load(Ordering::Acquire) {
        return;
    }
    let is_gone = |object: &mut Arc<Physical>| object.team().is_none_or(|team| !team.group.is_held());
    let gone = lock(&LEFT).extract_if(.., is_gone).collect::<Vec<_>>();
    gone.iter().filter_map(|object| object.team()).for_each(Team::end);
}

/// A descriptor's object: under the handle that this process has for it, or under a new one.
pub(crate) fn import(descriptor: i32) -> Answer<u64> {
    let (told, _held) = shared::import(descriptor, Maker::Team)?;
    let group = Group::of(descriptor)?;
    let is_it = |object: &Physical| object.team().is_some_and(|team| team.group.is(&group));
    if let Some(handle) = vmm::find_again(is_it) {
        return Ok(handle);
    }
    vmm::create_team(Team::of(&told, group)?, told.bytes, FILE_DESCRIPTOR)
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
    let told = ExportDescription::of_team(u64::try_from(size).map_err(|_| INVALID_VALUE)?, bytes);
    let team = Team::of(&told, Group::new(&told)?)?;
    vmm::create_team(team, bytes, handle_types)
}

/// cuMulticastAddDevice.
pub(crate) fn add(object: u64, device: i32) -> Answer {
    let (object, device) = (vmm::get(object)?, index(device)?);
    let team = object.team().ok_or(INVALID_VALUE)?;
    let (card, cards) = (number(device)?, team.group.cards());
    if cards.contains(&card) || cards.len() >= team.size {
        return Err(INVALID_DEVICE);
    }
    team.group.add(card)
}

fn number(device: usize) -> Answer<u64> {
    Ok(process::cards()?.get(device).ok_or(INVALID_DEVICE)?.card.number())
}

/// cuMulticastBindMem and cuMulticastBindAddr: part of a memory, from `offset` on; on `device`, if given.
pub(crate) fn bind(part: MulticastRange, device: Option<i32>, memory: &MemoryToBind, offset: u64) -> Answer {
    let told = device.map(index).transpose()?;
    let (hold, at) = match memory {
        MemoryToBind::Handle(handle) => (vmm::hold(*handle)?, offset),
        MemoryToBind::Address(address) => vmm::hold_at(*address)?,
    };
    let bound = bind_hold(part, told, &hold, at);
    if bound.is_err() {
        vmm::drop_hold(&hold);
    }
    bound
}

fn bind_hold(part: MulticastRange, told: Option<usize>, memory: &Hold, at: u64) -> Answer {
    let object = vmm::get(part.object)?;
    let team = object.team().ok_or(INVALID_VALUE)?;
    let is_even = [part.from, part.bytes, at].iter().all(|number| number.is_multiple_of(BIG_PAGE));
    let ends = |from: u64, all: u64| from.checked_add(part.bytes).is_some_and(|end| end <= all);
    let fits = part.bytes > 0 && ends(part.from, object.bytes()) && ends(at, memory.1.bytes());
    let shareable = |types: u32| types & FILE_DESCRIPTOR != 0;
    let is_shared = !shareable(object.properties.handle_types) || shareable(memory.1.properties.handle_types);
    let device = memory.1.device;
    let is_of_team = team.group.cards().contains(&number(device)?) && told.is_none_or(|told| told == device);
    if !is_even || !fits || !is_shared || !is_of_team || !team.is_complete() || memory.1.team().is_some() {
        return Err(INVALID_VALUE);
    }
    let mut bound = lock(&team.bound);
    let meets = |other: &MulticastBinding| {
        other.device() == device
            && other.from < part.from + part.bytes
            && part.from < other.from + other.bytes
    };
    if bound.iter().any(meets) {
        return Err(INVALID_VALUE);
    }
    bound.push(MulticastBinding { from: part.from, bytes: part.bytes, memory: memory.clone() });
    Ok(())
}

/// cuMulticastUnbind: whole bindings of a card.
pub(crate) fn unbind(part: MulticastRange, device: i32) -> Answer {
    let (object, device) = (vmm::get(part.object)?, index(device)?);
    let team = object.team().ok_or(INVALID_VALUE)?;
    let end = part.from.checked_add(part.bytes).ok_or(INVALID_VALUE)?;
    let is_there = |bound: &mut MulticastBinding| {
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
