//! `"…".format([…])`: templates with `%s`, `%d`, `%f` and the like, as version 2 of the `strings` extension has them.

use std::fmt::Write;

use super::builtin::misfit;
use super::printed::{printed, quoted, shortest};
use crate::meter::Meter;
use crate::typing::Type;
use crate::value::{Outcome, Value, error};

/// Holds a template against the types of the arguments: the error says what does not fit.
pub(crate) fn check_format(template: &str, types: &[Type]) -> Result<(), String> {
    let mut remaining = types.iter();
    for piece in pieces(template) {
        let Piece::Clause { letter, .. } = piece? else { continue };
        let found = remaining.next().ok_or("the format has more clauses than there are arguments")?;
        let fits = match (letter, found) {
            (_, Type::Dyn) => true,
            ('s', found) => !matches!(found, Type::Any | Type::Object(_) | Type::Optional(_)),
            ('d' | 'o' | 'b' | 'x' | 'X', Type::Int | Type::Uint)
            | ('f' | 'e', Type::Double | Type::String)
            | ('b', Type::Bool)
            | ('x' | 'X', Type::String | Type::Bytes) => true,
            _ => false,
        };
        if !fits {
            return Err(format!("%{letter} does not take a {found}"));
        }
    }
    match remaining.len() {
        0 => Ok(()),
        unused => Err(format!("too many arguments supplied to string.format: {unused} of them are not used")),
    }
}

/// A part of a template.
enum Piece<'a> {
    Text(&'a str),
    Clause { precision: usize, letter: char },
}

/// The parts of a template, up to the first that is malformed.
fn pieces(template: &str) -> impl Iterator<Item = Result<Piece<'_>, String>> {
    let mut rest = template;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(after) = rest.strip_prefix('%') else {
            let (text, after) = rest.split_at(rest.find('%').unwrap_or(rest.len()));
            rest = after;
            return Some(Ok(Piece::Text(text)));
        };
        if let Some(after) = after.strip_prefix('%') {
            rest = after;
            return Some(Ok(Piece::Text("%")));
        }
        let found = clause(after);
        rest = found.map_or("", |(_, _, rest)| rest);
        Some(match found {
            Some((precision, letter, _)) => Ok(Piece::Clause { precision, letter }),
            None => Err(format!("unrecognized formatting clause in {template:?}")),
        })
    })
}

/// `template.format(values)`.
pub(super) fn run(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::String(template), Value::List(values)] = args else { return misfit() };
    meter.charge_size(template.len())?;
    let mut values = values.iter();
    let mut out = String::new();
    for piece in pieces(template) {
        match piece {
            Ok(Piece::Text(text)) => out.push_str(text),
            Ok(Piece::Clause { precision, letter }) => {
                let Some(value) = values.next() else { return error("too few arguments for the format") };
                meter.charge_size(value.size())?;
                insert(&mut out, letter, precision, value, meter)?;
            }
            Err(why) => return error(why),
        }
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
    let letter = text.chars().next().filter(|letter| "sdfebxXo".contains(*letter))?;
    Some((precision, letter, &text[letter.len_utf8()..]))
}

fn insert(out: &mut String, clause: char, precision: usize, value: &Value, meter: &mut Meter) -> Outcome<()> {
    let text = match (clause, value) {
        ('s', value) => described(value, meter)?,
        ('d', Value::Int(i)) => i.to_string(),
        ('d', Value::Uint(u)) => u.to_string(),
        ('f', Value::Double(d)) => grouped(*d, precision),
        ('e', Value::Double(d)) => exponential(*d, precision),
        ('f' | 'e', Value::String(text)) => match &**text {
            "NaN" => "NaN".to_owned(),
            "Infinity" => "∞".to_owned(),
            "-Infinity" => "-∞".to_owned(),
            _ => return error(format!("%{clause} does not take the string {text:?}")),
        },
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

/// As people write it: thousands in groups.
fn grouped(value: f64, precision: usize) -> String {
    if !value.is_finite() {
        return infinite(value);
    }
    let text = format!("{value:.precision$}");
    let (whole, fraction) = text.split_once('.').map_or((&*text, ""), |(whole, fraction)| (whole, fraction));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut out = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if precision > 0 {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

fn infinite(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value > 0.0 { "∞" } else { "-∞" }.to_owned()
}

/// As people write it: `1.5×10⁰³`.
fn exponential(value: f64, precision: usize) -> String {
    if !value.is_finite() {
        return infinite(value);
    }
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(("", exponent), |digits| ("⁻", digits));
    let raised = |digit: char| match digit {
        '0' => '⁰',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '4' => '⁴',
        '5' => '⁵',
        '6' => '⁶',
        '7' => '⁷',
        '8' => '⁸',
        _ => '⁹',
    };
    let power: String = format!("{digits:0>2}").chars().map(raised).collect();
    format!("{mantissa}×10{sign}{power}")
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
        other => described(other, meter),
    }
}
