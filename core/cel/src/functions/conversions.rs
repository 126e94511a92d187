//! Conversions between types, and sizes.

use super::builtin::{Builtin, misfit};
use super::operators::overflow;
use super::printed::printed;
use crate::value::{Outcome, Value, error, whole};

pub(super) const CONVERSIONS: &[(&str, Builtin)] = &[
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
            printed(value).map_or_else(misfit, |text| text.map(Value::text))
        }
        _ => misfit(),
    }),
];

/// Characters of a string, bytes, elements of a list, entries of a map.
pub(super) fn size(args: &[Value]) -> Outcome {
    match args {
        [Value::String(text)] => Ok(Value::count(text.chars().count())),
        [Value::Bytes(_) | Value::List(_) | Value::Map(_)] => Ok(Value::count(args[0].size())),
        _ => misfit(),
    }
}
