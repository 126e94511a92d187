//! Part of Aliquot; see ARCHITECTURE.md.
