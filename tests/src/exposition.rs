//! Reads the text that Prometheus scrapes (OpenMetrics 1.0), strictly: what a scraper may refuse is refused.

use std::collections::{BTreeMap, BTreeSet};

/// One family of samples.
#[derive(Clone, Debug)]
pub struct Family {
    /// Name as declared.
    pub name: String,
    /// `counter`, `gauge`, `histogram`, `info`.
    pub kind: String,
    /// Its samples, in their order.
    pub samples: Vec<Sample>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name, with the suffix of its kind.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Value.
    pub value: f64,
}

/// Reads a whole text.
///
/// # Errors
/// The first line that breaks a rule, and which.
pub fn parse(text: &str) -> Result<Vec<Family>, String> {
    let Some(body) = text.strip_suffix("# EOF\n") else { return Err("no # EOF at the end".to_owned()) };
    let mut families: Vec<Family> = Vec::new();
    let mut helped = String::new();
    for line in body.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| wrong("help without a text"))?;
            if help.is_empty() {
                return Err(wrong("help without a text"));
            }
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("type without a kind"))?;
            if helped != name || !is_name(name) || families.iter().any(|family| family.name == name) {
                return Err(wrong("a family without help, with a bad name, or twice"));
            }
            families.push(Family { name: name.to_owned(), kind: kind.to_owned(), samples: Vec::new() });
        } else {
            let family = families.last_mut().ok_or_else(|| wrong("a sample without a family"))?;
            let sample = sample(line).ok_or_else(|| wrong("no sample"))?;
            if !suffixes(&family.kind).iter().any(|end| sample.name == format!("{}{end}", family.name)) {
                return Err(wrong("a name that is not the family's"));
            }
            let same = |other: &Sample| other.name == sample.name && other.labels == sample.labels;
            if family.samples.iter().any(same) {
                return Err(wrong("a series twice"));
            }
            family.samples.push(sample);
        }
    }
    families.iter().try_for_each(check)?;
    Ok(families)
}

fn suffixes(kind: &str) -> &'static [&'static str] {
    match kind {
        "counter" => &["_total"],
        "gauge" => &[""],
        "histogram" => &["_bucket", "_sum", "_count"],
        "info" => &["_info"],
        _ => &[],
    }
}

fn is_name(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// `name{label="value",…} number`
fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let (name, labels) = match series.split_once('{') {
        None => (series, BTreeMap::new()),
        Some((name, rest)) => (name, labels(rest.strip_suffix('}')?)?),
    };
    is_name(name).then(|| Sample { name: name.to_owned(), labels, value })
}

fn labels(mut text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        let (mut value, mut end) = (String::new(), None);
        let mut chars = rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    end = Some(at);
                    break;
                }
                '\\' => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    c @ ('"' | '\\') => c,
                    _ => return None,
                }),
                c => value.push(c),
            }
        }
        if !is_name(name) || labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        text = &rest[end? + 1..];
        text = text.strip_prefix(',').unwrap_or(text);
    }
    Some(labels)
}

/// Rules over all samples of a family.
fn check(family: &Family) -> Result<(), String> {
    let names: BTreeSet<Vec<&String>> = family
        .samples
        .iter()
        .map(|sample| sample.labels.keys().filter(|name| *name != "le").collect())
        .collect();
    if names.len() > 1 {
        return Err(format!("{}: samples with different labels: {names:?}", family.name));
    }
    let bad = |sample: &&Sample| family.kind != "gauge" && (sample.value < 0.0 || !sample.value.is_finite());
    if let Some(sample) = family.samples.iter().find(bad) {
        return Err(format!("{}: {}", sample.name, sample.value));
    }
    if family.kind == "histogram" { buckets(family) } else { Ok(()) }
}

/// Buckets rise, and the last one counts everything.
fn buckets(family: &Family) -> Result<(), String> {
    let of = |end: &str| {
        let name = format!("{}{end}", family.name);
        family.samples.iter().filter(move |sample| sample.name == name)
    };
    for count in of("_count") {
        let is_its =
            |sample: &&Sample| sample.labels.iter().filter(|(name, _)| *name != "le").eq(count.labels.iter());
        let mut last = (f64::NEG_INFINITY, 0.0);
        for bucket in of("_bucket").filter(is_its) {
            let bound: f64 = bucket.labels["le"].parse().map_err(|_| format!("{}: le", family.name))?;
            if bound <= last.0 || bucket.value < last.1 {
                return Err(format!("{}: buckets do not rise at {bound}", family.name));
            }
            last = (bound, bucket.value);
        }
        if last != (f64::INFINITY, count.value) {
            return Err(format!("{}: the last bucket is {last:?}, the count {}", family.name, count.value));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_texts_are_refused() {
        let good = "# HELP a_b x.\n# TYPE a_b counter\na_b_total{l=\"a\\\"b\\\\c\"} 3\n# EOF\n";
        let families = parse(good).unwrap();
        assert_eq!(families[0].samples[0].labels["l"], "a\"b\\c");
        for (from, to) in [
            ("# EOF\n", ""),
            ("a_b_total", "a_b"),
            ("# HELP a_b x.\n", ""),
            ("} 3", "} three"),
            ("} 3", "} -3"),
            ("l=\"a", "l=a"),
            ("l=", "l-m="),
            ("counter\n", "counter\na_b_total{l=\"a\\\"b\\\\c\"} 1\n"),
            ("counter\n", "counter\na_b_total{m=\"\"} 1\n"),
        ] {
            let broken = good.replacen(from, to, 1);
            assert!(parse(&broken).is_err(), "{broken}");
        }
        let histogram = "# HELP h x.\n# TYPE h histogram\nh_sum 1\nh_count 2\nh_bucket{le=\"1.0\"} 1\n\
                         h_bucket{le=\"+Inf\"} 2\n# EOF\n";
        assert_eq!(parse(histogram).unwrap().len(), 1);
        assert!(parse(&histogram.replace("h_count 2", "h_count 3")).is_err());
        assert!(parse(&histogram.replace("1.0\"} 1", "1.0\"} 4")).is_err());
    }
}
