//! Memory and processes of a card as they are reported to the tenant.

pub(crate) mod monitored;
pub(crate) mod processes;
pub(crate) mod shown;
