//! What the kernel and the C library are asked for, and `errno` left as it was.

// UNSAFETY: these are foreign calls; each is wrapped once, here.
#![expect(unsafe_code, reason = "system calls have no safe interface without std")]

pub(crate) mod c_library;
pub(crate) mod elf;
pub(crate) mod fork_private;
pub(crate) mod process;
pub(crate) mod short_lock;

use core::ffi::{CStr, c_int, c_void};
use core::ptr::NonNull;

/// `errno` as it was, put back at the end of the scope.
pub(crate) struct KeepErrno(c_int);

impl KeepErrno {
    pub(crate) fn new() -> Self {
        // SAFETY: the C library's word of this thread; always valid.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: this thread's word, for as long as the thread runs.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

/// An open file, closed in the end unless kept.
#[derive(Debug)]
pub(crate) struct File(c_int);

/// Why a file could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenFailure {
    /// There is none of this name.
    Absent,
    /// It is no directory, where one was wanted.
    OtherKind,
    /// There is one that this process may not or cannot open.
    Refused,
}

impl File {
    /// Opens `name` below `directory`, and tells a file that is not there from one that cannot be had. It waits for no
    /// process, as a pipe would have it.
    pub(crate) fn find(directory: Option<&File>, name: &CStr, flags: c_int) -> Result<Self, OpenFailure> {
        Self::open(directory, name, flags | libc::O_NONBLOCK).ok_or_else(|| {
            // SAFETY: the C library's word of this thread; always valid.
            match unsafe { *libc::__errno_location() } {
                libc::ENOENT => OpenFailure::Absent,
                libc::ENOTDIR => OpenFailure::OtherKind,
                _ => OpenFailure::Refused,
            }
        })
    }

    /// Opens `name` below `directory` (`None`: as a path of its own).
    pub(crate) fn open(directory: Option<&File>, name: &CStr, flags: c_int) -> Option<Self> {
        let at = directory.map_or(libc::AT_FDCWD, |file| file.0);
        // SAFETY: a C string; no mode is needed, as nothing is created.
        let file = unsafe { libc::openat(at, name.as_ptr(), flags | libc::O_CLOEXEC) };
        (file >= 0).then(|| Self(file))
    }

    /// The descriptor, for as long as the process lives.
    pub(crate) fn keep(self) -> c_int {
        let file = self.0;
        core::mem::forget(self);
        file
    }

    /// Bytes of the file.
    pub(crate) fn size(&self) -> Option<u64> {
        status(self.0, c"").map(|status| status.stx_size)
    }

    /// Maps the first `length` bytes, shared, for as long as the process lives.
    pub(crate) fn map(&self, length: usize, protection: c_int) -> Option<NonNull<u8>> {
        if self.size()? < u64::try_from(length).ok()? {
            return None;
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(core::ptr::null_mut(), length, protection, libc::MAP_SHARED, self.0, 0) };
        if base == libc::MAP_FAILED { None } else { NonNull::new(base.cast()) }
    }

    /// The file behind a descriptor, opened once more.
    pub(crate) fn again(file: c_int) -> Option<Self> {
        let mut path = [0; 32];
        let path = crate::sys::process::path_of_file(u32::try_from(file).ok()?, &mut path)?;
        Self::open(None, path, libc::O_RDWR)
    }

    /// Takes the lock of one byte that goes with the open file description, if no process has it.
    pub(crate) fn lock_description(&self, byte: u64) -> bool {
        let lock = record(byte, libc::F_WRLCK);
        // SAFETY: a record for the kernel to read.
        unsafe { libc::fcntl(self.0, libc::F_OFD_SETLK, &raw const lock) == 0 }
    }

    /// Maps like [`File::map`], where no forked child has it.
    pub(crate) fn map_for_this_process(&self, length: usize) -> Option<NonNull<u8>> {
        let base = self.map(length, libc::PROT_READ)?;
        // SAFETY: the mapping made above.
        let kept = unsafe { libc::madvise(base.as_ptr().cast(), length, libc::MADV_DONTFORK) } == 0;
        if !kept {
            unmap(base, length);
        }
        kept.then_some(base)
    }

    /// Reads up to the buffer's length; 0 at the end, `None` on an error.
    pub(crate) fn read(&self, into: &mut [u8]) -> Option<usize> {
        // SAFETY: an open descriptor and a buffer of that length.
        let count = unsafe { libc::read(self.0, into.as_mut_ptr().cast(), into.len()) };
        usize::try_from(count).ok()
    }

    /// The next entries of a directory, as the kernel packs them; 0 at the end and on an error.
    pub(crate) fn entries(&self, into: &mut [u8]) -> usize {
        // SAFETY: an open descriptor and a buffer of that length.
        let count = unsafe { libc::syscall(libc::SYS_getdents64, self.0, into.as_mut_ptr(), into.len()) };
        usize::try_from(count).unwrap_or(0)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(self.0) };
    }
}

/// What a file is, whatever its name: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    pub(crate) fn inode(self) -> u64 {
        self.inode
    }
}

/// The file behind a descriptor.
pub(crate) fn file_id(file: c_int) -> Option<FileId> {
    id_of(status(file, c"")?)
}

/// Sets a file's times to now, which those hear that watch it.
pub(crate) fn touch(file: c_int) {
    let (path, times) = (core::ptr::null::<libc::c_char>(), core::ptr::null::<libc::timespec>());
    // SAFETY: no path and no times: the descriptor and now are meant; a bad descriptor is an error.
    unsafe { libc::syscall(libc::SYS_utimensat, file, path, times, 0) };
}

/// Has the file system allocate a part of a file, whose length stays; whether it is allocated. A file system that cannot do so
/// has no hole in the host's files (`region.rs` of the host).
pub(crate) fn allocate(file: c_int, from: u64, length: u64) -> bool {
    let (Ok(from), Ok(length)) = (libc::off_t::try_from(from), libc::off_t::try_from(length)) else {
        return false;
    };
    let _errno = KeepErrno::new();
    // SAFETY: plain numbers; a bad descriptor is an error.
    let answer = unsafe { libc::syscall(libc::SYS_fallocate, file, libc::FALLOC_FL_KEEP_SIZE, from, length) };
    // SAFETY: the calling thread's own.
    answer == 0 || unsafe { *libc::__errno_location() } == libc::EOPNOTSUPP
}

/// The file of a name in a directory, which is not opened.
pub(crate) fn file_id_in(directory: &File, name: &CStr) -> Option<FileId> {
    id_of(status(directory.0, name)?)
}

fn id_of(status: libc::statx) -> Option<FileId> {
    Some(FileId { device: (status.stx_dev_major, status.stx_dev_minor), inode: status.stx_ino })
}

/// The inode of a path.
pub(crate) fn inode(path: &CStr) -> Option<u64> {
    status(libc::AT_FDCWD, path).map(|status| status.stx_ino)
}

/// The kernel's own call: the C library's `stat` is another symbol in old and new versions. Empty path: the descriptor itself.
fn status(at: c_int, path: &CStr) -> Option<libc::statx> {
    let mut status = core::mem::MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_BASIC_STATS);
    // SAFETY: a C string and a place for the answer.
    let answer =
        unsafe { libc::syscall(libc::SYS_statx, at, path.as_ptr(), flags, mask, status.as_mut_ptr()) };
    // SAFETY: plain integers, zeroed before and filled by the successful call.
    (answer == 0).then(|| unsafe { status.assume_init() })
}

/// Private memory of zeros that a forked child sees as zeros again; `None` where the kernel cannot do that.
pub(crate) fn map_wiped_on_fork(length: usize) -> Option<NonNull<u8>> {
    let base = map_private(length)?;
    // SAFETY: the mapping made above.
    let wiped = unsafe { libc::madvise(base.as_ptr().cast(), length, libc::MADV_WIPEONFORK) };
    (wiped == 0).then_some(base)
}

/// Private memory of zeros, untouched pages of which cost nothing.
pub(crate) fn map_private(length: usize) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe {
        libc::mmap(core::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if base == libc::MAP_FAILED { None } else { NonNull::new(base.cast()) }
}

/// Gives such memory back.
pub(crate) fn unmap(base: NonNull<u8>, length: usize) {
    // SAFETY: a mapping of ours of that length, which no process uses any more.
    unsafe { libc::munmap(base.as_ptr().cast(), length) };
}

/// Has `inside` use so many words of zeros; not at all where there is no memory for them.
pub(crate) fn with_words(count: usize, inside: impl FnOnce(&mut [u64])) {
    let Some(length) = count.checked_mul(size_of::<u64>()) else { return };
    let Some(base) = map_private(length) else { return };
    // SAFETY: a mapping of ours of that length, page-aligned, of zeros, of which no other process knows.
    inside(unsafe { core::slice::from_raw_parts_mut(base.cast().as_ptr(), count) });
    unmap(base, length);
}

/// The same with so many bytes.
pub(crate) fn with_bytes(count: usize, inside: impl FnOnce(&mut [u8])) {
    let Some(base) = map_private(count) else { return };
    // SAFETY: a mapping of ours of that length, of zeros, of which no other process knows.
    inside(unsafe { core::slice::from_raw_parts_mut(base.cast().as_ptr(), count) });
    unmap(base, count);
}

/// A variable of the environment.
pub(crate) fn env(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a C string.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a C string of the environment. It is read at once; a program that changes its environment meanwhile in another
    // thread breaks every reader alike.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// This process's number in its namespace.
pub(crate) fn pid() -> u32 {
    // SAFETY: cannot fail.
    u32::try_from(unsafe { libc::getpid() }).unwrap_or(0)
}

/// Whether a process has this number, also an ended one that no process waited for; also where the kernel does not tell.
pub(crate) fn process_exists(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: signal 0 is none.
    let answer = unsafe { libc::kill(pid, 0) };
    // SAFETY: the C library's word of this thread.
    answer == 0 || unsafe { *libc::__errno_location() } != libc::ESRCH
}

/// Copies what lies at an address of this process, as far as there is anything; how much that was. A filter may forbid the call
/// for it, which some containers' does: then it is read in a file.
pub(crate) fn peek(address: u64, into: &mut [u8]) -> usize {
    let Ok(address) = usize::try_from(address) else { return 0 };
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let there =
        libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(address), iov_len: into.len() };
    // SAFETY: a buffer of that length; the other place is read by the kernel, which answers an error where nothing is.
    let count = unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            libc::getpid(),
            &raw const here,
            1_usize,
            &raw const there,
            1_usize,
            0_usize,
        )
    };
    // SAFETY: the C library's word of this thread.
    let error = unsafe { *libc::__errno_location() };
    match usize::try_from(count) {
        Ok(count) => count,
        Err(_) if error == libc::EFAULT => 0,
        Err(_) => peek_in_file(address, into),
    }
}

/// The same from the file in which the kernel shows a process its own memory. It is open for the one read: another thread of the
/// program may close or hand on whatever it finds open.
fn peek_in_file(address: usize, into: &mut [u8]) -> usize {
    let Some(file) = File::open(None, c"/proc/self/mem", libc::O_RDONLY) else { return 0 };
    // SAFETY: an open descriptor and a buffer of that length; of the place in the file, which is the address, the kernel
    // answers an error where nothing is.
    let count = unsafe { libc::syscall(libc::SYS_pread64, file.0, into.as_mut_ptr(), into.len(), address) };
    usize::try_from(count).unwrap_or(0)
}

/// Whether there is memory to read where this address points; so, too, where the kernel does not tell. For what a program may
/// have wrong, at a fraction of what copying costs.
#[inline(never)]
pub(crate) fn is_readable(address: u64) -> bool {
    let _errno = KeepErrno::new();
    let word = usize::try_from(address & !7).unwrap_or(0);
    if word == 0 {
        return false;
    }
    let (set, none) = (core::ptr::with_exposed_provenance::<u64>(word), core::ptr::null_mut::<u64>());
    // SAFETY: the kernel reads the signals, and answers an error where nothing is; with what to do unknown nothing is done.
    let answer = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, -1, set, none, size_of::<u64>()) };
    // SAFETY: the C library's word of this thread.
    answer == 0 || unsafe { *libc::__errno_location() } != libc::EFAULT
}

/// The same of a whole list of a program's.
pub(crate) fn is_list<T>(list: *const T, count: usize) -> bool {
    is_range(list.addr(), count.checked_mul(size_of::<T>()))
}

#[inline(never)]
fn is_range(first: usize, bytes: Option<usize>) -> bool {
    // No page is smaller.
    const PAGE: usize = 4096;
    let last = bytes.and_then(|bytes| first.checked_add(bytes.checked_sub(1)?));
    last.is_some_and(|last| {
        let mut all = (first..=last).step_by(PAGE).chain([last]);
        all.all(|place| u64::try_from(place).is_ok_and(is_readable))
    })
}

/// The monotonic clock, in nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let real = crate::sys::c_library::CLOCK.own(c"clock_gettime");
    if real.is_null() {
        // SAFETY: a place for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    } else {
        type Clock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;
        // SAFETY: the address of the C library's function.
        let real = unsafe { core::mem::transmute::<*const (), Clock>(real) };
        // SAFETY: a place for the answer.
        unsafe { real(libc::CLOCK_MONOTONIC, &raw mut time) };
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Sleeps while the word is `seen`, until a process wakes it or `nanos` have passed. The word may be shared.
pub(crate) fn wait_while(word: &core::sync::atomic::AtomicU32, seen: u32, nanos: u64) {
    let part = |value: u64| libc::c_long::try_from(value).unwrap_or(libc::c_long::MAX);
    let time = libc::timespec { tv_sec: part(nanos / 1_000_000_000), tv_nsec: part(nanos % 1_000_000_000) };
    // SAFETY: an aligned word that lives, and a relative time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            &raw const time,
            core::ptr::null::<c_void>(),
            0,
        )
    };
}

/// Wakes one of those that wait on the word.
pub(crate) fn wake_one(word: &core::sync::atomic::AtomicU32) {
    // SAFETY: an aligned word that lives.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// Wakes every process that waits on the word.
pub(crate) fn wake_all(word: &core::sync::atomic::AtomicU32) {
    // SAFETY: an aligned word that lives.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
}

/// An odd number that this thread has and no other thread of the process: where its own words lie, which are 128 bytes or more.
/// (Two threads with 256 GiB between their words have one.)
#[inline]
pub(crate) fn thread_mark() -> u32 {
    let words: usize;
    // SAFETY: the first word of every thread's own ones is their address, by the platform's ABI.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) words, options(pure, readonly, nostack, preserves_flags));
    };
    // SAFETY: the register in which the platform's ABI keeps that address is read.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) words, options(pure, nomem, nostack, preserves_flags));
    };
    u32::try_from(words >> 6 & 0xffff_ffff).unwrap_or(0) | 1
}

/// Gives the processor away once.
pub(crate) fn yield_now() {
    // SAFETY: cannot fail.
    unsafe { libc::sched_yield() };
}

/// A record lock on one byte of a file: taken for this process if no other process has it.
pub(crate) fn lock_byte(file: c_int, byte: u64) -> bool {
    let lock = record(byte, libc::F_WRLCK);
    // SAFETY: a record for the kernel to read; a bad descriptor is an error.
    unsafe { libc::fcntl(file, libc::F_SETLK, &raw const lock) == 0 }
}

/// The same shared with others that only share it.
pub(crate) fn share_byte(file: c_int, byte: u64) -> bool {
    let lock = record(byte, libc::F_RDLCK);
    // SAFETY: a record for the kernel to read.
    unsafe { libc::fcntl(file, libc::F_SETLK, &raw const lock) == 0 }
}

/// Gives such a lock up.
pub(crate) fn unlock_byte(file: c_int, byte: u64) {
    let lock = record(byte, libc::F_UNLCK);
    // SAFETY: a record for the kernel to read.
    unsafe { libc::fcntl(file, libc::F_SETLK, &raw const lock) };
}

/// A shared lock of one byte that goes with the open file description of a descriptor.
pub(crate) fn share_description(file: c_int, byte: u64) -> bool {
    let lock = record(byte, libc::F_RDLCK);
    // SAFETY: a record for the kernel to read; a bad descriptor is an error.
    unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &raw const lock) == 0 }
}

/// Gives such a lock up.
pub(crate) fn unlock_description(file: c_int, byte: u64) {
    let lock = record(byte, libc::F_UNLCK);
    // SAFETY: a record for the kernel to read.
    unsafe { libc::fcntl(file, libc::F_OFD_SETLK, &raw const lock) };
}

/// Closes a descriptor that no process has been told of.
pub(crate) fn close(file: c_int) {
    // SAFETY: the caller's own.
    unsafe { libc::close(file) };
}

/// Whether another process has the lock; also when the kernel cannot tell.
pub(crate) fn locked_by_another(file: c_int, byte: u64) -> bool {
    locker(file, byte) != Some(None)
}

/// Whether any other process has a lock on a byte, for sure.
pub(crate) fn is_locked(file: c_int, byte: u64) -> bool {
    matches!(locker(file, byte), Some(Some(_)))
}

/// Whether any other process has a lock on a byte, and by which number this process knows one of those that do: below 1 where
/// it has none here. `None`: the kernel cannot tell.
#[inline(never)]
pub(crate) fn locker(file: c_int, byte: u64) -> Option<Option<c_int>> {
    let mut lock = record(byte, libc::F_WRLCK);
    // SAFETY: a record for the kernel to read and fill in.
    let answer = unsafe { libc::fcntl(file, libc::F_GETLK, &raw mut lock) };
    (answer == 0).then(|| (c_int::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
}

fn record(byte: u64, kind: c_int) -> libc::flock {
    // SAFETY: plain integers; zero is a value of each.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).unwrap_or(0);
    lock.l_whence = libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0);
    lock.l_start = libc::off_t::try_from(byte).unwrap_or(0);
    lock.l_len = 1;
    lock
}

#[cfg(test)]
/// The seed of a random test: `ALIQUOT_SEED`, else one from the clock; printed, never 0.
pub(crate) fn test_seed() -> u64 {
    let given = std::env::var("ALIQUOT_SEED").ok().and_then(|text| text.parse().ok());
    let clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos().into());
    let seed = given.unwrap_or_else(clock).max(1);
    println!("ALIQUOT_SEED={seed}");
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_equal_by_call_and_file_and_fails_if_unmapped() {
        let text = *b"what lies at an address of this process";
        let lies = text.as_ptr().expose_provenance();
        for address in [0, 8, 4095, usize::MAX - 2, usize::MAX >> 1, 1 << 47] {
            assert_eq!(peek_in_file(address, &mut [0; 16]), 0, "{address:x}");
            assert_eq!(peek(u64::try_from(address).unwrap(), &mut [0; 16]), 0, "{address:x}");
            assert!(!is_readable(u64::try_from(address).unwrap()), "{address:x}");
        }
        for length in [1, 7, text.len()] {
            let (mut called, mut read) = (vec![0; length], vec![0; length]);
            assert_eq!(peek(u64::try_from(lies).unwrap(), &mut called), length);
            assert!(is_readable(u64::try_from(lies + length - 1).unwrap()));
            assert_eq!(peek_in_file(lies, &mut read), length);
            assert_eq!((&called[..], &read[..]), (&text[..length], &text[..length]));
        }
    }
}
