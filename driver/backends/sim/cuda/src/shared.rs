//! Physical memory that processes share: a descriptor names its owner and place, and file locks show which
//! users are left.
//!
//! ```text
//!   export ─▶ descriptor (the caller's, copied and sent at will) ── shared lock, gone with its last copy
//!        └──▶ Export (the owner's view of the same file): is any lock held?
//!   import ─▶ Import (own file description) ───── shared lock, gone with the import or its process
//! ```
//!
//! The file of physical memory lies beside the card's. The card therefore also sees whether it is in use
//! after its maker exits, and keeps the memory that long.
//!
//! The file of a multicast object has the cards of its team behind that, and each process that has the object holds a lock.

use crate::code::{Answer, INVALID_VALUE, UNKNOWN};
use crate::heap::{self, Backing, Content};
use aliquot_sim_device::{Card, Seat};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Identifies a descriptor of this library.
const MAGIC: u64 = u64::from_be_bytes(*b"ALQSIMS\x01");
const WORDS: usize = 8;

/// The functions that made shared memory; only the same interface can import it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Maker {
    /// cuMemCreate.
    Physical = 0,
    /// Those of another interface to the card.
    Interface = 1,
    /// cuMemGetHandleForAddressRange: other devices import it, CUDA does not.
    Range = 2,
    /// cuMulticastCreate.
    Team = 3,
}

/// What a descriptor says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExportDescription {
    pid: u32,
    seat: u64,
    card: u64,
    maker: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The card's number for it; 0: it goes with its maker.
    number: u64,
}

/// The owner's look at what it exported.
pub(crate) struct Export(File);

/// A multicast object as all its processes see it.
pub(crate) struct Group(File);

/// An importer's hold on it, until dropped.
pub(crate) struct Import(File);

impl ExportDescription {
    pub(crate) fn of(seat: &Seat, maker: Maker, (offset, bytes): (u64, u64)) -> Self {
        let wide = |number| u64::try_from(number).unwrap_or(u64::MAX);
        let (seat, card) = (wide(seat.index()), seat.card().number());
        Self { pid: std::process::id(), seat, card, maker: maker as u64, offset, bytes, number: 0 }
    }

    /// What the card keeps under a number, whatever becomes of its maker.
    pub(crate) fn under(self, number: u64) -> Self {
        Self { number, ..self }
    }

    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    pub(crate) fn is_on(&self, card: &Card) -> bool {
        card.number() == self.card
    }

    /// The same bytes that its owner sees.
    pub(crate) fn backing(&self, card: &Card) -> Answer<Backing> {
        let seat = usize::try_from(self.seat).map_err(|_| INVALID_VALUE)?;
        let file = match self.number {
            0 => card.content_file_of(seat, self.pid),
            number => card.shared_content_file(number),
        };
        let content = Arc::new(Content::of_process(&file)?);
        Ok(Backing { content, offset: self.offset, touched: Arc::new(AtomicBool::new(true)) })
    }

    /// Of a multicast object: how many cards its team is to have, and bytes.
    pub(crate) fn of_team(size: u64, bytes: u64) -> Self {
        let (pid, maker) = (std::process::id(), Maker::Team as u64);
        Self { pid, seat: 0, card: 0, maker, offset: size, bytes, number: 0 }
    }

    fn words(&self) -> [u64; WORDS] {
        let Self { pid, seat, card, maker, offset, bytes, number } = *self;
        [MAGIC, u64::from(pid), seat, card, maker, offset, bytes, number]
    }

    fn read(file: &File) -> Answer<Self> {
        let mut found = [0_u64; WORDS];
        for (word, at) in found.iter_mut().zip((0..).step_by(8)) {
            let mut bytes = [0_u8; 8];
            file.read_exact_at(&mut bytes, at).map_err(|_| INVALID_VALUE)?;
            *word = u64::from_le_bytes(bytes);
        }
        let [magic, pid, seat, card, maker, offset, bytes, number] = found;
        if magic != MAGIC || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let pid = u32::try_from(pid).map_err(|_| INVALID_VALUE)?;
        Ok(Self { pid, seat, card, maker, offset, bytes, number })
    }
}

/// A look of our own at the file behind a descriptor: what is locked there does not go with other copies of it.
fn look(descriptor: i32) -> Answer<File> {
    let path = format!("/proc/self/fd/{descriptor}");
    OpenOptions::new().read(true).write(true).open(path).map_err(|_| INVALID_VALUE)
}

fn write(told: &ExportDescription) -> Answer<File> {
    write_to(File::from(heap::scratch_file()?), told)
}

fn write_to(file: File, told: &ExportDescription) -> Answer<File> {
    for (word, at) in told.words().iter().zip((0..).step_by(8)) {
        file.write_all_at(&word.to_le_bytes(), at).map_err(|_| UNKNOWN)?;
    }
    Ok(file)
}

/// A descriptor for the caller.
pub(crate) fn export(told: &ExportDescription) -> Answer<(OwnedFd, Export)> {
    locked(write(told)?)
}

/// The same of what the card keeps under a number.
pub(crate) fn export_numbered(seat: &Seat, told: &ExportDescription) -> Answer<(OwnedFd, Export)> {
    let card = seat.card();
    // It has one for each earlier descriptor.
    match std::fs::hard_link(seat.content_file(), card.shared_content_file(told.number)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(UNKNOWN),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let open = options.read(true).write(true).create(true).truncate(false);
    let file = open.open(card.shared_file(told.number)).map_err(|_| UNKNOWN)?;
    locked(write_to(file, told)?)
}

fn locked(file: File) -> Answer<(OwnedFd, Export)> {
    file.lock_shared().map_err(|_| UNKNOWN)?;
    let file = OwnedFd::from(file);
    let export = Export::of(&file)?;
    Ok((file, export))
}

/// The descriptor is the caller's to close.
pub(crate) fn give_away(descriptor: OwnedFd) -> i32 {
    descriptor.into_raw_fd()
}

/// What a descriptor of a caller names, if it was made so.
pub(crate) fn import(descriptor: i32, maker: Maker) -> Answer<(ExportDescription, Import)> {
    let file = look(descriptor)?;
    let told = ExportDescription::read(&file)?;
    if told.maker != maker as u64 {
        return Err(INVALID_VALUE);
    }
    // Waits for an owner that is just looking; the caller's own descriptor keeps the memory where it is.
    file.lock_shared().map_err(|_| INVALID_VALUE)?;
    Ok((told, Import(file)))
}

impl Export {
    pub(crate) fn of(descriptor: &OwnedFd) -> Answer<Self> {
        look(descriptor.as_raw_fd()).map(Self)
    }

    /// Whether a copy of the descriptor is open in any process, or an import of it exists.
    pub(crate) fn is_open(&self) -> bool {
        if self.0.try_lock().is_err() {
            return true;
        }
        // A failed unlock is harmless: the file is not read again.
        drop(self.0.unlock());
        false
    }
}

// === impl Group ===

impl Group {
    /// A new object's.
    pub(crate) fn new(told: &ExportDescription) -> Answer<Self> {
        write(told).map(Self)
    }

    /// That of a descriptor; what it says must have been found.
    pub(crate) fn of(descriptor: i32) -> Answer<Self> {
        look(descriptor).map(Self)
    }

    /// Has the object for this process.
    pub(crate) fn hold(&self) -> Answer<Import> {
        let file = look(self.0.as_raw_fd())?;
        file.lock_shared().map_err(|_| UNKNOWN)?;
        Ok(Import(file))
    }

    /// A descriptor for the caller.
    pub(crate) fn descriptor(&self) -> Answer<OwnedFd> {
        self.hold().map(|hold| hold.0.into())
    }

    /// Whether any process has the object, or a descriptor of it.
    pub(crate) fn is_held(&self) -> bool {
        Export(match self.0.try_clone() {
            Ok(file) => file,
            Err(_) => return true,
        })
        .is_open()
    }

    /// Whether both are of one object.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let place = |group: &Self| group.0.metadata().map(|found| (found.dev(), found.ino())).ok();
        place(self).is_some() && place(self) == place(other)
    }

    /// The cards of the team, by their numbers, each once, in the order in which they came.
    pub(crate) fn cards(&self) -> Vec<u64> {
        let (mut cards, mut bytes) = (Vec::new(), [0_u8; 8]);
        let end = u64::try_from(WORDS * 8).unwrap_or(u64::MAX);
        for at in (end..).step_by(8) {
            if self.0.read_exact_at(&mut bytes, at).is_err() {
                break;
            }
            let card = u64::from_le_bytes(bytes);
            if !cards.contains(&card) {
                cards.push(card);
            }
        }
        cards
    }

    /// One more.
    pub(crate) fn add(&self, card: u64) -> Answer {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let file = OpenOptions::new().append(true).open(path).map_err(|_| UNKNOWN)?;
        // One system call, so a concurrent append does not interleave.
        (&file).write_all(&card.to_le_bytes()).map_err(|_| UNKNOWN)
    }
}
