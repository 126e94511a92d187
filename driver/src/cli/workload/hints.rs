//! Near names of missing ones, for a bounded number of missing names: each is compared with every known name.

use std::collections::HashMap;

use crate::manifest::nearest;

/// Missing names for which a near one is sought.
const NAMES_MAX: usize = 32;
/// Comparisons of two names, of all searches together: half a second.
const COMPARISONS_MAX: usize = 500_000;

/// The near names that were found.
#[derive(Debug, Default)]
pub(in crate::cli) struct Hints {
    /// By missing object; `None`: no known name is near.
    found: HashMap<String, Option<String>>,
    /// Searches that compared names.
    searches: usize,
    compared: Compared,
    given: HintsGiven,
}

/// Comparisons of two names.
#[derive(Debug, Default)]
pub(in crate::cli) struct Compared(usize);

/// Whether every missing name was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HintsGiven {
    #[default]
    All,
    Some,
}

// === impl Hints ===

impl Hints {
    /// The near name of a missing object, sought once; `None` where no name is near, or the bound is reached.
    pub(in crate::cli) fn near(
        &mut self,
        object: &str,
        search: impl FnOnce(&mut Compared) -> Option<String>,
    ) -> Option<String> {
        if let Some(found) = self.found.get(object) {
            return found.clone();
        }
        if self.searches >= NAMES_MAX || self.compared.0 >= COMPARISONS_MAX {
            self.given = HintsGiven::Some;
            return None;
        }
        let before = self.compared.0;
        let found = search(&mut self.compared);
        self.searches += usize::from(self.compared.0 > before);
        self.found.insert(object.to_owned(), found.clone());
        found
    }

    /// As [`Self::near`], among these names, as the end of a sentence.
    pub(in crate::cli) fn did_you_mean<'k>(
        &mut self,
        object: &str,
        missing: &str,
        known: impl Iterator<Item = &'k str>,
    ) -> String {
        let near = self.near(object, |compared| {
            let mut known: Vec<&str> = known.collect();
            known.sort_unstable();
            compared.nearest(missing, &known).map(str::to_owned)
        });
        near.map(|near| format!("; did you mean {near}?")).unwrap_or_default()
    }

    /// What is said where missing names are without a hint.
    pub(in crate::cli) fn note(&self) -> Option<String> {
        let words = format!(
            "near names were sought for the first {} missing names; correct these, and run the command again for more",
            self.searches
        );
        (self.given == HintsGiven::Some).then_some(words)
    }

    /// How many names were compared.
    #[cfg(test)]
    pub(super) const fn compared(&self) -> usize {
        self.compared.0
    }
}

// === impl Compared ===

impl Compared {
    /// The known name that is nearest, if one is near.
    pub(in crate::cli) fn nearest<'k>(&mut self, missing: &str, known: &[&'k str]) -> Option<&'k str> {
        self.0 += known.len();
        nearest(missing, known)
    }
}
