//! Part of Aliquot; see ARCHITECTURE.md.

pub mod manifest;
