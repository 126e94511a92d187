//! Part of Aliquot; see ARCHITECTURE.md.

pub mod checkpoint;
pub mod cli;
pub mod clock;
pub mod config;
pub mod disk;
mod grant_file;
pub mod manifest;
pub mod node;
pub mod prepare;
pub mod recover;
