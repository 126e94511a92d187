//! Aliquot's partitioning core: pure code that decides what a card may become, who holds what, and where a claim goes.

pub mod dra;
pub mod quantity;
