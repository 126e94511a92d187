//! A region with bytes written by an adversary, an honest agent and three honest processes in any order.
//!
//! The input is a list of steps. Pokes put any word anywhere into `limits` or `usage`; between them the agent
//! writes limits, readers open and read both files, and processes reserve, release and recount as the shim
//! does. A plain model checks:
//!
//! - What a process holds never passes the limit in `limits`, whatever `usage` contains.
//! - While `usage` is not poked, all processes together do not pass it either, nothing that fits is refused,
//!   and the accounting equals the model to the byte.

#![no_main]

mod feed;
mod limits_record;

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aliquot_abi::layout::{KIND_LIMITS, KIND_USAGE, MAGIC, VERSION, header, limits, record, usage};
use aliquot_abi::limits::{Limits, MemoryLimit};
use aliquot_abi::view::{LimitsFault, LimitsView, LimitsWriter, RegionFault, UsageView};
use aliquot_enforce::memory::{BYTES, FREEZE, MemoryAccounting, Release, Reservation, bytes_in};
use aliquot_enforce::reap::{AccountingFreeze, Owner, Recount, Slot};

use feed::Feed;
use libfuzzer_sys::fuzz_target;
use limits_record::{checksum, some_limits};

/// Processes with accounting of their own, in the slots of the same numbers.
const PROCESSES: usize = 3;
/// Most steps of one run: enough for any story, and runs stay short.
const STEPS_MAX: usize = 48;
/// Most reads of limits in one run.
const READS_MAX: usize = 2;

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

fuzz_target!(|data: &[u8]| WORLD.with_borrow_mut(|world| {
    world.reset();
    world.run(&mut Feed(data));
}));

impl Feed<'_> {
    fn short(&mut self) -> usize {
        u16::from_le_bytes(self.bytes()).into()
    }

    /// A size: small, of a usual magnitude, or any.
    fn size(&mut self) -> u64 {
        let kind = self.byte();
        match kind % 4 {
            0 => u64::from(kind / 4),
            1 => u64::from(self.byte()) << 26,
            2 => 1 << (kind / 4),
            _ => self.word(),
        }
    }
}

/// A buffer like a mapping: aligned, and writable by all.
struct Mapping {
    words: &'static [AtomicU64],
    /// What it holds when a run begins; zeros after its end.
    fresh: Vec<u64>,
    /// Words written outside `fresh`.
    dirty: Vec<usize>,
}

impl Mapping {
    fn of(bytes: usize) -> Self {
        let words: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Self { words: words.leak(), fresh: Vec::new(), dirty: Vec::new() }
    }

    /// What it holds now up to this byte is what it is reset to.
    fn keep(&mut self, bytes: usize) {
        self.fresh = self.words[..bytes / 8].iter().map(|word| word.load(Relaxed)).collect();
    }

    fn reset(&mut self) {
        // One copy rather than a loop of stores: this runs ten million times, under a fuzzer that watches each compare.
        // SAFETY: `fresh` was taken from the front of `words`, and no other thread uses them.
        unsafe {
            let words = self.words.as_ptr().cast::<u64>().cast_mut();
            std::ptr::copy_nonoverlapping(self.fresh.as_ptr(), words, self.fresh.len());
        }
        for at in self.dirty.drain(..) {
            self.words[at].store(0, Relaxed);
        }
    }

    fn poke(&mut self, word: usize, value: u64) {
        self.words[word].store(value, Relaxed);
        if word >= self.fresh.len() {
            self.dirty.push(word);
        }
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::from(self.words).cast()
    }

    fn word(&self, byte: usize) -> u64 {
        self.words[byte / 8].load(Relaxed)
    }

    fn half(&self, byte: usize) -> u32 {
        let word = self.word(byte - byte % 8);
        (if byte.is_multiple_of(8) { word } else { word >> 32 }) as u32
    }

    fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Why `length` bytes of this cannot be used, by the rules of the format.
    fn fault(&self, length: usize, needed: usize, kind: u32) -> Option<RegionFault> {
        let (found, min_reader) = (self.half(header::KIND), self.half(header::MIN_READER));
        match () {
            () if length < needed => Some(RegionFault::Short { found: length, needed }),
            () if self.word(header::MAGIC) != MAGIC => Some(RegionFault::Magic),
            () if found != kind => Some(RegionFault::Kind { found }),
            () if min_reader > VERSION => Some(RegionFault::Version { min_reader }),
            () => None,
        }
    }
}

/// What a process knows for itself, and what it holds by the model.
#[derive(Default)]
struct Process {
    own: AtomicU64,
    apart: AtomicU64,
    held: u64,
    unpaid: u64,
}

struct World {
    limits: Mapping,
    usage: Mapping,
    /// The usage file as its processes see it, opened before any poke at its header.
    view: UsageView<'static>,
    processes: [Process; PROCESSES],
    /// The limit that the processes last read; nothing where none could be read.
    limit: u64,
    /// `usage` was poked: only the limit of each process alone still holds.
    spoiled: bool,
    /// The one walk over all slots that a run may do.
    walked: bool,
    /// Checksums that a run may still ask for: they are dear, and more of them find nothing new.
    reads: usize,
}

impl World {
    fn new() -> Self {
        let mut limits = Mapping::of(2 * limits::BYTES);
        // SAFETY: the buffer has this length and outlives the writer.
        let writer = unsafe { LimitsWriter::new(limits.base(), limits.bytes()) };
        writer.expect("aligned and long enough").write(&some_limits(&mut Feed(&[1, 0, 32, 0])));
        limits.keep(limits::RECORDS + 2 * limits::RECORD_BYTES);
        let mut usage = Mapping::of(usage::BYTES + 4096);
        // SAFETY: the buffer is as long as it says and is never freed.
        let view =
            unsafe { UsageView::create(usage.base(), usage.bytes()) }.expect("aligned and long enough");
        usage.keep(usage::SLOTS + PROCESSES * usage::SLOT_BYTES);
        Self {
            limits,
            usage,
            view,
            processes: Default::default(),
            limit: 0,
            spoiled: false,
            walked: false,
            reads: READS_MAX,
        }
    }

    fn reset(&mut self) {
        self.limits.reset();
        self.usage.reset();
        self.processes = Default::default();
        (self.limit, self.spoiled, self.walked, self.reads) = (8 << 30, false, false, READS_MAX);
    }

    fn run(&mut self, feed: &mut Feed<'_>) {
        for _ in 0..STEPS_MAX {
            if feed.0.is_empty() {
                return;
            }
            match feed.byte() % 16 {
                0 => self.poke_limits(feed),
                1 => self.poke_record(feed),
                2 => self.poke_header(feed),
                3 => self.poke_usage(feed),
                4 => self.open(feed),
                5 => self.agent_writes(feed),
                6 | 7 => drop(self.read_limits()),
                8..=10 => self.reserve(feed),
                11 | 12 => self.release(feed),
                13 => self.report(),
                14 => self.recount(feed),
                _ => self.freeze_or_thaw(feed),
            }
        }
    }

    fn poke_limits(&mut self, feed: &mut Feed<'_>) {
        let at = feed.short() % self.limits.words.len();
        self.limits.poke(at, feed.word());
    }

    /// A record with a hostile field, mostly under a right checksum.
    fn poke_record(&mut self, feed: &mut Feed<'_>) {
        let (which, field) = (feed.byte(), usize::from(feed.byte()) % (limits::RECORD_BYTES / 8));
        let from = (limits::RECORDS + usize::from(which % 2) * limits::RECORD_BYTES) / 8;
        self.limits.poke(from + field, feed.size());
        if which & 0x3c != 0x3c {
            let sum = checksum(&self.limits.words[from..from + record::CHECKSUM / 8]);
            self.limits.poke(from + record::CHECKSUM / 8, sum);
        }
        self.limits.poke(limits::ACTIVE / 8, u64::from(which >> 6));
    }

    fn poke_header(&mut self, feed: &mut Feed<'_>) {
        let (field, value) = (feed.byte(), feed.byte());
        let mapping = if field & 1 == 0 { &mut self.limits } else { &mut self.usage };
        let at = [header::MAGIC, header::KIND, header::VERSION, header::SIZE, header::MIN_READER]
            [usize::from(field / 2) % 5];
        let (old, shift) = (mapping.word(at - at % 8), at % 8 * 8);
        let mask = if at == header::MAGIC { u64::MAX } else { 0xffff_ffff << shift };
        let value = if value == 255 { u64::MAX } else { u64::from(value) << shift };
        mapping.poke(at / 8, old & !mask | value & mask);
    }

    fn poke_usage(&mut self, feed: &mut Feed<'_>) {
        let place = feed.short();
        // Most pokes go where the words are that matter; the words of the header have a step of their own.
        let at = match place % 4 {
            0 => usage::TOTAL / 8,
            1 => (usage::TOTAL + place / 4 % 24 * 8) / 8,
            2 => (usage::SLOTS + place / 4 % (PROCESSES * usage::SLOT_BYTES)) / 8,
            _ => header::BYTES / 8 + place % (self.usage.words.len() - header::BYTES / 8),
        };
        self.usage.poke(at, feed.size());
        self.spoiled = true;
    }

    /// Either file, any length, any alignment: refused for the right reason, or whole.
    fn open(&self, feed: &mut Feed<'_>) {
        let (how, back) = (feed.byte(), feed.short());
        let (mapping, needed, kind) = match how & 1 {
            0 => (&self.limits, limits::BYTES, KIND_LIMITS),
            _ => (&self.usage, usage::BYTES, KIND_USAGE),
        };
        let length = mapping.bytes() - back % mapping.bytes();
        let odd = usize::from(how & 6 == 6) * 4;
        // SAFETY: one half word into the buffer at most.
        let base = unsafe { mapping.base().add(odd) };
        let length = length - odd.min(length);
        // SAFETY: within the buffer, which outlives the view.
        let opened = unsafe {
            match how & 1 {
                0 => LimitsView::new(base, length).map(|_| ()),
                _ => UsageView::new(base, length).map(|view| whole(view)),
            }
        };
        let expected = match mapping.fault(length, needed, kind) {
            Some(short @ RegionFault::Short { .. }) => Some(short),
            _ if odd != 0 => Some(RegionFault::Unaligned),
            other => other,
        };
        assert_eq!(opened.err(), expected, "{length} bytes of kind {kind}, {odd} beside");
    }

    fn agent_writes(&mut self, feed: &mut Feed<'_>) {
        let new = some_limits(feed);
        if self.reads == 0 {
            return;
        }
        // SAFETY: the buffer has this length and outlives the writer.
        let writer = unsafe { LimitsWriter::new(self.limits.base(), self.limits.bytes()) };
        writer.expect("aligned and long enough").write(&new);
        assert_eq!(self.read_limits(), Some(new), "what the agent wrote is read");
    }

    /// Reads what stands in `limits` and takes it over; nothing may be allocated where nothing can be read.
    fn read_limits(&mut self) -> Option<Limits> {
        self.reads = self.reads.checked_sub(1)?;
        let mapping = &self.limits;
        self.limit = 0;
        // SAFETY: the buffer outlives the view.
        let view = unsafe { LimitsView::new(mapping.base(), mapping.bytes()) };
        assert_eq!(view.err(), mapping.fault(mapping.bytes(), limits::BYTES, KIND_LIMITS));
        let view = view.ok()?;
        let second = usize::from(mapping.half(limits::ACTIVE) == 1);
        let at = limits::RECORDS + second * limits::RECORD_BYTES;
        assert_eq!(view.generation(), mapping.word(at + record::GENERATION));
        match view.read() {
            Ok(read) => {
                let stands = mapping.word(at + record::MEMORY_BYTES);
                let limit = match read.memory {
                    MemoryLimit::Bytes(limit) => limit,
                    MemoryLimit::Unlimited => u64::MAX,
                };
                assert_eq!(limit, stands, "the limit is the one that stands there");
                assert!(limit == u64::MAX || limit & FREEZE == 0);
                assert!(read.share_ppm <= 1_000_000 && read.granted_ppm <= 1_000_000 && read.generation > 0);
                assert_eq!(Limits::decode(&read.encode()), Ok(read), "what is read can be written");
                self.limit = limit;
                Some(read)
            }
            Err(fault) => {
                assert_ne!(fault, LimitsFault::Busy, "there is no other writer");
                None
            }
        }
    }

    fn with_books<T>(&self, number: usize, act: impl FnOnce(&MemoryAccounting<'_>) -> T) -> T {
        let view = self.view;
        let (slot, process) = (view.slot(number).expect("there are more slots"), &self.processes[number]);
        act(&MemoryAccounting {
            total: view.total(),
            high_water: view.high_water(),
            inside: slot.inside(),
            used: slot.used(),
            own: &process.own,
            apart: &process.apart,
            owed: slot.owed(),
        })
    }

    fn frozen(&self) -> bool {
        self.usage.word(usage::TOTAL) & FREEZE != 0
    }

    /// Bytes reserved by all processes in the model.
    fn sum(&self) -> u64 {
        self.processes.iter().map(|process| process.held + process.unpaid).sum()
    }

    fn reserve(&mut self, feed: &mut Feed<'_>) {
        let (number, bytes) = (usize::from(feed.byte()) % PROCESSES, feed.size());
        let frozen = self.frozen();
        let answer = self.with_books(number, |books| books.reserve(bytes, self.limit));
        if !frozen {
            self.processes[number].unpaid = 0;
        }
        let held = self.processes[number].held.checked_add(bytes).filter(|held| *held <= self.limit);
        match answer {
            Reservation::Granted => self.processes[number].held = held.expect("one process passed the limit"),
            Reservation::Denied { free } => assert!(free <= self.limit),
            Reservation::Frozen => assert!(frozen, "no recount is in progress"),
        }
        if !self.spoiled {
            let granted = answer == Reservation::Granted;
            let fits =
                granted || self.sum().checked_add(bytes).is_some_and(|sum| sum <= self.limit.min(BYTES));
            assert!(fits == granted || frozen, "{bytes} bytes fit and were refused: {answer:?}");
            assert!(!granted || self.sum() <= self.limit, "all together passed the limit");
        }
        self.check_books(number);
    }

    fn release(&mut self, feed: &mut Feed<'_>) {
        let (number, bytes) = (usize::from(feed.byte()) % PROCESSES, feed.size());
        let frozen = self.frozen();
        let answer = self.with_books(number, |books| books.release(bytes));
        let process = &mut self.processes[number];
        let given = bytes.min(process.held);
        process.held -= given;
        process.unpaid += given;
        let expected = if frozen && process.unpaid > 0 { Release::Owed } else { Release::Done };
        assert!(answer == expected || self.spoiled, "{answer:?}");
        if answer == Release::Done {
            process.unpaid = 0;
        }
        self.check_books(number);
    }

    /// The private words follow the model always, the shared ones while they are not poked.
    fn check_books(&self, number: usize) {
        let process = &self.processes[number];
        assert_eq!(process.own.load(Relaxed), process.held);
        if !self.spoiled {
            let slot = self.view.slot(number).expect("there are more slots");
            assert_eq!(slot.owed().load(Relaxed), process.unpaid);
            assert_eq!(slot.used().load(Relaxed), process.held + process.unpaid);
            assert_eq!(slot.inside().load(Relaxed), 0);
            assert_eq!(bytes_in(self.view.total().load(Relaxed)), self.sum());
        }
    }

    fn report(&self) {
        for (number, process) in self.processes.iter().enumerate() {
            let free = self.with_books(number, |books| books.free(self.limit));
            assert!(free <= self.limit.saturating_sub(process.held));
            assert!(self.spoiled || free == self.limit.saturating_sub(self.sum()));
        }
    }

    /// A reaper walks over some slots, or once a run over all; the processes of the set bits have exited.
    fn recount(&mut self, feed: &mut Feed<'_>) {
        let (dead, last) = (feed.byte(), feed.byte());
        let all = last > 250 && !std::mem::replace(&mut self.walked, true);
        let count = if all { 8 * PROCESSES } else { PROCESSES };
        let view = self.view;
        let is_dead = |number: usize| number < 8 && dead >> number & 1 != 0;
        let slots = (0..count).filter_map(|number| {
            let slot = view.slot(number)?;
            let seen = slot.owner().load(Relaxed);
            let owner = if is_dead(number) { Owner::Dead(!seen) } else { Owner::Alive };
            Some(Slot { inside: slot.inside(), used: slot.used(), word: slot.owner(), seen, owner })
        });
        let busy = slots.clone().any(|s| s.owner == Owner::Alive && s.inside.load(Relaxed) != 0);
        let living = slots.clone().filter(|s| s.owner == Owner::Alive);
        let living = living.fold(0_u64, |sum, s| sum.saturating_add(s.used.load(Relaxed))).min(BYTES);
        let before: Vec<u64> = slots.clone().map(|s| s.seen).collect();
        let earlier = AccountingFreeze::begin(view.total(), view.closings());
        let closing = AccountingFreeze::begin(view.total(), view.closings());
        assert!(matches!(earlier.recount(view.total(), std::iter::empty()), Recount::Overtaken));
        match closing.recount(view.total(), slots.clone()) {
            Recount::Busy => assert!(busy && self.frozen()),
            Recount::Overtaken => panic!("there is no other reaper"),
            Recount::Done { total, .. } => {
                assert!(!busy && !self.frozen());
                assert_eq!((total, self.usage.word(usage::TOTAL)), (living, living));
                let freed = before.iter().zip(0..).all(|(seen, number)| {
                    let now = view.slot(number).map(|slot| slot.owner().load(Relaxed));
                    now == Some(if is_dead(number) { !*seen } else { *seen })
                });
                assert!(freed, "exactly the slots of exited processes are free");
                for number in (0..PROCESSES).filter(|number| is_dead(*number)) {
                    // A new process begins with an empty slot.
                    let slot = view.slot(number).expect("there are more slots");
                    slot.used().store(0, Relaxed);
                    slot.owed().store(0, Relaxed);
                    slot.inside().store(0, Relaxed);
                    self.processes[number] = Process::default();
                }
                (0..PROCESSES).for_each(|number| self.check_books(number));
            }
        }
    }

    fn freeze_or_thaw(&self, feed: &mut Feed<'_>) {
        let total = self.view.total();
        let closing = AccountingFreeze::begin(total, self.view.closings());
        if feed.byte() % 4 != 0 {
            closing.open_as_they_are(total);
        }
    }
}

/// All slots that there are, and none beyond.
fn whole(view: UsageView<'_>) {
    assert!(view.slot(usage::SLOT_COUNT - 1).is_some() && view.slot(usage::SLOT_COUNT).is_none());
    assert!(view.slot(usize::MAX).is_none());
}
