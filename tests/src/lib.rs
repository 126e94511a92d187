//! What the tests of Aliquot share: upstream Kubernetes as the judge, and random cases to put before it.
//!
//! ```text
//!  generate ──▶ cases as API JSON ──┬──▶ aliquot_core ──▶ our answer ──┐
//!                                   └──▶ oracle (Go)  ──▶ upstream's ──┴──▶ equal, or a minimal case
//! ```

pub mod bare;
pub mod command_line;
pub mod exposition;
pub mod fake_apiserver;
pub mod fake_kubelet;
pub mod fault;
pub mod generate;
pub mod journal_text;
pub mod local;
pub mod machine;
pub mod node;
pub mod npus;
pub mod oracle;
pub mod preload;
pub mod prometheus;
pub mod running_agent;
pub mod scenes;
pub mod seed;
pub mod shares;
pub mod shown;
pub mod silence;
pub mod simulated;
pub mod site;
pub mod talk;
pub mod watched_store;
