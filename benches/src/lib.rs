//! What the benches of Aliquot share: how long to measure, how to sum up, and the nodes and claims that are measured.
//!
//! ```text
//!  fleet: personality × layout × copies ──▶ slices, classes, nodes ─┐
//!  fleet: claims ───────────────────────────────────────────────────┴▶ a bench ─▶ measure ─▶ report: a table
//! ```
//!
//! Benches that compare with upstream, or whose promise is a table, print Markdown: a page of `results/` is what they
//! print. `cargo bench` runs them in full and fails where a promise is not kept; with `-- --test`, and under
//! `cargo test`, every bench does each of its things once, small, and only what it answers is checked.

pub mod fleet;
pub mod measure;
pub mod report;
