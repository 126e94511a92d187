//! The grants of this process: found at the first look at a vendor symbol, mapped, and matched with cards by UUID.
//!
//! ```text
//!   <root>/<claim>/<share>/{limits, usage}     root: /run/aliquot/grants where that is there, else $ALIQUOT_GRANTS
//! ```
//!
//! | found | then |
//! |---|---|
//! | no root, no variable | nothing is intercepted |
//! | a root without a usable grant, or a grant whose limits cannot be read | closed: allocations are refused |
//! | limits, but a usage file that cannot be used | the fail mode of the limits |
//! | grants, but none for the card that a call means | closed, unless every grant says open |
//! | several grants of one card | the largest |

// UNSAFETY: mapped files become views, whose constructors have contracts.
#![expect(unsafe_code, reason = "views of mappings are made by contract")]

mod last;
mod search;

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, MemoryLimit};
use aliquot_abi::view::{LimitsView, UsageView};
use aliquot_enforce::term::LoanExpiry;

use crate::loader::vendor::{self, Device};
use crate::sys::{self, FileId, KeepErrno};
use last::Last;
use search::find;

/// Where a container finds its grants.
const ROOT: &CStr = c"/run/aliquot/grants";
/// Where a process without a container finds them.
const VARIABLE: &CStr = c"ALIQUOT_GRANTS";
/// Which policy wants a hook. What none wants is not put in place: callers get the vendor's own function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// There is a grant, or there should be one.
    Grant,
    /// A grant limits memory.
    Memory,
    /// A grant limits compute.
    Compute,
    /// A grant limits memory or compute.
    Use,
}

/// Most grants of one process: a container with more cards is not known.
pub(crate) const GRANTS_MAX: usize = 32;
/// Cards a process numbers.
pub(crate) const DEVICES_MAX: usize = 64;
/// Bytes of a directory's entries that are read at once; they begin at a multiple of eight, as the kernel's records do.
const ENTRIES_BYTES: usize = 4096;
/// Longest wait for another thread that is finding the grants, in steps of a millisecond.
const BOOT_STEPS_MAX: u32 = 2_000;

/// One grant.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    /// Its number in this process.
    pub(crate) number: usize,
    /// The card's UUID.
    uuid: [u8; 16],
    limits: LimitsView<'static>,
    /// `None`: the file cannot be used.
    pub(crate) usage: Option<Usage>,
    /// As at the beginning; what is not limited then stays so for this process.
    first: Limits,
    /// There is a larger one of the same card.
    is_beside: bool,
}

/// The usage file of a grant.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) view: UsageView<'static>,
    id: FileId,
    /// Kept open for record locks, unless the program closed it.
    file: &'static AtomicI32,
}

/// Limits as last read, by grant.
static LAST: [Last; GRANTS_MAX] = [const { Last::new() }; GRANTS_MAX];

/// Descriptors of usage files, by grant.
static FILES: [AtomicI32; GRANTS_MAX] = [const { AtomicI32::new(-1) }; GRANTS_MAX];

impl Usage {
    /// The descriptor for record locks. A program may have closed it, and may have another file under the number: then the
    /// usage file is opened again. `None`: it is not there any more.
    pub(crate) fn file(self) -> Option<c_int> {
        let file = self.file.load(Ordering::Acquire);
        if sys::file_id(file) == Some(self.id) { Some(file) } else { self.open_again() }
    }

    #[cold]
    fn open_again(self) -> Option<c_int> {
        let found = search::usage_file(self.id)?;
        self.file.store(found, Ordering::Release);
        Some(found)
    }

    /// Says to the process that watches the file that a process begins to use it, or that a launch waits and no process governs.
    #[cold]
    pub(crate) fn touch(self) {
        if let Some(file) = self.file() {
            sys::touch(file);
        }
    }

    /// A number that no other grant of this process has.
    pub(crate) fn number(self) -> u64 {
        let at = FILES.iter().position(|file| core::ptr::eq(file, self.file));
        u64::try_from(at.unwrap_or(GRANTS_MAX)).unwrap_or(0)
    }

    /// The file's number on its file system, the same in every container.
    pub(crate) fn inode(self) -> u64 {
        self.id.inode()
    }

    /// An address inside the mapping.
    pub(crate) fn address(self) -> usize {
        core::ptr::from_ref(self.view.total()).addr()
    }
}

/// How a card stands.
#[derive(Clone, Copy)]
pub(crate) enum CardStatus {
    /// Nothing is limited on it.
    Ungoverned,
    /// A grant says what is.
    Granted(&'static Grant),
    /// It may not be used: there are grants, none is for this card or none can be read.
    Closed,
}

impl CardStatus {
    /// As a number above 0, for a table.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Ungoverned => 1,
            Self::Closed => 2,
            Self::Granted(grant) => u32::try_from(grant.number).unwrap_or(0) + 3,
        }
    }

    /// From such a number.
    #[inline]
    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Ungoverned,
            3.. => usize::try_from(code - 3).ok().and_then(grant).map_or(Self::Closed, Self::Granted),
            _ => Self::Closed,
        }
    }
}

/// What was found.
struct World {
    grants: [Option<Grant>; GRANTS_MAX],
    count: usize,
    /// There is or should be a grant.
    governed: bool,
    /// Something named a grant that cannot be used.
    broken: bool,
}

const COLD: u32 = 0;
const BOOTING: u32 = 1;
const READY: u32 = 2;

/// Written by the one thread that moves `PHASE` from COLD to BOOTING, read after READY.
struct WorldCell(core::cell::UnsafeCell<World>);

// SAFETY: see above; the phases order the accesses.
unsafe impl Sync for WorldCell {}

static PHASE: AtomicU32 = AtomicU32::new(COLD);
static WORLD: WorldCell = WorldCell(core::cell::UnsafeCell::new(World::empty()));

impl World {
    const fn empty() -> Self {
        Self { grants: [const { None }; GRANTS_MAX], count: 0, governed: false, broken: false }
    }
}

/// Everything found; finds it if no process has. `None`: another thread is at it for too long, which counts as closed.
fn world() -> Option<&'static World> {
    if PHASE.load(Ordering::Acquire) != READY && !boot() {
        return None;
    }
    // SAFETY: READY: no process writes any more.
    Some(unsafe { &*WORLD.0.get() })
}

#[cold]
fn boot() -> bool {
    let _errno = KeepErrno::new();
    if PHASE.compare_exchange(COLD, BOOTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: this thread alone moved the phase, and no process reads before READY.
        find(unsafe { &mut *WORLD.0.get() });
        PHASE.store(READY, Ordering::Release);
        sys::wake_all(&PHASE);
        return true;
    }
    for _ in 0..BOOT_STEPS_MAX {
        if PHASE.load(Ordering::Acquire) == READY {
            return true;
        }
        sys::wait_while(&PHASE, BOOTING, 1_000_000);
    }
    false
}

/// The sixteen bytes of a UUID as vendors spell it: `GPU-` or `MIG-` and hexadecimal digits with hyphens.
pub(crate) fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let digits = text.strip_prefix(b"GPU-").or_else(|| text.strip_prefix(b"MIG-")).unwrap_or(text);
    let mut uuid = [0_u8; 16];
    let mut count = 0_usize;
    for digit in digits.iter().filter(|byte| **byte != b'-') {
        let value = u8::try_from(char::from(*digit).to_digit(16)?).ok()?;
        let byte = uuid.get_mut(count / 2)?;
        *byte = (*byte << 4) | value;
        count += 1;
    }
    (count == 32).then_some(uuid)
}

/// Whether some grant wants hooks of this kind.
pub(crate) fn want(need: Need) -> bool {
    let Some(world) = world() else { return true };
    if !world.governed {
        return false;
    }
    let any = |wanted: fn(&Grant) -> bool| world.broken || world.grants.iter().flatten().any(wanted);
    match need {
        Need::Grant => true,
        Need::Memory => any(|grant| grant.first.memory != MemoryLimit::Unlimited),
        Need::Compute => any(|grant| grant.first.policy != ComputePolicy::Unlimited),
        Need::Use => any(|grant| {
            grant.first.memory != MemoryLimit::Unlimited || grant.first.policy != ComputePolicy::Unlimited
        }),
    }
}

/// What is known of each card: 0 nothing, 1 ungoverned, 2 closed, 3 and more a grant.
static DEVICES: [AtomicU32; DEVICES_MAX] = [const { AtomicU32::new(0) }; DEVICES_MAX];

/// How a card stands. Cached once the driver said the card's UUID.
#[inline]
pub(crate) fn standing(device: Device) -> CardStatus {
    let known = usize::try_from(device.0).ok().and_then(|index| DEVICES.get(index));
    let code = known.map_or(0, |known| known.load(Ordering::Acquire));
    if code == 0 { look_at(device) } else { CardStatus::from_code(code) }
}

#[cold]
fn look_at(device: Device) -> CardStatus {
    let Some(world) = world() else { return CardStatus::Closed };
    if !world.governed {
        return CardStatus::Ungoverned;
    }
    // Without a UUID nothing is remembered: the driver may not be initialised yet.
    let Some(uuid) = vendor::uuid(device) else { return CardStatus::Closed };
    let standing = stands(world, &uuid);
    if let Some(known) = usize::try_from(device.0).ok().and_then(|index| DEVICES.get(index)) {
        known.store(standing.code(), Ordering::Release);
    }
    standing
}

/// Whether a card that no grant names may be used.
fn may_pass(world: &World) -> bool {
    !world.broken && world.grants.iter().flatten().all(|grant| grant.first.fail_mode == FailMode::Open)
}

/// The grant of this number.
pub(crate) fn grant(number: usize) -> Option<&'static Grant> {
    world()?.grants.get(number)?.as_ref()
}

/// The grant of a card.
pub(crate) fn by_uuid(uuid: &[u8; 16]) -> Option<&'static Grant> {
    world()?.grants.iter().flatten().find(|grant| grant.uuid == *uuid && !grant.is_beside)
}

/// How a card of this UUID stands, where no driver numbers cards (NVML).
pub(crate) fn standing_of(uuid: &[u8; 16]) -> CardStatus {
    let Some(world) = world() else { return CardStatus::Closed };
    if !world.governed {
        return CardStatus::Ungoverned;
    }
    stands(world, uuid)
}

fn stands(world: &World, uuid: &[u8; 16]) -> CardStatus {
    match by_uuid(uuid) {
        Some(grant) => CardStatus::Granted(grant),
        None if may_pass(world) => CardStatus::Ungoverned,
        None => CardStatus::Closed,
    }
}

/// All grants.
pub(crate) fn all() -> impl Iterator<Item = &'static Grant> {
    world().into_iter().flat_map(|world| world.grants.iter().flatten())
}

impl Grant {
    /// The limits at the beginning: what they leave unlimited stays so for this process.
    pub(crate) fn first(&self) -> &Limits {
        &self.first
    }

    /// Changes when the limits do; far cheaper than reading them.
    pub(crate) fn generation(&self) -> u64 {
        self.limits.generation()
    }

    /// Until when what is granted beyond the guarantee is.
    pub(crate) fn lent_until(&self) -> LoanExpiry {
        LoanExpiry(self.limits.lent_until())
    }

    /// Bytes that the driver has given beyond all slots, as the host's last look found.
    #[inline]
    pub(crate) fn residue(&self) -> u64 {
        self.limits.residue()
    }

    /// When that look began; 0: there was none.
    pub(crate) fn looked_at(&self) -> u64 {
        self.limits.looked_at()
    }

    /// Which wish for a look it served.
    pub(crate) fn looked_for(&self) -> u32 {
        self.limits.looked_for()
    }

    /// The limits in force, where they can be read.
    pub(crate) fn read(&self) -> Option<Limits> {
        self.limits.read().ok()
    }

    /// The limits in force; while the page cannot be read, those that were read last.
    pub(crate) fn limits(&self) -> Limits {
        let last = LAST.get(self.number);
        let seen = last.map_or(0, Last::version);
        match (self.read(), last) {
            (Some(limits), Some(last)) => {
                last.note(seen, &limits);
                limits
            }
            (Some(limits), None) => limits,
            (None, last) => last.map_or(self.first, |last| last.over(&self.first)),
        }
    }
}

/// Notes that a program was given a vendor function that no table knows.
pub(crate) fn count_unknown() {
    for usage in all().filter_map(|grant| grant.usage) {
        usage.view.unknown_symbols().fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::parse_uuid;

    #[test]
    fn a_uuid_is_read_as_vendors_spell_it_and_nothing_else_is() {
        let expected = Some([0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(parse_uuid(b"GPU-12345678-9abc-def0-0102-030405060708"), expected);
        assert_eq!(parse_uuid(b"MIG-123456789abcdef00102030405060708"), expected);
        assert_eq!(parse_uuid(b"GPU-12345678-9ABC-DEF0-0102-030405060708"), expected);
        for wrong in [
            &b""[..],
            b"GPU-",
            b"GPU-12345678-9abc-def0-0102-0304050607",
            b"GPU-12345678-9abc-def0-0102-03040506070809",
            b"GPU-g2345678-9abc-def0-0102-030405060708",
        ] {
            assert_eq!(parse_uuid(wrong), None);
        }
    }
}
