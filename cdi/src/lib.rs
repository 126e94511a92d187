//! Writes the files by which a container runtime gives a container its part of a card.
//!
//! A grant becomes *edits* (device nodes, read-only mounts, constant environment). The edits of all grants of a claim
//! are merged under their owners' names, become one spec, and one file in a directory that the
//! runtime reads. The format is the Container Device Interface (CDI), 0.3.0 or 0.5.0. Files of other
//! programs are not read.
//!
//! ```text
//!  grant A ──edits──┐                                    pure │ edge
//!  grant B ──edits──┼─▶ MergedEdits ─▶ ClaimSpecBuilder ─▶ ClaimSpec ─▶ CdiDir::write ─▶ aliquot.dev-claim-<uid>.json
//!  claim   ──edits──┘   (owners)        (checks, version)   │                                     │
//!                                                             │           container runtime ◀───────┘
//! ```
//!
//! Reading order: [`name`], [`edits`], [`preload`], [`owners`], [`claim`], `spec`, [`store`].
//!
//! Invariants:
//! - Only [`store`] does input or output; everything else takes values and returns values.
//! - Only a [`ClaimSpec`] is ever written, and one can only be made by the builder: it is valid by construction,
//!   asks for the lowest version that has its features, and has no field for a hook.
//! - The same grants give the same bytes, in whatever order they came.

pub mod claim;
pub mod edits;
pub mod name;
pub mod owners;
pub mod preload;
mod spec;
pub mod store;

pub use claim::{BuildError, ClaimSpec, ClaimSpecBuilder};
pub use edits::{DeviceNode, Edit, EnvName, EnvValue, Mount, PlainPath};
pub use name::{ClaimUid, QualifiedName, RequestName, ShareName};
pub use owners::{Conflict, MergedEdits, Owner};
pub use store::{CdiDir, StoreError};
