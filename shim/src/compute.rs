//! Launches under a share of compute time, and streams whose work is recorded instead of run.

pub(crate) mod captures;
pub(crate) mod pacing;
