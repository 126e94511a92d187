//! Files of other versions, kept as bytes: what version 1 wrote is read as long as there is a reader, and what a later
//! version may write is read today.
//!
//! The kept files are `versions/<version>-<limits|usage>.hex`: an offset and 32 bytes a line, lines of zeros left out.
//! `ALIQUOT_GOLDEN=write` writes them anew. Files of a released version are never written anew: one that stands in a numbered
//! section of CHANGELOG.md. No version stands there yet, so that `1-*.hex` say what version 1 is now, and were written anew
//! for each word that took bytes which were zero until then. Zeros there still read as an older host leaves them: not measured,
//! no end of a loan, no residue.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![expect(clippy::disallowed_methods, reason = "the kept bytes are files; the region itself does no IO")]
// UNSAFETY: views are made from raw memory; here it is a heap buffer that outlives them.
#![expect(unsafe_code, reason = "views are made from raw memory")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::layout::{header, limits, record, usage};
use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, ManagedPolicy, MemoryLimit, Pages, Text};
use aliquot_abi::view::{LimitsView, LimitsWriter, RegionFault, UsageView};

/// Bytes of a line of a kept file.
const LINE: usize = 32;

/// When loans end, in the kept files.
const LENT_UNTIL: u64 = 0x1234_5678_9abc;

/// A file in memory, aligned like a mapping.
struct File(Vec<AtomicU64>);

impl File {
    fn zeroed(bytes: usize) -> Self {
        Self((0..bytes / 8).map(|_| AtomicU64::new(0)).collect())
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::from(self.0.as_slice()).cast()
    }

    fn size(&self) -> usize {
        self.0.len() * 8
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (place, byte) in (at..).zip(bytes) {
            let word = &self.0[place / 8];
            let mut whole = word.load(Ordering::Relaxed).to_le_bytes();
            whole[place % 8] = *byte;
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
    }

    fn limits(&self) -> Result<LimitsView<'_>, RegionFault> {
        // SAFETY: the buffer lives as long as `self` and is as long as it says.
        unsafe { LimitsView::new(self.base(), self.size()) }
    }

    fn usage(&self) -> Result<UsageView<'_>, RegionFault> {
        // SAFETY: the buffer lives as long as `self` and is as long as it says.
        unsafe { UsageView::new(self.base(), self.size()) }
    }

    fn text(&self) -> String {
        let mut text = format!("{} bytes\n", self.size());
        for (number, line) in self.bytes().chunks(LINE).enumerate().filter(|(_, l)| l.iter().any(|b| *b != 0))
        {
            write!(text, "{:06x} ", number * LINE).unwrap();
            line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text.push('\n');
        }
        text
    }

    fn of(text: &str) -> Self {
        let (size, lines) = text.split_once(" bytes\n").unwrap();
        let file = Self::zeroed(size.parse().unwrap());
        for line in lines.lines() {
            let (at, digits) = line.split_once(' ').unwrap();
            let bytes: Vec<u8> = (0..digits.len())
                .step_by(2)
                .map(|digit| u8::from_str_radix(&digits[digit..digit + 2], 16).unwrap())
                .collect();
            file.put(usize::from_str_radix(at, 16).unwrap(), &bytes);
        }
        file
    }
}

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/versions").join(name).with_extension("hex")
}

/// The kept file of this name; `made` is what it was written from.
fn kept(name: &str, made: &File) -> File {
    if std::env::var_os("ALIQUOT_GOLDEN").is_some_and(|v| v == "write") {
        std::fs::create_dir_all(place(name).parent().unwrap()).unwrap();
        std::fs::write(place(name), made.text()).unwrap();
    }
    File::of(&std::fs::read_to_string(place(name)).unwrap())
}

fn first_limits() -> Limits {
    Limits {
        generation: 41,
        memory: MemoryLimit::Bytes(8 << 30),
        share_ppm: 250_000,
        granted_ppm: 400_000,
        own_ppm: 900_000,
        policy: ComputePolicy::Burst,
        priority: 3,
        fail_mode: FailMode::Open,
        managed: ManagedPolicy::Free,
        context_bytes: 480 << 20,
        pages: Pages::ASSUMED,
        card: Text::new("GPU-8f4e0a2b-0000-0000-0000-000000000001").unwrap(),
        claim: Text::new("0b0c6f8e-5f5e-4c53-a0a2-000000000007").unwrap(),
    }
}

/// The record before, which stays in the other place.
fn earlier_limits() -> Limits {
    Limits { generation: 40, memory: MemoryLimit::Unlimited, policy: ComputePolicy::Cap, ..first_limits() }
}

fn written_limits() -> File {
    let file = File::zeroed(limits::BYTES);
    // SAFETY: the buffer outlives the writer, and there is one.
    let mut writer = unsafe { LimitsWriter::new(file.base(), file.size()) }.unwrap();
    writer.write(&earlier_limits());
    writer.write(&first_limits());
    writer.lend_until(LENT_UNTIL);
    file
}

/// Every word that has a name, in the order of the layout, each with a value of its own.
fn usage_words(view: UsageView<'_>) -> Vec<(&AtomicU64, u64)> {
    let slot = view.slot(1).unwrap();
    let last = view.slot(usage::SLOT_COUNT - 1).unwrap();
    let words = [
        view.total(),
        view.high_water(),
        view.denied(),
        view.unknown_symbols(),
        view.reaped(),
        view.refilled_at(),
        view.device_nanos(),
        view.active_until(),
        view.limited_until(),
        view.interval_nanos(),
        view.counted_until(),
        view.reporter(),
        slot.owner(),
        slot.start_time(),
        slot.pid_namespace(),
        slot.used(),
        slot.device_nanos(),
        last.used(),
    ];
    words.into_iter().zip((1..).map(|n: u64| n << 40 | n)).collect()
}

fn written_usage() -> File {
    let file = File::zeroed(usage::BYTES);
    // SAFETY: the buffer outlives the view.
    let view = unsafe { UsageView::create(file.base(), file.size()) }.unwrap();
    for (word, value) in usage_words(view) {
        word.store(value, Ordering::Relaxed);
    }
    view.credit_nanos().store(-5_000_000, Ordering::Relaxed);
    view.wake().store(77, Ordering::Relaxed);
    view.demand().store(78, Ordering::Relaxed);
    view.cells()[usage::CELL_COUNT - 1].store(79, Ordering::Relaxed);
    view.slot(1).unwrap().inside().store(2, Ordering::Relaxed);
    file
}

/// What the usage file holds is what [`written_usage`] put there.
#[track_caller]
fn usage_is_read(file: &File) {
    let view = file.usage().unwrap();
    for (number, (word, value)) in usage_words(view).into_iter().enumerate() {
        assert_eq!(word.load(Ordering::Relaxed), value, "word {number}");
    }
    assert_eq!(view.credit_nanos().load(Ordering::Relaxed), -5_000_000);
    assert_eq!((view.wake().load(Ordering::Relaxed), view.demand().load(Ordering::Relaxed)), (77, 78));
    assert_eq!(view.cells()[usage::CELL_COUNT - 1].load(Ordering::Relaxed), 79);
    assert_eq!(view.slot(1).unwrap().inside().load(Ordering::Relaxed), 2);
}

/// As a writer of version 2 may leave it: longer, with unknown fields wherever version 1 left room.
fn of_version_two(file: &File, room: &[(usize, usize)]) -> File {
    let later = File::zeroed(file.size() * 2);
    later.put(0, &file.bytes());
    later.put(header::VERSION, &2_u32.to_le_bytes());
    later.put(header::SIZE, &u32::try_from(later.size()).unwrap().to_le_bytes());
    for (from, to) in room.iter().chain([&(file.size(), later.size())]) {
        for at in *from..(*to).min(from + LINE) {
            later.put(at, &[0xa5]);
        }
    }
    later
}

/// Seals a record anew, as its writer does: the checksum is over the fields that this version does not know as well.
fn seal(file: &File, record_at: usize) {
    let bytes = file.bytes();
    let body = &bytes[record_at..record_at + record::CHECKSUM];
    let sum = body
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    file.put(record_at + record::CHECKSUM, &sum.to_le_bytes());
}

fn limits_of_version_two() -> File {
    let records = [limits::RECORDS, limits::RECORDS + limits::RECORD_BYTES];
    let room: Vec<(usize, usize)> =
        records.iter().map(|at| (at + record::CLAIM + record::CLAIM_MAX, at + record::CHECKSUM)).collect();
    let file = of_version_two(&written_limits(), &room);
    records.iter().for_each(|at| seal(&file, *at));
    file
}

fn usage_of_version_two() -> File {
    let slot = usage::SLOTS + usage::SLOT_BYTES;
    of_version_two(
        &written_usage(),
        &[(usage::CELLS - LINE, usage::CELLS), (slot + 96, slot + usage::SLOT_BYTES)],
    )
}

#[test]
fn files_of_version_one_are_read_and_still_written_so() {
    let (limits, usage) = (kept("1-limits", &written_limits()), kept("1-usage", &written_usage()));
    assert_eq!(limits.limits().unwrap().read(), Ok(first_limits()));
    assert_eq!(limits.limits().unwrap().lent_until(), LENT_UNTIL);
    usage_is_read(&usage);
    assert_eq!(limits.text(), written_limits().text(), "what is written as version 1 has changed");
    assert_eq!(usage.text(), written_usage().text(), "what is written as version 1 has changed");
}

#[test]
fn longer_file_of_later_version_is_read_for_its_known_part() {
    let limits = kept("2-limits", &limits_of_version_two());
    let usage = kept("2-usage", &usage_of_version_two());
    assert!(limits.size() > limits::BYTES && usage.size() > usage::BYTES);
    assert_eq!(limits.limits().unwrap().read(), Ok(first_limits()));
    assert_eq!(limits.limits().unwrap().lent_until(), LENT_UNTIL);
    usage_is_read(&usage);
}

#[test]
fn files_for_later_readers_alone_are_refused() {
    let limits = kept("2-limits", &limits_of_version_two());
    let usage = kept("2-usage", &usage_of_version_two());
    limits.put(header::MIN_READER, &2_u32.to_le_bytes());
    usage.put(header::MIN_READER, &2_u32.to_le_bytes());
    let refused = Some(RegionFault::Version { min_reader: 2 });
    assert_eq!((limits.limits().err(), usage.usage().err()), (refused, refused));
}

/// A field that an older writer did not know reads as zero: the shortest record that was ever written has a meaning.
#[test]
fn a_record_without_later_fields_has_the_meaning_it_had() {
    let file = written_limits();
    let at = limits::RECORDS + usize::from(file.bytes()[limits::ACTIVE]) * limits::RECORD_BYTES;
    file.put(at + record::OWN_PPM, &0_u32.to_le_bytes());
    file.put(at + record::CONTEXT_BYTES, &0_u64.to_le_bytes());
    seal(&file, at);
    let meant = Limits { own_ppm: 1_000_000, context_bytes: 0, ..first_limits() };
    assert_eq!(file.limits().unwrap().read(), Ok(meant));
}
