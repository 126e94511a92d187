//! CEL selectors: compiled once per text, evaluated once per device description, and a dear one only once for all devices
//! of which it reads the same values.
//!
//! Dear evaluations of all selectors together have a budget. Kubernetes' scheduler gives up on a node after ten seconds;
//! a bound by steps answers the same on every machine.

use std::collections::HashMap;

use super::index::{EntryNo, Index, numbered};
use crate::cel::{Cost, DeviceView, EvaluationError, ExpressionError, Reading, Selector};

numbered! {
    /// A selector text.
    SelectorNo,
}

/// An evaluation that costs more is dear: what it said is remembered in any case. Selectors that people write cost less than
/// a tenth.
const DEAR: Cost = Cost(200);

/// What all dear evaluations may cost together: some seconds.
const BUDGET: Cost = Cost(250_000_000);

/// Evaluations after which remembering those that are not dear must have paid.
const TRIAL: usize = 4_096;

/// Every selector seen so far and what it said.
#[derive(Debug, Default)]
pub(super) struct Selectors {
    numbers: HashMap<String, SelectorNo>,
    compiled: Vec<CompiledSelector>,
    /// Whether selectors can be evaluated against the device, by entry.
    usable: Vec<Option<Usability>>,
    /// The cost of dear evaluations.
    pub(super) spent: Cost,
    /// Room for what is read of a device.
    reading: Vec<u8>,
}

#[derive(Debug)]
struct CompiledSelector {
    text: String,
    program: Result<Selector, String>,
    /// The values that it names and reads; `None`: it reads more, or does not compile.
    reading: Option<Reading>,
    /// By entry; grows as entries are evaluated.
    verdicts: Vec<SelectorOutcome>,
    /// By what is read of a device.
    answers: HashMap<Box<[u8]>, Answer>,
    /// Devices whose answer was known from another one.
    known: usize,
    dear: Dear,
}

#[derive(Clone, Debug)]
struct Answer {
    outcome: SelectorOutcome,
    /// Why it is broken.
    message: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dear {
    /// An evaluation was.
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Usability {
    Usable,
    Unusable,
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
        self.compiled.push(CompiledSelector::new(text));
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
        self.usable.resize(index.entries.len(), None);
        let usable = *self.usable[entry.at()].get_or_insert_with(|| device.usability());
        let outcome = compiled.evaluate(device, usable, &mut self.reading, &mut self.spent);
        compiled.verdicts[entry.at()] = outcome;
        outcome
    }

    /// Why the verdict is [`SelectorOutcome::Broken`].
    pub(super) fn failure(&self, selector: SelectorNo, index: &Index, entry: EntryNo) -> String {
        let compiled = &self.compiled[selector.at()];
        let program = match &compiled.program {
            Ok(program) => program,
            Err(message) => return message.clone(),
        };
        let mut device = EvaluatedDevice::new(index, entry);
        let mut reading = Vec::new();
        let usable = device.usability();
        compiled.read(&mut device, usable, &mut reading);
        let known = compiled.answers.get(reading.as_slice()).and_then(|answer| answer.message.as_deref());
        known.map_or_else(
            || program.matches(device.view()).err().map(|error| error.to_string()).unwrap_or_default(),
            str::to_owned,
        )
    }
}

// === impl EvaluatedDevice ===

impl<'a> EvaluatedDevice<'a> {
    pub(super) const fn new(index: &'a Index, entry: EntryNo) -> Self {
        Self { index, entry, view: None }
    }

    fn usability(&self) -> Usability {
        let described = self.index.described(self.entry);
        if DeviceView::is_usable(described) { Usability::Usable } else { Usability::Unusable }
    }

    fn driver(&self) -> &'a str {
        &self.index.slices[self.index.entries[self.entry.at()].slice.at()].driver
    }

    fn view(&mut self) -> &DeviceView {
        let (driver, entry, index) = (self.driver(), self.entry, self.index);
        self.view.get_or_insert_with(|| DeviceView::new(driver, index.described(entry)))
    }
}

// === impl CompiledSelector ===

impl CompiledSelector {
    fn new(text: &str) -> Self {
        let program = Selector::compile(text).map_err(|error| error.to_string());
        Self {
            text: text.to_owned(),
            reading: program.as_ref().ok().and_then(Selector::reading),
            program,
            verdicts: Vec::new(),
            answers: HashMap::new(),
            known: 0,
            dear: Dear::No,
        }
    }

    fn evaluate(
        &mut self,
        device: &mut EvaluatedDevice<'_>,
        usable: Usability,
        reading: &mut Vec<u8>,
        spent: &mut Cost,
    ) -> SelectorOutcome {
        let Ok(selector) = &self.program else { return SelectorOutcome::Broken };
        // A look at few values is cheaper than an evaluation, unless they differ from device to device.
        let pays = self.answers.len() < TRIAL || self.answers.len() < self.known;
        let remembers =
            self.dear == Dear::Yes || pays && self.reading.is_some() && usable == Usability::Usable;
        if remembers {
            self.read(device, usable, reading);
            if let Some(answer) = self.answers.get(reading.as_slice()) {
                self.known += 1;
                return answer.outcome;
            }
        }
        let left = Cost(BUDGET.0.saturating_sub(spent.0)).max(DEAR);
        let (answer, cost) = selector.evaluate(device.view(), left);
        let is_dear = cost > DEAR || cost == left;
        let answer = Answer::of(answer);
        let outcome = answer.outcome;
        if is_dear {
            spent.0 = spent.0.saturating_add(cost.0);
            self.dear = Dear::Yes;
            self.read(device, usable, reading);
        }
        if is_dear || remembers {
            self.answers.insert(reading.as_slice().into(), answer);
        }
        outcome
    }

    /// Writes what it reads of the device.
    fn read(&self, device: &mut EvaluatedDevice<'_>, usable: Usability, reading: &mut Vec<u8>) {
        reading.clear();
        match (&self.reading, usable, &self.program) {
            (Some(named), Usability::Usable, _) => {
                named.write(device.driver(), device.index.described(device.entry), reading);
            }
            (_, _, Ok(selector)) => reading.extend(selector.read(device.view()).into_bytes()),
            (_, _, Err(_)) => {}
        }
    }
}

// === impl Answer ===

impl Answer {
    fn of(answer: Result<bool, EvaluationError>) -> Self {
        let error = match answer {
            Ok(true) => return Self { outcome: SelectorOutcome::Passes, message: None },
            Ok(false) => return Self { outcome: SelectorOutcome::Fails, message: None },
            Err(error) => error,
        };
        let message = match error {
            EvaluationError::Expression(ExpressionError::OverAllowance(_)) => format!(
                "the selectors of this command have taken {} steps together, the most that are spent on them; the \
                 scheduler gives up on a node after 10 s of them. Write this one without nested all, exists, map or filter",
                BUDGET.0
            ),
            other => other.to_string(),
        };
        Self { outcome: SelectorOutcome::Broken, message: Some(message.into()) }
    }
}
