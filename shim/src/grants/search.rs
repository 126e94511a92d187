//! The search for grants below the root, once per process.

// UNSAFETY: views of mapped files.
#![expect(unsafe_code, reason = "limits and usage are views of mapped files")]

use core::ffi::{CStr, c_int};
use core::sync::atomic::Ordering;

use aliquot_abi::layout;
use aliquot_abi::limits::{ComputePolicy, MemoryLimit};
use aliquot_abi::view::{LimitsView, UsageView};

use super::{ENTRIES_BYTES, FILES, Grant, ROOT, Usage, VARIABLE, World, parse_uuid};
use crate::sys::{self, File, FileId, OpenFailure};

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
        Err(OpenFailure::OtherKind | OpenFailure::Refused) => return Root::Shut,
        Err(OpenFailure::Absent) => {}
    }
    match sys::env(VARIABLE) {
        Some(path) if !path.is_empty() => File::find(None, path, directory).map_or(Root::Shut, Root::Found),
        _ => Root::None,
    }
}

pub(super) fn find(world: &mut World) {
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
        Ok(claim) if take(world, claim) == DirectoryOutcome::Nothing => {
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

/// Of several grants of one card, a program has the largest, and of equal ones the one with the lowest number of its file: the
/// order in which a file system lists them is not the same everywhere.
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
enum DirectoryOutcome {
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
                Err(OpenFailure::Absent | OpenFailure::OtherKind) => {}
                Err(OpenFailure::Refused) => visit(Err(Unreadable)),
            }
        }
        rest = rest.get(length.max(19)..).unwrap_or(&[]);
    }
}

/// Takes the grant in a directory, if there is one.
fn take(world: &mut World, directory: &File) -> DirectoryOutcome {
    let file = match File::find(Some(directory), c"limits", libc::O_RDONLY) {
        Ok(file) => Some(file),
        Err(OpenFailure::Absent) => return DirectoryOutcome::Nothing,
        Err(OpenFailure::OtherKind | OpenFailure::Refused) => None,
    };
    let mapped = file.and_then(|file| file.map(layout::limits::BYTES, libc::PROT_READ));
    let limits = mapped.and_then(|base| {
        // SAFETY: a shared mapping that stays; its writer writes atomically.
        unsafe { LimitsView::new(base, layout::limits::BYTES) }.ok()
    });
    let read = limits.and_then(|limits| Some((limits, limits.read().ok()?)));
    let Some((limits, first)) = read else {
        world.broken = true;
        return DirectoryOutcome::Grant;
    };
    let (Some(uuid), Some(place)) = (parse_uuid(first.card.as_bytes()), world.grants.get_mut(world.count))
    else {
        world.broken = true;
        return DirectoryOutcome::Grant;
    };
    let usage = usage(directory, world.count);
    *place = Some(Grant { number: world.count, uuid, limits, usage, first, is_beside: false });
    world.count += 1;
    DirectoryOutcome::Grant
}

fn usage(directory: &File, number: usize) -> Option<Usage> {
    let file = File::find(Some(directory), c"usage", libc::O_RDWR).ok()?;
    let base = file.map(layout::usage::BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: a shared mapping that stays; every process writes it atomically.
    let view = unsafe { UsageView::new(base, layout::usage::BYTES) }.ok()?;
    let place = FILES.get(number)?;
    let file = file.keep();
    place.store(file, Ordering::Release);
    Some(Usage { view, id: sys::file_id(file)?, file: place })
}

/// A descriptor of the usage file with this id. `None`: it is not there any more.
pub(super) fn usage_file(id: FileId) -> Option<c_int> {
    let mut found = None;
    let mut look = |directory: Result<&File, Unreadable>| {
        let Ok(directory) = directory else { return };
        // Not opened to be looked at: closing any descriptor of a usage file drops its locks.
        if found.is_none() && sys::file_id_in(directory, c"usage") == Some(id) {
            found = File::open(Some(directory), c"usage", libc::O_RDWR).map(File::keep);
        }
    };
    let Root::Found(root) = root() else { return None };
    each_directory(&root, |claim| {
        let Ok(claim) = claim else { return };
        look(Ok(claim));
        each_directory(claim, &mut look);
    });
    found
}
