//! Searches with regular expressions: `matches`, `find` and `findAll`.
//!
//! A pattern that is a constant is compiled with the selector; any other when it is met, and is paid for.

use regex::{Regex, RegexBuilder};

use super::builtin::misfit;
use super::re2::translate;
use crate::meter::Meter;
use crate::value::{Outcome, Value, error};

/// Most bytes of a compiled pattern.
const COMPILED_MAX: usize = 1 << 20;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hunt {
    /// `matches`: whether there is a match.
    Any,
    /// `find`: the first match, or an empty string.
    First,
    /// `findAll`: every match, or as many as a third argument says.
    All,
}

/// A search with its pattern ready.
#[derive(Debug)]
pub(crate) struct Search {
    hunt: Hunt,
    regex: Regex,
    pattern_size: usize,
}

// === impl Hunt ===

impl Hunt {
    /// The search that a function of this name makes.
    pub(crate) fn named(name: &str) -> Option<Self> {
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
    pub(crate) fn new(hunt: Hunt, pattern: &str) -> Result<Self, String> {
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
    pub(crate) fn run(&self, args: &[Value], meter: &mut Meter) -> Outcome {
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
