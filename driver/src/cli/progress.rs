//! Progress of long work, on standard error while a person watches.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::clock::now;

use super::output::Progress;

/// Work that is done sooner shows nothing.
const FIRST_AFTER: Duration = Duration::from_millis(500);
/// Time between two lines.
const EVERY: Duration = Duration::from_millis(200);

/// A line that is rewritten in place.
pub(super) struct StatusLine<'a> {
    err: &'a mut dyn Write,
    show: Progress,
    next: Instant,
    shown: ProgressLine,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgressLine {
    Nothing,
    Something,
}

// === impl StatusLine ===

impl<'a> StatusLine<'a> {
    pub(super) fn new(err: &'a mut dyn Write, show: Progress) -> Self {
        Self { err, show, next: now() + FIRST_AFTER, shown: ProgressLine::Nothing }
    }

    /// Says how far the work is, if it is time to.
    pub(super) fn at(&mut self, what: &str, done: usize, all: usize) {
        if self.show == Progress::Off || now() < self.next {
            return;
        }
        self.next = now() + EVERY;
        // Progress that cannot be shown is no reason to stop.
        if write!(self.err, "\r{what} {done} of {all}").and_then(|()| self.err.flush()).is_ok() {
            self.shown = ProgressLine::Something;
        }
    }
}

impl Drop for StatusLine<'_> {
    fn drop(&mut self) {
        if self.shown == ProgressLine::Something && write!(self.err, "\r\u{1b}[2K").is_err() {
            self.show = Progress::Off;
        }
    }
}
