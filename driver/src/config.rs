//! Settings from outside: each key once, with what it means.
//!
//! | key | from | meaning |
//! |---|---|---|
//! | `NO_COLOR` | environment | not empty: answers carry no colours, wherever they go (no-color.org) |

use crate::cli::Colour;

/// Whether the environment lets answers have colours.
#[must_use]
pub fn colours() -> Colour {
    match std::env::var_os("NO_COLOR") {
        Some(value) if !value.is_empty() => Colour::Off,
        _ => Colour::On,
    }
}
