//! The journal: what this node has promised, on disk before it is done.
//!
//! ```text
//!   Change ──convert──▶ v1 (its own types) ──frame──▶ one line ──log──▶ appended and synced ──▶ Journal (values)
//! ```
//!
//! Each claim has a record with its whole plan, its kind and its phase. Each partition of ours has a record with the handle
//! that hardware gave it. The record of a partition is on disk before the partition exists, so nothing of ours exists
//! that the journal does not know, and nothing that it does not know is ever destroyed.
//!
//! **One change, one line, one sync.** A change is appended as one line and synced; it counts from then on
//! ([`JournalStore::commit`]). A log that has grown to several times its content is replaced by rename with a snapshot.
//!
//! **A torn line is told apart from a damaged one.** After each sync the log notes in its second line, the seal, how far it
//! is acknowledged. A kill can cut short only the one line behind the seal, which no caller was told of: that line is cut.
//! Every other missing or altered byte is damage. A power failure may lose the newest seal, never a synced line: a whole line
//! behind the seal counts.
//!
//! **What cannot be read is kept.** A truncated, altered, foreign or newer file is refused with its name, the offset,
//! what was found and what to do. Nothing is wiped; no claim is prepared until a person has decided.

mod bounds;
mod change;
mod convert;
mod error;
mod file;
mod frame;
mod health;
mod journal;
mod maintenance;
mod policy;
mod sizes;
mod store;
mod v1;

pub use bounds::{CLAIMS_MAX, FILE_BYTES_MAX, MIN_READER, RECORD_BYTES_MAX, VERSION};
pub use change::{Change, JournalEntry};
pub use error::{ConvertError, JournalError};
pub use file::JournalFile;
pub use frame::{DecodedJournal, decode, encode};
pub use health::{CardHealth, CardHealthError};
pub use journal::{ClaimKind, ClaimRecord, Journal, NewerFields, PartitionProgress, Phase};
pub use maintenance::{MAINTENANCE, MaintenanceFile};
pub use policy::{KeptPolicy, REFUSED};
pub use sizes::{ContextDevice, ContextSizes, FAILURE_KEPT, SizesFault};
pub use store::JournalStore;

// === impl Journal ===
