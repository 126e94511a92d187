//! The host's side of the region: creates both files, changes limits live, reads usage, and reaps exited processes.
//!
//! ```text
//!   Grant ─limits_of─▶ Limits ─ensure─▶ <state>/grants/<claim>/<share>/limits   0644, the container's mount is read-only
//!                                  └──▶ <state>/grants/<claim>/<share>/usage    0666, mounted writable, alone
//!
//!   governor ─change─▶ limits (in place)        usage ─Watched::reap─▶ memory of exited processes is released
//! ```
//!
//! A file gets its name once its content is complete and its blocks are allocated: of `usage` those of the header and the first 128
//! slots, since few grants need more. A process has the others allocated before it takes such a slot. So a full disk is an error,
//! and not `SIGBUS` in a tenant's store. Only file systems that allocate a hole on request, and read one without room, get a hole.
//! From then on the files are changed in place only, so that every mapping shows the change.
//! `usage` is never replaced while its claim exists; a truncated file gets its length back, not its old content.
//!
//! | file | mode | access control |
//! |---|---|---|
//! | `usage` | writable by all users, as the tenant may run as any | the directory `grants` (0700) and the mount, which bypasses it |
//! | `limits` | writable by its owner, readable by all | the read-only mount, also for a tenant with the owner's user id |
//!
//! Without a mount (`aliquot run`) such a tenant can write `limits`; it could also run without the shim.
//!
//! Threat: a tenant may write anything into `usage` and give it any length. So the host copies it before it reads, or maps it
//! through `mapping`, where a vanished page reads as zeros and is detected.

mod futex;
mod held;
mod live;
mod liveness;
mod mapping;
mod opening;
mod refusals;
mod residue;
mod settled;
mod watched;

use std::fs::{self};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aliquot_abi::layout;
use aliquot_abi::limits::{self as abi, Limits, MemoryLimit, Pages, Text};
use aliquot_core::card::Card;
use aliquot_core::grant::{ComputePolicy, FailMode, Grant, Priority, isolation};
use aliquot_core::id::CardUuid;
use aliquot_core::partition::{Isolation, Part, ShareSupport};
use aliquot_core::units::Bytes;
use aliquot_enforce::term::UNGOVERNED;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, XFS_SUPER_MAGIC, statfs,
};
use rustix::param::page_size;

use crate::disk::{Disk, Mode};
use crate::state_dir::{file, wait};
use mapping::{Image, Mapping};
pub(crate) use opening::open_to_look;
use opening::{bytes_of, fault, open};

pub use futex::{wait_any, wake};
pub(crate) use held::{SlotBytes, TotalState};
pub use live::{LimitsWritten, Live};
pub use liveness::Life;
pub(crate) use liveness::{is_locked_or_absent, start_time};
pub use opening::LIMITS;
pub use refusals::SeenRefusal;
pub use residue::residue;
pub use watched::{ReapOutcome, SeenProcess, UsageCopy, UsageFile};

/// Name of the usage file in the directory of a share.
pub const USAGE: &str = "usage";

/// All of a card's time, in parts per million.
pub const WHOLE_PPM: u32 = 1_000_000;

/// Whether a file had to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// A file was written.
    Something,
    /// All files were up to date.
    Nothing,
}

/// What a driver was measured to take of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Of a context.
    pub context: Bytes,
    /// In which pages it hands out memory.
    pub pages: Pages,
}

/// Paths of the files of one share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantPaths {
    /// Directory of the share.
    pub dir: PathBuf,
    /// File that is locked while limits of this node are written; tenants have no access to it.
    pub lock: PathBuf,
}

/// The limits that the shim enforces for a grant; `None` if the device cannot enforce any. `visible` is the part's UUID as the
/// tenant reads it.
///
/// A part that hardware isolates has no memory limit here, and no compute limit unless the claim requests one: it has no other
/// tenant.
#[must_use]
pub fn limits_of(grant: &Grant, card: &Card, visible: &CardUuid) -> Option<Limits> {
    let support = [Some(card.shareable), template(grant, card).map(|t| t.shareable)];
    if !support.contains(&Some(ShareSupport::Enforceable)) {
        return None;
    }
    let alone = isolation(card, &grant.part, grant.memory) != Isolation::Cooperative;
    let (policy, share_ppm) = compute(grant, card, alone);
    Some(Limits {
        generation: 1,
        memory: if alone { MemoryLimit::Unlimited } else { MemoryLimit::Bytes(grant.memory.0) },
        share_ppm,
        granted_ppm: if policy == abi::ComputePolicy::BestEffort { UNGOVERNED.parts() } else { share_ppm },
        own_ppm: WHOLE_PPM,
        policy,
        priority: match grant.settings.priority {
            Priority::High => 0,
            Priority::Normal => 1,
            Priority::Low => 2,
        },
        fail_mode: match grant.settings.fail_mode {
            FailMode::Closed => abi::FailMode::Closed,
            FailMode::Open => abi::FailMode::Open,
        },
        managed: abi::ManagedPolicy::Charge,
        // The backend may know it ([`GrantPaths::publish_context`]); else the tenant's first process measures it.
        context_bytes: 0,
        pages: Pages::ASSUMED,
        card: Text::new(visible.as_str())?,
        claim: Text::new(grant.claim.as_str())?,
    })
}

/// Whether there is any limit to enforce; without one no program needs to load the shim.
#[must_use]
pub fn limits_anything(limits: &Limits) -> bool {
    limits.memory != MemoryLimit::Unlimited || limits.policy != abi::ComputePolicy::Unlimited
}

fn template<'c>(grant: &Grant, card: &'c Card) -> Option<&'c aliquot_core::partition::Template> {
    match &grant.part {
        Part::Partition { template, .. } => card.table()?.template(template),
        Part::Card | Part::Slot { .. } => None,
    }
}

/// Policy and guaranteed share. Grants count in percent of the whole card, the shim in time of its device, which may be a
/// partition.
fn compute(grant: &Grant, card: &Card, alone: bool) -> (abi::ComputePolicy, u32) {
    let of = template(grant, card).map_or(100, |t| u32::from(t.cores.percent()).max(1));
    let ppm = (u32::from(grant.cores.percent()) * WHOLE_PPM / of).min(WHOLE_PPM);
    match (ppm, grant.settings.compute) {
        (0, _) if alone => (abi::ComputePolicy::Unlimited, WHOLE_PPM),
        (0, _) => (abi::ComputePolicy::BestEffort, 0),
        (WHOLE_PPM, _) => (abi::ComputePolicy::Unlimited, WHOLE_PPM),
        (ppm, ComputePolicy::Cap) => (abi::ComputePolicy::Cap, ppm),
        (ppm, ComputePolicy::Burst) => (abi::ComputePolicy::Burst, ppm),
    }
}

/// Whether two records have equal terms: generation, present grant and measured context size are ignored.
fn same(one: &Limits, other: &Limits) -> bool {
    let Limits { generation, granted_ppm, own_ppm, context_bytes, pages, .. } = *one;
    *one == Limits { generation, granted_ppm, own_ppm, context_bytes, pages, ..*other }
}

// === impl Footprint ===

impl Footprint {
    /// Whether limits have it.
    #[must_use]
    pub fn is_in(&self, limits: &Limits) -> bool {
        (limits.context_bytes, limits.pages) == (self.context.0, self.pages)
    }
}

// === impl GrantPaths ===

impl GrantPaths {
    /// The limits file.
    #[must_use]
    pub fn limits(&self) -> PathBuf {
        self.dir.join(LIMITS)
    }

    /// The usage file.
    #[must_use]
    pub fn usage(&self) -> PathBuf {
        self.dir.join(USAGE)
    }

    /// Creates or repairs both files; correct files stay unchanged. The directory exists.
    pub(crate) fn ensure(&self, disk: &Disk, wanted: &Limits) -> io::Result<WriteOutcome> {
        let limits = self.ensure_limits(disk, wanted)?;
        let usage = self.ensure_usage(disk)?;
        Ok(if (limits, usage) == (WriteOutcome::Nothing, WriteOutcome::Nothing) {
            WriteOutcome::Nothing
        } else {
            WriteOutcome::Something
        })
    }

    fn ensure_limits(&self, disk: &Disk, wanted: &Limits) -> io::Result<WriteOutcome> {
        let path = self.limits();
        if length_of(&path)? != Some(layout::limits::BYTES) {
            disk.place(&path, Image::of_limits(wanted)?.bytes(), Mode::Shown)?;
            return Ok(WriteOutcome::Something);
        }
        let found = read(&path).ok();
        if found.is_some_and(|found| same(&found, wanted)) {
            return Ok(WriteOutcome::Nothing);
        }
        disk.before("change limits")?;
        self.write(|now| {
            let (generation, context_bytes, pages) =
                now.map_or((1, 0, Pages::ASSUMED), |now| (now.generation + 1, now.context_bytes, now.pages));
            Some(Limits { generation, context_bytes, pages, ..*wanted })
        })?;
        Ok(WriteOutcome::Something)
    }

    fn ensure_usage(&self, disk: &Disk) -> io::Result<WriteOutcome> {
        let path = self.usage();
        let Some(length) = length_of(&path)? else {
            let mut image = Image::of_usage()?;
            let on_disk = match can_have_hole(&self.dir) {
                true => layout::usage::FIRST_BYTES.next_multiple_of(page_size()).min(layout::usage::BYTES),
                false => layout::usage::BYTES,
            };
            let first = image.bytes().get(..on_disk).unwrap_or_default();
            disk.place_with_hole(&path, first, bytes_of(layout::usage::BYTES), Mode::Tenant)?;
            return Ok(WriteOutcome::Something);
        };
        if length == layout::usage::BYTES && Image::read(&path, length)?.usage().is_ok() {
            return Ok(WriteOutcome::Nothing);
        }
        disk.before("mend usage")?;
        let file = open(&path)?;
        file.set_len(bytes_of(layout::usage::BYTES))?;
        Mapping::of(&file, layout::usage::BYTES)?.mend_usage().map_err(fault)?;
        Ok(WriteOutcome::Something)
    }

    /// Changes the limits in place, so that every mapping shows the change. `change` gets the present limits, if they can be read,
    /// and returns the new ones; `None`: no change. This function increments the generation.
    ///
    /// # Errors
    /// The file does not exist or is no limits file, or it cannot be locked or mapped.
    pub fn change(&self, change: impl FnOnce(Option<&Limits>) -> Option<Limits>) -> io::Result<()> {
        self.write(|now| {
            let next = change(now.as_ref())?;
            Some(Limits { generation: now.map_or(1, |now| now.generation + 1), ..next })
        })
    }

    /// Publishes the context size that the backend knows for its driver. Processes that start from now on do not measure it, and a
    /// context that does not fit is refused before it is created.
    ///
    /// # Errors
    /// As for [`GrantPaths::change`].
    pub fn publish_context(&self, footprint: Footprint) -> io::Result<()> {
        self.change(|now| {
            let now = now.filter(|now| !footprint.is_in(now))?;
            Some(Limits { context_bytes: footprint.context.0, pages: footprint.pages, ..*now })
        })
    }

    fn write(&self, change: impl FnOnce(Option<Limits>) -> Option<Limits>) -> io::Result<()> {
        let lock = wait::lock(file::to_lock(&self.lock)?, wait::LONGEST, |_| {})?;
        let path = self.limits();
        let file = open(&path)?;
        if file.metadata()?.len() != bytes_of(layout::limits::BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the size of a limits file"));
        }
        if let Some(next) = change(read(&path).ok()) {
            let mut mapping = Mapping::of(&file, layout::limits::BYTES)?;
            mapping.limits_writer().map_err(fault)?.write(&next);
        }
        // The lock covers reading and writing; dropping the file releases it.
        drop(lock);
        Ok(())
    }
}

/// The limits in a file.
///
/// # Errors
/// The file cannot be read, or is no limits file of this version.
pub fn read(limits: &Path) -> io::Result<Limits> {
    let image = Image::read(limits, layout::limits::BYTES)?;
    let view = image.limits().map_err(fault)?;
    view.read().map_err(|fault| {
        let words = match fault {
            aliquot_abi::view::LimitsFault::Record(record) => record.to_string(),
            aliquot_abi::view::LimitsFault::Busy => "limits: changing all the time".to_owned(),
        };
        io::Error::new(io::ErrorKind::InvalidData, words)
    })
}

/// Whether a file may have a hole: the file system allocates it on request, and a read of it takes no room, as on tmpfs.
fn can_have_hole(dir: &Path) -> bool {
    const KNOWN: [FsType; 4] = [BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, XFS_SUPER_MAGIC];
    statfs(dir).is_ok_and(|found| KNOWN.contains(&found.filesystem_type()))
}

/// Length of a file; `None`: it does not exist. Anything but a plain file is an error.
fn length_of(path: &Path) -> io::Result<Option<usize>> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(Some(usize::try_from(found.len()).unwrap_or(usize::MAX))),
        Ok(_) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is no plain file", path.display())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a tenant-visible file holds these bytes. A file that cannot be read now, such as one with a tenant's lease, does not.
pub(crate) fn holds(path: &Path, bytes: &[u8]) -> bool {
    let mut found = Vec::new();
    let longest = bytes_of(bytes.len()).saturating_add(1);
    let read = open_to_look(path).and_then(|file| file.take(longest).read_to_end(&mut found));
    read.is_ok() && found == bytes
}

/// Restricts the directory of all grants to its owner; tenants reach their part of it through mounts.
pub(crate) fn close_to_others(grants: &Path) -> io::Result<()> {
    let found = fs::metadata(grants)?.permissions();
    if found.mode() & 0o777 == 0o700 {
        return Ok(());
    }
    fs::set_permissions(grants, fs::Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests;
