//! Launches under a share of compute time, and streams with work that is recorded instead of run.

pub(crate) mod captures;
pub(crate) mod pacing;
