//! Amounts of the command line that Kubernetes refuses: `8GiB`, `8gi`, `8 Gi`, `8GB`.

/// Longest text that is read.
const TEXT_BYTES_MAX: usize = 64;

/// The quantities that an invalid quantity may stand for.
pub(super) fn meant(text: &str) -> Vec<String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = (&text[..digits], text[digits..].trim_start());
    let is_number = number.starts_with(|c: char| c.is_ascii_digit()) && number.matches('.').count() <= 1;
    if !is_number || text.len() > TEXT_BYTES_MAX {
        return Vec::new();
    }
    let lower = suffix.to_ascii_lowercase();
    let short = lower.strip_suffix("bytes").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower).trim_end();
    let (scale, is_binary) = short.strip_suffix('i').map_or((short, false), |scale| (scale, true));
    let decimal = match scale {
        "k" => "k",
        "m" => "M",
        "g" => "G",
        "t" => "T",
        "p" => "P",
        "e" => "E",
        _ => return Vec::new(),
    };
    let binary = format!("{number}{}i", decimal.to_ascii_uppercase());
    if is_binary { vec![binary] } else { vec![binary, format!("{number}{decimal}")] }
}
