//! A kill at a chosen place: the n-th effect on disk or hardware does not happen, and nothing after it does.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use aliquot_driver::disk::Seam;

/// Counts places, and stops the world at one of them. Every effect is a place, and so is every byte of a file.
#[derive(Debug)]
pub struct Kill {
    left: AtomicUsize,
}

// === impl Kill ===

impl Default for Kill {
    fn default() -> Self {
        Self { left: AtomicUsize::new(usize::MAX) }
    }
}

impl Kill {
    /// From now on, `places` more are passed, and then nothing happens any more.
    pub fn after(&self, places: usize) {
        self.left.store(places, Ordering::SeqCst);
    }

    /// Places left before the stop.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }

    fn take(&self, places: usize) -> usize {
        let less = |left: usize| Some(left - places.min(left));
        let (Ok(left) | Err(left)) = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        places.min(left)
    }
}

impl Seam for Kill {
    fn before(&self, effect: &str) -> io::Result<()> {
        match self.take(1) {
            1 => Ok(()),
            _ => Err(io::Error::other(format!("killed before: {effect}"))),
        }
    }

    fn bytes(&self, _effect: &str, length: usize) -> usize {
        self.take(length)
    }
}
