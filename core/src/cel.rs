//! CEL selectors over devices, in the environment of Kubernetes' dynamic resource allocation (1.36, default gates).
//!
//! ```text
//!  text ──lexer, parser, macros──▶ expression ──checker──▶ program ─┐
//!  device ───────────────────────────────────────▶ DeviceView ──────┴──▶ true, false or an error
//! ```
//!
//! A [`Selector`] is checked once, as the API server checks it: a misspelt field, an unknown function or a result that
//! is no bool is an error of [`Selector::compile`]. A [`DeviceView`] is built once for each device. Evaluating one
//! against the other copies nothing and is bounded: by the depth of an expression, by its length, and by a meter that
//! counts steps in upstream's unit of cost.
//!
//! The one variable is `device`, with `driver`, `attributes`, `capacity` and `allowMultipleAllocations`. Attributes and
//! capacities are filed by domain and name; bare names under the driver's. A domain that the device does not have is an
//! empty map, so that asking for an attribute of it is an error of the evaluation, which `||`, `&&`, `has` and `.?` handle.
//!
//! Invariants: no text makes this panic, hang or recurse without bound; the same text and device give the same answer.
//! `docs/developer/upstream-differences.md` lists where the answer differs from upstream's.

mod ast;
mod checker;
mod declarations;
mod format;
mod functions;
mod lexer;
mod macros;
mod network;
mod parser;
mod program;
mod typing;
mod value;
mod version;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::dra::{AttributeValue, Device, Sharing};
use program::{Node, Run};
use value::{Fault, Map, Missing, Value};
use version::Version;

/// Longest expression in bytes, as the API has it.
pub const EXPRESSION_BYTES_MAX: usize = 10 * 1024;

/// A compiled selector. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Selector {
    text: Arc<str>,
    program: Arc<Node>,
}

/// A device as selectors see it.
#[derive(Clone, Debug)]
pub struct DeviceView {
    device: Value,
    /// Why no selector can be evaluated against the device.
    unusable: Option<String>,
}

/// Why a text is not a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text is longer than the API allows.
    #[error("the selector has {found} bytes; at most {EXPRESSION_BYTES_MAX} are allowed")]
    TooLong {
        /// Bytes found.
        found: usize,
    },
    /// The text is not an expression.
    #[error("line {line}, column {column}: {why}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong.
        why: String,
    },
    /// The expression names something unknown, mixes types, or does not yield a bool.
    #[error("line {line}, column {column}: {why}")]
    Meaning {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong.
        why: String,
    },
}

/// Why a selector has no answer for a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The device was published with something that no selector can be evaluated against.
    #[error("{0}")]
    Device(String),
    /// The expression failed on this device: an attribute it lacks, a type it did not expect.
    #[error("{0}")]
    Expression(String),
    /// The result is not a bool.
    #[error("the selector yields a {found}, not a bool")]
    NotBool {
        /// Type of the result.
        found: &'static str,
    },
    /// The evaluation takes more steps than upstream allows.
    #[error("the selector costs too much to evaluate: the limit is 1000000 steps")]
    TooCostly,
}

// === impl Selector ===

impl Selector {
    /// Compiles `text`.
    ///
    /// # Errors
    /// The text is too long, not an expression, or means nothing in the environment.
    pub fn compile(text: &str) -> Result<Self, SelectorError> {
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(SelectorError::TooLong { found: text.len() });
        }
        let expr = parser::parse(text).map_err(|error| {
            let (line, column) = position(text, error.at);
            SelectorError::Syntax { line, column, why: error.why }
        })?;
        let program = checker::check(&expr).map_err(|error| {
            let (line, column) = position(text, error.at);
            SelectorError::Meaning { line, column, why: error.why }
        })?;
        Ok(Self { text: text.into(), program: Arc::new(program) })
    }

    /// The text it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the device is selected.
    ///
    /// # Errors
    /// The expression has no answer for the device; the scheduler stops allocating for the claim then.
    pub fn matches(&self, view: &DeviceView) -> Result<bool, EvaluationError> {
        if let Some(why) = &view.unusable {
            return Err(EvaluationError::Device(why.clone()));
        }
        match self.program.eval(&mut Run::new(&view.device)) {
            Ok(Value::Bool(selected)) => Ok(selected),
            Ok(other) => Err(EvaluationError::NotBool { found: other.type_name() }),
            Err(Fault::Error(why)) => Err(EvaluationError::Expression(why)),
            Err(Fault::Budget) => Err(EvaluationError::TooCostly),
        }
    }
}

impl PartialEq for Selector {
    /// The same text is the same selector.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Selector {}

/// Line and column of a byte offset.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

// === impl DeviceView ===

impl DeviceView {
    /// The view of a device that `driver` publishes.
    #[must_use]
    pub fn new(driver: &str, device: &Device) -> Self {
        let mut unusable = None;
        let mut attributes = ByDomain::new(driver);
        for (name, attribute) in &device.attributes {
            match attribute_value(attribute) {
                Ok(value) => attributes.file(name, value),
                Err(why) => {
                    unusable.get_or_insert(format!("attribute {name}: {why}"));
                }
            }
        }
        let mut capacity = ByDomain::new(driver);
        for (name, entry) in &device.capacity {
            capacity.file(name, Value::Quantity(entry.value));
        }
        let mut map = Map::default();
        map.set("driver", Value::text(driver));
        map.set("allowMultipleAllocations", Value::Bool(device.sharing == Sharing::Shareable));
        map.set("attributes", attributes.into_value());
        map.set("capacity", capacity.into_value());
        Self { device: Value::Map(Arc::new(map)), unusable }
    }
}

/// The value of an attribute. Lists are behind a gate that is off by default; without it upstream evaluates no selector
/// against a device that has one.
fn attribute_value(attribute: &AttributeValue) -> Result<Value, String> {
    match attribute {
        AttributeValue::Int(value) => Ok(Value::Int(*value)),
        AttributeValue::Bool(value) => Ok(Value::Bool(*value)),
        AttributeValue::String(value) => Ok(Value::text(value)),
        AttributeValue::Version(text) => Ok(Value::Version(Arc::new(Version::parse(text)?))),
        AttributeValue::Ints(_)
        | AttributeValue::Bools(_)
        | AttributeValue::Strings(_)
        | AttributeValue::Versions(_) => Err("unsupported attribute value: a list".to_owned()),
    }
}

/// Values by domain and name.
struct ByDomain<'a> {
    driver: &'a str,
    domains: BTreeMap<&'a str, Map>,
}

// === impl ByDomain ===

impl<'a> ByDomain<'a> {
    fn new(driver: &'a str) -> Self {
        Self { driver, domains: BTreeMap::new() }
    }

    fn file(&mut self, name: &'a str, value: Value) {
        let (domain, name) = name.split_once('/').unwrap_or((self.driver, name));
        self.domains.entry(domain).or_default().set(name, value);
    }

    fn into_value(self) -> Value {
        let mut outer = Map::new(Missing::EmptyMap);
        for (domain, inner) in self.domains {
            outer.set(domain, Value::Map(Arc::new(inner)));
        }
        Value::Map(Arc::new(outer))
    }
}

#[cfg(test)]
mod tests;
