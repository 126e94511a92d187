//! CEL selectors over devices, in the environment of Kubernetes' dynamic resource allocation.
//!
//! ```text
//!  text ──aliquot_cel, with the environment──▶ Selector ─┐
//!  device ─────────────────────────────────▶ DeviceView ─┴──▶ true, false or an error
//! ```
//!
//! A [`Selector`] is checked once: a misspelt field, an unknown function or a result that is no bool is an error of
//! [`Selector::compile`], which knows attributes that are lists, as the scheduler does of stored selectors. The API
//! server refuses new selectors by [`Selector::compile_new`], without lists unless the gate `DRAListTypeAttributes` is
//! on. A [`DeviceView`] is built once for each device. The language itself is `aliquot_cel`'s.
//!
//! The one variable is `device`, with `driver`, `attributes`, `capacity` and `allowMultipleAllocations`. Attributes and
//! capacities are filed by domain and name; bare names under the driver's. A domain that the device does not have is an
//! empty map, so that asking for an attribute of it is an error of the evaluation, which `||`, `&&`, `has` and `.?` handle.
//!
//! `docs/developer/upstream-differences.md` lists where the answer differs from upstream's.

mod reading;

use std::collections::BTreeMap;

use aliquot_cel::{Environment, Evaluation, Expression, FieldType, Input};

use crate::dra::{AttributeValue, Device, Sharing};

pub(crate) use reading::Reading;

pub use aliquot_cel::{
    CompileError as SelectorError, Cost, EXPRESSION_BYTES_MAX, ExpressionError, Lexeme, LexemeKind, lexemes,
};

/// The variable of a selector, with its fields.
const DEVICE: Environment = Environment {
    variable: "device",
    type_name: "kubernetes.DRADevice",
    fields: &[
        ("driver", FieldType::String),
        ("allowMultipleAllocations", FieldType::Bool),
        ("attributes", FieldType::Map(&FieldType::Map(&FieldType::Dyn))),
        ("capacity", FieldType::Map(&FieldType::Map(&FieldType::Quantity))),
    ],
    sizes: &[
        (&[], 0),
        (&["driver"], 63),
        (&["allowMultipleAllocations"], 1),
        (&["attributes"], 32),
        (&["attributes", "@keys"], 63),
        (&["attributes", "@values"], 32),
        (&["attributes", "@values", "@keys"], 32),
        (&["attributes", "@values", "*"], 64),
        (&["capacity"], 32),
        (&["capacity", "@keys"], 63),
        (&["capacity", "@values"], 32),
        (&["capacity", "@values", "@keys"], 32),
        (&["capacity", "@values", "@values"], 0),
    ],
};

/// The same where attributes are no lists.
const DEVICE_WITHOUT_LISTS: Environment = Environment {
    fields: &[
        DEVICE.fields[0],
        DEVICE.fields[1],
        ("attributes", FieldType::Map(&FieldType::Map(&FieldType::Any))),
        DEVICE.fields[3],
    ],
    ..DEVICE
};

/// A compiled selector. Cloning shares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Expression);

/// A device as selectors see it.
#[derive(Clone, Debug)]
pub struct DeviceView {
    device: Input,
    /// Why no selector can be evaluated against the device.
    unusable: Option<String>,
}

/// Why a selector has no answer for a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The device was published with something that no selector can be evaluated against.
    #[error("{0}")]
    Device(String),
    /// The expression failed on this device: an attribute it lacks, a type it did not expect; or it takes too many steps.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
}

// === impl Selector ===

impl Selector {
    /// Compiles `text` as the scheduler does.
    ///
    /// # Errors
    /// The text is too long, not an expression, or means nothing in the environment.
    pub fn compile(text: &str) -> Result<Self, SelectorError> {
        Expression::compile(text, &DEVICE).map(Self)
    }

    /// Compiles `text` as the API server with default gates does before it stores it.
    ///
    /// # Errors
    /// As [`Self::compile`], or the text needs attributes that are lists.
    pub fn compile_new(text: &str) -> Result<Self, SelectorError> {
        Expression::compile(text, &DEVICE_WITHOUT_LISTS).map(Self)
    }

    /// The text it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.text()
    }

    /// The most that it can cost on any device, which the API server compares with [`Cost::MAX`] before it stores it.
    #[must_use]
    pub const fn worst_case(&self) -> Cost {
        self.0.worst_case()
    }

    /// Whether the device is selected.
    ///
    /// # Errors
    /// The expression has no answer for the device; the scheduler stops allocating for the claim then.
    pub fn matches(&self, view: &DeviceView) -> Result<bool, EvaluationError> {
        self.evaluate(view, Cost::MAX).0
    }

    /// Whether the device is selected, if that costs no more than `most`, and the cost.
    pub(crate) fn evaluate(&self, view: &DeviceView, most: Cost) -> (Result<bool, EvaluationError>, Cost) {
        match &view.unusable {
            Some(why) => (Err(EvaluationError::Device(why.clone())), Cost::default()),
            None => {
                let Evaluation { answer, cost } = self.0.evaluate(&view.device, most);
                (answer.map_err(EvaluationError::from), cost)
            }
        }
    }

    /// The values that it names and reads; `None`: it reads more.
    pub(crate) fn reading(&self) -> Option<Reading> {
        Reading::of(&self.0)
    }

    /// All that the selector reads of a device: two devices with the same text have the same answer.
    pub(crate) fn read(&self, view: &DeviceView) -> String {
        view.unusable.clone().unwrap_or_else(|| self.0.reading(&view.device))
    }
}

// === impl DeviceView ===

impl DeviceView {
    /// Whether selectors can be evaluated against a device at all.
    pub(crate) fn is_usable(device: &Device) -> bool {
        device.attributes.values().all(|value| match value {
            AttributeValue::Version(_) | AttributeValue::Versions(_) => attribute_value(value).is_ok(),
            _ => true,
        })
    }

    /// The view of a device that `driver` publishes.
    #[must_use]
    pub fn new(driver: &str, device: &Device) -> Self {
        let mut unusable = None;
        let mut attributes = ByDomain::new(driver);
        for (name, attribute) in device.attributes.iter() {
            match attribute_value(attribute) {
                Ok(value) => attributes.file(name, value),
                Err(why) => {
                    unusable.get_or_insert(format!("attribute {name}: {why}"));
                }
            }
        }
        let mut capacity = ByDomain::new(driver);
        for (name, entry) in &device.capacity {
            capacity.file(name, Input::quantity(entry.value));
        }
        let device = Input::map([
            ("driver", Input::text(driver)),
            ("allowMultipleAllocations", Input::bool(device.sharing == Sharing::Shareable)),
            ("attributes", attributes.into_input()),
            ("capacity", capacity.into_input()),
        ]);
        Self { device, unusable }
    }
}

/// The value of an attribute. A server stores lists only while the gate for them is on, so the scheduler reads them too.
fn attribute_value(attribute: &AttributeValue) -> Result<Input, String> {
    match attribute {
        AttributeValue::Int(value) => Ok(Input::int(*value)),
        AttributeValue::Bool(value) => Ok(Input::bool(*value)),
        AttributeValue::String(value) => Ok(Input::text(value)),
        AttributeValue::Version(text) => Input::version(text),
        AttributeValue::Ints(values) => Ok(Input::list(values.iter().copied().map(Input::int))),
        AttributeValue::Bools(values) => Ok(Input::list(values.iter().copied().map(Input::bool))),
        AttributeValue::Strings(values) => Ok(Input::list(values.iter().map(|text| Input::text(text)))),
        AttributeValue::Versions(values) => {
            let versions: Result<Vec<Input>, String> =
                values.iter().map(|text| Input::version(text)).collect();
            versions.map(Input::list)
        }
    }
}

/// Values by domain and name.
struct ByDomain<'a> {
    driver: &'a str,
    domains: BTreeMap<&'a str, Vec<(&'a str, Input)>>,
}

// === impl ByDomain ===

impl<'a> ByDomain<'a> {
    fn new(driver: &'a str) -> Self {
        Self { driver, domains: BTreeMap::new() }
    }

    fn file(&mut self, name: &'a str, value: Input) {
        let (domain, name) = name.split_once('/').unwrap_or((self.driver, name));
        self.domains.entry(domain).or_default().push((name, value));
    }

    fn into_input(self) -> Input {
        Input::map_of_maps(self.domains.into_iter().map(|(domain, inner)| (domain, Input::map(inner))))
    }
}

#[cfg(test)]
mod tests;
