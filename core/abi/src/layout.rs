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
    /// `u64`, monotonic nanoseconds at which compute time beyond the guarantee ends; 0: no end but the
    /// record's. Writer: agent, renewed at each sample of the card, so that a stopped agent lends nothing.
    /// Reader: shim.
    pub const LENT_UNTIL: usize = 72;
    /// `u64`, bytes that the driver has given to the tenant's processes beyond what their slots hold exactly, as the last look
    /// found; 0: none, or no look. Writer: the card's governor. Reader: shim.
    pub const RESIDUE: usize = 80;
    /// `u64`, monotonic nanoseconds at which the look that found it began; 0: there was none. Writer: the card's governor, after
    /// the residue and the correction of presumptions. Reader: shim.
    pub const LOOKED_AT: usize = 88;
    /// `u32`, the value of [`super::usage::LOOK_WANTED`] before that look. Writer: the card's governor, before the time. Reader:
    /// shim.
    pub const LOOKED_FOR: usize = 96;
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
    /// `u64`, bytes of device memory that one context takes on this card, as the driver showed the host; 0: unknown.
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
    /// `u64`, bytes reserved by all processes. The top bit freezes reservations during a reaper's recount;
    /// the fifteen bits below it then hold the number of that recount ([`CLOSINGS`]).
    pub const TOTAL: usize = 64;
    /// `u64`, greatest value of `total`.
    pub const HIGH_WATER: usize = 128;
    /// `u64`, calls refused by the tenant's processes: each once, however often they tried to serve it.
    pub const DENIED: usize = 136;
    /// `u64`, calls of vendor symbols that no table knows.
    pub const UNKNOWN_SYMBOLS: usize = 144;
    /// `u64`, exited processes that a reaper released reservations of.
    pub const REAPED: usize = 152;
    /// `u32`, futex word: 0, or the monotonic milliseconds at which a thread began a free-memory delta
    /// measurement. One runs at a time, as far as the others wait for it. Odd: operations that move memory
    /// wait for it too, for a bounded time.
    pub const MEASURING: usize = 160;
    /// `u64`, bytes of device memory plus one that no context on this card exceeds, as one of the tenant's processes
    /// found; 0: unknown. The size in the limits file takes precedence.
    pub const CONTEXT_BYTES: usize = 168;
    /// `u64`, number of recounts so far. A reaper detects by it that another reaper started a recount after
    /// its own.
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
    /// `u32`, futex word that changes when a process presumed memory, gave presumed memory back, or is about to be refused memory:
    /// the governor looks at the driver's account soon.
    pub const LOOK_WANTED: usize = 512;
    /// `u32`, refusals recorded so far: the next one is written at this number modulo [`REFUSAL_COUNT`].
    pub const REFUSED: usize = 516;
    /// First of the records of the last refusals ([`super::refusal`]).
    pub const REFUSALS: usize = 576;
    /// Number of these records.
    pub const REFUSAL_COUNT: usize = 8;
    /// First of the `u64` words that mark such time, one for each stretch of the recent past.
    pub const SURE: usize = 1024;
    /// Number of these words.
    pub const SURE_COUNT: usize = 128;
    /// First of the `u32` cells of device time used, one for each stretch of the recent past.
    pub const CELLS: usize = 2048;
    /// Number of cells.
    pub const CELL_COUNT: usize = 512;
    /// First of the bytes behind the file with record locks of the holders of IPC-shared memory: one
    /// for each slot and generation ([`super::slot::lock_of_lent`]).
    pub const LENT_LOCKS: u64 = 1 << 40;
    /// First of the bytes behind the file with record locks of importers that start to pay, one at a time, for memory
    /// of an exited exporter ([`super::slot::lock_of_adopter`]).
    pub const ADOPTERS: u64 = 1 << 45;
    /// First of the bytes behind the file with locks that show that processes are live ([`super::slot::SIGN`]).
    pub const SIGNS: u64 = 1 << 50;
    /// First byte of slot 0.
    pub const SLOTS: usize = 4096;
    /// Bytes of a slot: two cache lines, so that neighbours do not share one.
    pub const SLOT_BYTES: usize = 128;
    /// Number of slots: most processes of one grant that hold device memory at once.
    pub const SLOT_COUNT: usize = 1024;
    /// Number of the first slots, whose blocks on disk are there from the beginning. Before a process takes another slot it has the
    /// file system allocate that, since a store into a hole of a full disk ends a process.
    pub const FIRST_SLOTS: usize = 128;
    /// Bytes that are on disk from the beginning.
    pub const FIRST_BYTES: usize = SLOTS + SLOT_BYTES * FIRST_SLOTS;
    /// Bytes of the file.
    pub const BYTES: usize = SLOTS + SLOT_BYTES * SLOT_COUNT;
}

/// Offsets in one record of a refusal. Writers: the tenant's processes. Reader: the host, which shows it.
pub mod refusal {
    /// `u64`, monotonic nanoseconds of the refusal; 0: none, or it is being written.
    pub const AT: usize = 0;
    /// `u64`, bytes that the call would have taken; 0: not known.
    pub const WANTED: usize = 8;
    /// `u64`, bytes that were reserved.
    pub const RESERVED: usize = 16;
    /// `u64`, bytes of the residue.
    pub const RESIDUE: usize = 24;
    /// `u64`, the limit in bytes; `u64::MAX` is unlimited.
    pub const LIMIT: usize = 32;
    /// `u32`, the process, in its own pid namespace.
    pub const PID: usize = 40;
    /// `u32`, [`crate::refusal::RefusalCause`] `<< 16 |` [`crate::refusal::RefusedKind`].
    pub const CODE: usize = 44;
    /// Bytes of a record.
    pub const BYTES: usize = 48;
}

/// Offsets in one slot. Writer: its owner; a reaper frees the slot after the owner exits. Most slots belong
/// to processes. Some stand for one IPC-shared allocation, which outlives its exporter and the exporter's
/// free.
pub mod slot {
    /// `u64`, `generation << 32 | marks | pid`; pid 0 is a free slot. The generation grows with each owner.
    pub const OWNER: usize = 0;
    /// The bits of [`OWNER`] that name a process: no kernel has higher numbers.
    pub const PID: u64 = (1 << 22) - 1;
    /// A mark of [`OWNER`]: the owner has exited. The mark stays until a reaper frees the slot.
    pub const GONE: u64 = 1 << 31;
    /// A mark of [`OWNER`], of IPC-shared memory: its last holder releases it, and no process takes hold of
    /// it any more.
    pub const CLOSING: u64 = 1 << 30;
    /// The lowest bit of a counter in [`OWNER`], of IPC-shared memory: the number of times a process took
    /// hold of it. A reaper that found no holder before thus finds a changed word.
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

    /// The word after one more process took hold of it.
    #[must_use]
    pub const fn held_again(owner: u64) -> u64 {
        let counts = CLOSING - HOLD;
        owner & !counts | owner.wrapping_add(HOLD) & counts
    }
    /// `u64`, start time of the owner in clock ticks since boot: distinguishes it from a later process with
    /// its pid.
    pub const START_TIME: usize = 8;
    /// `u64`, inode of the owner's pid namespace: `pid` means something only there.
    pub const PID_NAMESPACE: usize = 16;
    /// `u32`, threads of the owner that are between reserving and recording.
    pub const INSIDE: usize = 24;
    /// `u32`, [`LENT`] or [`LET_GO`] in a slot of IPC-shared memory, by whether its exporter has the memory;
    /// else a process's slot. In a slot of shared memory the other words name the exporter.
    pub const KIND: usize = 28;
    /// A value of [`KIND`]: IPC-shared memory that its exporter has.
    pub const LENT: u32 = 1;
    /// A value of [`KIND`]: IPC-shared memory that its exporter freed. It lasts as long as a process holds a
    /// lock for it.
    pub const LET_GO: u32 = 2;
    /// `u64`, bytes this process has reserved: the truth that `total` sums up.
    pub const USED: usize = 32;
    /// `u64`, device nanoseconds this process has used.
    pub const DEVICE_NANOS: usize = 40;
    /// `u64`, monotonic nanoseconds since when this process may have unaccounted work on the card; 0: it has
    /// none. A reaper accounts for what an exited process left.
    pub const UNBILLED_SINCE: usize = 48;
    /// `u32`, calls of the owner that may move memory on the card: so many began.
    pub const BEGUN: usize = 64;
    /// `u32`, so many of them are over, and what they moved is accounted.
    pub const ENDED: usize = 68;
    /// `u32`, of the owner: bit 0: it has pools, graphs or sparse arrays, which release memory before the
    /// accounting does; bit 1: it has a context made past the hooks, which may end without notice.
    pub const LOOSE: usize = 72;
    /// `u64`, of IPC-shared memory: FNV-1a over the handle by which it is opened, or the mark of its
    /// descriptors.
    pub const TAG: usize = 56;
    /// `u64`, a byte of the file, in [`SIGNS`], with a lock that the owner loses only by its exit; 0: it has
    /// none. In slots of IPC-shared memory it is the exporter's.
    pub const SIGN: usize = 80;
    /// `u64`, bytes that the owner released during a recount. They stay in [`USED`] and in the total until
    /// the owner takes them off.
    pub const OWED: usize = 88;
    /// `u64`, the part of [`USED`] that was presumed, not known: contexts. Writers: the owner, and the card's governor, which
    /// lowers it to what the driver shows.
    pub const PRESUMED: usize = 96;
    /// The byte with a lock as long as the owner of this [`SIGN`], or a child that it forked, has the
    /// descriptors that the owner had when it first took a slot. A driver's descriptors are among them, and
    /// keep an exited owner's memory. `None`: `sign` is out of range.
    #[must_use]
    pub const fn lock_of_files(sign: u64) -> Option<u64> {
        if sign < SIGNS.start || sign >= SIGNS.end { None } else { Some(sign + (1 << 51)) }
    }
    /// What [`SIGN`] may be.
    pub const SIGNS: core::ops::Range<u64> = super::usage::SIGNS..super::usage::SIGNS + (1 << 50);

    /// The byte that a process locks while it starts to pay for memory of this [`TAG`] that had no holder
    /// when its exporter exited.
    #[must_use]
    pub const fn lock_of_adopter(tag: u64) -> u64 {
        super::usage::ADOPTERS + (tag & 0xff_ffff)
    }

    /// The byte on which the exporter and each importer hold a shared record lock, while slot `number` has
    /// the owner word `owner`. Another owner has another byte, so a lock is never mistaken for a later
    /// owner's.
    #[must_use]
    pub const fn lock_of_lent(number: u32, owner: u64) -> u64 {
        super::usage::LENT_LOCKS + ((owner >> 32) << 10 | (number as u64 & 1023))
    }
}

const _: () = assert!(limits::LENT_UNTIL.is_multiple_of(8) && limits::LOOKED_FOR + 4 <= limits::RECORDS);
const _: () = assert!(usage::LOOK_WANTED.is_multiple_of(4) && usage::LOOK_WANTED + 4 <= usage::SURE);
const _: () = assert!(usage::LOOK_WANTED + 4 <= usage::REFUSED && usage::REFUSED + 4 <= usage::REFUSALS);
const _: () = assert!(usage::REFUSALS.is_multiple_of(64) && refusal::CODE + 4 <= refusal::BYTES);
const _: () = assert!(usage::REFUSALS + usage::REFUSAL_COUNT * refusal::BYTES <= usage::SURE);
const _: () = assert!(slot::PRESUMED + 8 <= usage::SLOT_BYTES);
const _: () = assert!(limits::RECORDS + 2 * limits::RECORD_BYTES <= limits::BYTES);
const _: () = assert!(record::UUID + record::UUID_MAX <= record::CLAIM);
const _: () = assert!(record::CLAIM + record::CLAIM_MAX <= record::CHECKSUM);
const _: () = assert!(record::CHECKSUM + 8 == limits::RECORD_BYTES);
const _: () = assert!(limits::RECORDS.is_multiple_of(64) && usage::SLOTS.is_multiple_of(4096));
const _: () = assert!(usage::SLOT_BYTES.is_multiple_of(64) && limits::RECORD_BYTES.is_multiple_of(8));
const _: () =
    assert!(usage::CELLS.is_multiple_of(64) && usage::CELLS + 4 * usage::CELL_COUNT <= usage::SLOTS);
const _: () = assert!(usage::BYTES == 135_168 && usage::SLOT_COUNT == 1 << 10);
