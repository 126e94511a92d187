//! What gauges are made of, and the form in which families keep them.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::gauge::Gauge;

use crate::agent::card_figures::CardFigures;
use crate::agent::observe::ShareUse;
use crate::agent::store::NodeView;

/// What gauges are made of.
#[derive(Clone, Copy)]
pub struct NodeReadings<'r> {
    /// The node at the last look; `None`: it was not read yet.
    pub view: Option<&'r NodeView>,
    /// What shares use.
    pub uses: &'r [ShareUse],
    /// What drivers report of cards.
    pub figures: &'r CardFigures,
}

/// The way in which gauges of fractions are kept.
pub(super) type Ratio = Gauge<f64, AtomicU64>;

/// Names and values, in the order of the table; names are not Rust's.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A number as gauges have it.
pub(super) fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A count as gauges have it.
pub(super) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
