//! What a demonstration showed, against what was expected.

use crate::cli::failure::Failure;
use crate::cli::output::{Terminal, Tone};

/// Where the demo differs from what must come out.
#[derive(Default)]
pub(super) struct DemoRecord {
    pub(super) differences: Vec<String>,
}

pub(super) fn heading(title: &str, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let title = terminal.toned(Tone::Strong, title);
    terminal.line("")?;
    terminal.line(format_args!("== {title}"))?;
    Ok(())
}

// === impl DemoRecord ===

impl DemoRecord {
    pub(super) fn differs(&mut self, scene: &str, what: &str) {
        self.differences.push(format!("{scene}: {what}"));
    }
}
