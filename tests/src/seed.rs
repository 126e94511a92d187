//! The seed of a random test: printed, and given by `ALIQUOT_SEED` to repeat a run.

use std::time::{SystemTime, UNIX_EPOCH};

/// Sets the seed.
const VARIABLE: &str = "ALIQUOT_SEED";

/// The seed that the environment gives, else one from the clock; printed, never 0.
///
/// # Panics
/// `ALIQUOT_SEED` is no number.
#[must_use]
#[expect(clippy::panic, reason = "a test must not run with another seed than it was given")]
pub fn seed() -> u64 {
    let seed: u64 = match std::env::var(VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{VARIABLE}: found {text:?}, expected a number")),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            now.subsec_nanos().into()
        }
    };
    let seed = seed.max(1);
    println!("{VARIABLE}={seed}");
    seed
}
