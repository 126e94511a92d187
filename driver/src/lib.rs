//! Part of Aliquot; see ARCHITECTURE.md.

pub mod cli;
pub mod manifest;
