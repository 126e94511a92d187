//! What the benches of Aliquot share: how long to measure, how to sum up, and the nodes and claims that are measured.
//!
//! ```text
//!  fleet: personality × layout × copies ──▶ slices, classes, nodes ─┐
//!  fleet: claims ───────────────────────────────────────────────────┴▶ a bench ─▶ measure ─▶ report: a table
//! ```
//!
//! Benches that compare with upstream, or that promise a table, print Markdown: a page of `results/` is their
//! output. `cargo bench` runs them in full and fails if a promise is broken. With `-- --test`, and under
//! `cargo test`, every bench does each of its things once, small, and only the answers are checked.

pub mod command;
pub mod fleet;
pub mod measure;
pub mod report;
