//! Waiting on words of regions, and waking the waiters.
//!
//! The words lie in mapped files, and waiters and wakers are different processes. So all futexes are shared ones.

// UNSAFETY: the C library has no interface for futexes but the system call itself.
#![expect(unsafe_code, reason = "futex calls on words of mapped files")]

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::libc;

/// Most words that the kernel lets one call wait for.
const WORDS_MAX: usize = 128;
/// Longest wait if the kernel cannot wait on several words: the caller reads the others after it.
const FIRST_ALONE: Duration = Duration::from_millis(50);
/// Word of 32 bits, shared between processes.
const SIZE_U32: u32 = 2;
/// The call that waits for several words, which Linux has since 5.16; one number on all architectures.
const FUTEX_WAITV: libc::c_long = 449;

/// What one element of the call looks like.
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Wakes all waiters on the word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: an aligned word that is mapped; waking changes nothing in memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, ptr::null::<u8>(), 0, 0);
    }
}

/// Waits until any of the words differs from its given value, or is woken, or the time is over; may return sooner.
pub fn wait_any(words: &[(&AtomicU32, u32)], longest: Duration) {
    let words = words.get(..WORDS_MAX).unwrap_or(words);
    if words.is_empty() {
        std::thread::sleep(longest);
        return;
    }
    let waiters: Vec<Waiter> = words
        .iter()
        .map(|(word, seen)| Waiter {
            value: u64::from(*seen),
            address: word.as_ptr().addr() as u64,
            flags: SIZE_U32,
            reserved: 0,
        })
        .collect();
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until) };
    let nanos = i64::from(longest.subsec_nanos()) + until.tv_nsec;
    until.tv_sec += i64::try_from(longest.as_secs()).unwrap_or(i64::MAX / 2) + nanos / 1_000_000_000;
    until.tv_nsec = nanos % 1_000_000_000;
    // SAFETY: as many elements as said, each an aligned word that stays mapped; a valid time.
    let answer = unsafe {
        libc::syscall(
            FUTEX_WAITV,
            waiters.as_ptr(),
            waiters.len(),
            0,
            &raw const until,
            libc::CLOCK_MONOTONIC,
        )
    };
    if answer < 0 && nix::errno::Errno::last() == nix::errno::Errno::ENOSYS {
        wait_first(words, longest.min(FIRST_ALONE));
    }
}

/// Waits for the first word alone.
fn wait_first(words: &[(&AtomicU32, u32)], longest: Duration) {
    let Some((word, seen)) = words.first() else { return };
    let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(longest.subsec_nanos()) };
    // SAFETY: an aligned word that is mapped, a valid time.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, *seen, &raw const time, 0, 0);
    }
}
