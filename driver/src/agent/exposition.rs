//! The two forms of `/metrics`: OpenMetrics 1.0 for a scraper that names it, else Prometheus' text format 0.0.4.
//!
//! ```text
//!  Accept ─▶ ExpositionForm      OpenMetrics text ─▶ lines renamed by kind ─▶ text format
//! ```
//! The text format has no kinds `info`, `stateset` and `unknown`, no units and no end, and declares a counter under the name of
//! its samples.

/// Form of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpositionForm {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

// === impl ExpositionForm ===

impl ExpositionForm {
    /// The form for a request with this header. OpenMetrics has to be named, with at least the weight of plain text: programs that
    /// take anything, such as curl and checks of text, read the older form.
    pub(super) fn accepted_by(accept: Option<&str>) -> Self {
        let accept = accept.unwrap_or_default();
        match weight(accept, "application/openmetrics-text") {
            Some(named) if named > 0 && named >= weight(accept, "text/plain").unwrap_or(0) => {
                Self::OpenMetrics
            }
            _ => Self::Text,
        }
    }

    /// The media type of its answer.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Metrics in this form, from OpenMetrics text.
    pub(super) fn of(self, openmetrics: String) -> String {
        match self {
            Self::OpenMetrics => openmetrics,
            Self::Text => text(&openmetrics),
        }
    }
}

/// The greatest weight of a media type in an Accept header, in thousandths; one that cannot be read counts as 1, as no weight does.
fn weight(accept: &str, media: &str) -> Option<u32> {
    let of = |range: &str| {
        let mut words = range.split(';').map(str::trim);
        if !words.next()?.eq_ignore_ascii_case(media) {
            return None;
        }
        let weight = words.find_map(|word| word.strip_prefix("q=").or_else(|| word.strip_prefix("Q=")));
        Some(weight.map_or(1_000, thousandths))
    };
    accept.split(',').filter_map(of).max()
}

/// `0.75` as 750; RFC 9110 allows three digits.
fn thousandths(text: &str) -> u32 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    match (whole, part.len(), format!("{part:0<3}").parse::<u32>()) {
        ("0", 0..=3, Ok(part)) => part,
        _ => 1_000,
    }
}

fn text(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "stateset" => ("", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                out.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_that_name_it() {
        const OPEN: &str = "application/openmetrics-text";
        let prometheus = format!("{OPEN};version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1");
        for (accept, expected) in [
            (None, ExpositionForm::Text),
            (Some("*/*"), ExpositionForm::Text),
            (Some("text/plain"), ExpositionForm::Text),
            (Some(prometheus.as_str()), ExpositionForm::OpenMetrics),
            (Some(OPEN), ExpositionForm::OpenMetrics),
            (Some("application/openmetrics-text; q=0"), ExpositionForm::Text),
            (Some("application/openmetrics-text;q=0.5, text/plain;q=0.9"), ExpositionForm::Text),
            (Some("APPLICATION/OpenMetrics-Text;Q=0.3, text/plain;q=0.25"), ExpositionForm::OpenMetrics),
            (Some("application/openmetrics-text;q=nonsense"), ExpositionForm::OpenMetrics),
            (Some("application/openmetrics-textual, ;;,q=1"), ExpositionForm::Text),
        ] {
            assert_eq!(ExpositionForm::accepted_by(accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn text_form_names_kinds_that_it_has() {
        let openmetrics = "\
# HELP a_calls Calls.
# TYPE a_calls counter
a_calls_total{of=\"# TYPE x\"} 3
# HELP a_build Version.
# TYPE a_build info
a_build_info{version=\"1\"} 1
# HELP a_time_seconds Time.
# TYPE a_time_seconds histogram
# UNIT a_time_seconds seconds
a_time_seconds_bucket{le=\"+Inf\"} 1
# TYPE a_room gauge
a_room 2
# EOF
";
        let expected = "\
# HELP a_calls_total Calls.
# TYPE a_calls_total counter
a_calls_total{of=\"# TYPE x\"} 3
# HELP a_build_info Version.
# TYPE a_build_info gauge
a_build_info{version=\"1\"} 1
# HELP a_time_seconds Time.
# TYPE a_time_seconds histogram
a_time_seconds_bucket{le=\"+Inf\"} 1
# TYPE a_room gauge
a_room 2
";
        assert_eq!(ExpositionForm::Text.of(openmetrics.to_owned()), expected);
        assert_eq!(ExpositionForm::OpenMetrics.of(openmetrics.to_owned()), openmetrics);
    }
}
