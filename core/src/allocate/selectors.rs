//! CEL selectors: compiled once per text, evaluated once per device description.

use std::collections::HashMap;

use super::index::{EntryNo, Index, numbered};
use crate::cel::{DeviceView, Selector};

numbered! {
    /// A selector text.
    SelectorNo,
}

/// Every selector seen so far and what it said.
#[derive(Debug, Default)]
pub(super) struct Selectors {
    numbers: HashMap<String, SelectorNo>,
    compiled: Vec<CompiledSelector>,
}

#[derive(Debug)]
struct CompiledSelector {
    text: String,
    program: Result<Selector, String>,
    /// By entry; grows as entries are evaluated.
    verdicts: Vec<SelectorOutcome>,
}

/// A device under evaluation: its view for selectors is made once, and only if a selector runs.
pub(super) struct EvaluatedDevice<'a> {
    index: &'a Index,
    entry: EntryNo,
    view: Option<DeviceView>,
}

/// What a selector says of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelectorOutcome {
    Unknown,
    Passes,
    Fails,
    /// It does not compile, or cannot be evaluated on this device.
    Broken,
}

// === impl Selectors ===

impl Selectors {
    /// The number of a selector text, compiling it when it is new.
    pub(super) fn number(&mut self, text: &str) -> SelectorNo {
        if let Some(known) = self.numbers.get(text) {
            return *known;
        }
        let number = SelectorNo::after(self.compiled.len());
        let program = Selector::compile(text).map_err(|error| error.to_string());
        self.compiled.push(CompiledSelector { text: text.to_owned(), program, verdicts: Vec::new() });
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The compiler's message, if the text does not compile.
    pub(super) fn compile_error(&self, selector: SelectorNo) -> Option<&str> {
        self.compiled[selector.at()].program.as_ref().err().map(String::as_str)
    }

    /// The text of a selector.
    pub(super) fn text(&self, selector: SelectorNo) -> &str {
        &self.compiled[selector.at()].text
    }

    /// What the selector says of the device; remembered.
    pub(super) fn verdict(
        &mut self,
        selector: SelectorNo,
        device: &mut EvaluatedDevice<'_>,
    ) -> SelectorOutcome {
        let EvaluatedDevice { index, entry, .. } = *device;
        let compiled = &mut self.compiled[selector.at()];
        if compiled.verdicts.len() <= entry.at() {
            compiled.verdicts.resize(index.entries.len(), SelectorOutcome::Unknown);
        }
        let known = compiled.verdicts[entry.at()];
        if known != SelectorOutcome::Unknown {
            return known;
        }
        let verdict = match device.evaluate(&compiled.program) {
            Ok(true) => SelectorOutcome::Passes,
            Ok(false) => SelectorOutcome::Fails,
            Err(_) => SelectorOutcome::Broken,
        };
        compiled.verdicts[entry.at()] = verdict;
        verdict
    }

    /// Why the verdict is [`SelectorOutcome::Broken`].
    pub(super) fn failure(&self, selector: SelectorNo, index: &Index, entry: EntryNo) -> String {
        match EvaluatedDevice::new(index, entry).evaluate(&self.compiled[selector.at()].program) {
            Err(message) => message,
            Ok(_) => String::new(),
        }
    }
}

// === impl EvaluatedDevice ===

impl<'a> EvaluatedDevice<'a> {
    pub(super) const fn new(index: &'a Index, entry: EntryNo) -> Self {
        Self { index, entry, view: None }
    }

    fn evaluate(&mut self, program: &Result<Selector, String>) -> Result<bool, String> {
        let selector = program.as_ref().map_err(Clone::clone)?;
        let view = self.view.get_or_insert_with(|| {
            let slice = self.index.entries[self.entry.at()].slice;
            DeviceView::new(&self.index.slices[slice.at()].driver, self.index.described(self.entry))
        });
        selector.matches(view).map_err(|error| error.to_string())
    }
}
