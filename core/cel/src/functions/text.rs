//! Functions on strings: the standard ones, and version 2 of the `strings` extension.

use super::builtin::{Builtin, misfit};
use super::format;
use super::pattern::Hunt;
use super::printed::quoted;
use crate::meter::Meter;
use crate::value::{Outcome, Value, error};

pub(super) const GLOBAL: &[(&str, Builtin)] = &[
    ("matches", |args, meter| Hunt::Any.run(args, meter)),
    ("strings.quote", |args, meter| match args {
        [Value::String(text)] => {
            meter.charge_size(text.len())?;
            Ok(Value::text(quoted(text)))
        }
        _ => misfit(),
    }),
];

pub(super) const MEMBER: &[(&str, Builtin)] = &[
    ("matches", |args, meter| Hunt::Any.run(args, meter)),
    ("find", |args, meter| Hunt::First.run(args, meter)),
    ("findAll", |args, meter| Hunt::All.run(args, meter)),
    ("contains", |args, meter| compare(args, meter, |text, part| text.contains(part))),
    ("startsWith", |args, meter| compare(args, meter, |text, part| text.starts_with(part))),
    ("endsWith", |args, meter| compare(args, meter, |text, part| text.ends_with(part))),
    ("lowerAscii", |args, meter| change(args, meter, str::to_ascii_lowercase)),
    ("upperAscii", |args, meter| change(args, meter, str::to_ascii_uppercase)),
    ("trim", |args, meter| change(args, meter, |text| text.trim().to_owned())),
    ("charAt", char_at),
    ("substring", substring),
    ("replace", replace),
    ("split", split),
    ("join", join),
    ("format", format::run),
];

fn compare(args: &[Value], meter: &mut Meter, test: fn(&str, &str) -> bool) -> Outcome {
    let [Value::String(text), Value::String(part)] = args else { return misfit() };
    meter.charge_size(text.len())?;
    Ok(Value::Bool(test(text, part)))
}

fn change(args: &[Value], meter: &mut Meter, to: fn(&str) -> String) -> Outcome {
    let [Value::String(text)] = args else { return misfit() };
    meter.charge_size(text.len())?;
    Ok(Value::text(to(text)))
}

fn out_of_range<T>(index: i64) -> Outcome<T> {
    error(format!("index out of range: {index}"))
}

/// A position between characters, the end included.
fn boundary(index: i64, length: usize) -> Outcome<usize> {
    usize::try_from(index).ok().filter(|index| *index <= length).map_or_else(|| out_of_range(index), Ok)
}

fn char_at(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::String(text), Value::Int(index)] = args else { return misfit() };
    meter.charge_size(text.len())?;
    let chars: Vec<char> = text.chars().collect();
    let position = boundary(*index, chars.len())?;
    Ok(Value::text(chars.get(position).map_or_else(String::new, char::to_string)))
}

fn substring(args: &[Value], meter: &mut Meter) -> Outcome {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return misfit(),
    };
    meter.charge_size(text.len())?;
    let chars: Vec<char> = text.chars().collect();
    if let Some(end) = end.filter(|end| start > *end) {
        return error(format!("invalid substring range. start: {start}, end: {end}"));
    }
    let start = boundary(start, chars.len())?;
    let end = end.map_or(Ok(chars.len()), |end| boundary(end, chars.len()))?;
    Ok(Value::text(chars[start..end].iter().collect::<String>()))
}

/// The position of the first character of `part` in `text` from `from` on, counted in characters.
pub(super) fn index_of(text: &str, part: &str, from: i64) -> Outcome {
    if part.is_empty() {
        return Ok(Value::Int(from));
    }
    let (text, part): (Vec<char>, Vec<char>) = (text.chars().collect(), part.chars().collect());
    let Ok(from) = usize::try_from(from) else { return out_of_range(from) };
    let found = text.get(from..).and_then(|rest| rest.windows(part.len()).position(|window| window == part));
    Ok(found.map_or(Value::Int(-1), |position| Value::count(from + position)))
}

/// As [`index_of`], from the end, beginning at or before `from`.
pub(super) fn last_index_of(text: &str, part: &str, from: Option<i64>) -> Outcome {
    let (text, part): (Vec<char>, Vec<char>) = (text.chars().collect(), part.chars().collect());
    if part.is_empty() {
        return Ok(from.map_or_else(|| Value::count(text.len()), Value::Int));
    }
    let from = match from {
        None => text.len().saturating_sub(1),
        Some(from) => match usize::try_from(from) {
            Ok(from) => from,
            Err(_) => return out_of_range(from),
        },
    };
    if from >= text.len() {
        return Ok(Value::Int(-1));
    }
    let found = text.windows(part.len()).take(from + 1).rposition(|window| window == part);
    Ok(found.map_or(Value::Int(-1), Value::count))
}

fn replace(args: &[Value], meter: &mut Meter) -> Outcome {
    let (text, from, to, limit) = match args {
        [Value::String(text), Value::String(from), Value::String(to)] => (text, from, to, -1),
        [Value::String(text), Value::String(from), Value::String(to), Value::Int(limit)] => {
            (text, from, to, *limit)
        }
        _ => return misfit(),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    meter.charge_size(text.len())?;
    let times = if from.is_empty() { text.chars().count() + 1 } else { text.matches(&**from).count() };
    meter.charge_size(times.min(limit).saturating_mul(to.len()))?;
    Ok(Value::text(text.replacen(&**from, to, limit)))
}

fn split(args: &[Value], meter: &mut Meter) -> Outcome {
    let (text, separator, limit) = match args {
        [Value::String(text), Value::String(separator)] => (text, separator, -1),
        [Value::String(text), Value::String(separator), Value::Int(limit)] => (text, separator, *limit),
        _ => return misfit(),
    };
    meter.charge(u64::try_from(text.len()).unwrap_or(u64::MAX))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let pieces: Vec<Value> = if limit == 0 {
        Vec::new()
    } else if separator.is_empty() {
        // Between characters, with what is beyond the limit in the last piece.
        let mut ends: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).take(limit - 1).collect();
        ends.extend((!text.is_empty()).then_some(text.len()));
        let mut start = 0;
        ends.into_iter().map(|end| Value::text(&text[std::mem::replace(&mut start, end)..end])).collect()
    } else {
        text.splitn(limit, &**separator).map(Value::text).collect()
    };
    Ok(Value::list(pieces))
}

fn join(args: &[Value], meter: &mut Meter) -> Outcome {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, &**separator),
        _ => return misfit(),
    };
    let mut joined = String::new();
    for (index, element) in list.iter().enumerate() {
        let Value::String(element) = element else { return error("join: invalid input: not a string") };
        meter.charge_size(element.len() + separator.len())?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(element);
    }
    Ok(Value::text(joined))
}
