//! Tenants for a test: a grant as the agent would write it, and programs that run with the shim before everything else.
//!
//! ```text
//!  Tenant::new ─▶ <dir>/<claim>/share/{limits, usage} ─┐
//!             └▶ the shim as it ships ────────────────┴─▶ command(program): LD_PRELOAD, ALIQUOT_GRANTS
//! ```

#![expect(clippy::panic, reason = "a tenant that cannot be set up is a failed test")]

use crate::simulated::{Bench, kept};
use aliquot_abi::layout::{self, header, limits, record, usage};
use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, ManagedPolicy, MemoryLimit, Pages, Text};
use aliquot_driver::region::{SeenRefusal, USAGE, UsageCopy};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// A container's grants.
#[derive(Debug)]
pub struct Tenant {
    place: TempDir,
}

/// The two files of one grant.
#[derive(Debug)]
pub struct GrantFiles {
    limits: File,
    usage: File,
    dir: PathBuf,
}

/// The shim as it ships, installed once for a test run.
///
/// # Panics
///
/// When it cannot be installed.
#[must_use]
pub fn shim() -> &'static Path {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        aliquot_libraries::install_shim(&kept("libraries")).map_err(|error| error.to_string())
    });
    installed.as_deref().unwrap_or_else(|error| panic!("the shim: {error}"))
}

/// Limits for a card, closed when something is wrong, nothing limited but what the caller changes.
#[must_use]
pub fn unlimited(card_uuid: &str) -> Limits {
    Limits {
        generation: 1,
        memory: MemoryLimit::Unlimited,
        share_ppm: 1_000_000,
        granted_ppm: 1_000_000,
        own_ppm: 1_000_000,
        policy: ComputePolicy::Unlimited,
        priority: 0,
        fail_mode: FailMode::Closed,
        managed: ManagedPolicy::Charge,
        context_bytes: 0,
        pages: Pages::ASSUMED,
        card: Text::new(card_uuid).unwrap_or_else(|| panic!("{card_uuid}: too long")),
        claim: Text::new("00000000-0000-0000-0000-00000000c1a1").unwrap_or_else(|| panic!("a claim")),
    }
}

/// Line of a node file: the driver of these cards hands out memory in units of 512 bytes, so that tests count bytes.
pub const UNPAGED: &str = "page_bytes = 512\n";

/// The same as a host that has measured such a driver publishes them.
#[must_use]
pub fn unpaged(limits: Limits) -> Limits {
    let pages = Pages::measured(9, 9).unwrap_or_else(|| panic!("pages of 512 bytes"));
    Limits { pages, ..limits }
}

/// The same with so many bytes of memory.
#[must_use]
pub fn memory_limit(card_uuid: &str, bytes: u64) -> Limits {
    Limits { memory: MemoryLimit::Bytes(bytes), ..unlimited(card_uuid) }
}

/// The same with a quarter of the card's time.
#[must_use]
pub fn metered(limits: Limits) -> Limits {
    Limits {
        policy: ComputePolicy::Cap,
        share_ppm: 250_000,
        granted_ppm: 250_000,
        own_ppm: 250_000,
        ..limits
    }
}

fn head(kind: u32, bytes: usize) -> Vec<u8> {
    let mut file = vec![0; bytes];
    let mut put = |at: usize, value: &[u8]| file[at..at + value.len()].copy_from_slice(value);
    put(header::MAGIC, &layout::MAGIC.to_le_bytes());
    put(header::KIND, &kind.to_le_bytes());
    put(header::VERSION, &layout::VERSION.to_le_bytes());
    put(header::SIZE, &u32::try_from(bytes).unwrap_or(0).to_le_bytes());
    put(header::MIN_READER, &layout::MIN_READER.to_le_bytes());
    file
}

impl Tenant {
    /// A container without grants.
    ///
    /// # Panics
    ///
    /// When there is no place for files.
    #[must_use]
    pub fn new() -> Self {
        Self { place: TempDir::new().unwrap_or_else(|error| panic!("a directory: {error}")) }
    }

    /// A container with one grant.
    ///
    /// # Panics
    ///
    /// When the files cannot be written.
    #[must_use]
    pub fn with(limits: &Limits) -> (Self, GrantFiles) {
        let tenant = Self::new();
        let files = tenant.grant("claim", limits);
        (tenant, files)
    }

    /// The directory of the grants.
    #[must_use]
    pub fn grants(&self) -> &Path {
        self.place.path()
    }

    /// Adds a grant.
    ///
    /// # Panics
    ///
    /// When the files cannot be written.
    #[must_use]
    pub fn grant(&self, claim: &str, limits: &Limits) -> GrantFiles {
        let dir = self.grants().join(claim).join("share");
        let mut page = head(layout::KIND_LIMITS, limits::BYTES);
        page[limits::RECORDS..limits::RECORDS + limits::RECORD_BYTES].copy_from_slice(&limits.encode());
        let open = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            std::fs::create_dir_all(&dir)
                .and_then(|()| std::fs::write(&path, bytes))
                .and_then(|()| OpenOptions::new().read(true).write(true).open(&path))
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let (limits, usage) = (open("limits", &page), open("usage", &head(layout::KIND_USAGE, usage::BYTES)));
        GrantFiles { limits, usage, dir }
    }

    /// A command on the bench's cards with the shim before everything else, and these grants.
    #[must_use]
    pub fn command(&self, bench: &Bench, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = bench.command(program);
        command.env("LD_PRELOAD", shim());
        command.env("ALIQUOT_GRANTS", self.grants());
        command
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self::new()
    }
}

impl GrantFiles {
    /// Those of a share that is there already.
    ///
    /// # Panics
    ///
    /// When they are not.
    #[must_use]
    pub fn open(dir: &Path) -> Self {
        let open = |name: &str| {
            let path = dir.join(name);
            let opened = OpenOptions::new().read(true).write(true).open(&path);
            opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        Self { limits: open("limits"), usage: open("usage"), dir: dir.to_owned() }
    }

    /// The limits in force.
    ///
    /// # Panics
    ///
    /// When the file does not say them.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let second = word(&self.limits, limits::ACTIVE) & 0xffff_ffff == 1;
        let place = limits::RECORDS + if second { limits::RECORD_BYTES } else { 0 };
        let mut record = [0; limits::RECORD_BYTES];
        let read = self.limits.read_exact_at(&mut record, u64::try_from(place).unwrap_or(0));
        assert!(read.is_ok(), "{read:?}");
        Limits::decode(&record).unwrap_or_else(|fault| panic!("{fault:?}"))
    }

    /// The directory of both.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Puts new limits in force, as the agent does: the other record, then the index.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn change(&self, limits: &Limits) {
        let active = word(&self.limits, limits::ACTIVE) & 0xffff_ffff;
        let next = u32::from(active != 1);
        let place = limits::RECORDS + if next == 1 { limits::RECORD_BYTES } else { 0 };
        let write = |at: usize, bytes: &[u8]| {
            let written = self.limits.write_all_at(bytes, u64::try_from(at).unwrap_or(0));
            assert!(written.is_ok(), "{written:?}");
        };
        write(place, &limits.encode());
        write(limits::ACTIVE, &next.to_le_bytes());
    }

    /// Publishes a residue and the time of the look that found it, as the host does.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn publish_residue(&self, bytes: u64, looked_at: u64) {
        for (place, value) in [(limits::RESIDUE, bytes), (limits::LOOKED_AT, looked_at)] {
            let written = self.limits.write_all_at(&value.to_le_bytes(), u64::try_from(place).unwrap_or(0));
            assert!(written.is_ok(), "{written:?}");
        }
    }

    /// A word of the usage file, by its offset in [`aliquot_abi::layout::usage`].
    ///
    /// # Panics
    ///
    /// When the file cannot be read.
    #[must_use]
    pub fn counter(&self, offset: usize) -> u64 {
        word(&self.usage, offset)
    }

    /// The last refusals that processes recorded, the newest first.
    ///
    /// # Panics
    ///
    /// When the file cannot be read.
    #[must_use]
    pub fn refusals(&self) -> Vec<SeenRefusal> {
        let read = UsageCopy::of(&self.dir().join(USAGE));
        assert!(read.is_ok(), "{:?}", read.as_ref().err());
        read.map(|usage| usage.refusals).unwrap_or_default()
    }

    /// Overwrites a word of the usage file, as a hostile tenant may.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn set_counter(&self, offset: usize, value: u64) {
        let written = self.usage.write_all_at(&value.to_le_bytes(), u64::try_from(offset).unwrap_or(0));
        assert!(written.is_ok(), "{written:?}");
    }
}

fn word(file: &File, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    let read = file.read_exact_at(&mut bytes, u64::try_from(offset).unwrap_or(0));
    assert!(read.is_ok(), "{read:?}");
    u64::from_le_bytes(bytes)
}

const _: () = assert!(record::CHECKSUM + 8 == limits::RECORD_BYTES);
