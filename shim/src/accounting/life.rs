//! Liveness: this process's slot, and what exited processes held.
//!
//! A slot's owner holds a record lock on the slot's first byte of the usage file. The kernel drops it at the owner's death and
//! when the owner becomes another program; a forked child does not inherit it.
//!
//! | lock | owner's number | then |
//! |---|---|---|
//! | held | – | alive |
//! | free | free, an ended process's, or a later process's | dead |
//! | free | this process's, and this image did not take the slot | dead: an earlier image of it did |
//! | free | a living process's that maps other files | dead: it is another program now |
//! | free | a living process's that maps nothing | alive: it ends, and the driver may not have let go of its memory yet |
//! | free | a living process's that maps it | alive: it closed its descriptors |
//! | free | in another pid namespace, or the kernel does not tell | dead if the sign that it showed is gone ([`crate::accounting::liveness`]); else alive: the node's agent sees more |
//!
//! The memory of an exited process stays charged while a forked child has its files ([`crate::accounting::liveness`]).
//!
//! A slot of IPC-shared memory (`memory/ipc_memory.rs`) lives as long as any process holds a shared lock on a byte of its own,
//! or its maker lives and has it.

mod holders;
mod reaper;

use core::sync::atomic::{AtomicU32, Ordering};

use aliquot_abi::layout::{self, slot::CLOSING, slot::GONE, slot::LENT, slot::LET_GO};
use aliquot_abi::view::SlotView;
use aliquot_enforce::units::Ppm;

use crate::accounting::account::UnaccountedRelease;
use crate::accounting::listeners::listeners;
use crate::accounting::liveness;
use crate::grants::Usage;
use crate::sys;
use crate::sys::process::{self, Pid, Start, State};

pub(crate) use holders::{Holder, holders};
pub(crate) use reaper::{Contention, Reaped, reap};

/// A thread of this process takes a slot, or changes what it holds of IPC-shared memory: record locks do not keep threads apart.
static TAKING: Turns = Turns::new();
/// Turns of the processor given away meanwhile.
const TAKING_TURNS_MAX: u32 = 100_000;
/// Sleeps after them for another thread of this process, and how long each is: longer than accounting is ever closed.
const TAKING_SLEEPS_MAX: u32 = 2_000;
const TAKING_SLEEP_NANOS: u64 = 1_000_000;

/// Looks for dead owners of slots, of which each waits at most for a moment: so often that a process that is stopped at it is
/// overtaken.
const LOOKS_MAX: u32 = 1_000;

/// Slots that memory gets none of, of its own: a process that begins is to find one, however much is shared.
const KEPT: usize = 128;

/// The slot of this image of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnSlot {
    /// Another thread may be taking one.
    Unknown,
    /// It has none.
    None,
    /// This one.
    Slot(u32),
}

/// A slot that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquiredSlot {
    pub(crate) number: u32,
    /// The owner word that says so.
    pub(crate) owner: u64,
}

/// This process, as slots name it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: Pid,
    pub(crate) namespace: u64,
}

impl Identity {
    fn own() -> Self {
        Self { pid: Pid(sys::pid()), namespace: process::namespace() }
    }
}

fn lock_place(slot: usize) -> u64 {
    u64::try_from(layout::usage::SLOTS + slot * layout::usage::SLOT_BYTES).unwrap_or(u64::MAX)
}

fn pid_of(slot: SlotView<'_>) -> Pid {
    pid_in(slot.owner().load(Ordering::Acquire))
}

/// The process of an owner word; 0: free.
fn pid_in(owner: u64) -> Pid {
    Pid(layout::slot::pid_in(owner))
}

/// Takes slots, and holds of IPC-shared memory, in one thread of this process at a time.
pub(crate) fn one_at_a_time<R>(inside: impl FnOnce() -> R) -> R {
    TAKING.alone(inside)
}

/// Turns of the threads of a process: it holds the number of the process that has one, or 0.
pub(crate) struct Turns(AtomicU32);

impl Turns {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Runs `inside` in one thread of this process at a time.
    pub(crate) fn alone<R>(&self, inside: impl FnOnce() -> R) -> R {
        self.take();
        let answer = inside();
        self.0.store(0, Ordering::Release);
        answer
    }

    fn take(&self) {
        let (me, mut turns, mut sleeps) = (sys::pid(), 0, 0);
        loop {
            match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(_) if turns < TAKING_TURNS_MAX => {
                    turns += 1;
                    sys::yield_now();
                }
                // Another thread, which waits for accounting: it is open again in less.
                Err(holder) if holder == me && sleeps < TAKING_SLEEPS_MAX => {
                    sleeps += 1;
                    sys::wait_while(&self.0, holder, TAKING_SLEEP_NANOS);
                }
                // The holder was in another process, of which this one is a fork.
                Err(_) => {
                    self.0.store(me, Ordering::Relaxed);
                    break;
                }
            }
        }
    }
}

/// Takes a free slot for this process, which has none. Where all are taken, `look` has exited processes give theirs back, or
/// waits for the process that is at it. `None`: all are taken by the living.
pub(crate) fn take_slot(
    usage: Usage,
    part: Ppm,
    reaping: &AtomicU32,
    look: impl Fn() -> Reaped,
) -> Option<AcquiredSlot> {
    let me = Identity::own();
    // Before any record lock.
    if let Some(start) = process::own_start() {
        liveness::show(usage, me, start, reaping);
    }
    // What an earlier image of this process held is not this one's; and a process that died with work on the card is billed
    // before any process launches.
    if slots(usage).any(|(_, slot)| pid_of(slot) == me.pid || is_unbilled(slot)) {
        reap(usage, part, OwnSlot::None, (reaping, Contention::Waits));
    }
    let take = || one_at_a_time(|| take_free(usage, me, Use::Process));
    for _ in 0..LOOKS_MAX {
        let taken = take();
        if taken.is_some() {
            return taken;
        }
        if look() == Reaped::Done {
            break;
        }
    }
    take()
}

/// Takes a free slot for memory of this process that others open by a handle of this tag. Answers without one where all are
/// taken but those that are kept for processes; the caller keeps other threads out.
pub(crate) fn take_for_lent(
    usage: Usage,
    tag: u64,
    hold: &mut dyn FnMut(AcquiredSlot) -> bool,
) -> Option<AcquiredSlot> {
    let free = slots(usage).filter(|(_, slot)| pid_of(*slot).0 == 0).count();
    if free <= KEPT {
        return None;
    }
    take_free(usage, Identity::own(), Use::Lent { tag, hold })
}

/// What a slot is taken for.
enum Use<'a> {
    Process,
    /// Memory; `hold` takes its lock before any process sees the slot.
    Lent {
        tag: u64,
        hold: &'a mut dyn FnMut(AcquiredSlot) -> bool,
    },
}

fn slots(usage: Usage) -> impl Iterator<Item = (usize, SlotView<'static>)> + Clone {
    (0..layout::usage::SLOT_COUNT).filter_map(move |number| Some((number, usage.view.slot(number)?)))
}

/// Whether its owner may have work on the card that is not charged.
fn is_unbilled(slot: SlotView<'_>) -> bool {
    pid_of(slot).0 != 0 && slot.unbilled_since().load(Ordering::Acquire) != 0
}

fn take_free(usage: Usage, me: Identity, mut purpose: Use<'_>) -> Option<AcquiredSlot> {
    let start = process::own_start()?;
    let near = layout::usage::FIRST_SLOTS;
    let first = usize::try_from(me.pid.0).unwrap_or(0) % near;
    let is_for_process = matches!(purpose, Use::Process);
    let mut take = |number| take_this(usage, number, (me, start), &mut purpose);
    // Memory leaves the first slots to processes: on a full disk there are no others.
    let taken = (0..near).filter(|_| is_for_process).find_map(|step| take((first + step) % near));
    taken.or_else(|| {
        are_far_slots_on_disk(usage).then(|| (near..layout::usage::SLOT_COUNT).find_map(take)).flatten()
    })
}

/// Whether the slots behind the first ones may be stored to; the file system allocates them now if they are a hole.
fn are_far_slots_on_disk(usage: Usage) -> bool {
    let from = lock_place(layout::usage::FIRST_SLOTS);
    let end = u64::try_from(layout::usage::BYTES).unwrap_or(0);
    usage.file().is_some_and(|file| sys::allocate(file, from, end.saturating_sub(from)))
}

fn take_this(
    usage: Usage,
    number: usize,
    (me, start): (Identity, Start),
    purpose: &mut Use<'_>,
) -> Option<AcquiredSlot> {
    let (slot, file) = (usage.view.slot(number)?, usage.file());
    let is_free = |owner: u64| pid_in(owner).0 == 0;
    if !is_free(slot.owner().load(Ordering::Acquire)) {
        return None;
    }
    // The lock comes first: a slot with an owner and without a lock is mostly a dead one. Without a descriptor the
    // mapping tells that its owner lives.
    if file.is_some_and(|file| !sys::lock_byte(file, lock_place(number))) {
        return None;
    }
    let unlock = || {
        if let Some(file) = file {
            sys::unlock_byte(file, lock_place(number));
        }
    };
    let owner = slot.owner().load(Ordering::Acquire);
    let next = ((owner >> 32).wrapping_add(1) & 0xffff_ffff) << 32 | u64::from(me.pid.0);
    let taken = AcquiredSlot { number: u32::try_from(number).ok()?, owner: next };
    let (kind, tag) = match purpose {
        Use::Process => (0, 0),
        Use::Lent { tag, .. } => (LENT, *tag),
    };
    let is_ours = is_free(owner)
        && match purpose {
            Use::Process => true,
            Use::Lent { hold, .. } => hold(taken),
        };
    if !is_ours {
        unlock();
        return None;
    }
    slot.start_time().store(start.0, Ordering::Release);
    slot.pid_namespace().store(me.namespace, Ordering::Release);
    slot.used().store(0, Ordering::Release);
    slot.inside().store(0, Ordering::Release);
    slot.device_nanos().store(0, Ordering::Release);
    slot.unbilled_since().store(0, Ordering::Release);
    slot.begun().store(0, Ordering::Release);
    slot.ended().store(0, Ordering::Release);
    slot.loose().store(0, Ordering::Release);
    slot.kind().store(kind, Ordering::Release);
    slot.tag().store(tag, Ordering::Release);
    slot.owed().store(0, Ordering::Release);
    slot.presumed().store(0, Ordering::Release);
    slot.sign().store(liveness::shown(usage, me), Ordering::Release);
    if slot.owner().compare_exchange(owner, next, Ordering::AcqRel, Ordering::Acquire).is_err() {
        unlock();
        return None;
    }
    if kind == LENT {
        // Its own lock says that it lives.
        unlock();
    }
    Some(taken)
}

/// Bytes that the container's processes have presumed.
pub(crate) fn presumed(usage: Usage) -> u64 {
    let owned = slots(usage).filter(|(_, slot)| pid_of(*slot).0 != 0);
    owned.fold(0, |sum, (_, slot)| sum.saturating_add(slot.presumed().load(Ordering::SeqCst)))
}

/// Calls of a container's processes that may move memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    /// So many began, in all.
    pub(crate) begun: u32,
    /// So many of them are not over.
    pub(crate) under_way: u32,
    /// Other processes, and IPC-shared memory.
    pub(crate) others: u32,
    /// Those of them that have pools, graphs or sparse arrays.
    pub(crate) loose: u32,
    /// Those that have a context past the hooks.
    pub(crate) past: u32,
}

/// What all processes that have a slot are doing; the slot of this one is number `own`.
pub(crate) fn calls(usage: Usage, own: u32) -> Calls {
    let none = Calls { begun: 0, under_way: 0, others: 0, loose: 0, past: 0 };
    let own = usize::try_from(own).unwrap_or(usize::MAX);
    slots(usage).filter(|(_, slot)| pid_of(*slot).0 != 0).fold(none, |sum, (number, slot)| {
        let (other, loose) = (u32::from(number != own), slot.loose().load(Ordering::SeqCst));
        let has = |by: UnaccountedRelease| other * u32::from(loose & by as u32 != 0);
        // What is over is read first: a call that ends in between is seen as under way.
        let ended = slot.ended().load(Ordering::SeqCst);
        let begun = slot.begun().load(Ordering::SeqCst);
        Calls {
            begun: sum.begun.wrapping_add(begun),
            under_way: sum.under_way.wrapping_add(begun.wrapping_sub(ended)),
            others: sum.others + other,
            loose: sum.loose + has(UnaccountedRelease::Memory),
            past: sum.past + has(UnaccountedRelease::Context),
        }
    })
}

/// Whether all processes but that of slot `own` are seen to live, so that none has lost memory by its end yet: a process
/// begins to end, by what the kernel says, before it loses what it has open. One that becomes another program does not end; it
/// loses its slot's lock with the descriptors of its library, of which the driver's are mostly younger and go later. One that
/// never showed a sign cannot be seen, nor one that closed those, nor one of another pid namespace.
pub(crate) fn all_live(usage: Usage, own: u32) -> bool {
    let (file, own) = (usage.file(), usize::try_from(own).unwrap_or(usize::MAX));
    let is_other =
        |(number, slot): &(usize, SlotView<'_>)| *number != own && pid_of(*slot).0 != 0 && !is_lent(*slot);
    let here = Identity::own().namespace;
    let lives = |(number, slot): (usize, SlotView<'_>)| {
        let is_locked = |file| sys::locked_by_another(file, lock_place(number));
        file.is_some_and(|file| {
            liveness::is_shown(file, slot.sign().load(Ordering::Acquire)) && is_locked(file)
        }) && slot.pid_namespace().load(Ordering::Acquire) == here
            && process::runs(pid_of(slot), Start(slot.start_time().load(Ordering::Acquire)))
    };
    slots(usage).filter(is_other).all(lives)
}

/// The slot of IPC-shared memory under this tag, whether its maker has it or not: a process that has it open may open it again.
pub(crate) fn lent(usage: Usage, tag: u64) -> Option<AcquiredSlot> {
    slots(usage).find_map(|(number, slot)| {
        let owner = slot.owner().load(Ordering::SeqCst);
        let is_there = pid_in(owner).0 != 0 && owner & (GONE | CLOSING) == 0;
        let is_it = is_there && is_lent(slot) && slot.tag().load(Ordering::SeqCst) == tag;
        is_it.then_some(AcquiredSlot { number: u32::try_from(number).ok()?, owner })
    })
}

/// Whether a slot is of IPC-shared memory, and not of a process. What says neither is taken for a process's.
fn is_lent(slot: SlotView<'_>) -> bool {
    matches!(slot.kind().load(Ordering::Acquire), LENT | LET_GO)
}

/// Whether the owner of a slot is gone for sure; see the table above.
fn is_dead(
    usage: Usage,
    file: i32,
    (number, slot, owner): (usize, SlotView<'_>, u64),
    me: Identity,
    own: OwnSlot,
) -> bool {
    let (pid, start) = (pid_in(owner), Start(slot.start_time().load(Ordering::Acquire)));
    let has_no_sign = || liveness::is_gone(file, slot.sign().load(Ordering::Acquire));
    let is_elsewhere = me.namespace == 0 || slot.pid_namespace().load(Ordering::Acquire) != me.namespace;
    if is_lent(slot) {
        // Without listeners nothing is charged here, and nothing is known of this memory.
        if listeners().is_none_or(|known| (known.is_memory_held)((usage, file), number, owner)) {
            return false;
        }
        // Its maker may have closed its descriptors; an opener that did so is not known any more.
        if slot.kind().load(Ordering::Acquire) == LET_GO || !is_elsewhere && pid == me.pid {
            return true;
        }
    } else if sys::locked_by_another(file, lock_place(number)) {
        return false;
    }
    if is_elsewhere {
        return has_no_sign();
    }
    if pid == me.pid {
        return match own {
            OwnSlot::Unknown => process::own_start().is_some_and(|now| now != start),
            OwnSlot::None => true,
            OwnSlot::Slot(own) => usize::try_from(own) != Ok(number),
        };
    }
    match process::look(pid) {
        State::Gone => true,
        State::Hidden => has_no_sign(),
        State::Living(now) => now != start || process::maps(pid, usage.address()) == Some(false),
    }
}
