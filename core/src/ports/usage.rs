//! What a driver reports of a card at run time: memory, processes, compute time, events.

use std::fmt;
use std::time::Duration;

use super::error::BackendError;
use crate::health::Cause;
use crate::partition::Part;
use crate::units::Bytes;

/// Memory of a card and the processes on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardUsage {
    /// Memory that can be allocated in total.
    pub memory: Bytes,
    /// Memory in use by any process.
    pub in_use: Bytes,
    /// Percent of the driver's last sampling period in which the card worked; `None` if the driver does not report it.
    pub busy_percent: Option<u32>,
    /// Processes by number, with their memory where the driver reports it.
    pub processes: Vec<(u32, Option<Bytes>)>,
}

/// Compute time in the driver's latest samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// The card's, oldest first.
    pub card: Vec<CardSample>,
    /// Process number and percent; processes that are not listed used none. Drivers differ in the time that a percentage
    /// stands for: since the question before, or the last sampling window. So it tells proportions, and `card` tells time.
    pub processes: Vec<(u32, u32)>,
}

/// Part of a sampling window in which anything ran on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardSample {
    /// The driver's time of the end of the window, in microseconds.
    pub ended_micros: u64,
    /// Percent.
    pub percent: u32,
}

/// An event of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardEvent {
    /// Cause; an error code is the vendor's.
    pub cause: Cause,
    /// The partition that the driver named, else the card.
    pub part: Part,
}

/// A driver that reports events of one card. A caller blocks in it.
pub trait CardEvents: Send + fmt::Debug {
    /// The next event; `None` if there was none for `longest`, or none that matters.
    ///
    /// # Errors
    /// The driver does not wait for events.
    fn next(&mut self, longest: Duration) -> Result<Option<CardEvent>, BackendError>;
}
