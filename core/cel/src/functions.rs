//! What every declared function does: which step of a program a call becomes, and the operators and conversions.
//!
//! One implementation serves all signatures of a name in a style and distinguishes them by the values it
//! gets. An
//! argument that fits no signature, possible where a type is known only at run time, is an error of the language.

mod format;
mod kubernetes;
pub(super) mod pattern;
mod re2;
mod sequence;
mod text;

use super::declarations::Style;
use super::program::{Meter, Node, present, select};
use super::value::{Fault, Key, Outcome, Value, error, no_overload, whole};
pub(super) use format::check_format;
use pattern::{Hunt, Search};
pub(crate) use sequence::INCLUDES_MAX;

/// An implementation.
pub(super) type Builtin = fn(&[Value], &mut Meter) -> Outcome;

/// The step for a call of `name`; the error is about a pattern that is not a regular expression.
pub(super) fn bind(name: &str, style: Style, args: Vec<Node>) -> Result<Node, String> {
    let args = match (name, <[Node; 2]>::try_from(args)) {
        ("_[_]", Ok([operand, Node::Const(Value::String(key))])) => {
            return Ok(Node::Select(Box::new(operand), Key::Text(key)));
        }
        // Nothing is in an empty list, not even what cannot be evaluated.
        ("@in", Ok([_, Node::Const(Value::List(list))])) if list.is_empty() => {
            return Ok(Node::Const(Value::Bool(false)));
        }
        ("or", Ok(sides)) => return Ok(Node::OptOr(Box::new(sides))),
        ("orValue", Ok(sides)) => return Ok(Node::OptOrValue(Box::new(sides))),
        (_, Ok(args)) => args.into(),
        (_, Err(args)) => args,
    };
    let args = match (name, <[Node; 3]>::try_from(args)) {
        ("_?_:_", Ok(parts)) => return Ok(Node::Conditional(Box::new(parts))),
        (_, Ok(args)) => args.into(),
        (_, Err(args)) => args,
    };
    if let (Some(hunt), Some(Node::Const(Value::String(pattern)))) = (Hunt::named(name), args.get(1)) {
        return Ok(Node::Search(Search::new(hunt, pattern)?, args));
    }
    match implementation(name, style) {
        Some((_, builtin)) if FOLDED.contains(&name) && matches!(args[..], [Node::Const(_)]) => {
            folded(builtin, args)
        }
        Some((name, builtin)) => Ok(Node::Call(name, builtin, args)),
        None => Err(format!("function '{name}' cannot be called like this")),
    }
}

/// Conversions that are done beforehand where their argument is a constant, so that an impossible one is refused.
const FOLDED: [&str; 7] = ["bool", "bytes", "double", "dyn", "int", "string", "uint"];

fn folded(builtin: Builtin, args: Vec<Node>) -> Result<Node, String> {
    let values: Vec<Value> = args
        .into_iter()
        .filter_map(|arg| if let Node::Const(value) = arg { Some(value) } else { None })
        .collect();
    match builtin(&values, &mut Meter::full()) {
        Ok(value) => Ok(Node::Const(value)),
        Err(Fault::Error(why)) => Err(why),
        Err(Fault::Budget) => Err("the constant is too large to convert".to_owned()),
    }
}

/// The implementation of `name`, with the name as it may outlive the expression.
pub(super) fn implementation(name: &str, style: Style) -> Option<(&'static str, Builtin)> {
    let found = |table: &[(&'static str, Builtin)]| table.iter().find(|(known, _)| *known == name).copied();
    match style {
        Style::Global => found(OPERATORS)
            .or_else(|| found(CONVERSIONS))
            .or_else(|| found(sequence::GLOBAL))
            .or_else(|| found(text::GLOBAL))
            .or_else(|| found(kubernetes::GLOBAL))
            .or_else(|| kubernetes::format_constant(name)),
        Style::Member => {
            found(sequence::MEMBER).or_else(|| found(text::MEMBER)).or_else(|| found(kubernetes::MEMBER))
        }
    }
}

/// "These arguments fit no signature": the caller adds the name.
fn misfit<T>() -> Outcome<T> {
    Err(Fault::Error(String::new()))
}

const OPERATORS: &[(&str, Builtin)] = &[
    ("_==_", |args, meter| Ok(Value::Bool(equal(args, meter)?))),
    // What cannot be compared is not equal; only `==` makes an error of it.
    ("_!=_", |args, meter| match equal(args, meter) {
        Err(Fault::Budget) => Err(Fault::Budget),
        found => Ok(Value::Bool(found != Ok(true))),
    }),
    ("_<_", |args, meter| order(args, meter, std::cmp::Ordering::is_lt)),
    ("_<=_", |args, meter| order(args, meter, std::cmp::Ordering::is_le)),
    ("_>_", |args, meter| order(args, meter, std::cmp::Ordering::is_gt)),
    ("_>=_", |args, meter| order(args, meter, std::cmp::Ordering::is_ge)),
    ("_+_", add),
    ("_-_", |args, _| arithmetic(args, i64::checked_sub, u64::checked_sub, |a, b| a - b)),
    ("_*_", |args, _| arithmetic(args, i64::checked_mul, u64::checked_mul, |a, b| a * b)),
    ("_/_", divide),
    ("_%_", remainder),
    ("!_", |args, _| match args {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => misfit(),
    }),
    ("-_", |args, _| match args {
        [Value::Int(value)] => value.checked_neg().map_or_else(overflow, |value| Ok(Value::Int(value))),
        [Value::Double(value)] => Ok(Value::Double(-value)),
        _ => misfit(),
    }),
    ("_[_]", |args, _| match args {
        [operand, key] => index(operand, key),
        _ => misfit(),
    }),
    ("_[?_]", |args, _| match args {
        [operand, key] => Ok(Value::Optional(at(operand, key)?.map(std::sync::Arc::new))),
        _ => misfit(),
    }),
    ("@in", contains),
];

fn equal(args: &[Value], meter: &mut Meter) -> Outcome<bool> {
    let [a, b] = args else { return misfit() };
    meter.charge_size(a.size().min(b.size()))?;
    a.equals(b)
}

fn order(args: &[Value], meter: &mut Meter, wanted: fn(std::cmp::Ordering) -> bool) -> Outcome {
    let [a, b] = args else { return misfit() };
    meter.charge_size(a.size().min(b.size()))?;
    match (a.compare(b), a, b) {
        (Some(found), _, _) => Ok(Value::Bool(wanted(found))),
        (None, Value::Double(_), _) | (None, _, Value::Double(_)) => error("NaN values cannot be ordered"),
        _ => no_overload("comparison", args),
    }
}

fn overflow<T>() -> Outcome<T> {
    error("integer overflow")
}

fn arithmetic(
    args: &[Value],
    int: fn(i64, i64) -> Option<i64>,
    uint: fn(u64, u64) -> Option<u64>,
    double: fn(f64, f64) -> f64,
) -> Outcome {
    match args {
        [Value::Int(a), Value::Int(b)] => int(*a, *b).map_or_else(overflow, |value| Ok(Value::Int(value))),
        [Value::Uint(a), Value::Uint(b)] => {
            uint(*a, *b).map_or_else(overflow, |value| Ok(Value::Uint(value)))
        }
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(double(*a, *b))),
        _ => misfit(),
    }
}

fn add(args: &[Value], meter: &mut Meter) -> Outcome {
    if let [a, b] = args {
        meter.charge_size(a.size().saturating_add(b.size()))?;
    }
    match args {
        [Value::String(a), Value::String(b)] => Ok(Value::text(format!("{a}{b}"))),
        [Value::Bytes(a), Value::Bytes(b)] => Ok(Value::Bytes([&a[..], &b[..]].concat().into())),
        [Value::List(a), Value::List(b)] => Ok(Value::list([&a[..], &b[..]].concat())),
        _ => arithmetic(args, i64::checked_add, u64::checked_add, |a, b| a + b),
    }
}

fn divide(args: &[Value], _: &mut Meter) -> Outcome {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => error("division by zero"),
        _ => arithmetic(args, i64::checked_div, u64::checked_div, |a, b| a / b),
    }
}

fn remainder(args: &[Value], _: &mut Meter) -> Outcome {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => error("modulus by zero"),
        [Value::Double(_), _] => misfit(),
        _ => arithmetic(args, i64::checked_rem, u64::checked_rem, |a, _| a),
    }
}

/// The element at `key`, if there is one; a list takes nothing but whole numbers.
fn at(operand: &Value, key: &Value) -> Outcome<Option<Value>> {
    match (operand, key) {
        (Value::List(list), Value::Int(_) | Value::Uint(_)) => {
            Ok(position(key).and_then(|position| list.get(position)).cloned())
        }
        (Value::List(list), Value::Double(double)) if double.fract() == 0.0 => {
            Ok(position(key).and_then(|position| list.get(position)).cloned())
        }
        (Value::List(_), _) => error(format!("unsupported index type '{}' in list", key.type_name())),
        (Value::Optional(Some(inner)), _) => at(inner, key),
        _ => Ok(Key::of(key).and_then(|key| present(operand, &key))),
    }
}

/// An index into a list, from any number that is whole and not negative.
fn position(key: &Value) -> Option<usize> {
    match key {
        Value::Int(i) => usize::try_from(*i).ok(),
        Value::Uint(u) => usize::try_from(*u).ok(),
        Value::Double(d) => whole(*d).and_then(|d| usize::try_from(d).ok()),
        _ => None,
    }
}

fn index(operand: &Value, key: &Value) -> Outcome {
    match operand {
        Value::List(_) => at(operand, key)?.map_or_else(|| error("index out of bounds"), Ok),
        Value::Optional(_) => Ok(Value::Optional(at(operand, key)?.map(std::sync::Arc::new))),
        _ => match Key::of(key) {
            Some(key) => select(operand, &key),
            None => error(format!("no such key: a {}", key.type_name())),
        },
    }
}

fn contains(args: &[Value], meter: &mut Meter) -> Outcome {
    match args {
        [wanted, Value::List(list)] => {
            meter.charge_size(list.len().saturating_mul(10))?;
            Ok(Value::Bool(list.iter().any(|element| element.is(wanted))))
        }
        [wanted, Value::Map(map)] => {
            Ok(Value::Bool(Key::of(wanted).is_some_and(|key| map.get(&key).is_some())))
        }
        _ => misfit(),
    }
}

const CONVERSIONS: &[(&str, Builtin)] = &[
    ("type", |args, _| args.first().map_or_else(misfit, |value| Ok(Value::Type(value.type_name())))),
    ("dyn", |args, _| args.first().cloned().map_or_else(misfit, Ok)),
    ("size", |args, _| size(args)),
    ("bool", |args, _| match args {
        [Value::Bool(_)] => Ok(args[0].clone()),
        [Value::String(text)] => match &**text {
            "true" | "TRUE" | "True" | "t" | "T" | "1" => Ok(Value::Bool(true)),
            "false" | "FALSE" | "False" | "f" | "F" | "0" => Ok(Value::Bool(false)),
            _ => error(format!("{text:?} is not a bool")),
        },
        _ => misfit(),
    }),
    ("bytes", |args, meter| match args {
        [Value::Bytes(_)] => Ok(args[0].clone()),
        [Value::String(text)] => {
            meter.charge_size(text.len())?;
            Ok(Value::Bytes(text.as_bytes().into()))
        }
        _ => misfit(),
    }),
    ("double", |args, _| match args {
        [Value::Double(_)] => Ok(args[0].clone()),
        [Value::Int(i)] => Ok(Value::Double(*i as f64)),
        [Value::Uint(u)] => Ok(Value::Double(*u as f64)),
        [Value::String(text)] => {
            text.parse().map_or_else(|_| error(format!("{text:?} is not a double")), |d| Ok(Value::Double(d)))
        }
        _ => misfit(),
    }),
    ("int", |args, _| match args {
        [Value::Int(_)] => Ok(args[0].clone()),
        [Value::Uint(u)] => i64::try_from(*u).map_or_else(|_| overflow(), |i| Ok(Value::Int(i))),
        [Value::Double(d)] => {
            // The bounds themselves are refused: as doubles they stand for neighbours that do not fit.
            let truncated = whole(d.trunc()).filter(|_| *d > i64::MIN as f64 && *d < i64::MAX as f64);
            truncated.and_then(|i| i64::try_from(i).ok()).map_or_else(overflow, |i| Ok(Value::Int(i)))
        }
        [Value::String(text)] => {
            text.parse().map_or_else(|_| error(format!("{text:?} is not an int")), |i| Ok(Value::Int(i)))
        }
        _ => misfit(),
    }),
    ("uint", |args, _| match args {
        [Value::Uint(_)] => Ok(args[0].clone()),
        [Value::Int(i)] => u64::try_from(*i).map_or_else(|_| overflow(), |u| Ok(Value::Uint(u))),
        [Value::Double(d)] => {
            let truncated = whole(d.trunc()).filter(|_| *d >= 0.0 && *d < u64::MAX as f64);
            truncated.and_then(|u| u64::try_from(u).ok()).map_or_else(overflow, |u| Ok(Value::Uint(u)))
        }
        [Value::String(text)] if !text.starts_with('+') => {
            text.parse().map_or_else(|_| error(format!("{text:?} is not a uint")), |u| Ok(Value::Uint(u)))
        }
        [Value::String(text)] => error(format!("{text:?} is not a uint")),
        _ => misfit(),
    }),
    ("string", |args, meter| match args {
        [value] => {
            meter.charge_size(value.size())?;
            text::printed(value).map_or_else(misfit, |text| text.map(Value::text))
        }
        _ => misfit(),
    }),
];

/// Characters of a string, bytes, elements of a list, entries of a map.
fn size(args: &[Value]) -> Outcome {
    match args {
        [Value::String(text)] => Ok(Value::count(text.chars().count())),
        [Value::Bytes(_) | Value::List(_) | Value::Map(_)] => Ok(Value::count(args[0].size())),
        _ => misfit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declarations::all;

    /// What [`bind`] turns into steps of their own.
    const STEPS: [&str; 3] = ["_?_:_", "or", "orValue"];

    #[test]
    fn declared_functions_and_implemented_functions_are_equal() {
        for (name, style) in all() {
            assert!(STEPS.contains(&name) || implementation(name, style).is_some(), "{name} {style:?}");
        }
        let declared =
            |name: &str, style| all().contains(&(all().iter().find(|(n, _)| *n == name).unwrap().0, style));
        for table in [OPERATORS, CONVERSIONS, sequence::GLOBAL, text::GLOBAL, kubernetes::GLOBAL] {
            table.iter().for_each(|(name, _)| assert!(declared(name, Style::Global), "{name}"));
        }
        for table in [sequence::MEMBER, text::MEMBER, kubernetes::MEMBER] {
            table.iter().for_each(|(name, _)| assert!(declared(name, Style::Member), "{name}"));
        }
    }
}
