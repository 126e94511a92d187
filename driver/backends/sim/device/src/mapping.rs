//! The shared file of a card: mapped once a process, guarded by a lock that survives the death of its holder.
//!
//! The guard is a robust, process-shared mutex of the C library, a few nanoseconds when free. When its holder
//! is killed, the kernel hands it to the next one with a notice, and that one repairs the state.
//!
//! The kernel also shows liveness: each seat holds a record lock on one byte of the file `alive`. Such a lock
//! belongs to its process. It is dropped at exit and at `exec`, which closes the file; children do not
//! inherit it; every pid namespace sees the same locks.

// UNSAFETY: mapping a file, a process-shared mutex inside it and record locks have no safe interface in std.
#![expect(unsafe_code, reason = "shared mapping, robust mutex and record locks are libc calls")]

use crate::card::State;
use crate::header::{self, CardFault, Head, MAGIC, RECORDS};
use crate::node::NodeError;
use std::cell::UnsafeCell;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A number that the kernel drew when the program that runs in this process was started; its bytes are the C library's
/// secrets, so it is mixed.
pub(crate) fn drawn_by_exec() -> u64 {
    // SAFETY: cannot fail; 0 where the kernel does not say.
    let bytes = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let place = std::ptr::with_exposed_provenance::<[u8; 16]>(usize::try_from(bytes).unwrap_or(0));
    if place.is_null() {
        return 0;
    }
    // SAFETY: sixteen bytes that the kernel put behind the program's arguments, where they stay.
    let drawn = u128::from_le_bytes(unsafe { place.read_unaligned() });
    let mixed = drawn.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645) >> 64;
    u64::try_from(mixed).unwrap_or(0)
}

/// Why the cards cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file or directory cannot be made, read or mapped.
    #[error("cannot use {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// `node.toml` was refused.
    #[error("the description of the cards was refused")]
    Node(#[from] NodeError),
    /// A card's file that another build made, or that is damaged.
    #[error(
        "{path} is no card of this build: {fault}; use the build that made it, or remove the directory once no process uses it"
    )]
    Card {
        /// Which.
        path: PathBuf,
        /// What was found, and what was expected.
        fault: CardFault,
    },
}

impl OpenError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// What lies in a card's file.
#[repr(C)]
struct CardFile {
    /// [`MAGIC`], once all before `state` is written.
    magic: AtomicU64,
    /// What [`header::records`] of the build that made it says, as pairs of bytes and count.
    records: [[AtomicU32; 2]; RECORDS],
    /// How the card is; 0: it works. Outside the lock, as every call reads it.
    health: AtomicU32,
    /// Goes up when the card has something to tell; a futex.
    stirred: AtomicU32,
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    state: UnsafeCell<State>,
}

/// A card's file, mapped until the process exits: handles of a driver are never taken back.
#[derive(Debug)]
pub(crate) struct Mapping {
    shared: &'static CardFile,
}

impl std::fmt::Debug for CardFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

// SAFETY: `state` is reached through `Mapping::with` alone, which holds the mutex; `mutex` is a process-shared pthread mutex.
unsafe impl Sync for CardFile {}

/// Whether the last holder of the lock died inside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// No.
    Sound,
    /// Yes: what is derived has to be computed anew.
    AfterDeath,
}

impl Mapping {
    /// Maps a card's file, making it where it is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let fail = |source| OpenError::io(path, source);
        let file = open_private(path).map_err(fail)?;
        // SAFETY: an owned descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(fail(std::io::Error::last_os_error()));
        }
        let size = size_of::<CardFile>();
        let head = look_at(path, &file)?;
        let bytes = u64::try_from(size).unwrap_or(u64::MAX);
        if head == Head::Unwritten && file.metadata().map_err(fail)?.len() < bytes {
            file.set_len(bytes).map_err(fail)?;
        }
        back(&file, 0).map_err(fail)?;
        // SAFETY: a fresh shared mapping of `size` bytes, which the file has; never unmapped, so 'static.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(fail(std::io::Error::last_os_error()));
        }
        // SAFETY: page-aligned, `size` bytes, every bit pattern of integers is valid; zeroes are a valid State.
        let shared: &'static CardFile = unsafe { &*base.cast::<CardFile>() };
        let made = match head {
            Head::Card => Ok(()),
            Head::Unwritten => init(shared).map_err(fail),
        };
        // The mapping keeps the open file, and with it the lock, which therefore is given up here.
        // SAFETY: an owned descriptor.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
        made.map(|()| Self { shared })
    }

    /// How the card is.
    pub(crate) fn health(&self) -> &AtomicU32 {
        &self.shared.health
    }

    /// How often the card had something to tell.
    pub(crate) fn stirred(&self) -> u32 {
        self.shared.stirred.load(Ordering::Acquire)
    }

    /// Wakes all waiters for the card's reports.
    pub(crate) fn stir(&self) {
        self.shared.stirred.fetch_add(1, Ordering::AcqRel);
        let word = self.shared.stirred.as_ptr();
        // SAFETY: an aligned word that stays mapped; waking changes nothing in memory.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    }

    /// Sleeps until the card stirs again, or the time is over; may return sooner.
    pub(crate) fn sleep_while(&self, stirred: u32, longest: Duration) {
        let seconds = libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX);
        let time = libc::timespec { tv_sec: seconds, tv_nsec: longest.subsec_nanos().into() };
        let word = self.shared.stirred.as_ptr();
        // SAFETY: an aligned word that stays mapped, a valid time.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, stirred, &raw const time, 0, 0) };
    }

    /// Runs `inside` with the card's state, alone in all processes.
    pub(crate) fn with<R>(&self, inside: impl FnOnce(&mut State, Entry) -> R) -> R {
        // SAFETY: initialised before `magic` was set; processes that map the file share it.
        let code = unsafe { libc::pthread_mutex_lock(self.shared.mutex.get()) };
        self.locked(code, inside)
    }

    /// Runs it under the lock unless the lock is held.
    pub(crate) fn try_with<R>(&self, inside: impl FnOnce(&mut State, Entry) -> R) -> Option<R> {
        // SAFETY: initialised before `magic` was set; processes that map the file share it.
        let code = unsafe { libc::pthread_mutex_trylock(self.shared.mutex.get()) };
        (code != libc::EBUSY).then(|| self.locked(code, inside))
    }

    /// The lock is ours, after this answer.
    fn locked<R>(&self, code: i32, inside: impl FnOnce(&mut State, Entry) -> R) -> R {
        let mutex = self.shared.mutex.get();
        let entry = if code == libc::EOWNERDEAD {
            // SAFETY: we hold it; `inside` repairs the state before another holder sees it.
            unsafe { libc::pthread_mutex_consistent(mutex) };
            Entry::AfterDeath
        } else {
            Entry::Sound
        };
        let _unlock = Unlock(mutex);
        // SAFETY: the mutex is ours, so this is the only reference.
        inside(unsafe { &mut *self.shared.state.get() }, entry)
    }
}

struct Unlock(*mut libc::pthread_mutex_t);

impl Drop for Unlock {
    fn drop(&mut self) {
        // SAFETY: made after a successful lock by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0) };
    }
}

/// Allocates the blocks of a card's file, except for seats behind the first `seats`. On a full file system,
/// access to a page without a block raises SIGBUS.
pub(crate) fn back(file: &File, seats: usize) -> std::io::Result<()> {
    let state = std::mem::offset_of!(CardFile, state);
    let seats_end = state + State::SEATS_AT + seats * State::SEAT_BYTES;
    let behind = state + State::BEHIND_SEATS;
    for (from, to) in [(0, seats_end.min(behind)), (behind, size_of::<CardFile>())] {
        let (from, length) = (libc::off_t::try_from(from), libc::off_t::try_from(to - from));
        let (Ok(from), Ok(length)) = (from, length) else {
            return Err(std::io::ErrorKind::InvalidInput.into());
        };
        // SAFETY: an owned descriptor; a file that has its blocks stays as it is.
        while unsafe { libc::fallocate(file.as_raw_fd(), 0, from, length) } != 0 {
            let error = std::io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // A file system that cannot say so beforehand.
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(()),
                _ => return Err(error),
            }
        }
    }
    Ok(())
}

/// Reads and checks the first bytes of a file before any of it is trusted. An unwritten header is accepted
/// only if no state is written behind it.
fn look_at(path: &Path, file: &File) -> Result<Head, OpenError> {
    let fail = |source| OpenError::io(path, source);
    let refuse = |fault| OpenError::Card { path: path.to_owned(), fault };
    let (mut head, mut got) = ([0; header::BYTES], 0);
    while let Some(rest) = head.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, u64::try_from(got).unwrap_or(u64::MAX)).map_err(fail)? {
            0 => break,
            read => got += read,
        }
    }
    let length = file.metadata().map_err(fail)?.len();
    let expected = u64::try_from(size_of::<CardFile>()).unwrap_or(u64::MAX);
    let records = header::records::<libc::pthread_mutex_t>();
    let told = header::check(&head, (length, expected), &records).map_err(refuse)?;
    if told == Head::Unwritten && is_written_behind(file).map_err(fail)? {
        return Err(refuse(CardFault::Headless));
    }
    Ok(told)
}

/// Whether any byte of a state is written.
fn is_written_behind(mut file: &File) -> std::io::Result<bool> {
    let behind = u64::try_from(std::mem::offset_of!(CardFile, state)).unwrap_or(u64::MAX);
    file.seek(SeekFrom::Start(behind))?;
    let mut chunk = vec![0; 1 << 16];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(false),
            read if chunk.iter().take(read).any(|byte| *byte != 0) => return Ok(true),
            _ => {}
        }
    }
}

/// Whether there is a card's file, for [`Mapping::open`] to look into.
pub(crate) fn is_made(path: &Path) -> Result<bool, OpenError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_file() && found.len() > 0),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(OpenError::io(path, source)),
    }
}

/// Writes all that goes before the state, the first word last.
fn init(shared: &CardFile) -> std::io::Result<()> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let pointer = attributes.as_mut_ptr();
    // SAFETY: `pointer` is to be initialised by this call.
    let mut answers = vec![unsafe { libc::pthread_mutexattr_init(pointer) }];
    // SAFETY: initialised above.
    answers.push(unsafe { libc::pthread_mutexattr_setpshared(pointer, libc::PTHREAD_PROCESS_SHARED) });
    // SAFETY: initialised above.
    answers.push(unsafe { libc::pthread_mutexattr_setrobust(pointer, libc::PTHREAD_MUTEX_ROBUST) });
    // SAFETY: the mutex is unused before `magic` is set; the file lock keeps other initialisers out.
    answers.push(unsafe { libc::pthread_mutex_init(shared.mutex.get(), pointer) });
    if let Some(code) = answers.into_iter().find(|code| *code != 0) {
        return Err(std::io::Error::from_raw_os_error(code));
    }
    let told = header::records::<libc::pthread_mutex_t>();
    for ([bytes, count], (_, record)) in shared.records.iter().zip(told) {
        bytes.store(record.bytes, Ordering::Relaxed);
        count.store(record.count, Ordering::Relaxed);
    }
    shared.magic.store(MAGIC, Ordering::Release);
    Ok(())
}

/// Whatever the umask, other users may not write it until its owner lets them.
fn open_private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o644).open(path)
}

/// Opens the file of seat locks. It stays open: closing any descriptor of it would drop this process's locks.
pub(crate) fn alive_file(dir: &Path) -> Result<RawFd, OpenError> {
    let path = dir.join("alive");
    let file = open_private(&path).map_err(|source| OpenError::io(&path, source))?;
    Ok(file.into_raw_fd())
}

/// Behind the byte of a seat lies that of its files: a lock of the open file `alive`, which forked children have until they close it
/// or become another program, as they have the files of a real driver.
const FILES: u64 = 1 << 48;
/// Bytes of it that are mapped.
const PAGE: usize = 4096;

fn lock_byte(byte: u64, kind: libc::c_int) -> libc::flock {
    // SAFETY: plain integers; zero is a value of each.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).unwrap_or(0);
    lock.l_whence = libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0);
    lock.l_start = libc::off_t::try_from(byte).unwrap_or(0);
    lock.l_len = 1;
    lock
}

/// Marks a seat as held by this process.
pub(crate) fn hold_seat(alive: RawFd, byte: u64) -> std::io::Result<()> {
    let lock = lock_byte(byte, libc::F_WRLCK);
    // SAFETY: an open descriptor and a valid record.
    if unsafe { libc::fcntl(alive, libc::F_SETLK, &raw const lock) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let lock = lock_byte(byte + FILES, libc::F_WRLCK);
    // SAFETY: an open descriptor and a valid record.
    match unsafe { libc::fcntl(opened_here(alive)?, libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The file of seat locks as this process opened it, as a driver's files are opened by each process for itself. It stays open, in
/// this process and in the children that it forks.
fn opened_here(alive: RawFd) -> std::io::Result<RawFd> {
    static OPENED: Mutex<Vec<(u32, RawFd, RawFd)>> = Mutex::new(Vec::new());
    let (mut opened, pid) = (OPENED.lock().unwrap_or_else(PoisonError::into_inner), std::process::id());
    if let Some((.., file)) = opened.iter().find(|(of, known, _)| (*of, *known) == (pid, alive)) {
        return Ok(*file);
    }
    let file = open_private(Path::new(&format!("/proc/self/fd/{alive}")))?.into_raw_fd();
    map_for_this_process(file)?;
    opened.push((pid, alive, file));
    Ok(file)
}

/// Maps the open file, as a driver maps its own: it stays open as long as the address space is there, which may outlive the process.
/// No forked child has the mapping.
fn map_for_this_process(file: RawFd) -> std::io::Result<()> {
    // SAFETY: a fresh mapping of an open file; its bytes are never accessed.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_NONE, libc::MAP_SHARED, file, 0) };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the whole of that mapping.
    match unsafe { libc::madvise(at, PAGE, libc::MADV_DONTFORK) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Whether the open file by which the seat was taken is still open: a forked child of its process has it too.
pub(crate) fn files_are_open(alive: RawFd, byte: u64) -> bool {
    held_by_another(alive, byte + FILES)
}

/// Gives the mark up.
pub(crate) fn leave_seat(alive: RawFd, byte: u64) {
    let lock = lock_byte(byte, libc::F_UNLCK);
    // SAFETY: an open descriptor and a valid record; unlocking what is not locked is allowed.
    unsafe { libc::fcntl(alive, libc::F_SETLK, &raw const lock) };
    if let Ok(file) = opened_here(alive) {
        let lock = lock_byte(byte + FILES, libc::F_UNLCK);
        // SAFETY: an open descriptor and a valid record; unlocking what is not locked is allowed.
        unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &raw const lock) };
    }
}

/// Whether another process holds the seat.
pub(crate) fn held_by_another(alive: RawFd, byte: u64) -> bool {
    let mut lock = lock_byte(byte, libc::F_WRLCK);
    // SAFETY: an open descriptor and a valid record, which the kernel fills in.
    let answer = unsafe { libc::fcntl(alive, libc::F_GETLK, &raw mut lock) };
    // Without an answer from the kernel the seat counts as held: reaping a live process would be worse.
    answer != 0 || libc::c_int::from(lock.l_type) != libc::F_UNLCK
}

/// The other process that holds the seat, by its pid in this process's namespace; `None` if there is none, or it has no pid here.
pub(crate) fn holder_here(alive: RawFd, byte: u64) -> Option<u32> {
    let mut lock = lock_byte(byte, libc::F_WRLCK);
    // SAFETY: an open descriptor and a valid record, which the kernel fills in.
    let answer = unsafe { libc::fcntl(alive, libc::F_GETLK, &raw mut lock) };
    let is_held = answer == 0 && libc::c_int::from(lock.l_type) != libc::F_UNLCK;
    u32::try_from(lock.l_pid).ok().filter(|pid| is_held && *pid != 0)
}

/// The monotonic clock, in nanoseconds.
#[must_use]
pub fn monotonic_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Sleeps until `at` of the monotonic clock, or a signal.
pub(crate) fn sleep_until(at: u64) {
    let part = |value: u64| libc::c_long::try_from(value).unwrap_or(libc::c_long::MAX);
    let time = libc::timespec { tv_sec: part(at / 1_000_000_000), tv_nsec: part(at % 1_000_000_000) };
    // SAFETY: a valid time; no remainder is requested.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const time,
            std::ptr::null_mut(),
        );
    }
}

/// The effective user of this process.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}

/// This user's number.
pub(crate) fn user() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::getuid() }
}

/// Ends the process as SIGKILL does.
pub(crate) fn kill_self() {
    // SAFETY: the own process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}
