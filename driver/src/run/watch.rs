//! A run's card, followed while the command runs: what the card tells of itself is noted for whoever gives it out next. Nobody who
//! is on it is disturbed.
//!
//! ```text
//!  card ─▶ Events::next, asleep in the driver ─▶ HealthBook ─▶ the next run, `prepare`, `devices`, `slices`, `top`
//! ```
//!
//! Every supervisor follows its own card, so that nothing is missed when one of them is killed: what several note is one note. The
//! thread sleeps until the card tells something, and looks up once a minute; it ends with the process, or when it has noted that
//! the card is lost. What cannot be noted, as on a full disk, is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use aliquot_core::health::{Cause, Era, Subject, UnixSeconds};
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;

use super::cards::Events;
use crate::clock;
use crate::health::HealthBook;

/// Longest sleep.
const SLEEP: Duration = Duration::from_millis(60_000);
/// What comes sooner than this after the question was there already, or is no answer.
const AT_ONCE: Duration = Duration::from_millis(10);
/// As many answers in a row may come at once, before there is a rest.
const AT_ONCE_MAX: u32 = 64;
/// The rest from a storm of events. Programs can bring one about, and what matters may stand behind it: it is short, so that
/// thousands a second are heard, and yet long beside the microseconds that they take.
const STORM_REST: Duration = Duration::from_millis(10);
/// The first rest from a driver that tells nothing and does not wait; the next ones are longer.
const REST: Duration = Duration::from_millis(1_000);
/// Time until what could not be noted is tried again.
const AGAIN: Duration = Duration::from_millis(5_000);
/// Most that is remembered of what was noted, and of what is still to be.
const NOTED_MAX: usize = 2_048;

/// Which card, and where what it tells is noted.
#[derive(Debug)]
pub struct Followed {
    /// Card.
    pub card: CardUuid,
    /// Who tells.
    pub events: Box<dyn Events>,
    /// Where it is noted.
    pub book: HealthBook,
    /// For how long it counts.
    pub era: Era,
}

/// Who notes what is heard.
#[derive(Debug)]
struct Writer {
    card: CardUuid,
    book: HealthBook,
    era: Era,
    /// What need not be noted again.
    noted: BTreeSet<(Cause, Part)>,
    /// What could not be noted so far, with when it was heard.
    waiting: BTreeMap<(Cause, Part), UnixSeconds>,
    /// When that was tried last.
    tried: Option<Instant>,
}

/// How long a driver lets wait that does not.
#[derive(Debug, Default)]
struct Patience {
    told: u32,
    nothing: u32,
    rests: u32,
}

/// What is to be done after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Ask,
    Rest(Duration),
    End,
}

/// What an answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The card told something.
    Told,
    /// It told nothing for as long as was asked.
    Nothing,
    /// None: the driver does not wait.
    Failed,
}

/// Follows a card from now on, beside everything else.
///
/// # Errors
/// No thread can be had.
pub fn start(followed: Followed) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("card-events".to_owned());
    // Nobody waits for it: it is asleep in the driver, and has nothing to give back.
    thread.spawn(move || follow(followed)).map(drop)
}

fn follow(Followed { card, mut events, book, era }: Followed) {
    let (mut writer, mut patience) = (Writer::new(card, book, era), Patience::default());
    loop {
        match ask(events.as_mut(), &mut writer, &mut patience) {
            Then::Ask => {}
            Then::Rest(rest) => std::thread::sleep(rest),
            Then::End => return,
        }
    }
}

/// Asks once.
fn ask(events: &mut dyn Events, writer: &mut Writer, patience: &mut Patience) -> Then {
    let asked = clock::now();
    let told = events.next(writer.longest());
    let now = clock::now();
    let answer = match told {
        Ok(Some((Cause::Lost, part))) => {
            // It is told again, as long as it is so.
            return if writer.lost(part) { Then::End } else { Then::Rest(AGAIN) };
        }
        Ok(Some(seen)) => {
            writer.hear(seen, now);
            Answer::Told
        }
        Ok(None) => Answer::Nothing,
        Err(_) => Answer::Failed,
    };
    writer.try_again(now);
    patience.after(answer, now.duration_since(asked)).map_or(Then::Ask, Then::Rest)
}

// === impl Writer ===

impl Writer {
    const fn new(card: CardUuid, book: HealthBook, era: Era) -> Self {
        Self { card, book, era, noted: BTreeSet::new(), waiting: BTreeMap::new(), tried: None }
    }

    /// For how long there is nothing to do.
    fn longest(&self) -> Duration {
        if self.waiting.is_empty() { SLEEP } else { AGAIN }
    }

    fn hear(&mut self, seen: (Cause, Part), now: Instant) {
        if self.noted.contains(&seen) || self.waiting.contains_key(&seen) {
            return;
        }
        let at = clock::unix();
        // Where one cannot be noted, no other can, and each try may take its time.
        if self.waiting.is_empty() && self.write(&seen, at) {
            self.remember(seen);
        } else if self.waiting.len() < NOTED_MAX {
            self.tried.get_or_insert(now);
            self.waiting.insert(seen, at);
        }
    }

    /// Whether it is noted that the card is lost. What else was seen of it is over when it answers again.
    fn lost(&mut self, part: Part) -> bool {
        self.noted.clear();
        self.waiting.clear();
        self.tried = None;
        self.write(&(Cause::Lost, part), clock::unix())
    }

    /// Notes what waits for that, if it is time.
    fn try_again(&mut self, now: Instant) {
        if self.tried.is_none_or(|tried| now.duration_since(tried) < AGAIN) {
            return;
        }
        self.tried = Some(now);
        while let Some((seen, at)) = self.waiting.pop_first() {
            if !self.write(&seen, at) {
                self.waiting.insert(seen, at);
                return;
            }
            self.remember(seen);
        }
        self.tried = None;
    }

    /// Whether it is noted now.
    fn write(&self, (cause, part): &(Cause, Part), at: UnixSeconds) -> bool {
        let of = Subject { card: self.card.clone(), part: part.clone() };
        self.book.note(&self.era, of, *cause, at).is_ok()
    }

    fn remember(&mut self, seen: (Cause, Part)) {
        if self.noted.len() < NOTED_MAX {
            self.noted.insert(seen);
        }
    }
}

// === impl Patience ===

impl Patience {
    /// The rest after an answer that took so long; `None`: none.
    fn after(&mut self, answer: Answer, took: Duration) -> Option<Duration> {
        if answer != Answer::Failed && took >= AT_ONCE {
            *self = Self::default();
            return None;
        }
        match answer {
            Answer::Told => {
                // It works.
                (self.nothing, self.rests) = (0, 0);
                self.told += 1;
                if self.told < AT_ONCE_MAX {
                    return None;
                }
                self.told = 0;
                Some(STORM_REST)
            }
            Answer::Nothing => {
                self.nothing += 1;
                if self.nothing < AT_ONCE_MAX {
                    return None;
                }
                self.nothing = 0;
                Some(self.rest())
            }
            Answer::Failed => Some(self.rest()),
        }
    }

    /// Ever longer.
    fn rest(&mut self) -> Duration {
        let rest = REST.saturating_mul(1 << self.rests.min(6)).min(SLEEP);
        self.rests = self.rests.saturating_add(1);
        rest
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn a_driver_that_does_not_wait_is_asked_ever_more_seldom() {
        let mut patience = Patience::default();
        let rests: Vec<u64> =
            (0..8).map(|_| patience.after(Answer::Failed, Duration::ZERO).unwrap().as_secs()).collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 60, 60]);
        // One that sleeps again has its credit back.
        assert_eq!(patience.after(Answer::Nothing, SLEEP), None);
        assert_eq!(patience.after(Answer::Failed, SLEEP), Some(REST));
    }

    #[test]
    fn a_storm_of_answers_keeps_no_processor_busy_and_hides_none() {
        let rests = |answers: &[Answer]| {
            let mut patience = Patience::default();
            let of = answers.iter().cycle().take(64_000);
            of.filter_map(|answer| patience.after(*answer, Duration::ZERO)).collect::<Vec<_>>()
        };
        assert!(rests(&[Answer::Nothing]).iter().sum::<Duration>() > Duration::from_secs(900 * 60));
        // 6,400 a second, and nobody is deaf for longer than a rest.
        assert_eq!(rests(&[Answer::Told]), vec![STORM_REST; 1_000]);
        // What is nothing between them makes no longer rest.
        assert_eq!(rests(&[Answer::Told, Answer::Nothing]), vec![STORM_REST; 500]);
        // What comes now and then is heard at once.
        let mut patience = Patience::default();
        assert!((0..1_000).all(|_| patience.after(Answer::Told, AT_ONCE).is_none()));
    }

    /// A driver that tells this, at once.
    #[derive(Debug)]
    struct Script(Vec<(Cause, Part)>);

    impl Events for Script {
        fn next(&mut self, _: Duration) -> Result<Option<(Cause, Part)>, String> {
            Ok(if self.0.is_empty() { None } else { Some(self.0.remove(0)) })
        }
    }

    fn writer(state: &Path) -> Writer {
        let era = Era { boot: "b".to_owned(), driver: Some("d".to_owned()) };
        Writer::new(CardUuid::new("GPU-0").unwrap(), HealthBook::of(state), era)
    }

    fn noted(writer: &Writer) -> Vec<Cause> {
        let notes = writer.book.notes(&writer.era).unwrap();
        notes.all().map(|(_, _, cause, _)| cause).collect()
    }

    /// Where a pipe stands nobody gets the lock.
    fn lock_out(state: &Path) -> PathBuf {
        let lock = state.join("health.lock");
        nix::unistd::mkfifo(&lock, nix::sys::stat::Mode::S_IRWXU).unwrap();
        lock
    }

    #[test]
    fn unrecordable_event_is_retried_until_recorded() {
        let state = tempfile::tempdir().unwrap();
        let (mut writer, now) = (writer(state.path()), clock::now());
        let lock = lock_out(state.path());
        writer.hear((Cause::Code(95), Part::Card), now);
        writer.hear((Cause::Code(13), Part::Card), now);
        writer.try_again(now + AGAIN);
        assert_eq!((writer.waiting.len(), writer.longest()), (2, AGAIN));
        fs::remove_file(&lock).unwrap();
        writer.try_again(now + AGAIN);
        assert_eq!(noted(&writer), [], "it was tried just now");
        writer.try_again(now + 2 * AGAIN);
        assert_eq!(noted(&writer), [Cause::Code(13), Cause::Code(95)]);
        assert_eq!((writer.waiting.len(), writer.longest()), (0, SLEEP));
    }

    #[test]
    fn unrecordable_loss_is_read_again_and_may_be_over() {
        let state = tempfile::tempdir().unwrap();
        let lock = lock_out(state.path());
        let (mut writer, mut patience) = (writer(state.path()), Patience::default());
        let lost = (Cause::Lost, Part::Card);
        let told = vec![
            (Cause::Code(79), Part::Card),
            lost.clone(),
            lost.clone(),
            (Cause::Code(48), Part::Card),
            lost,
        ];
        let mut events = Script(told);
        let mut next = |writer: &mut Writer| ask(&mut events, writer, &mut patience);
        assert_eq!((next(&mut writer), next(&mut writer)), (Then::Ask, Then::Rest(AGAIN)));
        assert_eq!(next(&mut writer), Then::Rest(AGAIN));
        // It answers again: what was told of it before is over, and what is told now counts.
        fs::remove_file(&lock).unwrap();
        assert_eq!(next(&mut writer), Then::Ask);
        assert_eq!(noted(&writer), [Cause::Code(48)]);
        assert_eq!(next(&mut writer), Then::End);
        assert_eq!(noted(&writer), [Cause::Code(48), Cause::Lost]);
    }
}
