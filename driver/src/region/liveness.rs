//! Liveness of a slot's owner.
//!
//! A process holds a record lock on its slot until it exits. The kernel then drops the lock; the lock is visible from every pid
//! namespace and not inherited by children. But a program that closes all its descriptors drops it, too. So the owner counts as
//! exited if no process holds the lock *and* no process has the slot's pid and start time.
//!
//! A pid of another namespace can be checked only from the initial pid namespace: a process is the owner if its pid in its own
//! namespace and its start time are those of the slot. Elsewhere the owner's liveness lock decides, which only its exit releases.
//! Without either the owner counts as alive: the slot's bytes stay reserved, so no live process loses its memory.
//!
//! The slot of an exited owner stays while a forked child has the owner's files open. The driver's files among them keep the
//! memory; a lock of the owner shows that they are open.
//!
//! The slot of IPC-shared memory has a lock byte of its own, which every process with the memory holds. The exporter counts, locked
//! or not, until it closes the memory. A shared slot works the same, with one byte for all.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use aliquot_abi::layout::{slot, usage};
use aliquot_abi::view::SlotView;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::opening::open_to_look;

/// Liveness of a slot's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// A process holds the slot's lock, as the kernel reports.
    Held {
        /// Its pid in this namespace; `None` if it is not visible here.
        pid: Option<u32>,
    },
    /// No lock, but a process with the slot's pid and start time is alive; the tenant wrote both.
    Named {
        /// Its pid in this namespace; `None` if the slot is of another pid namespace.
        pid: Option<u32>,
    },
    /// Exited; a forked child may keep its memory.
    Dead,
}

/// Inode of the initial pid namespace, from which every process is visible; fixed by the kernel.
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// A slot with an owner.
#[derive(Clone, Copy)]
pub(super) struct OwnedSlot<'a> {
    /// Its number.
    pub(super) number: usize,
    /// Its words.
    pub(super) slot: SlotView<'a>,
    /// Owner word when it was read.
    pub(super) owner: u64,
}

/// Processes of the machine during one pass over a usage file.
#[derive(Debug)]
pub(super) struct Processes {
    /// This process's pid namespace; 0 if unknown.
    namespace: u64,
    /// Every process by the pid in its own namespace and its start time. Listed once, on first use, so that a tenant with many
    /// invalid slots costs one listing.
    listed: OnceCell<BTreeSet<(u32, u64)>>,
}

/// Process id of an owner word.
pub(super) const fn pid_of(owner: u64) -> u32 {
    slot::pid_in(owner)
}

/// This process's pid namespace; 0 if unknown.
pub(super) fn own_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

/// State of a slot's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is alive, or its state is unknown.
    Lives,
    /// It exited, but another process has its files open, so its memory is still allocated.
    Left,
    /// It exited, and its memory is freed.
    Gone,
}

impl OwnedSlot<'_> {
    /// Whether the slot's bytes are held.
    pub(super) fn is_held(&self, usage: &File, processes: &Processes) -> bool {
        self.fate(usage, processes).holds()
    }

    /// State of the owner. The last process that closes IPC-shared memory frees its slot, and another may take it at once. If the
    /// owner word changed during the check, the new owner counts as alive.
    pub(super) fn fate(&self, usage: &File, processes: &Processes) -> Fate {
        let answer = self.owner_is(usage, processes);
        if self.slot.owner().load(Ordering::SeqCst) == self.owner { answer } else { Fate::Lives }
    }

    fn owner_is(&self, usage: &File, processes: &Processes) -> Fate {
        if self.owner & slot::GONE != 0 {
            return Fate::Gone;
        }
        if is_locked(usage, self.lock()) {
            return Fate::Lives;
        }
        if self.slot.kind().load(Ordering::Acquire) == slot::LET_GO {
            return Fate::Gone;
        }
        let start = self.slot.start_time().load(Ordering::Acquire);
        let (pid, of) = (pid_of(self.owner), self.slot.pid_namespace().load(Ordering::Acquire));
        // Zero: the owner has taken the slot and not yet published its start time.
        let began = (start != 0).then_some(start);
        let gone = if of == processes.namespace || of == 0 {
            start_time(pid).is_none_or(|found| began.is_some_and(|began| began != found))
        } else {
            processes.namespace == FIRST_NAMESPACE && !processes.contains(pid, began)
                || self.has_lost_its_sign(usage)
        };
        match gone {
            false => Fate::Lives,
            true if self.leaves_files(usage) => Fate::Left,
            true => Fate::Gone,
        }
    }

    /// Whether its words show a driver call in progress or unbilled work.
    pub(super) fn is_unfinished(&self) -> bool {
        let slot = self.slot;
        self.is_in_call() || slot.unbilled_since().load(Ordering::SeqCst) != 0
    }

    /// Whether its words show a call in progress that may change memory. `ended` is read first: a call that ends in between counts
    /// as in progress.
    pub(super) fn is_in_call(&self) -> bool {
        let ended = self.slot.ended().load(Ordering::SeqCst);
        self.slot.begun().load(Ordering::SeqCst) != ended
    }

    /// Ends the calls of an exited owner. A reaper that was stopped meanwhile changes no other owner's words.
    pub(super) fn leave_calls(&self) {
        let (begun, ended) = (self.slot.begun(), self.slot.ended());
        let (to, from) = (begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        let _is_another_owners = ended.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Marks the slot: its owner certainly exited, and no process can acquire it. False: the owner word changed since it was read.
    pub(super) fn mark_gone(&self) -> bool {
        let (seen, marked) = (self.owner, self.owner | slot::GONE);
        seen == marked
            || self.slot.owner().compare_exchange(seen, marked, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the owner's driver files are still open. A forked child has their descriptors, or a reader of `/proc/<pid>/maps`
    /// keeps the address space with their mappings. The owner's memory stays on the card as long.
    fn leaves_files(&self, usage: &File) -> bool {
        let sign = self.slot.sign().load(Ordering::Acquire);
        let signs = [slot::lock_of_files(sign), Some(sign).filter(|sign| slot::SIGNS.contains(sign))];
        let bytes = signs.into_iter().flatten().filter_map(|byte| usize::try_from(byte).ok());
        bytes.into_iter().any(|byte| is_locked(usage, byte_lock(libc::F_WRLCK, byte)))
    }

    /// Whether the owner had a liveness lock that is no longer held.
    fn has_lost_its_sign(&self, usage: &File) -> bool {
        let sign = self.slot.sign().load(Ordering::Acquire);
        let byte = usize::try_from(sign).ok().filter(|_| slot::SIGNS.contains(&sign));
        byte.is_some_and(|byte| !is_locked(usage, byte_lock(libc::F_WRLCK, byte)))
    }

    /// Whether it is of IPC-shared memory. A slot of an unknown kind counts as a process's.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.slot.kind().load(Ordering::Acquire), slot::LENT | slot::LET_GO)
    }

    /// The lock byte that shows its liveness.
    fn lock(&self) -> libc::flock {
        let of_process = || usage::SLOTS + self.number * usage::SLOT_BYTES;
        let byte = match u32::try_from(self.number) {
            Ok(number) if self.is_lent() => usize::try_from(slot::lock_of_lent(number, self.owner)),
            _ => Ok(of_process()),
        };
        byte_lock(libc::F_WRLCK, byte.unwrap_or_else(|_| of_process()))
    }

    /// The owner's pid in the pid namespace `here`, which is this process's; `None` if the kernel does not tell it.
    pub(super) fn pid_here(&self, usage: &File, here: u64) -> Option<u32> {
        let of = self.slot.pid_namespace().load(Ordering::Acquire);
        if of == here || of == 0 {
            return Some(pid_of(self.owner));
        }
        match holder(usage, self.lock()) {
            Some(Life::Held { pid }) => pid,
            Some(Life::Named { .. } | Life::Dead) | None => None,
        }
    }

    /// The liveness to report: the lock's holder, or whether the evidence is the tenant's own words.
    pub(super) fn life(&self, usage: &File, processes: &Processes) -> Life {
        let here = self.slot.pid_namespace().load(Ordering::Acquire) == processes.namespace;
        let named = || match self.fate(usage, processes) {
            Fate::Lives => Life::Named { pid: here.then(|| pid_of(self.owner)) },
            Fate::Left | Fate::Gone => Life::Dead,
        };
        holder(usage, self.lock()).unwrap_or_else(named)
    }
}

/// The holder of the slot's lock, in this pid namespace; `None`: the kernel reports none.
fn holder(usage: &File, mut lock: libc::flock) -> Option<Life> {
    fcntl(usage.as_fd(), FcntlArg::F_GETLK(&mut lock)).ok()?;
    let held = libc::c_int::from(lock.l_type) != libc::F_UNLCK;
    // 0 if the holder has no pid in this process's namespace.
    held.then(|| Life::Held { pid: u32::try_from(lock.l_pid).ok().filter(|pid| *pid != 0) })
}

/// Whether another process holds the slot's lock; if the kernel reports an error, it counts as held.
fn is_locked(usage: &File, mut lock: libc::flock) -> bool {
    match fcntl(usage.as_fd(), FcntlArg::F_GETLK(&mut lock)) {
        Ok(_) => libc::c_int::from(lock.l_type) != libc::F_UNLCK,
        Err(_) => true,
    }
}

/// Whether any other process holds a lock in a usage file, as each with a slot does. Nothing of the file is read. This process must
/// hold none: closing the file drops it.
pub(crate) fn is_locked_or_absent(usage: &Path) -> bool {
    let everything = libc::flock { l_len: 0, ..byte_lock(libc::F_WRLCK, 0) };
    open_to_look(usage).map_or(true, |file| is_locked(&file, everything))
}

/// A record lock on one byte.
pub(super) fn byte_lock(kind: libc::c_int, byte: usize) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: libc::off_t::try_from(byte).unwrap_or_default(),
        l_len: 1,
        l_pid: 0,
    }
}

/// Start time of a live process, in clock ticks since boot; a zombie holds nothing any more.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last parenthesis may hold anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(start)
}

// === impl Fate ===

impl Fate {
    /// Whether the owner's bytes stay.
    pub(super) fn holds(self) -> bool {
        matches!(self, Self::Lives | Self::Left)
    }
}

// === impl Processes ===

impl Processes {
    /// The processes of this moment.
    pub(super) fn now() -> Self {
        Self { namespace: own_namespace(), listed: OnceCell::new() }
    }

    /// Whether a process has this pid in its own namespace, and this start time, if it is known.
    fn contains(&self, pid: u32, began: Option<u64>) -> bool {
        let listed = self.listed.get_or_init(list);
        let (first, last) = began.map_or((0, u64::MAX), |began| (began, began));
        listed.range((pid, first)..=(pid, last)).next().is_some()
    }
}

fn list() -> BTreeSet<(u32, u64)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|outer| Some((inner_pid(outer)?, start_time(outer)?))).collect()
}

/// The pid that a process has in its own namespace.
fn inner_pid(outer: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{outer}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}
