//! Writes the files by which a container runtime gives a container its part of a card.
//!
//! A grant becomes *edits* (device nodes, read-only mounts, constant environment). The edits of all grants of a claim
//! are merged under their owners' names, become one [`Spec`](spec::Spec), and one file in a directory that the
//! runtime reads. The format is the Container Device Interface (CDI), 0.3.0 to 1.1.0.
//!
//! ```text
//!  grant A ──edits──┐                                    pure │ edge
//!  grant B ──edits──┼─▶ MergedEdits ─▶ ClaimSpecBuilder ─▶ ClaimSpec ─▶ CdiDir::write ─▶ aliquot.dev-claim-<uid>.json
//!  claim   ──edits──┘   (owners)        (validate, version)   │                                     │
//!                                                             │           container runtime ◀───────┘
//! ```
//!
//! Reading order: [`name`], [`edits`], [`preload`], [`owners`], [`claim`], [`spec`], [`version`], [`validate`], [`store`].
//!
//! Invariants:
//! - Only [`store`] does input or output; everything else takes values and returns values.
//! - Only a [`ClaimSpec`] is ever written, and one can only be made by the builder: it validates,
//!   asks for the lowest version that has its features, and holds no hook.
//! - The same grants give the same bytes, in whatever order they came.

pub mod claim;
pub mod edits;
pub mod name;
pub mod owners;
pub mod preload;
pub mod spec;
pub mod store;
pub mod validate;
pub mod version;

pub use claim::{BuildError, ClaimSpec, ClaimSpecBuilder};
pub use edits::{DeviceNode, Edit, EnvName, EnvValue, Mount, PlainPath};
pub use name::{ClaimUid, Kind, QualifiedName, RequestName, ShareName};
pub use owners::{Conflict, MergedEdits, Owner};
pub use store::{CdiDir, StoreError};
