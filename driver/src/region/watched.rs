//! The usage file of one grant on the host: the memory of each process, and the reaping of exited processes.
//!
//! A process opens a usage file only once: closing any descriptor of it drops all record locks of the process on it, the reaper's
//! own among them. To be reported only, a file is copied ([`UsageCopy::of`]).

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aliquot_abi::layout::{slot, usage};
use aliquot_abi::view::UsageView;
use aliquot_core::units::Bytes;
use aliquot_enforce::bucket::Bucket;
use aliquot_enforce::cells::Cells;
use aliquot_enforce::memory::{FREEZE, bytes_in};
use aliquot_enforce::reap::{AccountingFreeze, Owner, Recount, Slot};
use aliquot_enforce::unbilled;
use aliquot_enforce::units::Ppm;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::os::fd::AsFd;

use crate::clock::monotonic;

use super::liveness::{Fate, Life, OwnedSlot, Processes, byte_lock, own_namespace, pid_of};
use super::mapping::{Image, Mapping};
use super::opening::{LIMITS, bytes_of, fault, open, open_to_look};
use super::refusals::{SeenRefusal, refusals};
use super::residue::residue;

/// Tries of a recount while a live thread is between reserving and recording: two thousand times the time that a running thread
/// needs.
const LOOKS: u32 = 50;
/// Time between two tries.
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);
/// Tries to take another reaper's lock before its work is repeated: it may have been stopped.
const MANNERS: u32 = 50;

/// Most copies of a file until two agree on its memory: one takes some 20 µs.
const COPIES_MAX: u32 = 32;

/// One reaper a process: record locks do not keep its own threads apart.
static REAPING: Mutex<()> = Mutex::new(());

/// A usage file, opened and mapped for as long as its grant is watched.
#[derive(Debug)]
pub struct UsageFile {
    file: File,
    mapping: Mapping,
}

/// The result of a reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReapOutcome {
    /// No process with memory has exited.
    NoneExited,
    /// The memory of exited processes is released.
    Dead {
        /// Their number; 0 if only IPC-shared memory lost its last importer.
        processes: u32,
        /// Their memory.
        returned: Bytes,
    },
    /// Processes exited, but another reaper is at work, or a live thread is inside an allocation: reap again.
    Later,
    /// The tenant truncated the file. Its length is restored; open it again.
    Torn,
}

/// A copy of a usage file. The tenant writes it: its values may be shown, never trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageCopy {
    /// Length of the file; a tenant may give it any.
    pub length: Bytes,
    /// Bytes reserved by all processes, and the residue that the host published.
    pub total: Bytes,
    /// The greatest total so far.
    pub high_water: Bytes,
    /// Reservations refused.
    pub denied: u64,
    /// Exited processes with released memory.
    pub reaped: u64,
    /// Calls of vendor symbols that are in no table.
    pub unknown_symbols: u64,
    /// Device time used since the grant was created, in nanoseconds.
    pub device_nanos: u64,
    /// Processes, by slot; at most as many as there are slots.
    pub processes: Vec<SeenProcess>,
    /// The last refusals, the newest first; at most as many as the ring has places.
    pub refusals: Vec<SeenRefusal>,
}

/// One process of a usage file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenProcess {
    /// Its pid in its own namespace.
    pub pid: u32,
    /// Its liveness.
    pub life: Life,
    /// Bytes reserved.
    pub used: Bytes,
    /// Device time used, in nanoseconds.
    pub device_nanos: u64,
}

// === impl UsageFile ===

impl UsageFile {
    /// Opens and maps a usage file.
    ///
    /// # Errors
    /// The file does not exist, cannot be opened or mapped, or is shorter than a usage file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        if file.metadata()?.len() < bytes_of(usage::BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shorter than a usage file"));
        }
        let mapping = Mapping::of(&file, usage::BYTES)?;
        mapping.usage().map_err(fault)?;
        Ok(Self { file, mapping })
    }

    /// The words of the file.
    ///
    /// # Errors
    /// The header is no longer that of a usage file.
    pub fn view(&self) -> io::Result<UsageView<'_>> {
        self.mapping.usage().map_err(fault)
    }

    /// Pid in this process's namespace, and start time, of each process slot. Both as the tenant wrote them where it is of this pid
    /// namespace, exited processes included until their slots are free. Of a process of another one, as those of a container
    /// are, the kernel names the holder of the slot's lock; one that holds none has no pid here.
    pub fn owners(&self) -> impl Iterator<Item = (u32, u64)> {
        let here = own_namespace();
        let slots = self.view().into_iter().flat_map(taken).filter(|taken| !taken.is_lent());
        slots.filter_map(move |taken| {
            let pid = taken.pid_here(&self.file, here)?;
            Some((pid, taken.slot.start_time().load(Ordering::Relaxed)))
        })
    }

    /// The file whose locks show the owners of its slots.
    pub(super) const fn of_locks(&self) -> &File {
        &self.file
    }

    /// Whether any slot has an owner, live or exited, or a reaper has not ended. A file without its header counts as used.
    pub fn is_used(&self) -> bool {
        let used = |view: UsageView<'_>| {
            taken(view).next().is_some() || view.total().load(Ordering::SeqCst) & FREEZE != 0
        };
        self.view().map_or(true, used)
    }

    /// Whether any owner of a slot is alive, or any process still has memory of an exited owner.
    ///
    /// # Errors
    /// The file is no usage file any more.
    pub fn any_alive(&self) -> io::Result<bool> {
        let processes = Processes::now();
        Ok(taken(self.view()?).any(|t| t.is_held(&self.file, &processes)))
    }

    /// Finds exited processes, releases their memory, and bills their unfinished work; `part` is the tenant's part of that card
    /// time. Without exited processes this is one pass over the slots.
    ///
    /// # Errors
    /// The file is no usage file any more, or cannot be locked or set to its length.
    pub fn reap(&self, part: Ppm) -> io::Result<ReapOutcome> {
        self.keep_size()?;
        let view = match self.view() {
            Err(_) if self.mapping.torn() => return Ok(ReapOutcome::Torn),
            view => view?,
        };
        let left_frozen = view.total().load(Ordering::SeqCst) & FREEZE != 0;
        let processes = Processes::now();
        let is_dead = |t: &OwnedSlot<'_>| match t.fate(&self.file, &processes) {
            Fate::Lives => false,
            Fate::Left => t.is_unfinished(),
            Fate::Gone => true,
        };
        if !left_frozen && !taken(view).any(|t| is_dead(&t)) {
            return Ok(if self.mapping.torn() { ReapOutcome::Torn } else { ReapOutcome::NoneExited });
        }
        let (answer, _) = self.recounted(view, part)?;
        Ok(answer)
    }

    /// Restores the file's length and recounts; also returns the reserved bytes.
    pub(super) fn recounted_to_size(&self, part: Ppm) -> io::Result<(ReapOutcome, Bytes)> {
        self.keep_size()?;
        self.recounted(self.view()?, part)
    }

    /// Recounts; also returns the reserved bytes.
    fn recounted(&self, view: UsageView<'_>, part: Ppm) -> io::Result<(ReapOutcome, Bytes)> {
        let alone = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
        self.wait_for_others()?;
        let answer = self.settle(view, part, &Processes::now());
        let total = Bytes(bytes_in(view.total().load(Ordering::SeqCst)));
        // Without effect if another reaper has the lock.
        self.lock(libc::F_UNLCK)?;
        drop(alone);
        Ok((if self.mapping.torn() { ReapOutcome::Torn } else { answer }, total))
    }

    /// Takes the reapers' lock, or waits for its holder for a bounded time: two reapers at once do the same work without harm.
    fn wait_for_others(&self) -> io::Result<()> {
        for _ in 0..MANNERS {
            match self.lock(libc::F_WRLCK) {
                Ok(()) => return Ok(()),
                Err(Errno::EAGAIN | Errno::EACCES) => std::thread::sleep(BETWEEN_LOOKS),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Marks the slots of exited processes, freezes the accounting, recounts, and unfreezes with those slots free.
    fn settle(&self, view: UsageView<'_>, part: Ppm, processes: &Processes) -> ReapOutcome {
        let books = unbilled::ComputeAccounting {
            bucket: Bucket { credit: view.credit_nanos(), refilled_at: view.refilled_at() },
            cells: Cells::new(view.cells()),
            device_nanos: view.device_nanos(),
        };
        let (mut pass, mut dead) = (unbilled::UnbilledScan::new(monotonic()), 0_u32);
        for taken in taken(view) {
            match taken.fate(&self.file, processes) {
                Fate::Lives => continue,
                Fate::Left => taken.leave_calls(),
                Fate::Gone if !taken.mark_gone() => continue,
                Fate::Gone => dead += u32::from(!taken.is_lent()),
            }
            pass.bill(taken.slot.unbilled_since(), part, &books);
        }
        // Counted first: a process that finds a freed slot also finds the count increased.
        view.reaped().fetch_add(u64::from(dead), Ordering::SeqCst);
        let slots = taken(view).map(|t| self.as_counted(&t, processes));
        let closing = AccountingFreeze::begin(view.total(), view.closings());
        let mut looks = 0;
        let returned = loop {
            match closing.recount(view.total(), slots.clone()) {
                Recount::Done { returned, .. } => break returned,
                Recount::Busy if looks < LOOKS => {
                    looks += 1;
                    std::thread::sleep(BETWEEN_LOOKS);
                }
                Recount::Busy => {
                    // A process was stopped inside: recorded memory of exited processes is released all the same.
                    closing.give_back(view.total(), slots);
                    return ReapOutcome::Later;
                }
                Recount::Overtaken => return ReapOutcome::Later,
            }
        };
        match dead {
            0 if returned == 0 => ReapOutcome::NoneExited,
            processes => ReapOutcome::Dead { processes, returned: Bytes(returned) },
        }
    }

    /// A slot for the recount: a marked owner has exited; an unmarked one was found alive, or took the slot since.
    fn as_counted<'a>(&self, taken: &OwnedSlot<'a>, processes: &Processes) -> Slot<'a> {
        let (slot, seen) = (taken.slot, taken.owner);
        let is_inside = || slot.inside().load(Ordering::SeqCst) != 0;
        let owner = match seen & slot::GONE {
            0 if is_inside() && taken.fate(&self.file, processes) != Fate::Lives => Owner::Left,
            0 => Owner::Alive,
            _ => Owner::Dead(slot::freed(seen)),
        };
        Slot { inside: slot.inside(), used: slot.used(), word: slot.owner(), seen, owner }
    }

    /// Restores the file's length: a longer file fills the disk, a shorter one has holes.
    fn keep_size(&self) -> io::Result<()> {
        match self.file.metadata()?.len() {
            length if length == bytes_of(usage::BYTES) => Ok(()),
            _ => self.file.set_len(bytes_of(usage::BYTES)),
        }
    }

    fn lock(&self, kind: libc::c_int) -> Result<(), Errno> {
        fcntl(self.file.as_fd(), FcntlArg::F_SETLK(&byte_lock(kind, 0))).map(|_| ())
    }
}

/// Slots that have an owner, live or exited.
pub(super) fn taken(view: UsageView<'_>) -> impl Iterator<Item = OwnedSlot<'_>> + Clone {
    (0..usage::SLOT_COUNT).filter_map(move |number| {
        let slot = view.slot(number)?;
        let owner = slot.owner().load(Ordering::SeqCst);
        (pid_of(owner) != 0).then_some(OwnedSlot { number, slot, owner })
    })
}

// === impl UsageCopy ===

impl UsageCopy {
    /// Copies a usage file. The tenant may change the file meanwhile, so bytes that move within it could be in both places of a
    /// copy, or in neither. So the file is copied until two copies agree, at most `COPIES_MAX` times. Of a tenant that never
    /// pauses, the last copy that does not exceed its total is used.
    ///
    /// # Errors
    /// It cannot be read, or is no usage file.
    pub fn of(path: &Path) -> io::Result<Self> {
        let file = open_to_look(path)?;
        let length = Bytes(file.metadata()?.len());
        let image = settled(&file)?;
        let view = image.usage().map_err(fault)?;
        let word = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
        let now = Processes::now();
        // IPC-shared memory counts as its exporter's until the exporter closes it.
        let lent_by = |process: &OwnedSlot<'_>| {
            let of = |taken: &OwnedSlot<'_>| (pid_of(taken.owner), word(taken.slot.pid_namespace()));
            let has = |t: &OwnedSlot<'_>| t.slot.kind().load(Ordering::Relaxed) == slot::LENT;
            let lent = taken(view).filter(|t| has(t) && of(t) == of(process));
            lent.fold(0_u64, |sum, t| sum.saturating_add(word(t.slot.used())))
        };
        let processes = taken(view).filter(|t| !t.is_lent()).map(|t| SeenProcess {
            pid: pid_of(t.owner),
            life: t.life(&file, &now),
            used: Bytes(word(t.slot.used()).saturating_add(lent_by(&t))),
            device_nanos: word(t.slot.device_nanos()),
        });
        Ok(Self {
            length,
            total: Bytes(
                bytes_in(word(view.total())).saturating_add(residue(&path.with_file_name(LIMITS)).0),
            ),
            high_water: Bytes(word(view.high_water())),
            denied: word(view.denied()),
            reaped: word(view.reaped()),
            unknown_symbols: word(view.unknown_symbols()),
            device_nanos: word(view.device_nanos()),
            processes: processes.collect(),
            refusals: refusals(view, monotonic()),
        })
    }
}

/// Memory in a copy: the reserved total, and for each slot its number, owner, kind and bytes.
#[derive(PartialEq, Eq)]
struct Holdings {
    total: u64,
    slots: Vec<(usize, u64, u32, u64)>,
}

// === impl Holdings ===

impl Holdings {
    fn of(view: UsageView<'_>) -> Self {
        let of_slot = |t: OwnedSlot<'_>| {
            let kind = t.slot.kind().load(Ordering::Relaxed);
            (t.number, t.owner, kind, t.slot.used().load(Ordering::Relaxed))
        };
        Self {
            total: bytes_in(view.total().load(Ordering::Relaxed)),
            slots: taken(view).map(of_slot).collect(),
        }
    }

    /// Bytes enter the total before a slot, and leave the slot before the total.
    fn adds_up(&self) -> bool {
        self.slots.iter().fold(0_u64, |sum, (_, _, _, used)| sum.saturating_add(*used)) <= self.total
    }
}

/// A copy that adds up and equals the one before; else the last that adds up; else the last.
fn settled(mut file: &File) -> io::Result<Image> {
    let mut copy = || {
        file.rewind()?;
        let image = Image::of(file, usage::BYTES)?;
        let holdings = Holdings::of(image.usage().map_err(fault)?);
        Ok::<_, io::Error>((image, holdings))
    };
    let mut last = copy()?;
    for _ in 1..COPIES_MAX {
        let next = copy()?;
        let adds_up = next.1.adds_up();
        if adds_up && next.1 == last.1 {
            return Ok(next.0);
        }
        if adds_up || !last.1.adds_up() {
            last = next;
        }
    }
    Ok(last.0)
}
