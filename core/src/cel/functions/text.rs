//! Functions on strings: the standard ones, and version 2 of the `strings` extension.

use std::fmt::Write;

use super::pattern::Hunt;
use super::{Builtin, misfit};
use crate::cel::program::Meter;
use crate::cel::value::{Outcome, Value, error};

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
    ("format", format),
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

/// The text as a literal of the language.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// What `string(value)` yields; `None` for a type that it does not take.
pub(super) fn printed(value: &Value) -> Option<Outcome<String>> {
    Some(match value {
        Value::String(text) => Ok(text.to_string()),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Int(i) => Ok(i.to_string()),
        Value::Uint(u) => Ok(u.to_string()),
        Value::Double(d) => Ok(shortest(*d)),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => error("invalid UTF-8 in bytes, cannot convert to string"),
        },
        Value::Ip(ip) => Ok(ip.0.to_string()),
        Value::Cidr(cidr) => Ok(cidr.to_string()),
        _ => return None,
    })
}

/// The shortest decimal that reads back as `value`; with an exponent below 1e-4 and from 1e21 on.
fn shortest(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    match scientific
        .split_once('e')
        .and_then(|(mantissa, exponent)| Some((mantissa, exponent.parse::<i32>().ok()?)))
    {
        Some((mantissa, exponent)) if value != 0.0 && !(-4..21).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => format!("{value}"),
    }
}

/// `"%s and %d".format([x, 1])`.
fn format(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::String(template), Value::List(values)] = args else { return misfit() };
    let mut values = values.iter();
    let mut out = String::new();
    let mut rest = template.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if let Some(after) = rest.as_str().strip_prefix('%') {
            rest = after.chars();
            out.push('%');
            continue;
        }
        let Some((precision, clause, after)) = clause(rest.as_str()) else {
            return error(format!("unrecognized formatting clause in {template:?}"));
        };
        rest = after.chars();
        let Some(value) = values.next() else { return error("too few arguments for the format") };
        meter.charge_size(value.size())?;
        insert(&mut out, clause, precision, value, meter)?;
    }
    Ok(Value::text(out))
}

/// The precision, the letter, and what comes after them.
fn clause(text: &str) -> Option<(usize, char, &str)> {
    let (precision, text) = match text.strip_prefix('.') {
        None => (6, text),
        Some(text) => {
            let end = text.find(|c: char| !c.is_ascii_digit())?;
            (text[..end].parse().ok().filter(|precision| *precision <= 1000)?, &text[end..])
        }
    };
    let letter = text.chars().next()?;
    Some((precision, letter, &text[letter.len_utf8()..]))
}

fn insert(out: &mut String, clause: char, precision: usize, value: &Value, meter: &mut Meter) -> Outcome<()> {
    let text = match (clause, value) {
        ('s', value) => described(value, meter)?,
        ('d', Value::Int(i)) => i.to_string(),
        ('d', Value::Uint(u)) => u.to_string(),
        ('f', Value::Double(d)) => format!("{d:.precision$}"),
        ('e', Value::Double(d)) => exponential(*d, precision),
        ('b', Value::Bool(b)) => u8::from(*b).to_string(),
        ('b', Value::Int(i)) => signed(*i, |size| format!("{size:b}")),
        ('b', Value::Uint(u)) => format!("{u:b}"),
        ('o', Value::Int(i)) => signed(*i, |size| format!("{size:o}")),
        ('o', Value::Uint(u)) => format!("{u:o}"),
        ('x' | 'X', value) => {
            let lower = match value {
                Value::Int(i) => signed(*i, |size| format!("{size:x}")),
                Value::Uint(u) => format!("{u:x}"),
                Value::String(text) => hexadecimal(text.as_bytes()),
                Value::Bytes(bytes) => hexadecimal(bytes),
                _ => return error(format!("%{clause} does not take a {}", value.type_name())),
            };
            if clause == 'X' { lower.to_ascii_uppercase() } else { lower }
        }
        _ => return error(format!("%{clause} does not take a {}", value.type_name())),
    };
    out.push_str(&text);
    Ok(())
}

fn signed(value: i64, print: fn(u64) -> String) -> String {
    let size = print(value.unsigned_abs());
    if value < 0 { format!("-{size}") } else { size }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a string cannot fail.
        out.write_fmt(format_args!("{byte:02x}")).unwrap_or_default();
        out
    })
}

fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    match text
        .split_once('e')
        .and_then(|(mantissa, exponent)| Some((mantissa, exponent.parse::<i32>().ok()?)))
    {
        Some((mantissa, exponent)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
        None => text,
    }
}

/// What `%s` prints, lists and maps included.
fn described(value: &Value, meter: &mut Meter) -> Outcome<String> {
    meter.charge_size(value.size())?;
    match value {
        Value::Null => Ok("null".to_owned()),
        Value::Type(name) => Ok((*name).to_owned()),
        Value::List(list) => {
            let elements = list.iter().map(|element| inner(element, meter)).collect::<Outcome<Vec<_>>>()?;
            Ok(format!("[{}]", elements.join(", ")))
        }
        Value::Map(map) => {
            let mut entries = Vec::with_capacity(map.len());
            for (key, value) in map.iter() {
                entries.push((inner(key, meter)?, inner(value, meter)?));
            }
            entries.sort();
            let entries: Vec<String> =
                entries.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            Ok(format!("{{{}}}", entries.join(", ")))
        }
        Value::Ip(_) | Value::Cidr(_) => error(format!("%s does not take a {}", value.type_name())),
        other => match printed(other) {
            Some(text) => text,
            None => error(format!("%s does not take a {}", other.type_name())),
        },
    }
}

/// A value inside a list or map.
fn inner(value: &Value, meter: &mut Meter) -> Outcome<String> {
    match value {
        Value::String(text) => Ok(quoted(text)),
        Value::Bytes(bytes) => Ok(format!("b{}", quoted(&String::from_utf8_lossy(bytes)))),
        Value::Double(d) if d.is_finite() => Ok(format!("{d:.6}")),
        Value::Double(d) => Ok(format!("\"{}\"", shortest(*d))),
        Value::Type(name) => Ok(format!("type({name})")),
        other => described(other, meter),
    }
}
