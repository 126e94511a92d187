//! The region through its front door: what is written is read, a torn or hostile file never is.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
// UNSAFETY: views are made from raw memory; here it is a heap buffer that outlives them.
#![expect(unsafe_code, reason = "views are made from raw memory")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_abi::layout::{header, limits, record, refusal, slot, usage};
use aliquot_abi::limits::{
    ComputePolicy, FailMode, Limits, ManagedPolicy, MemoryLimit, Pages, RecordFault, Text,
};
use aliquot_abi::refusal::{Refusal, RefusalCause, RefusedCall, RefusedKind};
use aliquot_abi::view::{LimitsFault, LimitsView, LimitsWriter, RegionFault, UsageView};
use proptest::prelude::*;

/// Memory aligned like a mapping.
struct Mapping(Vec<u64>);

impl Mapping {
    fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(8)])
    }

    fn of(bytes: &[u8]) -> Self {
        let mut mapping = Self::zeroed(bytes.len());
        for (word, chunk) in mapping.0.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(whole);
        }
        mapping
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::from(self.0.as_slice()).cast()
    }

    fn bytes(&self) -> usize {
        self.0.len() * 8
    }

    fn limits(&self) -> Result<LimitsView<'_>, RegionFault> {
        // SAFETY: the buffer lives as long as `self`, and only atomics and this test write it.
        unsafe { LimitsView::new(self.base(), self.bytes()) }
    }

    fn writer(&self) -> LimitsWriter<'_> {
        // SAFETY: the buffer lives as long as `self`, and each test makes one writer.
        unsafe { LimitsWriter::new(self.base(), self.bytes()) }.unwrap()
    }

    fn usage(&self) -> Result<UsageView<'_>, RegionFault> {
        // SAFETY: the buffer lives as long as `self`, and only atomics and this test write it.
        unsafe { UsageView::new(self.base(), self.bytes()) }
    }
}

fn some_limits(generation: u64) -> Limits {
    Limits {
        generation,
        memory: MemoryLimit::Bytes(8 << 30),
        share_ppm: 250_000,
        granted_ppm: 250_000,
        own_ppm: 1_000_000,
        policy: ComputePolicy::Cap,
        priority: 1,
        fail_mode: FailMode::Closed,
        managed: ManagedPolicy::Charge,
        context_bytes: 0,
        pages: Pages::ASSUMED,
        card: Text::new("GPU-8f4e0a2b-0000-0000-0000-000000000001").unwrap(),
        claim: Text::new("3f1c-claim").unwrap(),
    }
}

#[test]
fn written_region_reads_back_equal() {
    let mapping = Mapping::zeroed(limits::BYTES);
    let mut writer = mapping.writer();
    let view = mapping.limits().unwrap();
    assert_eq!(view.read(), Err(LimitsFault::Record(RecordFault::Checksum)), "nothing written yet");
    for generation in 1..6 {
        writer.write(&some_limits(generation));
        assert_eq!(view.read(), Ok(some_limits(generation)));
        assert_eq!(view.generation(), generation);
    }
}

#[test]
fn version_one_is_frozen() {
    let bytes = some_limits(7).encode();
    let places = [
        (record::GENERATION, 7_u64),
        (record::MEMORY_BYTES, 8 << 30),
        (record::CHECKSUM, 9_355_858_319_815_608_538),
    ];
    for (at, expected) in places {
        assert_eq!(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()), expected, "at {at}");
    }
    assert_eq!(&bytes[record::UUID..record::UUID + 7], b"GPU-8f4");
    assert_eq!((limits::ACTIVE, limits::RECORDS, limits::RECORD_BYTES), (64, 128, 512));
    assert_eq!((usage::TOTAL, usage::CREDIT_NANOS, usage::SLOTS, usage::SLOT_BYTES), (64, 192, 4096, 128));
    assert_eq!((usage::WAKE, usage::DEMAND, usage::REPORTER, usage::CELLS), (216, 220, 256, 2048));
    assert_eq!((slot::OWNER, slot::INSIDE, slot::USED), (0, 24, 32));
    assert_eq!(
        (header::MAGIC, header::KIND, header::VERSION, header::SIZE, header::MIN_READER),
        (0, 8, 12, 16, 20)
    );
}

#[test]
fn foreign_files_are_refused_by_what_is_wrong_with_them() {
    assert_eq!(
        Mapping::zeroed(64).limits().err(),
        Some(RegionFault::Short { found: 64, needed: limits::BYTES })
    );
    assert_eq!(Mapping::zeroed(limits::BYTES).limits().err(), Some(RegionFault::Magic));
    let mapping = Mapping::zeroed(usage::BYTES);
    // SAFETY: the buffer lives to the end of the test.
    unsafe { UsageView::create(mapping.base(), mapping.bytes()) }.unwrap();
    assert_eq!(mapping.limits().err(), Some(RegionFault::Kind { found: 2 }));
    let mut later = Mapping::zeroed(limits::BYTES);
    later.writer();
    later.0[header::MIN_READER / 8] |= 99 << 32;
    let fault = later.limits().err();
    assert!(matches!(fault, Some(RegionFault::Version { min_reader }) if min_reader > 1), "{fault:?}");
}

/// A later writer that appended fields and kept `min_reader`: this reader takes what it knows.
#[test]
fn old_reads_new() {
    let mut mapping = Mapping::zeroed(2 * limits::BYTES);
    mapping.writer().write(&some_limits(3));
    mapping.0[header::VERSION / 8] |= 9 << 32;
    assert_eq!(mapping.limits().unwrap().read(), Ok(some_limits(3)));
}

#[test]
fn a_torn_record_is_never_read_while_the_agent_writes() {
    let mapping = Mapping::zeroed(limits::BYTES);
    let mut writer = mapping.writer();
    writer.write(&some_limits(1));
    let view = mapping.limits().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut last, mut reads) = (0, 0_u64);
            while !done.load(Ordering::Relaxed) || reads == 0 {
                match view.read() {
                    Ok(limits) => {
                        assert_eq!(limits, some_limits(limits.generation), "mixed record");
                        assert!(limits.generation >= last, "went back from {last} to {}", limits.generation);
                        last = limits.generation;
                    }
                    Err(fault) => assert!(
                        matches!(fault, LimitsFault::Busy | LimitsFault::Record(RecordFault::Checksum)),
                        "{fault:?}"
                    ),
                }
                reads += 1;
            }
            last
        });
        for generation in 2..20_000 {
            writer.write(&some_limits(generation));
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() >= 1);
    });
    assert_eq!(view.read(), Ok(some_limits(19_999)));
}

#[test]
fn slots_do_not_overlap_and_end() {
    let mapping = Mapping::zeroed(usage::BYTES);
    // SAFETY: the buffer lives to the end of the test.
    let view = unsafe { UsageView::create(mapping.base(), mapping.bytes()) }.unwrap();
    for number in 0..usage::SLOT_COUNT {
        let slot = view.slot(number).unwrap();
        let mark = u64::try_from(number).unwrap() + 1;
        slot.owner().store(mark, Ordering::Relaxed);
        slot.used().store(mark << 20, Ordering::Relaxed);
    }
    for number in 0..usage::SLOT_COUNT {
        let mark = u64::try_from(number).unwrap() + 1;
        let slot = view.slot(number).unwrap();
        assert_eq!(
            (slot.owner().load(Ordering::Relaxed), slot.used().load(Ordering::Relaxed)),
            (mark, mark << 20)
        );
    }
    assert_eq!(view.total().load(Ordering::Relaxed), 0);
    assert!(view.slot(usage::SLOT_COUNT).is_none() && view.slot(usize::MAX).is_none());
}

prop_compose! {
    fn any_limits()(
        generation in 1..u64::MAX,
        memory in prop_oneof![Just(MemoryLimit::Unlimited), (0..1_u64 << 63).prop_map(MemoryLimit::Bytes)],
        share_ppm in 0..=1_000_000_u32,
        granted_ppm in 0..=1_000_000_u32,
        own_ppm in 1..=1_000_000_u32,
        policy in prop_oneof![
            Just(ComputePolicy::Cap), Just(ComputePolicy::Burst), Just(ComputePolicy::BestEffort), Just(ComputePolicy::Unlimited)
        ],
        priority: u32,
        open: bool,
        free: bool,
        context_bytes: u64,
        measured: bool,
        pages in (9..=30_u8, 9..=30_u8),
        card in "[A-Za-z0-9-]{0,96}",
        claim in "[a-f0-9-]{0,64}",
    ) -> Limits {
        Limits {
            generation, memory, share_ppm, granted_ppm, own_ppm, policy, priority,
            fail_mode: if open { FailMode::Open } else { FailMode::Closed },
            managed: if free { ManagedPolicy::Free } else { ManagedPolicy::Charge },
            context_bytes,
            pages: if measured { Pages::measured(pages.0, pages.1).unwrap() } else { Pages::ASSUMED },
            card: Text::new(&card).unwrap(),
            claim: Text::new(&claim).unwrap(),
        }
    }
}

proptest! {
    #[test]
    fn every_record_round_trips(limits in any_limits()) {
        prop_assert_eq!(Limits::decode(&limits.encode()), Ok(limits));
    }

    #[test]
    fn one_flipped_bit_is_noticed(limits in any_limits(), bit in 0..limits::RECORD_BYTES * 8) {
        let mut bytes = limits.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Limits::decode(&bytes), Err(RecordFault::Checksum));
    }

    #[test]
    fn hostile_bytes_never_crash_a_view(bytes in proptest::collection::vec(any::<u8>(), 0..limits::BYTES * 2), head: bool) {
        let mut bytes = bytes;
        if head && bytes.len() >= 24 {
            bytes[..8].copy_from_slice(b"ALIQUOT\x01");
            bytes[8..24].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 16, 0, 0, 1, 0, 0, 0]);
        }
        let mapping = Mapping::of(&bytes);
        if let Ok(view) = mapping.limits() {
            prop_assert!(view.read().is_err(), "random bytes passed the checksum");
        }
        prop_assert!(mapping.usage().is_err() || bytes.len() >= usage::BYTES);
    }
}

fn refusal_of(number: u64) -> Refusal {
    let kinds = RefusedKind::ALL;
    let kind = kinds[usize::try_from(number).unwrap() % kinds.len()];
    let cause = RefusalCause::ALL[usize::try_from(number).unwrap() % RefusalCause::ALL.len()];
    Refusal {
        call: RefusedCall { kind, cause, wanted_bytes: number << 20 },
        at_nanos: number,
        reserved_bytes: number + 1,
        residue_bytes: number + 2,
        limit_bytes: number + 3,
        pid: 7,
    }
}

fn last_refusals(view: UsageView<'_>) -> Vec<Refusal> {
    let mut all: Vec<Refusal> = view.refusals().all().collect();
    all.sort_by_key(|refusal| refusal.at_nanos);
    all
}

#[test]
fn the_last_refusals_are_kept_and_read_whole() {
    let mapping = Mapping::zeroed(usage::BYTES);
    // SAFETY: the buffer outlives the view.
    let view = unsafe { UsageView::create(mapping.base(), mapping.bytes()) }.unwrap();
    assert_eq!(last_refusals(view), []);
    let count = u64::try_from(usage::REFUSAL_COUNT).unwrap();
    for number in 1..=count + 3 {
        view.refusals().record(&refusal_of(number));
    }
    let kept: Vec<Refusal> = (4..=count + 3).map(refusal_of).collect();
    assert_eq!(last_refusals(view), kept);
    // A record that is being written, and ones that no shim writes.
    let put = |number: usize, field: usize, value: u32| {
        let at = usage::REFUSALS + number * refusal::BYTES + field;
        let word = mapping.0.as_ptr().cast::<u32>().cast_mut();
        // SAFETY: within the buffer, which this thread alone uses now.
        unsafe { word.add(at / 4).write_volatile(value) };
    };
    put(3, refusal::AT, 0);
    put(4, refusal::CODE, 0);
    put(5, refusal::CODE, 4 << 16 | 1);
    put(6, refusal::CODE, 1 << 16 | 11);
    assert_eq!(last_refusals(view), [8, 9, 10, 11].map(refusal_of));
}

proptest! {
    /// Whatever a tenant writes: at most as many as there are places, each with a time.
    #[test]
    fn forged_refusals_are_harmless(words in prop::collection::vec(any::<u64>(), usage::REFUSAL_COUNT * 6)) {
        let mut mapping = Mapping::zeroed(usage::BYTES);
        // SAFETY: the buffer outlives the view, which is not used any more.
        unsafe { UsageView::create(mapping.base(), mapping.bytes()) }.unwrap();
        mapping.0[usage::REFUSALS / 8..][..words.len()].copy_from_slice(&words);
        let all = last_refusals(mapping.usage().unwrap());
        prop_assert!(all.len() <= usage::REFUSAL_COUNT && all.iter().all(|refusal| refusal.at_nanos > 0));
    }
}
