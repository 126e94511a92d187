//! The region: the pair of files by which the node and a tenant's processes meet.
//!
//! ```text
//!   limits  (written by the agent, mounted read-only)        usage  (read and written by the tenant's processes)
//!   ┌────────────────────────────────────────────┐           ┌──────────────────────────────────────────────────┐
//!   │ header   magic kind version size min_reader│           │ header                                           │
//!   │ active   0 or 1: the record in force       │           │ counters  total high-water denied unknown …      │
//!   │ record 0 ┐ the agent writes the other one, │           │ slot 0    owner start inside used …               │
//!   │ record 1 ┘ then flips `active`             │           │ slot 1 …  one a process, never moved             │
//!   └────────────────────────────────────────────┘           └──────────────────────────────────────────────────┘
//! ```
//!
//! The tenant is not trusted. It can write any byte of `usage`, and nothing it writes there lifts a limit in
//! `limits`: usage out of range reads as full. The agent may exit at any instruction: `limits` always has one
//! whole record in force, guarded by a checksum.
//!
//! Versions: the header is frozen. A reader of version *v* accepts a file if its `min_reader` is at most *v*
//! and its `size` holds the fields that *v* needs. Fields that an older writer did not know read as zero,
//! which for each field is the behaviour without it. Fields are appended, never moved; a change of meaning
//! raises `min_reader`.
//!
//! | version | what came |
//! |---|---|
//! | 1 | everything here |
//!
//! No allocation, no clock, no system call: the caller maps the files and passes the bytes.

#![no_std]

pub mod layout;
pub mod limits;
pub mod refusal;
pub mod view;
