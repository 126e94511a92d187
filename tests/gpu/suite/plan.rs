//! What is run: which sections, for how long, and where the page goes.

use std::path::PathBuf;
use std::time::Duration;

/// Sections in their order, and what each may take of the time there is: one that needs less leaves it to those behind it.
pub(crate) const SECTIONS: [(&str, u32); 7] = [
    ("memory", 80),
    ("reporting", 15),
    ("mig", 30),
    ("packages", 100),
    ("shares", 150),
    ("pairs", 75),
    ("overhead", 40),
];

/// The words of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Directory with the probe and the shim.
    pub(crate) carried: PathBuf,
    /// Sections; empty: all.
    pub(crate) only: Vec<String>,
    /// Seconds of each measurement of a share.
    pub(crate) seconds: f64,
    /// All the time there is.
    pub(crate) time: Duration,
    /// The cards are simulated: kernels have the length of their names, and figures mean nothing.
    pub(crate) simulated: bool,
    /// Of each kind of measurement one is enough.
    pub(crate) few: bool,
    /// Where the page goes beside the output; `None`: a dated name in the current directory.
    pub(crate) result: Option<PathBuf>,
    /// The words as they were, for the page.
    pub(crate) words: Vec<String>,
}

pub(crate) const USAGE: &str = "usage: gpu/run [--only SECTION,...] [--minutes N] [--seconds N] [--few] [RESULT]

  --only SECTION,...  of memory, reporting, mig, packages, shares, pairs, overhead
  --minutes N         what all of it may take (8); what there is no time for stands aside
  --seconds N         length of one measurement of a share (3)
  --few               of each kind of measurement one
  --simulated         the cards are: a kernel is as long as it is told, and the page says what that is worth
  RESULT              file for the page; default <date>-gpu-<card>.md in the current directory

Exit status: 0 when everything holds or there is no card (the page says why), 1 when something does not, 2 for a wrong word.";

impl Plan {
    /// Reads the words of the command line; `None`: they are not what [`USAGE`] says.
    pub(crate) fn from_words(words: &[String]) -> Option<Self> {
        let mut plan = Self {
            carried: PathBuf::new(),
            only: Vec::new(),
            seconds: 3.0,
            time: Duration::from_secs(8 * 60),
            simulated: false,
            few: false,
            result: None,
            words: Vec::new(),
        };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            match word.as_str() {
                "--carried" => plan.carried = rest.next()?.into(),
                "--seconds" => plan.seconds = positive(rest.next()?)?,
                "--minutes" => plan.time = Duration::from_secs_f64(positive(rest.next()?)? * 60.0),
                "--only" => plan.only = rest.next()?.split(',').map(str::to_owned).collect(),
                "--simulated" => plan.simulated = true,
                "--few" => plan.few = true,
                _ if word.starts_with('-') || plan.result.is_some() => return None,
                _ => plan.result = Some(word.into()),
            }
        }
        // The place of the programs is no part of the user's request.
        let of_ours = words.iter().position(|word| word == "--carried");
        let is_ours = |at: usize| of_ours.is_some_and(|ours| at == ours || at == ours + 1);
        plan.words =
            words.iter().enumerate().filter(|(at, _)| !is_ours(*at)).map(|(_, word)| word.clone()).collect();
        let known = plan.only.iter().all(|only| SECTIONS.iter().any(|(section, _)| section == only));
        (known && plan.carried.is_dir()).then_some(plan)
    }

    /// The sections that are wanted, each with its part of the time that is left when it begins, in parts of one.
    pub(crate) fn sections(&self) -> Vec<(&'static str, f64)> {
        let wanted = SECTIONS
            .iter()
            .filter(|(name, _)| self.only.is_empty() || self.only.iter().any(|only| only == name));
        let wanted: Vec<_> = wanted.collect();
        let rest = |at: usize| wanted.iter().skip(at).map(|(_, weight)| f64::from(*weight)).sum::<f64>();
        wanted.iter().enumerate().map(|(at, (name, weight))| (*name, f64::from(*weight) / rest(at))).collect()
    }
}

/// A number above 0 that a duration can hold.
fn positive(word: &str) -> Option<f64> {
    let number: f64 = word.parse().ok()?;
    (number > 0.0 && number < 1e5).then_some(number)
}
