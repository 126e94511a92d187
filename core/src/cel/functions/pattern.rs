//! Regular expressions: the syntax of Go's RE2, on the `regex` crate.
//!
//! The two agree but for this: in RE2 `\d`, `\w`, `\s` and `\b` know ASCII only, `[` and `&&` in a class mean
//! themselves, `\Q…\E` quotes, and some of the crate's own flags and escapes do not exist.

use regex::{Regex, RegexBuilder};

use super::misfit;
use crate::cel::program::Meter;
use crate::cel::value::{Outcome, Value, error};

/// Most bytes of a compiled pattern.
const COMPILED_MAX: usize = 1 << 20;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cel) enum Hunt {
    /// `matches`: whether there is a match.
    Any,
    /// `find`: the first match, or an empty string.
    First,
    /// `findAll`: every match, or as many as a third argument says.
    All,
}

/// A search with its pattern ready.
#[derive(Debug)]
pub(in crate::cel) struct Search {
    hunt: Hunt,
    regex: Regex,
    pattern_size: usize,
}

// === impl Hunt ===

impl Hunt {
    /// The search that a function of this name makes.
    pub(in crate::cel) fn named(name: &str) -> Option<Self> {
        match name {
            "matches" => Some(Self::Any),
            "find" => Some(Self::First),
            "findAll" => Some(Self::All),
            _ => None,
        }
    }

    /// Searches for a pattern known only now.
    pub(super) fn run(self, args: &[Value], meter: &mut Meter) -> Outcome {
        let [_, Value::String(pattern), ..] = args else { return misfit() };
        // Compiling is most of the work; a long pattern is paid for before it is tried.
        meter.charge_size(pattern.len().saturating_mul(100))?;
        match Search::new(self, pattern) {
            Ok(search) => search.run(args, meter),
            Err(why) => error(why),
        }
    }
}

// === impl Search ===

impl Search {
    /// Compiles `pattern`.
    pub(in crate::cel) fn new(hunt: Hunt, pattern: &str) -> Result<Self, String> {
        let translated =
            translate(pattern).ok_or_else(|| format!("{pattern:?} is not a regular expression"))?;
        let regex = RegexBuilder::new(&translated)
            .size_limit(COMPILED_MAX)
            .dfa_size_limit(COMPILED_MAX)
            .build()
            .map_err(|_| format!("{pattern:?} is not a regular expression, or too large a one"))?;
        Ok(Self { hunt, regex, pattern_size: pattern.len() })
    }

    /// Searches the first argument.
    pub(in crate::cel) fn run(&self, args: &[Value], meter: &mut Meter) -> Outcome {
        let (Some(Value::String(text)), limit) = (args.first(), args.get(2)) else { return misfit() };
        meter.charge_product(text.len() / 10 + 1, self.pattern_size / 4 + 1)?;
        match (self.hunt, limit) {
            (Hunt::Any, None) => Ok(Value::Bool(self.regex.is_match(text))),
            (Hunt::First, None) => Ok(Value::text(self.regex.find(text).map_or("", |found| found.as_str()))),
            (Hunt::All, None) => self.all(text, usize::MAX, meter),
            (Hunt::All, Some(Value::Int(limit))) => {
                self.all(text, usize::try_from(*limit).unwrap_or(usize::MAX), meter)
            }
            _ => misfit(),
        }
    }

    fn all(&self, text: &str, limit: usize, meter: &mut Meter) -> Outcome {
        let mut found = Vec::new();
        for one in self.regex.find_iter(text).take(limit) {
            meter.charge(1)?;
            found.push(Value::text(one.as_str()));
        }
        Ok(Value::list(found))
    }
}

/// The pattern in the crate's syntax; `None` where RE2 would refuse it and the crate would not.
fn translate(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern.chars();
    let mut in_class = false;
    while let Some(c) = rest.next() {
        match c {
            '\\' => escape(&mut rest, in_class, &mut out)?,
            '[' if in_class && rest.as_str().starts_with(':') => out.push('['),
            '[' if in_class => out.push_str("\\["),
            '[' => {
                in_class = true;
                out.push('[');
                for leading in ['^', ']'] {
                    if let Some(after) = rest.as_str().strip_prefix(leading) {
                        out.push_str(if leading == ']' { "\\]" } else { "^" });
                        rest = after.chars();
                    }
                }
            }
            ']' if in_class && out.ends_with(':') => {
                // The end of `[:name:]`; the class itself goes on.
                out.push(']');
            }
            ']' => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => out.extend(['\\', c]),
            '(' if !in_class && rest.as_str().starts_with('?') => {
                let flags: String =
                    rest.as_str().chars().skip(1).take_while(|c| !matches!(c, ')' | ':')).collect();
                let names_a_group = flags.starts_with('<') || flags.starts_with("P<");
                if !names_a_group && !flags.chars().all(|flag| matches!(flag, 'i' | 'm' | 's' | 'U' | '-')) {
                    return None;
                }
                out.push('(');
            }
            '*' | '+' if !in_class && repeats_twice(rest.as_str()) => return None,
            _ => out.push(c),
        }
    }
    Some(out)
}

/// Whether what follows a repetition operator is another one: RE2 refuses `a**`.
fn repeats_twice(rest: &str) -> bool {
    let rest = rest.strip_prefix('?').unwrap_or(rest);
    rest.starts_with(['*', '+'])
}

/// Translates what follows a backslash.
fn escape(rest: &mut std::str::Chars<'_>, in_class: bool, out: &mut String) -> Option<()> {
    let bracketed = |inner: &str| if in_class { inner.to_owned() } else { format!("[{inner}]") };
    match rest.next()? {
        'd' => out.push_str(&bracketed("0-9")),
        'w' => out.push_str(&bracketed("0-9A-Za-z_")),
        's' => out.push_str(&bracketed("\\t\\n\\x0c\\r ")),
        'D' => out.push_str("[^0-9]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        'S' => out.push_str("[^\\t\\n\\x0c\\r ]"),
        'b' if !in_class => out.push_str("(?-u:\\b)"),
        'B' if !in_class => out.push_str("\\B"),
        'Q' => {
            let (quoted, after) = rest.as_str().split_once("\\E").unwrap_or((rest.as_str(), ""));
            out.push_str(&regex::escape(quoted));
            *rest = after.chars();
        }
        c @ ('A' | 'z' | 'p' | 'P' | 'x' | 'a' | 'f' | 't' | 'n' | 'r' | 'v') => out.extend(['\\', c]),
        c if c.is_ascii_punctuation() => out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        _ => return None,
    }
    Some(())
}
