//! The host's side of the region: both files made whole, changed live, watched, and given back for the dead.
//!
//! ```text
//!   Grant ─limits_of─▶ Limits ─ensure─▶ <state>/grants/<claim>/<share>/limits   0644, the container's mount is read-only
//!                                  └──▶ <state>/grants/<claim>/<share>/usage    0666, mounted writable, alone
//!
//!   governor ─change─▶ limits (in place)        usage ─Watched::reap─▶ the dead hold nothing
//! ```
//!
//! Both files get their name when they are whole, and all their blocks with it, so that a full disk is met here and not
//! in a tenant's store. From then on they are changed in place only: whoever has them mapped sees the change. `usage` is
//! never made anew while its claim lives; a tenant that cut it short gets its length back, not its old content.
//!
//! Modes. The tenant may run as any user, so `usage` is for everybody to write; who may come near it is decided by the
//! directory `grants`, which is ours alone (0700), and by the mount, which leads past it. `limits` is for us to write
//! and for everybody to read; what keeps a tenant that runs as our user from writing it is the read-only mount, and
//! where there is none (`aliquot run`) such a tenant could as well not load the shim at all.
//!
//! Who may lie: a tenant may write anything into `usage` and give it any length. What is read is copied first or mapped
//! through `mapping`, where a vanished page reads as zeros and is noticed.

mod futex;
mod live;
mod liveness;
mod mapping;
mod settled;
mod watched;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aliquot_abi::layout;
use aliquot_abi::limits::{self as abi, Limits, MemoryLimit, Pages, Text};
use aliquot_core::card::Card;
use aliquot_core::grant::{ComputePolicy, FailMode, Grant, Priority, isolation};
use aliquot_core::id::CardUuid;
use aliquot_core::partition::{Isolation, Part, ShareSupport};
use aliquot_core::units::Bytes;
use aliquot_enforce::term::UNGOVERNED;
use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use crate::disk::{Disk, Mode};
use mapping::{Image, Mapping};

pub use futex::{wait_any, wake};
pub use live::{Changed, Live};
pub(crate) use liveness::start_time;
pub use watched::{Life, Reaped, Seen, SeenProcess, Watched};

/// Name of the limits in the directory of a share.
pub const LIMITS: &str = "limits";
/// Name of the usage in the directory of a share.
pub const USAGE: &str = "usage";

/// All of a card's time, in parts per million.
pub const WHOLE_PPM: u32 = 1_000_000;

/// Whether something had to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// Something was written.
    Something,
    /// All was there already.
    Nothing,
}

/// Where the files of one share lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Directory of the share.
    pub dir: PathBuf,
    /// File that is locked while limits of this node are written; no tenant sees it.
    pub lock: PathBuf,
}

/// What the shim is to hold a grant to; `None` where nothing could hold a limit. `visible` is how the tenant sees the part.
///
/// A part that hardware keeps apart has no memory limit of ours, and none on compute unless one was asked for: there is
/// nobody beside it.
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
        // Whoever reaches the card may know it ([`Place::publish_context`]); else the tenant's first process measures.
        context_bytes: 0,
        pages: Pages::ASSUMED,
        card: Text::new(visible.as_str())?,
        claim: Text::new(grant.claim.as_str())?,
    })
}

/// Whether there is anything to hold: where nothing is, no program need load the shim.
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

/// Policy and guaranteed share. Grants count in percent of the whole card, the shim in the time of what it sees, which
/// for a partition is the partition.
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

/// Whether two records say the same to the tenant, whoever wrote them, whatever is granted right now, and whatever contexts
/// were found to take since.
fn same(one: &Limits, other: &Limits) -> bool {
    let Limits { generation, granted_ppm, own_ppm, context_bytes, pages, .. } = *one;
    *one == Limits { generation, granted_ppm, own_ppm, context_bytes, pages, ..*other }
}

// === impl Place ===

impl Place {
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

    /// Makes both files what they should be, and leaves alone what is right. The directory is there.
    pub(crate) fn ensure(&self, disk: &Disk, wanted: &Limits) -> io::Result<Made> {
        let limits = self.ensure_limits(disk, wanted)?;
        let usage = self.ensure_usage(disk)?;
        Ok(if (limits, usage) == (Made::Nothing, Made::Nothing) { Made::Nothing } else { Made::Something })
    }

    fn ensure_limits(&self, disk: &Disk, wanted: &Limits) -> io::Result<Made> {
        let path = self.limits();
        if length_of(&path)? != Some(layout::limits::BYTES) {
            disk.place(&path, Image::of_limits(wanted)?.bytes(), Mode::Shown)?;
            return Ok(Made::Something);
        }
        let found = read(&path).ok();
        if found.is_some_and(|found| same(&found, wanted)) {
            return Ok(Made::Nothing);
        }
        disk.before("change limits")?;
        self.write(|now| {
            let (generation, context_bytes, pages) =
                now.map_or((1, 0, Pages::ASSUMED), |now| (now.generation + 1, now.context_bytes, now.pages));
            Some(Limits { generation, context_bytes, pages, ..*wanted })
        })?;
        Ok(Made::Something)
    }

    fn ensure_usage(&self, disk: &Disk) -> io::Result<Made> {
        let path = self.usage();
        let Some(length) = length_of(&path)? else {
            disk.place(&path, Image::of_usage()?.bytes(), Mode::Tenant)?;
            return Ok(Made::Something);
        };
        if length == layout::usage::BYTES && Image::read(&path, length)?.usage().is_ok() {
            return Ok(Made::Nothing);
        }
        disk.before("mend usage")?;
        let file = open(&path)?;
        file.set_len(bytes_of(layout::usage::BYTES))?;
        Mapping::of(&file, layout::usage::BYTES)?.mend_usage().map_err(fault)?;
        Ok(Made::Something)
    }

    /// Puts other limits in force, live: whoever has them mapped sees them. `change` is given what is in force, if that
    /// can be read, and answers what shall be; `None`: as it is. The generation is counted here.
    ///
    /// # Errors
    /// The file is not there or is no limits file, or the disk refuses.
    pub fn change(&self, change: impl FnOnce(Option<&Limits>) -> Option<Limits>) -> io::Result<()> {
        self.write(|now| {
            let next = change(now.as_ref())?;
            Some(Limits { generation: now.map_or(1, |now| now.generation + 1), ..next })
        })
    }

    /// Says how much of the card a context takes, as its driver is known to take it: processes that begin from now on are
    /// refused one that does not fit before it is made, and measure nothing.
    ///
    /// # Errors
    /// As for [`Place::change`].
    pub fn publish_context(&self, bytes: Bytes) -> io::Result<()> {
        self.change(|now| {
            let now = now.filter(|now| now.context_bytes != bytes.0)?;
            Some(Limits { context_bytes: bytes.0, ..*now })
        })
    }

    fn write(&self, change: impl FnOnce(Option<Limits>) -> Option<Limits>) -> io::Result<()> {
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&self.lock)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
        let path = self.limits();
        let file = open(&path)?;
        if file.metadata()?.len() != bytes_of(layout::limits::BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the size of a limits file"));
        }
        if let Some(next) = change(read(&path).ok()) {
            let mut mapping = Mapping::of(&file, layout::limits::BYTES)?;
            mapping.limits_writer().map_err(fault)?.write(&next);
        }
        // The lock covers reading and writing; it goes with the file.
        drop(lock);
        Ok(())
    }
}

/// The limits in force in a file.
///
/// # Errors
/// The file cannot be read, or is no limits file that this version understands.
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

/// Length of a file; `None`: it is not there. Anything but a plain file is refused.
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

/// Opens a file to change it. Its tenant may have a lease on it, and the kernel would keep us waiting for that, with the node locked.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(|error| {
        match error.kind() {
            io::ErrorKind::WouldBlock => {
                let words =
                    "a process of its tenant has a lease on it, which the kernel ends within a minute";
                io::Error::new(io::ErrorKind::WouldBlock, format!("{}: {words}", path.display()))
            }
            _ => error,
        }
    })
}

/// Opens a file to look at it. Whoever may write its directory may put anything there: a link is not followed, and a pipe
/// keeps nobody waiting.
pub(crate) fn open_to_look(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "no plain file"))
}

/// Whether a file that tenants see holds these bytes. One that cannot be read now, as a tenant has a lease on it, does not.
pub(crate) fn holds(path: &Path, bytes: &[u8]) -> bool {
    let mut found = Vec::new();
    let read = open_to_look(path).and_then(|mut file| file.read_to_end(&mut found));
    read.is_ok() && found == bytes
}

fn bytes_of(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn fault(fault: aliquot_abi::view::RegionFault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault.to_string())
}

/// Keeps everybody else's hands off the directory of all grants; tenants reach their part of it through mounts.
pub(crate) fn close_to_others(grants: &Path) -> io::Result<()> {
    let found = fs::metadata(grants)?.permissions();
    if found.mode() & 0o777 == 0o700 {
        return Ok(());
    }
    fs::set_permissions(grants, fs::Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests;
