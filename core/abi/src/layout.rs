//! Where each byte lies; the only place that knows offsets.
//!
//! Every field names its writer, its reader and its unit. All numbers are little-endian and naturally aligned; both
//! files are mapped whole.

/// First eight bytes of either file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ALIQUOT\x01");

/// Version that this code writes.
pub const VERSION: u32 = 1;

/// Oldest reader that understands what this code writes.
pub const MIN_READER: u32 = 1;

/// `kind` of the limits file.
pub const KIND_LIMITS: u32 = 1;

/// `kind` of the usage file.
pub const KIND_USAGE: u32 = 2;

/// Offsets of the frozen header, the same in both files. Written once by the agent, before the file gets its name.
pub mod header {
    /// `u64`, [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// `u32`, [`super::KIND_LIMITS`] or [`super::KIND_USAGE`].
    pub const KIND: usize = 8;
    /// `u32`, version of the writer.
    pub const VERSION: usize = 12;
    /// `u32`, bytes of the whole file.
    pub const SIZE: usize = 16;
    /// `u32`, oldest reader that may use the file.
    pub const MIN_READER: usize = 20;
    /// Bytes of the header; the rest up to here is zero.
    pub const BYTES: usize = 64;
}

/// Offsets in the limits file.
pub mod limits {
    /// `u32`, 0 or 1: which record is in force. Writer: agent, after the record is whole. Reader: shim.
    pub const ACTIVE: usize = 64;
    /// `u64`, monotonic nanoseconds until which what is granted beyond the guarantee is granted; 0: as long as the record says so.
    /// Writer: agent, later with each look at the card, so that one that is stopped lends nothing. Reader: shim.
    pub const LENT_UNTIL: usize = 72;
    /// First byte of record 0.
    pub const RECORDS: usize = 128;
    /// Bytes of a record.
    pub const RECORD_BYTES: usize = 512;
    /// Bytes of the file: one page.
    pub const BYTES: usize = 4096;
}

/// Offsets in one limits record. Writer: agent. Reader: shim.
pub mod record {
    /// `u64`, grows with each change; 0 means never written.
    pub const GENERATION: usize = 0;
    /// `u64`, bytes of device memory; `u64::MAX` is unlimited.
    pub const MEMORY_BYTES: usize = 8;
    /// `u32`, share of the card's time that is guaranteed, in parts per million; 0 is best effort.
    pub const SHARE_PPM: usize = 16;
    /// `u32`, share that is granted now, in parts per million; under burst it may exceed the guaranteed one.
    pub const GRANTED_PPM: usize = 20;
    /// `u32`, [`crate::limits::ComputePolicy`].
    pub const POLICY: usize = 24;
    /// `u32`, smaller goes first.
    pub const PRIORITY: usize = 28;
    /// `u32`, [`crate::limits::FailMode`].
    pub const FAIL_MODE: usize = 32;
    /// `u32`, [`crate::limits::ManagedPolicy`].
    pub const MANAGED: usize = 36;
    /// `u32`, bytes of the card's UUID.
    pub const UUID_LENGTH: usize = 40;
    /// `u32`, bytes of the claim's UID.
    pub const CLAIM_LENGTH: usize = 44;
    /// `u32`, of the time in which the tenant had work on the card, the part in which the card worked for it, in parts per
    /// million; less than 1,000,000 where other tenants' work took turns with it. 0 reads as 1,000,000.
    pub const OWN_PPM: usize = 48;
    /// `u32`, pages of device memory on this card: the power of two of those of allocations that have an address in the lowest byte,
    /// of those of arrays in the next one; 0: not measured, then 21 (2 MiB) is assumed.
    pub const PAGES: usize = 52;
    /// `u64`, bytes of device memory that one context takes on this card, as the host measured it; 0: not measured.
    pub const CONTEXT_BYTES: usize = 56;
    /// Text, the card's UUID as the vendor spells it.
    pub const UUID: usize = 64;
    /// Most bytes of the UUID.
    pub const UUID_MAX: usize = 96;
    /// Text, the claim's UID.
    pub const CLAIM: usize = 160;
    /// Most bytes of the claim's UID.
    pub const CLAIM_MAX: usize = 64;
    /// `u64`, FNV-1a over everything before it.
    pub const CHECKSUM: usize = 504;
}

/// Offsets in the usage file. Writers: the tenant's processes. Readers: they and the agent.
pub mod usage {
    /// `u64`, bytes reserved by all processes; the top bit freezes reservations while a reaper recounts, and the fifteen below it
    /// say then which closing of the books that is ([`CLOSINGS`]).
    pub const TOTAL: usize = 64;
    /// `u64`, greatest value of `total`.
    pub const HIGH_WATER: usize = 128;
    /// `u64`, calls refused by the tenant's processes: each once, however often they tried to serve it.
    pub const DENIED: usize = 136;
    /// `u64`, calls of vendor symbols that no table knows.
    pub const UNKNOWN_SYMBOLS: usize = 144;
    /// `u64`, dead processes whose holding was given back.
    pub const REAPED: usize = 152;
    /// `u32`, futex word: 0, or the monotonic milliseconds at which a thread began to measure what a call takes of the card;
    /// one at a time, as far as the others wait for it. Odd: who is about to move memory waits for it, too, not for long.
    pub const MEASURING: usize = 160;
    /// `u32`, futex word: 0, or the monotonic milliseconds at which a thread began to make a context of which nobody knew how
    /// much of the card it takes; one at a time, as far as the others wait for it.
    pub const MAKING: usize = 164;
    /// `u64`, bytes of device memory plus one that a context takes on this card, as one of the tenant's processes measured it;
    /// 0: none did. What the limits say goes before.
    pub const CONTEXT_BYTES: usize = 168;
    /// `u64`, how often the books were closed, so that who closed them finds out that somebody else did so since.
    pub const CLOSINGS: usize = 176;
    /// `i64`, device nanoseconds that may still be used before launches wait; negative is debt. Writers: the tenant's
    /// processes, and the agent, which adds what their bills were off by.
    pub const CREDIT_NANOS: usize = 192;
    /// `u64`, monotonic nanoseconds at which `credit_nanos` was last refilled.
    pub const REFILLED_AT: usize = 200;
    /// `u64`, device nanoseconds used since the file was made.
    pub const DEVICE_NANOS: usize = 208;
    /// `u32`, futex word that changes when credit or limits change. Writers: the tenant's processes, and the agent after
    /// it changed the limits.
    pub const WAKE: usize = 216;
    /// `u32`, futex word that changes when the tenant begins to use the card, or a launch begins to wait. The agent waits
    /// on it while it has nothing to share out.
    pub const DEMAND: usize = 220;
    /// `u64`, monotonic nanoseconds until which the tenant has, or is about to have, work on the card.
    pub const ACTIVE_UNTIL: usize = 224;
    /// `u64`, monotonic nanoseconds until which launches wait for credit.
    pub const LIMITED_UNTIL: usize = 232;
    /// `u64`, nanoseconds in which the tenant's processes had work on the card, turns of others included; summed over the
    /// processes.
    pub const INTERVAL_NANOS: usize = 240;
    /// `u64`, monotonic nanoseconds up to which any process reported time.
    pub const COUNTED_UNTIL: usize = 248;
    /// `u64`, the process that last reported time, and when, to tell one process from several at work:
    /// `pid << 32 | milliseconds`.
    pub const REPORTER: usize = 256;
    /// `i64`, nanoseconds in which the card certainly worked for the tenant and that were not charged yet; negative where
    /// more was charged.
    pub const SURE_NANOS: usize = 264;
    /// First of the `u64` words that mark such time, one for each stretch of the recent past.
    pub const SURE: usize = 1024;
    /// Number of these words.
    pub const SURE_COUNT: usize = 128;
    /// First of the `u32` cells of device time used, one for each stretch of the recent past.
    pub const CELLS: usize = 2048;
    /// Number of cells.
    pub const CELL_COUNT: usize = 512;
    /// First of the bytes behind the file whose record locks tell who has memory that was lent: one for each slot and
    /// generation ([`super::slot::lock_of_lent`]).
    pub const LENT_LOCKS: u64 = 1 << 40;
    /// The one whose record lock tells that somebody has memory open that was lent in a crowd ([`super::slot::CROWD`]).
    pub const CROWD_LOCK: u64 = LENT_LOCKS - 1;
    /// First of the bytes behind the file whose record locks keep processes apart that pay for memory which the dead exported
    /// ([`super::slot::lock_of_adopter`]).
    pub const ADOPTERS: u64 = 1 << 45;
    /// First of the bytes behind the file whose locks are signs that processes live ([`super::slot::SIGN`]).
    pub const SIGNS: u64 = 1 << 50;
    /// First byte of slot 0.
    pub const SLOTS: usize = 4096;
    /// Bytes of a slot: two cache lines, so that neighbours do not share one.
    pub const SLOT_BYTES: usize = 128;
    /// Number of slots: most processes of one grant that hold device memory at once.
    pub const SLOT_COUNT: usize = 1024;
    /// Bytes of the file.
    pub const BYTES: usize = SLOTS + SLOT_BYTES * SLOT_COUNT;
}

/// Offsets in one slot. Writer: its owner; a reaper frees it after the owner's death. Most slots are processes'; some are of
/// one allocation that its maker lets other processes open, and that outlives its maker's free and its maker, or of all those of
/// its maker that have no slot of their own.
pub mod slot {
    /// `u64`, `generation << 32 | marks | pid`; pid 0 is a free slot. The generation grows with each owner.
    pub const OWNER: usize = 0;
    /// The bits of [`OWNER`] that name a process: no kernel has higher numbers.
    pub const PID: u64 = (1 << 22) - 1;
    /// A mark of [`OWNER`]: the owner was found dead. It stays so, and the slot is freed by whoever next reaps.
    pub const GONE: u64 = 1 << 31;
    /// A mark of [`OWNER`], of lent memory: the last who had it lets go of it, and nobody takes hold of it any more.
    pub const CLOSING: u64 = 1 << 30;
    /// The least of the bits of [`OWNER`] that count, of lent memory, how often somebody took hold of it: whoever had found nobody
    /// to hold it before finds another word than he saw. Who sees that its maker has its lock, and its [`KIND`] is [`LENT`], counts
    /// nothing: libraries of before know what they lend by the whole word.
    const HOLD: u64 = 1 << 22;

    /// The process of an owner word; 0: the slot is free.
    #[must_use]
    pub const fn pid_in(owner: u64) -> u32 {
        (owner & PID) as u32
    }

    /// The same owner's slot, free: the next one counts on from it.
    #[must_use]
    pub const fn freed(owner: u64) -> u64 {
        owner >> 32 << 32
    }

    /// The word once somebody more took hold of it.
    #[must_use]
    pub const fn held_again(owner: u64) -> u64 {
        let counts = CLOSING - HOLD;
        owner & !counts | owner.wrapping_add(HOLD) & counts
    }
    /// `u64`, start time of the owner in clock ticks since boot: tells it from a later process with its pid.
    pub const START_TIME: usize = 8;
    /// `u64`, inode of the owner's pid namespace: `pid` means something only there.
    pub const PID_NAMESPACE: usize = 16;
    /// `u32`, threads of the owner that are between reserving and recording.
    pub const INSIDE: usize = 24;
    /// `u32`, [`LENT`] or [`LET_GO`]: of memory that is lent, and whether its maker has it; else a process's slot.
    /// Of lent memory the other words name the maker.
    pub const KIND: usize = 28;
    /// A value of [`KIND`]: lent memory that its maker has.
    pub const LENT: u32 = 1;
    /// A value of [`KIND`]: lent memory that its maker has freed. It lives as long as somebody holds a lock for it.
    pub const LET_GO: u32 = 2;
    /// `u64`, bytes this process has reserved: the truth that `total` sums up.
    pub const USED: usize = 32;
    /// `u64`, device nanoseconds this process has used.
    pub const DEVICE_NANOS: usize = 40;
    /// `u64`, monotonic nanoseconds since when this process may have work on the card that is not on the books; 0: it has none.
    /// A reaper puts what a dead process left onto the books.
    pub const UNBILLED_SINCE: usize = 48;
    /// `u32`, calls of the owner that may move memory on the card: so many began.
    pub const BEGUN: usize = 64;
    /// `u32`, so many of them are over, and what they moved is in the books.
    pub const ENDED: usize = 68;
    /// `u32`, of the owner: bit 0: it has pools, graphs or sparse arrays, which give memory back before the books say so; bit 1: it has
    /// a context past the hooks, which may end without a word.
    pub const LOOSE: usize = 72;
    /// `u64`, of lent memory: FNV-1a over the handle by which it is opened, or [`CROWD`].
    pub const TAG: usize = 56;
    /// A value of [`TAG`]: all that the maker lends without a slot of its own, and what of that it freed while some of a crowd
    /// was open. It lives as long as the maker, and as anybody has memory of any crowd open.
    pub const CROWD: u64 = u64::MAX;
    /// `u64`, a byte of the file on which the owner holds a lock that it can lose by nothing but its end, in [`SIGNS`]; 0: it has
    /// none. In slots of lent memory it is the maker's.
    pub const SIGN: usize = 80;
    /// `u64`, bytes that the owner gave back while the books were closed: still in [`USED`] and in the total until it takes them
    /// off.
    pub const OWED: usize = 88;
    /// The byte of the file on which there is a lock as long as the owner of this [`SIGN`], or a child that it forked, has the
    /// descriptors that the owner had when it first took a slot: a driver's among them, which keep a dead owner's memory. `None`:
    /// that is no sign.
    #[must_use]
    pub const fn lock_of_files(sign: u64) -> Option<u64> {
        if sign < SIGNS.start || sign >= SIGNS.end { None } else { Some(sign + (1 << 51)) }
    }
    /// What [`SIGN`] may be.
    pub const SIGNS: core::ops::Range<u64> = super::usage::SIGNS..super::usage::SIGNS + (1 << 50);

    /// The byte that a process locks while it pays for memory of this [`TAG`] that nobody had when its maker ended.
    #[must_use]
    pub const fn lock_of_adopter(tag: u64) -> u64 {
        super::usage::ADOPTERS + (tag & 0xff_ffff)
    }

    /// The byte on which the maker and everybody who has lent memory open hold a shared record lock, while slot `number` has the
    /// owner word `owner`. Another owner has another byte, so that no lock is ever taken for a later one's. Of crowds it is one
    /// byte, which only those lock who have some of it open.
    #[must_use]
    pub const fn lock_of_lent(number: u32, owner: u64, tag: u64) -> u64 {
        if tag == CROWD {
            return super::usage::CROWD_LOCK;
        }
        super::usage::LENT_LOCKS + ((owner >> 32) << 10 | (number as u64 & 1023))
    }
}

const _: () = assert!(limits::LENT_UNTIL.is_multiple_of(8) && limits::LENT_UNTIL + 8 <= limits::RECORDS);
const _: () = assert!(limits::RECORDS + 2 * limits::RECORD_BYTES <= limits::BYTES);
const _: () = assert!(record::UUID + record::UUID_MAX <= record::CLAIM);
const _: () = assert!(record::CLAIM + record::CLAIM_MAX <= record::CHECKSUM);
const _: () = assert!(record::CHECKSUM + 8 == limits::RECORD_BYTES);
const _: () = assert!(limits::RECORDS.is_multiple_of(64) && usage::SLOTS.is_multiple_of(4096));
const _: () = assert!(usage::SLOT_BYTES.is_multiple_of(64) && limits::RECORD_BYTES.is_multiple_of(8));
const _: () =
    assert!(usage::CELLS.is_multiple_of(64) && usage::CELLS + 4 * usage::CELL_COUNT <= usage::SLOTS);
const _: () = assert!(usage::BYTES == 135_168 && usage::SLOT_COUNT == 1 << 10);
