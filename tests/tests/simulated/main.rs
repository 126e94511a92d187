//! The simulated cards and vendor libraries themselves.

mod cuda;
mod events;
mod files;
mod held;
mod identity;
mod mig;
