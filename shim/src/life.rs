//! Who is alive: this process's slot, and what the dead held.
//!
//! A slot's owner holds a record lock on the slot's first byte of the usage file. The kernel drops it at the owner's death; a
//! forked child does not inherit it. A program that closes all its descriptors drops it, too, so a slot without a lock is dead
//! only if its owner's number is gone or belongs to a later process; in another pid namespace nobody here can tell, and the
//! node's agent does.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use aliquot_abi::layout;
use aliquot_abi::view::SlotView;
use aliquot_enforce::memory::FREEZE;
use aliquot_enforce::reap::{self, Owner, Recount, Slot};

use crate::grants::Usage;
use crate::sys::{self, File};

/// Byte of the usage file whose lock makes a reaper.
const REAPER: u64 = 0;
/// Most tries of a recount while a living thread is inside; it is there for some nanoseconds, unless it was stopped.
const BUSY_TRIES_MAX: u32 = 1_000;

/// What came of a look at the dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// The books are right, as far as anybody can tell.
    Done,
    /// Somebody else is at it.
    Elsewhere,
}

/// This process, as slots name it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    pid: u32,
    start_time: u64,
    namespace: u64,
}

/// A thread of this process reaps: record locks do not keep threads apart.
static REAPING: AtomicU32 = AtomicU32::new(0);

fn lock_place(slot: usize) -> u64 {
    u64::try_from(layout::usage::SLOTS + slot * layout::usage::SLOT_BYTES).unwrap_or(u64::MAX)
}

fn pid_of(slot: SlotView<'_>) -> u32 {
    u32::try_from(slot.owner().load(Ordering::Acquire) & 0xffff_ffff).unwrap_or(0)
}

/// Takes a free slot for this process. `None`: all are taken by the living.
pub(crate) fn take_slot(usage: Usage) -> Option<u32> {
    let me = Identity { pid: sys::pid(), start_time: start_time(c"/proc/self/stat"), namespace: namespace() };
    take_free(usage, me).or_else(|| {
        reap(usage);
        take_free(usage, me)
    })
}

fn take_free(usage: Usage, me: Identity) -> Option<u32> {
    let count = layout::usage::SLOT_COUNT;
    let first = usize::try_from(me.pid).unwrap_or(0);
    (0..count).map(|step| (first + step) % count).find_map(|number| {
        let slot = usage.view.slot(number)?;
        let owner = slot.owner().load(Ordering::Acquire);
        // The lock comes first: a slot with an owner and without a lock is a dead one.
        if owner & 0xffff_ffff != 0 || !sys::lock_byte(usage.file, lock_place(number)) {
            return None;
        }
        let next = ((owner >> 32).wrapping_add(1) << 32) | u64::from(me.pid);
        slot.start_time().store(me.start_time, Ordering::Release);
        slot.pid_namespace().store(me.namespace, Ordering::Release);
        slot.used().store(0, Ordering::Release);
        slot.inside().store(0, Ordering::Release);
        slot.device_nanos().store(0, Ordering::Release);
        if slot.owner().compare_exchange(owner, next, Ordering::AcqRel, Ordering::Acquire).is_err() {
            sys::unlock_byte(usage.file, lock_place(number));
            return None;
        }
        u32::try_from(number).ok()
    })
}

/// Gives back what the dead held, and opens books that a dead reaper left closed.
pub(crate) fn reap(usage: Usage) -> Reaped {
    if REAPING.swap(1, Ordering::AcqRel) != 0 {
        return Reaped::Elsewhere;
    }
    let answer = if sys::lock_byte(usage.file, REAPER) {
        let answer = reap_locked(usage);
        sys::unlock_byte(usage.file, REAPER);
        sys::wake_all(usage.view.wake());
        answer
    } else {
        Reaped::Elsewhere
    };
    REAPING.store(0, Ordering::Release);
    answer
}

fn reap_locked(usage: Usage) -> Reaped {
    let mut dead = [0_u64; layout::usage::SLOT_COUNT / 64];
    let me = (sys::pid(), namespace());
    let mut count = 0;
    for number in 0..layout::usage::SLOT_COUNT {
        let Some(slot) = usage.view.slot(number) else { continue };
        if pid_of(slot) != 0 && is_dead(usage, number, slot, me) {
            if let Some(word) = dead.get_mut(number / 64) {
                *word |= 1 << (number % 64);
            }
            count += 1;
        }
    }
    let total = usage.view.total();
    if count == 0 && total.load(Ordering::Acquire) & FREEZE == 0 {
        return Reaped::Done;
    }
    let slots = (0..layout::usage::SLOT_COUNT).filter_map(|number| {
        let slot = usage.view.slot(number)?;
        let gone = dead.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1);
        let owner = if gone { Owner::Dead } else { Owner::Alive };
        (pid_of(slot) != 0).then_some(Slot { inside: slot.inside(), used: slot.used(), owner })
    });
    for _ in 0..BUSY_TRIES_MAX {
        if let Recount::Done { .. } = reap::recount(total, slots.clone()) {
            free_slots(usage, &dead);
            usage.view.reaped().fetch_add(count, Ordering::Relaxed);
            return Reaped::Done;
        }
        sys::yield_now();
    }
    reap::thaw(total);
    Reaped::Done
}

fn free_slots(usage: Usage, dead: &[u64]) {
    for number in 0..layout::usage::SLOT_COUNT {
        if dead.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
            && let Some(slot) = usage.view.slot(number)
        {
            slot.start_time().store(0, Ordering::Release);
            slot.pid_namespace().store(0, Ordering::Release);
            slot.owner().fetch_and(!0xffff_ffff, Ordering::AcqRel);
        }
    }
}

/// Whether the owner of a slot is gone for sure.
fn is_dead(usage: Usage, number: usize, slot: SlotView<'_>, (own, namespace): (u32, u64)) -> bool {
    let pid = pid_of(slot);
    if slot.pid_namespace().load(Ordering::Acquire) != namespace || namespace == 0 || pid == own {
        return false;
    }
    if sys::locked_by_another(usage.file, lock_place(number)) {
        return false;
    }
    let mut path = [0_u8; 32];
    let Some(path) = stat_path(pid, &mut path) else { return false };
    // 0: no such process, or one that has ended and is not waited for yet.
    start_time(path) != slot.start_time().load(Ordering::Acquire)
}

/// `/proc/<pid>/stat`
fn stat_path(pid: u32, into: &mut [u8; 32]) -> Option<&CStr> {
    let mut digits = [0_u8; 10];
    let (mut rest, mut count) = (pid, 0);
    while count == 0 || rest > 0 {
        *digits.get_mut(count)? = b'0' + u8::try_from(rest % 10).ok()?;
        rest /= 10;
        count += 1;
    }
    let number = digits.get(..count)?.iter().rev();
    let text = b"/proc/".iter().chain(number).chain(b"/stat");
    for (place, byte) in into.iter_mut().zip(text) {
        *place = *byte;
    }
    CStr::from_bytes_until_nul(into).ok()
}

/// When the process of a `stat` file began, in ticks since boot; 0 where it is gone or a zombie.
fn start_time(path: &CStr) -> u64 {
    let mut text = [0_u8; 1024];
    let Some(file) = File::open(None, path, libc::O_RDONLY) else { return 0 };
    let length = file.read(&mut text);
    parse_start_time(text.get(..length).unwrap_or(&[])).unwrap_or(0)
}

/// The 22nd field; the name, which may hold anything, ends with the last bracket. A zombie holds nothing any more.
fn parse_start_time(text: &[u8]) -> Option<u64> {
    let after = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(after + 2..)?.split(|byte| *byte == b' ');
    let state = fields.next()?;
    if state == b"Z" || state == b"X" {
        return None;
    }
    let field = fields.nth(18)?;
    field.iter().try_fold(0_u64, |sum, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// This process's pid namespace; 0 where nobody tells.
fn namespace() -> u64 {
    sys::inode(c"/proc/self/ns/pid").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_read_whatever_the_name_of_the_process() {
        let line = |name: &str, state: &str| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8675309 1 2 3\n")
        };
        assert_eq!(parse_start_time(line("sh", "R").as_bytes()), Some(8_675_309));
        assert_eq!(parse_start_time(line("a) R 1 (", "S").as_bytes()), Some(8_675_309));
        assert_eq!(parse_start_time(line("sh", "Z").as_bytes()), None);
        assert_eq!(parse_start_time(b"7 (sh"), None);
        assert_eq!(parse_start_time(b""), None);
    }

    #[test]
    fn this_process_has_a_start_time_and_a_namespace() {
        assert!(start_time(c"/proc/self/stat") > 0);
        assert_eq!(start_time(c"/proc/4294967295/stat"), 0);
        assert!(namespace() > 0);
        let mut path = [0; 32];
        assert_eq!(stat_path(4_294_967_295, &mut path), Some(c"/proc/4294967295/stat"));
    }
}
