//! A command line, run in this process.

#![expect(clippy::unwrap_used, reason = "output that is no text fails the test that wants it")]

use std::ffi::OsString;

use aliquot_driver::cli::{Colour, Progress, RedrawMode, Terminal, run};

/// What one command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Its exit code.
    pub code: u8,
    /// What it wrote to standard output.
    pub out: String,
    /// And to standard error.
    pub err: String,
}

/// Runs `aliquot` with these words, its own name among them, and nothing to read. No person watches.
///
/// # Panics
/// It writes what is no text.
#[must_use]
pub fn ran(words: impl IntoIterator<Item = OsString>) -> Ran {
    let (mut out, mut err, mut input) = (Vec::new(), Vec::new(), std::io::empty());
    let mut terminal = Terminal {
        out: &mut out,
        err: &mut err,
        input: &mut input,
        colour: Colour::Off,
        progress: Progress::Off,
        screen: RedrawMode::None,
    };
    let code = run(words, &mut terminal);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code, out: text(out), err: text(err) }
}
