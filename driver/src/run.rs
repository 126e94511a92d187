//! Plain processes in the place of containers: one machine, no cluster, the same ledger, journal and grants.
//!
//! ```text
//!   ask ─▶ claim ─▶ allocator ─▶ Node::prepare ─▶ command with the shim ─▶ its end ─▶ Node::release
//!    │       │                        │                  │ signals, exit code
//!    │       └ runs/<uid>, locked ◀───┘                  └─ governor: the dead reaped, compute granted
//!    └ what of which card                                └─ watch: what the card tells of itself, noted
//! ```
//!
//! A claim of this kind belongs to the process that runs its command. That process holds a lock on the run's record for as
//! long as it lives; when it is gone, however it went, the next call that opens the node for changes finds the record
//! unlocked and gives the claim back, as soon as none of the command's processes lives either ([`record`]). What tells of these
//! is in `signs`.

pub mod ask;
pub mod cards;
pub mod governor;
pub mod machine;
pub mod record;
mod signs;
pub mod simulated;
pub mod supervise;
pub mod watch;
