//! One node, put together: hardware, ledger, journal, files. The command line holds a [`Node`], the node agent a [`NodeService`].
//!
//! ```text
//!   Site: fixed while open        hardware, directories, turns ─┐
//!   State: promises and ledger ───┬─ alone ───▶ Node            ├─▶ Operation: prepare, release, repair
//!                                 └─ locked ──▶ NodeService ────┘
//! ```
//!
//! | below the state directory | content |
//! |---|---|
//! | `lock` | one process at a time makes changes |
//! | `journal` | what is promised |
//! | `grants/…` | what tenants are shown |
//! | `shims/…` | the shim that containers load, by version |
//! | `lib/…` | the shim that commands of local runs load |
//! | `contexts` | how much of each card a context takes |
//! | `health` | what was observed of the cards |
//! | `cdi/…` | what container runtimes read, unless another directory is named |
//! | `hardware/…` | the simulated hardware, where there is no real one |
//!
//! [`Node::invariants`] compares ledger, journal, hardware and files, and every test calls it after every action.

mod agree;
mod amend;
mod contexts;
mod lock;
mod monitor;
mod open;
mod operate;
mod parts;
mod preview;
pub mod recover;
mod service;
mod single;
mod site;
mod state;
mod tend;
mod turns;

pub use agree::Differs;
pub use contexts::{ContextMeasurement, MeasuredContext};
pub use parts::{Dirs, NodeParts, OpenError};
pub use service::{NodeService, NodeSnapshot};
pub use single::Node;

pub use crate::state_dir::Access;
