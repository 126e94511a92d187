//! Functions of the Kubernetes libraries: quantities, versions, addresses, networks, URLs and named formats.

use std::cmp::Ordering;
use std::sync::Arc;

use super::builtin::{Builtin, misfit};
use crate::format::{FORMATS, NamedFormat};
use crate::meter::Meter;
use crate::network::{Cidr, Ip, Url};
use crate::quantity::{Format, Quantity};
use crate::value::{Map, Outcome, Value, error};
use crate::version::Version;

pub(super) const GLOBAL: &[(&str, Builtin)] = &[
    ("quantity", |args, meter| read(args, meter, |text| text.parse().map(Value::Quantity))),
    ("isQuantity", |args, meter| is(args, meter, |text| text.parse::<Quantity>().is_ok())),
    ("sign", |args, _| match args {
        [Value::Quantity(quantity)] => Ok(ordering(quantity.cmp(&Quantity::ZERO))),
        _ => misfit(),
    }),
    ("semver", |args, meter| match args {
        [text, Value::Bool(true)] => read(std::slice::from_ref(text), meter, |text| {
            Version::parse_loosely(text).map(|version| Value::Version(Arc::new(version)))
        }),
        [text] | [text, Value::Bool(false)] => read(std::slice::from_ref(text), meter, |text| {
            Version::parse(text).map(|version| Value::Version(Arc::new(version)))
        }),
        _ => misfit(),
    }),
    ("isSemver", |args, meter| match args {
        [text, Value::Bool(true)] => {
            is(std::slice::from_ref(text), meter, |text| Version::parse_loosely(text).is_ok())
        }
        [text] | [text, Value::Bool(false)] => {
            is(std::slice::from_ref(text), meter, |text| Version::parse(text).is_ok())
        }
        _ => misfit(),
    }),
    ("ip", |args, meter| read(args, meter, |text| Ip::parse(text).map(Value::Ip))),
    ("isIP", |args, meter| is(args, meter, |text| Ip::parse(text).is_ok())),
    ("ip.isCanonical", |args, meter| {
        read(args, meter, |text| Ip::parse(text).map(|ip| Value::Bool(ip.0.to_string() == text)))
    }),
    ("cidr", |args, meter| read(args, meter, |text| Cidr::parse(text).map(Value::Cidr))),
    ("isCIDR", |args, meter| is(args, meter, |text| Cidr::parse(text).is_ok())),
    ("url", |args, meter| read(args, meter, |text| Url::parse(text).map(|url| Value::Url(Arc::new(url))))),
    ("isURL", |args, meter| is(args, meter, |text| Url::parse(text).is_ok())),
    ("format.named", |args, _| match args {
        [Value::String(name)] => {
            Ok(Value::Optional(NamedFormat::named(name).map(|f| Arc::new(Value::Format(f)))))
        }
        _ => misfit(),
    }),
];

pub(super) const MEMBER: &[(&str, Builtin)] = &[
    ("isGreaterThan", |args, _| Ok(Value::Bool(compare(args)? == Ordering::Greater))),
    ("isLessThan", |args, _| Ok(Value::Bool(compare(args)? == Ordering::Less))),
    ("compareTo", |args, _| compare(args).map(ordering)),
    ("add", |args, _| combine(args, Quantity::plus)),
    ("sub", |args, _| combine(args, Quantity::minus)),
    ("asInteger", |args, _| match args {
        [Value::Quantity(quantity)] => quantity
            .as_integer()
            .map_or_else(|| error("cannot convert value to integer"), |i| Ok(Value::Int(i))),
        _ => misfit(),
    }),
    ("isInteger", |args, _| match args {
        [Value::Quantity(quantity)] => Ok(Value::Bool(quantity.as_integer().is_some())),
        _ => misfit(),
    }),
    ("asApproximateFloat", |args, _| match args {
        [Value::Quantity(quantity)] => Ok(Value::Double(quantity.approximate())),
        _ => misfit(),
    }),
    ("major", |args, _| part(args, |version| version.major)),
    ("minor", |args, _| part(args, |version| version.minor)),
    ("patch", |args, _| part(args, |version| version.patch)),
    ("family", |args, _| match args {
        [Value::Ip(ip)] => Ok(Value::Int(if ip.0.is_ipv4() { 4 } else { 6 })),
        _ => misfit(),
    }),
    ("isUnspecified", |args, _| about(args, |ip| ip.0.is_unspecified())),
    ("isLoopback", |args, _| about(args, |ip| ip.0.is_loopback())),
    ("isLinkLocalMulticast", |args, _| about(args, Ip::is_link_local_multicast)),
    ("isLinkLocalUnicast", |args, _| about(args, Ip::is_link_local_unicast)),
    ("isGlobalUnicast", |args, _| about(args, Ip::is_global_unicast)),
    ("containsIP", |args, _| match args {
        [Value::Cidr(cidr), Value::Ip(ip)] => Ok(Value::Bool(cidr.contains(*ip))),
        [Value::Cidr(cidr), Value::String(text)] => {
            Ip::parse(text).map_or_else(error, |ip| Ok(Value::Bool(cidr.contains(ip))))
        }
        _ => misfit(),
    }),
    ("containsCIDR", |args, _| match args {
        [Value::Cidr(cidr), Value::Cidr(other)] => Ok(Value::Bool(cidr.contains_network(*other))),
        [Value::Cidr(cidr), Value::String(text)] => {
            Cidr::parse(text).map_or_else(error, |other| Ok(Value::Bool(cidr.contains_network(other))))
        }
        _ => misfit(),
    }),
    ("ip", |args, _| network(args, |cidr| Value::Ip(cidr.address))),
    ("prefixLength", |args, _| network(args, |cidr| Value::Int(i64::from(cidr.bits)))),
    ("masked", |args, _| network(args, |cidr| Value::Cidr(cidr.masked()))),
    ("getScheme", |args, _| of_url(args, |url| &url.scheme)),
    ("getHost", |args, _| of_url(args, |url| &url.host)),
    ("getHostname", |args, _| of_url(args, Url::hostname)),
    ("getPort", |args, _| of_url(args, Url::port)),
    ("getEscapedPath", |args, _| of_url(args, |url| &url.path)),
    ("getQuery", query),
    ("validate", validate),
];

/// The function that names a format, such as `format.dns1123Label()`.
pub(super) fn format_constant(name: &str) -> Option<(&'static str, Builtin)> {
    /// One function each, as an implementation carries no data of its own.
    const CONSTANTS: [Builtin; 13] = [
        |_, _| Ok(Value::Format(FORMATS[0].1)),
        |_, _| Ok(Value::Format(FORMATS[1].1)),
        |_, _| Ok(Value::Format(FORMATS[2].1)),
        |_, _| Ok(Value::Format(FORMATS[3].1)),
        |_, _| Ok(Value::Format(FORMATS[4].1)),
        |_, _| Ok(Value::Format(FORMATS[5].1)),
        |_, _| Ok(Value::Format(FORMATS[6].1)),
        |_, _| Ok(Value::Format(FORMATS[7].1)),
        |_, _| Ok(Value::Format(FORMATS[8].1)),
        |_, _| Ok(Value::Format(FORMATS[9].1)),
        |_, _| Ok(Value::Format(FORMATS[10].1)),
        |_, _| Ok(Value::Format(FORMATS[11].1)),
        |_, _| Ok(Value::Format(FORMATS[12].1)),
    ];
    let name = name.strip_prefix("format.")?;
    let index = FORMATS.iter().position(|(known, _)| *known == name)?;
    Some((FORMATS[index].0, *CONSTANTS.get(index)?))
}

fn ordering(found: Ordering) -> Value {
    Value::Int(match found {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })
}

fn read<E: ToString>(args: &[Value], meter: &mut Meter, parse: impl Fn(&str) -> Result<Value, E>) -> Outcome {
    let [Value::String(text)] = args else { return misfit() };
    meter.charge_size(text.len())?;
    parse(text).or_else(|why| error(why.to_string()))
}

fn is(args: &[Value], meter: &mut Meter, test: fn(&str) -> bool) -> Outcome {
    let [Value::String(text)] = args else { return misfit() };
    meter.charge_size(text.len())?;
    Ok(Value::Bool(test(text)))
}

fn compare(args: &[Value]) -> Outcome<Ordering> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => Ok(a.cmp(b)),
        [Value::Version(a), Value::Version(b)] => Ok(a.cmp_precedence(b)),
        _ => misfit(),
    }
}

fn combine(args: &[Value], with: fn(Quantity, Quantity) -> Quantity) -> Outcome {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => Ok(Value::Quantity(with(*a, *b))),
        [Value::Quantity(a), Value::Int(b)] => {
            Ok(Value::Quantity(with(*a, Quantity::from_units(*b, Format::DecimalExponent))))
        }
        _ => misfit(),
    }
}

fn part(args: &[Value], of: fn(&Version) -> u64) -> Outcome {
    match args {
        [Value::Version(version)] => {
            i64::try_from(of(version)).map_or_else(|_| error("integer overflow"), |i| Ok(Value::Int(i)))
        }
        _ => misfit(),
    }
}

fn about(args: &[Value], test: fn(Ip) -> bool) -> Outcome {
    match args {
        [Value::Ip(ip)] => Ok(Value::Bool(test(*ip))),
        _ => misfit(),
    }
}

fn network(args: &[Value], of: fn(Cidr) -> Value) -> Outcome {
    match args {
        [Value::Cidr(cidr)] => Ok(of(*cidr)),
        _ => misfit(),
    }
}

fn of_url(args: &[Value], piece: fn(&Url) -> &str) -> Outcome {
    match args {
        [Value::Url(url)] => Ok(Value::text(piece(url))),
        _ => misfit(),
    }
}

fn query(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::Url(url)] = args else { return misfit() };
    meter.charge_size(url.query.len())?;
    let mut keys: Vec<(String, Vec<Value>)> = Vec::new();
    for (key, value) in url.parameters() {
        meter.charge_product(keys.len(), 1)?;
        match keys.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(Value::text(value)),
            None => keys.push((key, vec![Value::text(value)])),
        }
    }
    let mut map = Map::default();
    keys.into_iter().for_each(|(key, values)| map.set(&key, Value::list(values)));
    Ok(Value::Map(Arc::new(map)))
}

fn validate(args: &[Value], meter: &mut Meter) -> Outcome {
    let [Value::Format(format), Value::String(text)] = args else { return misfit() };
    meter.charge_size(text.len().saturating_mul(10))?;
    let problems = format.problem(text).map(|problem| Arc::new(Value::list(vec![Value::text(problem)])));
    Ok(Value::Optional(problems))
}
