//! The usage file of one grant, watched by the host: who holds what, and what the dead held goes back.
//!
//! One process opens a usage file once: closing any descriptor of it drops all record locks that the process holds on it,
//! the reaper's own among them. Files that are only looked at are copied ([`Seen::of`]).

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
use aliquot_enforce::reap::{Closing, Owner, Recount, Slot};
use aliquot_enforce::unbilled;
use aliquot_enforce::units::Ppm;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::os::fd::AsFd;

use crate::clock::monotonic;

use super::liveness::{Fate, Processes, Taken, byte_lock, pid_of};
use super::mapping::{Image, Mapping};
use super::{bytes_of, fault, open, open_to_look};

/// Looks at a living thread between reserving and recording before it is left for later: two thousand times what a
/// thread that runs needs.
const LOOKS: u32 = 50;
/// Time between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);
/// Looks at another reaper's lock before its work is done over: it may have been stopped.
const MANNERS: u32 = 50;

/// Copies of a file at most, until two say the same of its memory: one takes some 20 µs.
const COPIES_MAX: u32 = 32;

/// One reaper a process: record locks do not keep its own threads apart.
static REAPING: Mutex<()> = Mutex::new(());

/// A usage file, opened and mapped for as long as its grant is watched.
#[derive(Debug)]
pub struct Watched {
    file: File,
    mapping: Mapping,
}

/// What a look for the dead found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// Everybody lives.
    Nobody,
    /// The dead hold nothing any more.
    Dead {
        /// How many; none where only memory that was lent has lost its last opener.
        processes: u32,
        /// What they held.
        returned: Bytes,
    },
    /// There are dead, but another reaper is at work, or a living thread is in the middle of an allocation: look again.
    Later,
    /// The file is shorter than it was: its tenant cut it. It has its length again; watch it anew.
    Torn,
}

/// What a usage file says, copied at one moment; words of a tenant, to be shown and not to be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Length of the file; a tenant may give it any.
    pub length: Bytes,
    /// Bytes reserved by all processes.
    pub total: Bytes,
    /// The most that ever was reserved.
    pub high_water: Bytes,
    /// Reservations refused.
    pub denied: u64,
    /// Processes that died and whose holding was given back.
    pub reaped: u64,
    /// Calls of vendor symbols that no table knows.
    pub unknown_symbols: u64,
    /// Device time used since the grant was made, in nanoseconds.
    pub device_nanos: u64,
    /// Processes, by slot; at most as many as there are slots.
    pub processes: Vec<SeenProcess>,
}

/// One process of a usage file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenProcess {
    /// Its number where it runs.
    pub pid: u32,
    /// Whether there is such a process.
    pub life: Life,
    /// Bytes reserved.
    pub used: Bytes,
    /// Device time used, in nanoseconds.
    pub device_nanos: u64,
}

/// Whether the process of a slot lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// A process holds the slot's lock: the kernel's word.
    Held {
        /// Its number as seen from here; `None` where it cannot be seen from here.
        pid: Option<u32>,
    },
    /// No lock, but a process of this number and start time lives: the tenant's word.
    Named {
        /// Its number as seen from here; `None` where the slot is of another pid namespace.
        pid: Option<u32>,
    },
    /// Neither; a child that it forked may keep what it had.
    Dead,
}

// === impl Watched ===

impl Watched {
    /// Opens and maps a usage file.
    ///
    /// # Errors
    /// It is not there, not ours, or shorter than a usage file.
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
    /// They are no usage file any more.
    pub fn view(&self) -> io::Result<UsageView<'_>> {
        self.mapping.usage().map_err(fault)
    }

    /// Processes that have a slot, as they number themselves, and when they began, as they say; dead ones among them until their
    /// slots are free.
    pub fn owners(&self) -> impl Iterator<Item = (u32, u64)> {
        let slots = self.view().into_iter().flat_map(taken).filter(|taken| !taken.is_lent());
        slots.map(|taken| (pid_of(taken.owner), taken.slot.start_time().load(Ordering::Relaxed)))
    }

    /// Whether any process lives that has a slot, or memory of one that had.
    ///
    /// # Errors
    /// The file is no usage file any more.
    pub fn anybody_lives(&self) -> io::Result<bool> {
        let processes = Processes::now();
        Ok(taken(self.view()?).any(|t| t.is_held(&self.file, &processes)))
    }

    /// Looks for dead processes, gives back what they held, and bills what they left on the card, of which `part` is the
    /// tenant's. Costs one pass over the slots where everybody lives.
    ///
    /// # Errors
    /// The file is no usage file any more, or cannot be locked or cut to its size.
    pub fn reap(&self, part: Ppm) -> io::Result<Reaped> {
        self.keep_size()?;
        let view = match self.view() {
            Err(_) if self.mapping.torn() => return Ok(Reaped::Torn),
            view => view?,
        };
        let left_frozen = view.total().load(Ordering::SeqCst) & FREEZE != 0;
        let processes = Processes::now();
        let is_dead = |t: &Taken<'_>| match t.fate(&self.file, &processes) {
            Fate::Lives => false,
            Fate::Left => t.is_unfinished(),
            Fate::Gone => true,
        };
        if !left_frozen && !taken(view).any(|t| is_dead(&t)) {
            return Ok(if self.mapping.torn() { Reaped::Torn } else { Reaped::Nobody });
        }
        let (answer, _) = self.recounted(view, part)?;
        Ok(answer)
    }

    /// Recounts, and says what is reserved then; the file has its size before.
    pub(super) fn recounted_to_size(&self, part: Ppm) -> io::Result<(Reaped, Bytes)> {
        self.keep_size()?;
        self.recounted(self.view()?, part)
    }

    /// Recounts, and says what is reserved then.
    fn recounted(&self, view: UsageView<'_>, part: Ppm) -> io::Result<(Reaped, Bytes)> {
        let alone = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
        self.wait_for_others()?;
        let answer = self.settle(view, part, &Processes::now());
        let total = Bytes(bytes_in(view.total().load(Ordering::SeqCst)));
        // Not ours where another reaper has it: then this does nothing.
        self.lock(libc::F_UNLCK)?;
        drop(alone);
        Ok((if self.mapping.torn() { Reaped::Torn } else { answer }, total))
    }

    /// Takes the lock of all reapers, or waits for who has it, not for ever: two at once do the same work, and harm nobody.
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

    /// Marks the dead, closes the books, recounts, and opens them with the slots of the dead free.
    fn settle(&self, view: UsageView<'_>, part: Ppm, processes: &Processes) -> Reaped {
        let books = unbilled::Books {
            bucket: Bucket { credit: view.credit_nanos(), refilled_at: view.refilled_at() },
            cells: Cells::new(view.cells()),
            device_nanos: view.device_nanos(),
        };
        let (mut pass, mut dead) = (unbilled::Pass::new(monotonic()), 0_u32);
        for taken in taken(view) {
            match taken.fate(&self.file, processes) {
                Fate::Lives => continue,
                Fate::Left => taken.leave_calls(),
                Fate::Gone if !taken.mark_gone() => continue,
                Fate::Gone => dead += u32::from(!taken.is_lent()),
            }
            pass.bill(taken.slot.unbilled_since(), part, &books);
        }
        // Counted first: who finds a slot free that was a dead one's finds that somebody died.
        view.reaped().fetch_add(u64::from(dead), Ordering::SeqCst);
        let slots = taken(view).map(|t| self.as_counted(&t, processes));
        let closing = Closing::begin(view.total(), view.closings());
        let mut looks = 0;
        let returned = loop {
            match closing.recount(view.total(), slots.clone()) {
                Recount::Done { returned, .. } => break returned,
                Recount::Busy if looks < LOOKS => {
                    looks += 1;
                    std::thread::sleep(BETWEEN_LOOKS);
                }
                Recount::Busy => {
                    // Somebody was stopped inside: what the dead had recorded goes back all the same.
                    closing.give_back(view.total(), slots);
                    return Reaped::Later;
                }
                Recount::Overtaken => return Reaped::Later,
            }
        };
        match dead {
            0 if returned == 0 => Reaped::Nobody,
            processes => Reaped::Dead { processes, returned: Bytes(returned) },
        }
    }

    /// A slot as a recount takes it: who is marked is gone, and who is not was judged to live, or begun to since.
    fn as_counted<'a>(&self, taken: &Taken<'a>, processes: &Processes) -> Slot<'a> {
        let (slot, seen) = (taken.slot, taken.owner);
        let is_inside = || slot.inside().load(Ordering::SeqCst) != 0;
        let owner = match seen & slot::GONE {
            0 if is_inside() && taken.fate(&self.file, processes) != Fate::Lives => Owner::Left,
            0 => Owner::Alive,
            _ => Owner::Dead(slot::freed(seen)),
        };
        Slot { inside: slot.inside(), used: slot.used(), word: slot.owner(), seen, owner }
    }

    /// A tenant may give its file any length: what is too long fills our disk, what is too short has holes.
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

/// Slots that have an owner, dead or alive.
pub(super) fn taken(view: UsageView<'_>) -> impl Iterator<Item = Taken<'_>> + Clone {
    (0..usage::SLOT_COUNT).filter_map(move |number| {
        let slot = view.slot(number)?;
        let owner = slot.owner().load(Ordering::SeqCst);
        (pid_of(owner) != 0).then_some(Taken { number, slot, owner })
    })
}

// === impl Seen ===

impl Seen {
    /// What a usage file says now. The file is copied: whatever a tenant does to it meanwhile, the copy is of one size. A copy is not
    /// made at one moment, so that what moves from one place of it to another could be in both, or in neither: it is made until
    /// one is as the one before, or often enough; of a tenant that never rests one is shown that has no more than it reserved.
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
        // What a process lends and still has is among what it holds.
        let lent_by = |process: &Taken<'_>| {
            let of = |taken: &Taken<'_>| (pid_of(taken.owner), word(taken.slot.pid_namespace()));
            let has = |t: &Taken<'_>| t.slot.kind().load(Ordering::Relaxed) == slot::LENT;
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
            total: Bytes(bytes_in(word(view.total()))),
            high_water: Bytes(word(view.high_water())),
            denied: word(view.denied()),
            reaped: word(view.reaped()),
            unknown_symbols: word(view.unknown_symbols()),
            device_nanos: word(view.device_nanos()),
            processes: processes.collect(),
        })
    }
}

/// What a copy says of memory: all that is reserved, and of each slot its number, owner, kind and bytes.
#[derive(PartialEq, Eq)]
struct Holdings {
    total: u64,
    slots: Vec<(usize, u64, u32, u64)>,
}

// === impl Holdings ===

impl Holdings {
    fn of(view: UsageView<'_>) -> Self {
        let of_slot = |t: Taken<'_>| {
            let kind = t.slot.kind().load(Ordering::Relaxed);
            (t.number, t.owner, kind, t.slot.used().load(Ordering::Relaxed))
        };
        Self {
            total: bytes_in(view.total().load(Ordering::Relaxed)),
            slots: taken(view).map(of_slot).collect(),
        }
    }

    /// Everything is reserved before it is in a slot, and out of it before it is given back.
    fn adds_up(&self) -> bool {
        self.slots.iter().fold(0_u64, |sum, (_, _, _, used)| sum.saturating_add(*used)) <= self.total
    }
}

/// A copy that adds up and is as another one; else the last that adds up, or, where none does, the last.
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
