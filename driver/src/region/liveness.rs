//! Whether the owner of a slot lives.
//!
//! A process holds a record lock on its slot for as long as it lives; the kernel drops it at its death, sees it from
//! every pid namespace, and gives it to no child. But a program that closes all its descriptors drops it, too. So a slot
//! is dead when nobody holds the lock *and* no process has the pid and start time that it names.
//!
//! A pid of another namespace means something here only if this process sees all of them: then a process counts as the
//! owner when its pid inside some namespace and its start time are those of the slot. Else the sign that the owner showed tells,
//! a lock that it cannot lose but by its end. Where nothing can be found out, the owner counts as alive: the slot's bytes stay
//! taken, and nobody is robbed.
//!
//! A dead owner's slot stays as long as a child that it forked has its files, the driver's among them, which keep the memory: the
//! owner left a lock that goes with them.
//!
//! The slot of memory that is lent has a lock byte of its own, which everybody holds who has the memory; its maker counts, locked
//! or not, until it let go. So has a crowd of it, but for one byte for all.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use aliquot_abi::layout::{slot, usage};
use aliquot_abi::view::SlotView;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::watched::Life;

/// Inode of the first pid namespace of a machine, from which every process is seen; fixed by the kernel.
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// A process slot that somebody has taken.
#[derive(Clone, Copy)]
pub(super) struct Taken<'a> {
    /// Which.
    pub(super) number: usize,
    /// Its words.
    pub(super) slot: SlotView<'a>,
    /// Owner word when it was looked at.
    pub(super) owner: u64,
}

/// Processes as they are during one look at a usage file.
#[derive(Debug)]
pub(super) struct Processes {
    /// This process's pid namespace; 0 where it cannot be told.
    namespace: u64,
    /// Every process by the pid in its own namespace and its start time; listed once, when it is first asked for, so
    /// that a tenant that fills its slots with nonsense costs one listing.
    listed: OnceCell<BTreeSet<(u32, u64)>>,
}

/// Process id of an owner word.
pub(super) const fn pid_of(owner: u64) -> u32 {
    slot::pid_in(owner)
}

/// This process's pid namespace; 0 where it cannot be told.
pub(super) fn own_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

/// What became of the owner of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It lives, or nobody can tell.
    Lives,
    /// It is dead, and what it had is where it was: somebody has its files.
    Left,
    /// It is gone, with all it had.
    Gone,
}

impl Taken<'_> {
    /// Whether the slot's bytes are held.
    pub(super) fn is_held(&self, usage: &File, processes: &Processes) -> bool {
        self.fate(usage, processes).holds()
    }

    /// What became of the owner. A slot of lent memory is freed by whoever lets go last, and another may have it at once, of whom
    /// nothing was found out: he counts as alive.
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
        // Zero: the owner has taken the slot and not yet said when it began.
        let began = (start != 0).then_some(start);
        let gone = if of == processes.namespace || of == 0 {
            start_time(pid).is_none_or(|found| began.is_some_and(|began| began != found))
        } else {
            processes.namespace == FIRST_NAMESPACE && !processes.anybody_is(pid, began)
                || self.has_lost_its_sign(usage)
        };
        match gone {
            false => Fate::Lives,
            true if self.leaves_files(usage) => Fate::Left,
            true => Fate::Gone,
        }
    }

    /// Whether its owner is in a call of the driver by its words, or has work that is not on the books.
    pub(super) fn is_unfinished(&self) -> bool {
        let slot = self.slot;
        self.is_in_call() || slot.unbilled_since().load(Ordering::SeqCst) != 0
    }

    /// Whether its owner is in a call that may move memory, by its words. What is over is read first: a call that ends in between is
    /// seen as under way.
    pub(super) fn is_in_call(&self) -> bool {
        let ended = self.slot.ended().load(Ordering::SeqCst);
        self.slot.begun().load(Ordering::SeqCst) != ended
    }

    /// Its owner is dead, and in no call any more. A reaper that was stopped meanwhile changes nobody else's words.
    pub(super) fn leave_calls(&self) {
        let (begun, ended) = (self.slot.begun(), self.slot.ended());
        let (to, from) = (begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        let _is_another_owners = ended.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Its owner is found dead for good: nobody takes hold of it any more. False: somebody did since it was looked at.
    pub(super) fn mark_gone(&self) -> bool {
        let (seen, marked) = (self.owner, self.owner | slot::GONE);
        seen == marked
            || self.slot.owner().compare_exchange(seen, marked, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the driver's files of the owner are open: a child that it forked has their descriptors, or its address space
    /// outlives it, as a reader of `/proc/<pid>/maps` has it, and with it their mappings. The owner's memory is on the card as long.
    fn leaves_files(&self, usage: &File) -> bool {
        let sign = self.slot.sign().load(Ordering::Acquire);
        let signs = [slot::lock_of_files(sign), Some(sign).filter(|sign| slot::SIGNS.contains(sign))];
        let bytes = signs.into_iter().flatten().filter_map(|byte| usize::try_from(byte).ok());
        bytes.into_iter().any(|byte| is_locked(usage, byte_lock(libc::F_WRLCK, byte)))
    }

    /// Whether the owner showed a sign that it lives, and nobody shows it any more.
    fn has_lost_its_sign(&self, usage: &File) -> bool {
        let sign = self.slot.sign().load(Ordering::Acquire);
        let byte = usize::try_from(sign).ok().filter(|_| slot::SIGNS.contains(&sign));
        byte.is_some_and(|byte| !is_locked(usage, byte_lock(libc::F_WRLCK, byte)))
    }

    /// Whether it is of memory that is lent, and not of a process. What says neither is taken for a process's.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self.slot.kind().load(Ordering::Acquire), slot::LENT | slot::LET_GO)
    }

    /// The byte whose lock says that it lives.
    fn lock(&self) -> libc::flock {
        let of_process = || usage::SLOTS + self.number * usage::SLOT_BYTES;
        let byte = match u32::try_from(self.number) {
            Ok(number) if self.is_lent() => {
                let tag = self.slot.tag().load(Ordering::Acquire);
                usize::try_from(slot::lock_of_lent(number, self.owner, tag))
            }
            _ => Ok(of_process()),
        };
        byte_lock(libc::F_WRLCK, byte.unwrap_or_else(|_| of_process()))
    }

    /// The same for people: who holds the lock, and whose word it is that the owner lives.
    pub(super) fn life(&self, usage: &File, processes: &Processes) -> Life {
        let here = self.slot.pid_namespace().load(Ordering::Acquire) == processes.namespace;
        let named = || match self.fate(usage, processes) {
            Fate::Lives => Life::Named { pid: here.then(|| pid_of(self.owner)) },
            Fate::Left | Fate::Gone => Life::Dead,
        };
        holder(usage, self.lock()).unwrap_or_else(named)
    }
}

/// Who holds the slot's lock, as seen from here; `None`: nobody that the kernel tells of.
fn holder(usage: &File, mut lock: libc::flock) -> Option<Life> {
    fcntl(usage.as_fd(), FcntlArg::F_GETLK(&mut lock)).ok()?;
    let held = libc::c_int::from(lock.l_type) != libc::F_UNLCK;
    // 0 where the holder's number means nothing in this process's namespace.
    held.then(|| Life::Held { pid: u32::try_from(lock.l_pid).ok().filter(|pid| *pid != 0) })
}

/// Whether another process holds the slot's lock; where the kernel cannot tell, somebody does.
fn is_locked(usage: &File, mut lock: libc::flock) -> bool {
    match fcntl(usage.as_fd(), FcntlArg::F_GETLK(&mut lock)) {
        Ok(_) => libc::c_int::from(lock.l_type) != libc::F_UNLCK,
        Err(_) => true,
    }
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

/// When a living process began, in clock ticks since boot; a zombie holds nothing any more.
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
    /// Those that there are now.
    pub(super) fn now() -> Self {
        Self { namespace: own_namespace(), listed: OnceCell::new() }
    }

    /// Whether a process has this pid in its own namespace, and began then, where that is known.
    fn anybody_is(&self, pid: u32, began: Option<u64>) -> bool {
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
