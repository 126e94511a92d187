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

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use aliquot_abi::layout;
use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, MemoryLimit};
use aliquot_abi::view::{LimitsView, UsageView};
use aliquot_enforce::term::Until;

use crate::hook::Need;
use crate::sys::{self, File, FileId, KeepErrno, Unopened};
use crate::vendor::{self, Device};
use last::Last;

/// Where a container finds its grants.
const ROOT: &CStr = c"/run/aliquot/grants";
/// Where a process without a container finds them.
const VARIABLE: &CStr = c"ALIQUOT_GRANTS";
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
        let mut found = None;
        let mut look = |directory: Result<&File, Unreadable>| {
            let Ok(directory) = directory else { return };
            // Not opened to be looked at: closing any descriptor of a usage file drops its locks.
            if found.is_none() && sys::file_id_in(directory, c"usage") == Some(self.id) {
                found = File::open(Some(directory), c"usage", libc::O_RDWR).map(File::keep);
            }
        };
        let Root::Found(root) = root() else { return None };
        each_directory(&root, |claim| {
            let Ok(claim) = claim else { return };
            look(Ok(claim));
            each_directory(claim, &mut look);
        });
        self.file.store(found?, Ordering::Release);
        found
    }

    /// Says to who watches the file that a launch waits and nobody governs.
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
pub(crate) enum Standing {
    /// Nothing is limited on it.
    Ungoverned,
    /// A grant says what is.
    Granted(&'static Grant),
    /// It may not be used: there are grants, none is for this card or none can be read.
    Closed,
}

impl Standing {
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
struct Place(core::cell::UnsafeCell<World>);

// SAFETY: see above; the phases order the accesses.
unsafe impl Sync for Place {}

static PHASE: AtomicU32 = AtomicU32::new(COLD);
static WORLD: Place = Place(core::cell::UnsafeCell::new(World::empty()));

impl World {
    const fn empty() -> Self {
        Self { grants: [const { None }; GRANTS_MAX], count: 0, governed: false, broken: false }
    }
}

/// Everything found; finds it if nobody has. `None`: another thread is at it for too long, which counts as closed.
fn world() -> Option<&'static World> {
    if PHASE.load(Ordering::Acquire) != READY && !boot() {
        return None;
    }
    // SAFETY: READY: nobody writes any more.
    Some(unsafe { &*WORLD.0.get() })
}

#[cold]
fn boot() -> bool {
    let _errno = KeepErrno::new();
    if PHASE.compare_exchange(COLD, BOOTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // SAFETY: this thread alone moved the phase, and nobody reads before READY.
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

/// Where grants are looked for.
enum Root {
    /// Nothing names a place.
    None,
    Found(File),
    /// A place is named, and cannot be opened.
    Shut,
}

/// The directory of the grants. The variable counts only where the container has none: one that cannot be opened is no reason
/// to believe the tenant's environment.
fn root() -> Root {
    let directory = libc::O_RDONLY | libc::O_DIRECTORY;
    match File::find(None, ROOT, directory) {
        Ok(root) => return Root::Found(root),
        Err(Unopened::OtherKind | Unopened::Refused) => return Root::Shut,
        Err(Unopened::Absent) => {}
    }
    match sys::env(VARIABLE) {
        Some(path) if !path.is_empty() => File::find(None, path, directory).map_or(Root::Shut, Root::Found),
        _ => Root::None,
    }
}

fn find(world: &mut World) {
    let root = match root() {
        Root::None => return,
        Root::Found(root) => root,
        Root::Shut => {
            (world.governed, world.broken) = (true, true);
            return;
        }
    };
    world.governed = true;
    each_directory(&root, |claim| match claim {
        Ok(claim) if take(world, claim) == Taken::Nothing => {
            each_directory(claim, |share| match share {
                Ok(share) => {
                    take(world, share);
                }
                Err(Unreadable) => world.broken = true,
            });
        }
        Ok(_) => {}
        Err(Unreadable) => world.broken = true,
    });
    world.broken |= world.count == 0;
    look_beside(world);
}

/// Of several grants of one card, a program has the largest, and of equal ones the one with the lowest number of its file: the order
/// in which a file system lists them is not the same everywhere.
fn look_beside(world: &mut World) {
    let size = |grant: &Grant| {
        let memory = match grant.first.memory {
            MemoryLimit::Unlimited => u64::MAX,
            MemoryLimit::Bytes(bytes) => bytes,
        };
        let compute = match grant.first.policy {
            ComputePolicy::Unlimited => u32::MAX,
            _ => grant.first.share_ppm,
        };
        (memory, compute, core::cmp::Reverse(grant.usage.map(Usage::inode)))
    };
    for place in 0..world.count {
        let Some(Some(one)) = world.grants.get(place) else { continue };
        let larger = |other: &Grant| other.uuid == one.uuid && size(other) > size(one);
        let is_beside = world.grants.iter().flatten().any(larger);
        if let Some(Some(one)) = world.grants.get_mut(place) {
            one.is_beside = is_beside;
        }
    }
}

/// There is something that may be a directory and cannot be opened.
struct Unreadable;

/// What a directory came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// It has no limits in it.
    Nothing,
    /// A grant, or one that cannot be used.
    Grant,
}

/// Calls `visit` for each directory in `of`. Files and what is gone by now are passed over. What the kernel tells goes into a
/// mapping: it is large for the stack of whichever thread comes first.
fn each_directory(of: &File, mut visit: impl FnMut(Result<&File, Unreadable>)) {
    sys::with_bytes(ENTRIES_BYTES, |bytes| {
        loop {
            let filled = of.entries(bytes);
            if filled == 0 {
                return;
            }
            each_in(of, bytes.get(..filled).unwrap_or(&[]), &mut visit);
        }
    });
}

/// The same for some records of the kernel's: inode (8), offset (8), length (2), type (1), name and a zero byte.
fn each_in(of: &File, mut rest: &[u8], visit: &mut dyn FnMut(Result<&File, Unreadable>)) {
    while let (Some(low), Some(high)) = (rest.get(16), rest.get(17)) {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let name = rest.get(19..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
        if let Some(name) = name
            && !name.to_bytes().starts_with(b".")
        {
            match File::find(Some(of), name, libc::O_RDONLY | libc::O_DIRECTORY) {
                Ok(entry) => visit(Ok(&entry)),
                Err(Unopened::Absent | Unopened::OtherKind) => {}
                Err(Unopened::Refused) => visit(Err(Unreadable)),
            }
        }
        rest = rest.get(length.max(19)..).unwrap_or(&[]);
    }
}

/// Takes the grant in a directory, if there is one.
fn take(world: &mut World, directory: &File) -> Taken {
    let file = match File::find(Some(directory), c"limits", libc::O_RDONLY) {
        Ok(file) => Some(file),
        Err(Unopened::Absent) => return Taken::Nothing,
        Err(Unopened::OtherKind | Unopened::Refused) => None,
    };
    let mapped = file.and_then(|file| file.map(layout::limits::BYTES, libc::PROT_READ));
    let limits = mapped.and_then(|base| {
        // SAFETY: a shared mapping that stays; its writer writes atomically.
        unsafe { LimitsView::new(base, layout::limits::BYTES) }.ok()
    });
    let read = limits.and_then(|limits| Some((limits, limits.read().ok()?)));
    let Some((limits, first)) = read else {
        world.broken = true;
        return Taken::Grant;
    };
    let (Some(uuid), Some(place)) = (parse_uuid(first.card.as_bytes()), world.grants.get_mut(world.count))
    else {
        world.broken = true;
        return Taken::Grant;
    };
    let usage = usage(directory, world.count);
    *place = Some(Grant { number: world.count, uuid, limits, usage, first, is_beside: false });
    world.count += 1;
    Taken::Grant
}

fn usage(directory: &File, number: usize) -> Option<Usage> {
    let file = File::find(Some(directory), c"usage", libc::O_RDWR).ok()?;
    let base = file.map(layout::usage::BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: a shared mapping that stays; everybody writes it atomically.
    let view = unsafe { UsageView::new(base, layout::usage::BYTES) }.ok()?;
    let place = FILES.get(number)?;
    let file = file.keep();
    place.store(file, Ordering::Release);
    Some(Usage { view, id: sys::file_id(file)?, file: place })
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
pub(crate) fn standing(device: Device) -> Standing {
    let known = usize::try_from(device.0).ok().and_then(|index| DEVICES.get(index));
    let code = known.map_or(0, |known| known.load(Ordering::Acquire));
    if code == 0 { look_at(device) } else { Standing::from_code(code) }
}

#[cold]
fn look_at(device: Device) -> Standing {
    let Some(world) = world() else { return Standing::Closed };
    if !world.governed {
        return Standing::Ungoverned;
    }
    // Without a UUID nothing is remembered: the driver may not be initialised yet.
    let Some(uuid) = vendor::uuid(device) else { return Standing::Closed };
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
pub(crate) fn standing_of(uuid: &[u8; 16]) -> Standing {
    let Some(world) = world() else { return Standing::Closed };
    if !world.governed {
        return Standing::Ungoverned;
    }
    stands(world, uuid)
}

fn stands(world: &World, uuid: &[u8; 16]) -> Standing {
    match by_uuid(uuid) {
        Some(grant) => Standing::Granted(grant),
        None if may_pass(world) => Standing::Ungoverned,
        None => Standing::Closed,
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
    pub(crate) fn lent_until(&self) -> Until {
        Until(self.limits.lent_until())
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
