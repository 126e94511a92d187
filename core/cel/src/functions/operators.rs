//! Operators.

use super::builtin::{Builtin, misfit};
use crate::meter::Meter;
use crate::value::{Fault, Key, Outcome, Value, error, no_overload, present, select, whole};

pub(super) const OPERATORS: &[(&str, Builtin)] = &[
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

pub(super) fn overflow<T>() -> Outcome<T> {
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

pub(super) fn add(args: &[Value], meter: &mut Meter) -> Outcome {
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
