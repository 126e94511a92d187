//! Run-time values of the selector language, their equality and their order.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::format::NamedFormat;
use super::network::{Cidr, Ip, Url};
use super::version::Version;
use crate::quantity::Quantity;

/// A value. Cloning one never copies its content.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<[Self]>),
    Map(Arc<Map>),
    Optional(Option<Arc<Self>>),
    Quantity(Quantity),
    Version(Arc<Version>),
    Ip(Ip),
    Cidr(Cidr),
    Url(Arc<Url>),
    Format(NamedFormat),
    /// A type, by its name.
    Type(&'static str),
}

/// Why an evaluation stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// An error in the sense of the language: `||` and `&&` may absorb it.
    Error(String),
    /// The cost limit: nothing absorbs it.
    Budget,
}

/// What every fallible step yields.
pub(super) type Outcome<T = Value> = Result<T, Fault>;

/// An error in the sense of the language.
pub(super) fn error<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Fault::Error(why.into()))
}

/// No overload of `function` takes these arguments.
pub(super) fn no_overload<T>(function: &str, args: &[Value]) -> Outcome<T> {
    let found: Vec<&str> = args.iter().map(Value::type_name).collect();
    error(format!("no such overload: {function}({})", found.join(", ")))
}

/// A key of a map: numbers of every type are one number line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Bool(bool),
    Number(i128),
    /// A double that is no integer, by its bits.
    Fraction(u64),
    Null,
    Text(Arc<str>),
}

/// What a map answers for a key that it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Missing {
    /// That there is no such key.
    #[default]
    Error,
    /// An empty map, so that a field below the absent key is an unknown field of a known map.
    EmptyMap,
}

/// A map. Entries keep their key as written, as `1` and `1u` are the same key but not the same value to print.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    entries: BTreeMap<Key, (Value, Value)>,
    missing: Missing,
}

// === impl Key ===

impl Key {
    /// The key that `value` is, if it can be one. A double is looked up as the whole number it equals.
    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(Self::Bool(*b)),
            Value::Int(i) => Some(Self::Number(i128::from(*i))),
            Value::Uint(u) => Some(Self::Number(i128::from(*u))),
            Value::String(s) => Some(Self::Text(s.clone())),
            Value::Double(d) => Some(whole(*d).map_or(Self::Fraction(d.to_bits()), Self::Number)),
            Value::Null => Some(Self::Null),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub(super) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(b) => write!(f, "{b}"),
            Self::Number(n) => write!(f, "{n}"),
            Self::Fraction(bits) => write!(f, "{}", f64::from_bits(*bits)),
            Self::Null => f.write_str("null"),
            Self::Text(t) => f.write_str(t),
        }
    }
}

/// The integer that `double` is exactly, if it is one that fits in 64 bits.
pub(super) fn whole(double: f64) -> Option<i128> {
    let in_reach = double.fract() == 0.0 && double.abs() < 18_446_744_073_709_551_616.0;
    #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^64, so exact in 128 bits")]
    in_reach.then_some(double as i128)
}

// === impl Map ===

impl Map {
    pub(super) fn new(missing: Missing) -> Self {
        Self { entries: BTreeMap::new(), missing }
    }

    /// Adds an entry, in the place of one with the same key.
    pub(super) fn replace(&mut self, key: Value, value: Value) -> Outcome<()> {
        let Some(index) = Key::of(&key) else {
            return error(format!("unsupported key type: {}", key.type_name()));
        };
        self.entries.insert(index, (key, value));
        Ok(())
    }

    /// Adds an entry; it is an error if there is one with the same key.
    pub(super) fn insert(&mut self, key: Value, value: Value) -> Outcome<()> {
        if Key::of(&key).is_some_and(|index| self.entries.contains_key(&index)) {
            return error("insert failed: key already exists");
        }
        self.replace(key, value)
    }

    /// Adds an entry under a name, replacing what was there.
    pub(super) fn set(&mut self, name: &str, value: Value) {
        let name: Arc<str> = name.into();
        self.entries.insert(Key::Text(name.clone()), (Value::String(name), value));
    }

    /// The value at `key`, if the map itself has one.
    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// As [`Self::get`], with what the map answers for a key that it lacks.
    pub(super) fn find(&self, key: &Key) -> Option<Value> {
        match (self.get(key), self.missing) {
            (Some(value), _) => Some(value.clone()),
            (None, Missing::EmptyMap) => Some(Value::Map(Arc::default())),
            (None, Missing::Error) => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Value, Value)> {
        self.entries.values()
    }
}

// === impl Value ===

impl Value {
    /// A string.
    pub(super) fn text(text: impl AsRef<str>) -> Self {
        Self::String(text.as_ref().into())
    }

    /// A list.
    pub(super) fn list(elements: Vec<Self>) -> Self {
        Self::List(elements.into())
    }

    /// An optional with a value.
    pub(super) fn some(value: Self) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// A count as the language has them.
    pub(super) fn count(count: usize) -> Self {
        Self::Int(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// The name of the type, as `type(x)` prints it.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Optional(_) => "optional_type",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Version(_) => "kubernetes.Semver",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Type(_) => "type",
        }
    }

    /// How much there is of it, for the meter: characters, bytes, elements, else one.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::String(s) => s.len(),
            Self::Bytes(b) => b.len(),
            Self::List(l) => l.len(),
            Self::Map(m) => m.len(),
            _ => 1,
        }
    }

    /// Whether `optional.ofNonZeroValue` drops it.
    pub(super) fn is_zero(&self) -> bool {
        match self {
            Self::Null | Self::Bool(false) | Self::Int(0) | Self::Uint(0) => true,
            Self::Double(d) => *d == 0.0,
            Self::String(_) | Self::Bytes(_) | Self::List(_) | Self::Map(_) => self.size() == 0,
            _ => false,
        }
    }

    /// `self == other`. Values of different types are unequal, but for the types of the Kubernetes libraries on the
    /// left: those have no overload for a foreign right side.
    pub(super) fn equals(&self, other: &Self) -> Outcome<bool> {
        Ok(match (self, other) {
            (Self::Null, _) | (_, Self::Null) => matches!((self, other), (Self::Null, Self::Null)),
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (
                Self::Int(_) | Self::Uint(_) | Self::Double(_),
                Self::Int(_) | Self::Uint(_) | Self::Double(_),
            ) => self.compare(other) == Some(Ordering::Equal),
            (Self::List(a), Self::List(b)) => {
                a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| !a.differs(b))
            }
            (Self::Map(a), Self::Map(b)) => {
                a.len() == b.len()
                    && a.entries
                        .iter()
                        .all(|(key, (_, value))| b.get(key).is_some_and(|found| !value.differs(found)))
            }
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => return a.equals(b),
                (a, b) => a.is_none() && b.is_none(),
            },
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Quantity(a), Self::Quantity(b)) => a == b,
            (Self::Version(a), Self::Version(b)) => a.cmp_precedence(b) == Ordering::Equal,
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Cidr(a), Self::Cidr(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a == b,
            (Self::Format(a), Self::Format(b)) => a == b,
            (
                Self::Quantity(_)
                | Self::Version(_)
                | Self::Ip(_)
                | Self::Cidr(_)
                | Self::Url(_)
                | Self::Format(_),
                _,
            ) => return error("no such overload"),
            _ => false,
        })
    }

    /// Whether the two are known to differ: elements that cannot be compared do not make two lists unequal.
    fn differs(&self, other: &Self) -> bool {
        self.equals(other) == Ok(false)
    }

    /// Whether the two are known to be equal.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.equals(other) == Ok(true)
    }

    /// Whether values of the type can have an order.
    pub(super) fn is_orderable(&self) -> bool {
        matches!(
            self,
            Self::Bool(_) | Self::Int(_) | Self::Uint(_) | Self::Double(_) | Self::String(_) | Self::Bytes(_)
        )
    }

    /// The order of two numbers, strings, byte strings or bools; `None` where there is none (NaN, other types).
    pub(super) fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Uint(a), Self::Uint(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Uint(a), Self::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Self::Double(a), Self::Double(b)) => a.partial_cmp(b),
            // Rounding an integer to a double is how upstream compares the two.
            (Self::Int(a), Self::Double(b)) => (*a as f64).partial_cmp(b),
            (Self::Uint(a), Self::Double(b)) => (*a as f64).partial_cmp(b),
            (Self::Double(_), Self::Int(_) | Self::Uint(_)) => other.compare(self).map(Ordering::reverse),
            (Self::String(a), Self::String(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

/// The value at `key`, if `operand` is a map that has it, or an optional of one.
pub(super) fn present(operand: &Value, key: &Key) -> Option<Value> {
    match operand {
        Value::Map(map) => map.find(key),
        Value::Optional(Some(inner)) => present(inner, key),
        _ => None,
    }
}

/// The value at `key`; within an optional the result is an optional, and what is not there is none.
pub(super) fn select(operand: &Value, key: &Key) -> Outcome {
    match operand {
        Value::Map(map) => map.find(key).map_or_else(|| error(format!("no such key: {key}")), Ok),
        Value::Optional(Some(list)) if matches!(**list, Value::List(_)) => select(list, key),
        Value::Optional(_) => Ok(Value::Optional(present(operand, key).map(Arc::new))),
        other => no_overload("select", std::slice::from_ref(other)),
    }
}
