//! Functions on lists: the Kubernetes `lists` library, version 3 of the `lists` extension, `sets` and optionals.

use std::cmp::Ordering;
use std::sync::Arc;

use super::builtin::{Builtin, misfit};
use super::conversions::size;
use super::text::{index_of, last_index_of};
use crate::meter::Meter;
use crate::value::{Fault, Outcome, Value, error};

pub(super) const GLOBAL: &[(&str, Builtin)] = &[
    ("lists.range", range),
    ("sets.contains", |args, meter| sets(args, meter, |a, b| b.iter().all(|x| has(a, x)))),
    ("sets.intersects", |args, meter| sets(args, meter, |a, b| a.iter().any(|x| has(b, x)))),
    ("sets.equivalent", |args, meter| {
        sets(args, meter, |a, b| b.iter().all(|x| has(a, x)) && a.iter().all(|x| has(b, x)))
    }),
    ("optional.of", |args, _| args.first().map_or_else(misfit, |value| Ok(Value::some(value.clone())))),
    ("optional.ofNonZeroValue", |args, _| match args {
        [value] if value.is_zero() => Ok(Value::Optional(None)),
        [value] => Ok(Value::some(value.clone())),
        _ => misfit(),
    }),
    ("optional.none", |_, _| Ok(Value::Optional(None))),
    ("optional.unwrap", unwrap),
];

pub(super) const MEMBER: &[(&str, Builtin)] = &[
    ("size", |args, _| size(args)),
    ("indexOf", first_position),
    ("lastIndexOf", last_position),
    ("isSorted", is_sorted),
    ("sum", sum),
    ("min", |args, meter| extreme(args, meter, Ordering::Less)),
    ("max", |args, meter| extreme(args, meter, Ordering::Greater)),
    ("slice", slice),
    ("flatten", flatten),
    ("sort", |args, meter| match args {
        [Value::List(list)] => sorted(list, list, meter),
        _ => misfit(),
    }),
    ("@sortByAssociatedKeys", |args, meter| match args {
        [Value::List(list), Value::List(keys)] => sorted(list, keys, meter),
        _ => misfit(),
    }),
    ("includes", includes),
    ("reverse", |args, meter| match args {
        [Value::List(list)] => {
            meter.charge_product(list.len(), 1)?;
            Ok(Value::list(list.iter().rev().cloned().collect()))
        }
        _ => misfit(),
    }),
    ("distinct", distinct),
    ("unwrapOpt", unwrap),
    ("value", |args, _| match args {
        [Value::Optional(Some(value))] => Ok((**value).clone()),
        [Value::Optional(None)] => error("optional.none() dereference"),
        _ => misfit(),
    }),
    ("hasValue", |args, _| match args {
        [Value::Optional(value)] => Ok(Value::Bool(value.is_some())),
        _ => misfit(),
    }),
    ("first", |args, _| match args {
        [Value::List(list)] => Ok(Value::Optional(list.first().cloned().map(Arc::new))),
        _ => misfit(),
    }),
    ("last", |args, _| match args {
        [Value::List(list)] => Ok(Value::Optional(list.last().cloned().map(Arc::new))),
        _ => misfit(),
    }),
];

/// Longest list that `includes` looks through.
pub(crate) const INCLUDES_MAX: usize = 48;

/// Whether a list has the element, or a scalar is it.
fn includes(args: &[Value], meter: &mut Meter) -> Outcome {
    match args {
        [Value::List(list), wanted] => {
            meter.charge_product(list.len().min(INCLUDES_MAX), 1)?;
            if has(&list[..list.len().min(INCLUDES_MAX)], wanted) {
                return Ok(Value::Bool(true));
            }
            if list.len() > INCLUDES_MAX {
                return error(format!("'includes' looks through lists of at most {INCLUDES_MAX} values"));
            }
            Ok(Value::Bool(false))
        }
        [scalar, wanted] => Ok(Value::Bool(scalar.is(wanted))),
        _ => misfit(),
    }
}

fn range(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::Int(count)] = args else { return misfit() };
    let count = (*count).max(0);
    meter.charge(u64::try_from(count).unwrap_or(u64::MAX))?;
    Ok(Value::list((0..count).map(Value::Int).collect()))
}

fn has(list: &[Value], wanted: &Value) -> bool {
    list.iter().any(|element| element.is(wanted))
}

fn sets(args: &[Value], meter: &mut Meter, test: fn(&[Value], &[Value]) -> bool) -> Outcome {
    let [Value::List(a), Value::List(b)] = args else { return misfit() };
    meter.charge_product(a.len(), b.len().saturating_mul(2))?;
    Ok(Value::Bool(test(a, b)))
}

fn first_position(args: &[Value], meter: &mut Meter) -> Outcome {
    match args {
        [Value::List(list), wanted] => {
            meter.charge_product(list.len(), 1)?;
            Ok(list.iter().position(|element| element.is(wanted)).map_or(Value::Int(-1), Value::count))
        }
        [Value::String(text), Value::String(part), from @ ..] => {
            meter.charge_product(text.len() / 10 + 1, part.len() / 10 + 1)?;
            match from {
                [] => index_of(text, part, 0),
                [Value::Int(from)] => index_of(text, part, *from),
                _ => misfit(),
            }
        }
        _ => misfit(),
    }
}

fn last_position(args: &[Value], meter: &mut Meter) -> Outcome {
    match args {
        [Value::List(list), wanted] => {
            meter.charge_product(list.len(), 1)?;
            Ok(list.iter().rposition(|element| element.is(wanted)).map_or(Value::Int(-1), Value::count))
        }
        [Value::String(text), Value::String(part), from @ ..] => {
            meter.charge_product(text.len() / 10 + 1, part.len() / 10 + 1)?;
            match from {
                [] => last_index_of(text, part, None),
                [Value::Int(from)] => last_index_of(text, part, Some(*from)),
                _ => misfit(),
            }
        }
        _ => misfit(),
    }
}

fn is_sorted(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::List(list)] = args else { return misfit() };
    meter.charge_product(list.len(), 1)?;
    if !list.iter().all(Value::is_orderable) {
        return error("list elements have no order");
    }
    // Elements of different types are not out of order, as upstream sees it.
    Ok(Value::Bool(list.windows(2).all(|pair| pair[0].compare(&pair[1]) != Some(Ordering::Greater))))
}

fn sum(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::List(list)] = args else { return misfit() };
    meter.charge_product(list.len(), 1)?;
    let mut elements = list.iter();
    let Some(first) = elements.next() else { return Ok(Value::Int(0)) };
    elements.try_fold(first.clone(), |total, element| super::operators::add(&[total, element.clone()], meter))
}

fn extreme(args: &[Value], meter: &mut Meter, wanted: Ordering) -> Outcome {
    let [Value::List(list)] = args else { return misfit() };
    meter.charge_product(list.len(), 1)?;
    if !list.iter().all(Value::is_orderable) {
        return error("list elements have no order");
    }
    let best = list.iter().reduce(|best, element| match element.compare(best) {
        Some(found) if found == wanted => element,
        _ => best,
    });
    best.cloned().map_or_else(|| error("called on empty list"), Ok)
}

fn slice(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else { return misfit() };
    let range = usize::try_from(*start).ok().zip(usize::try_from(*end).ok());
    match range.and_then(|(start, end)| list.get(start..end)) {
        Some(part) => {
            meter.charge_product(part.len(), 1)?;
            Ok(Value::list(part.to_vec()))
        }
        None => error(format!("cannot slice({start}, {end}), list is length {}", list.len())),
    }
}

fn flatten(args: &[Value], meter: &mut Meter) -> Outcome {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return misfit(),
    };
    if depth < 0 {
        return error("level must be non-negative");
    }
    let mut out = Vec::new();
    flatten_into(&mut out, list, depth, meter)?;
    Ok(Value::list(out))
}

/// Lists in lists are no deeper than the expression that made them, so neither is this.
fn flatten_into(out: &mut Vec<Value>, list: &[Value], depth: i64, meter: &mut Meter) -> Outcome<()> {
    for element in list {
        meter.charge(1)?;
        match element {
            Value::List(inner) if depth > 0 => flatten_into(out, inner, depth - 1, meter)?,
            other => out.push(other.clone()),
        }
    }
    Ok(())
}

/// `list` in the order of `keys`, which must be of one type that has an order.
fn sorted(list: &[Value], keys: &[Value], meter: &mut Meter) -> Outcome {
    if list.len() != keys.len() {
        return error("there are not as many keys as elements");
    }
    // Upstream charges two for each pair.
    meter.charge_product(list.len().saturating_mul(2), list.len())?;
    let same = |pair: &[Value]| std::mem::discriminant(&pair[0]) == std::mem::discriminant(&pair[1]);
    if !keys.windows(2).all(same) {
        return error("list elements must have the same type");
    }
    if !keys.iter().all(Value::is_orderable) {
        return error("list elements must be comparable");
    }
    let mut order: Vec<usize> = (0..list.len()).collect();
    order.sort_by(|a, b| keys[*a].compare(&keys[*b]).unwrap_or(Ordering::Equal));
    Ok(Value::list(order.into_iter().map(|index| list[index].clone()).collect()))
}

fn distinct(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::List(list)] = args else { return misfit() };
    meter.charge_product(list.len().saturating_mul(2), list.len())?;
    let mut kept: Vec<Value> = Vec::new();
    for element in list.iter() {
        if !kept.iter().any(|known| element.is(known)) {
            kept.push(element.clone());
        }
    }
    Ok(Value::list(kept))
}

fn unwrap(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::List(list)] = args else { return misfit() };
    meter.charge_product(list.len(), 1)?;
    let present = list.iter().filter_map(|element| match element {
        Value::Optional(None) => None,
        Value::Optional(Some(value)) => Some(Ok((**value).clone())),
        other => Some(Err(Fault::Error(format!("a {} is not optional", other.type_name())))),
    });
    Ok(Value::list(present.collect::<Outcome<Vec<_>>>()?))
}
