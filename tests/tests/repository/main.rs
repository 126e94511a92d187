//! The tree itself: arrows, names, pages, symbol lists and the suite for real cards.

mod developer;
mod documents;
mod gpu_suite;
mod packages;
mod symbols;
mod tidy;
