//! Follows the health events of a run's card while the command runs, and records them for later allocations. Processes on the card
//! are not disturbed.
//!
//! ```text
//!  card ─▶ Events::next, asleep in the driver ─▶ HealthBook ─▶ the next run, `prepare`, `devices`, `slices`, `top`
//! ```
//!
//! Every supervisor follows its own card, so that no event is missed if one of them is killed; equal records merge. The thread
//! sleeps until the driver reports an event, at most a minute. It ends with the process, or once the loss of the card is recorded.
//! An event that cannot be recorded, as on a full disk, is recorded later.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aliquot_core::health::{Cause, Era, NoteOutcome, Subject, UnixSeconds};
use aliquot_core::id::CardUuid;
use aliquot_core::partition::Part;
use tokio::sync::Notify;

use super::cards::Events;
use crate::clock;
use crate::health::HealthBook;

/// Longest sleep.
const SLEEP: Duration = Duration::from_millis(60_000);
/// A call that returns sooner did not wait.
const AT_ONCE: Duration = Duration::from_millis(10);
/// Calls in a row that may return at once before a pause.
const AT_ONCE_MAX: u32 = 64;
/// The pause in a storm of events. Programs can cause one, and important events may follow it: the pause is short enough to read
/// thousands of events a second, and long beside the microseconds that each takes.
const STORM_REST: Duration = Duration::from_millis(10);
/// The first pause if the driver neither reports nor waits; later ones are longer.
const REST: Duration = Duration::from_millis(1_000);
/// Time until the next try to record an event.
const AGAIN: Duration = Duration::from_millis(5_000);
/// An event that repeats is recorded again after this time: an administrator may have cleared it meanwhile.
const REPEAT: Duration = Duration::from_millis(1_000);
/// Most events that are remembered as recorded, and as waiting.
const NOTED_MAX: usize = 2_048;

/// The card to follow, and the file for its events.
#[derive(Debug)]
pub struct EventSource {
    /// Card.
    pub card: CardUuid,
    /// The source of events.
    pub events: Box<dyn Events>,
    /// The file for them.
    pub book: HealthBook,
    /// The boot and driver for which they count.
    pub era: Era,
    /// Becomes true when another watch takes this one's place: nothing is recorded from then on.
    pub replaced: Arc<AtomicBool>,
    /// Notified after an event is recorded that was not before.
    pub recorded: Arc<Notify>,
}

/// Records events.
#[derive(Debug)]
struct HealthWriter {
    card: CardUuid,
    book: HealthBook,
    era: Era,
    replaced: Arc<AtomicBool>,
    recorded: Arc<Notify>,
    /// Events already recorded, with the last time.
    noted: BTreeMap<(Cause, Part), Instant>,
    /// Events that could not be recorded yet, with their times.
    waiting: BTreeMap<(Cause, Part), UnixSeconds>,
    /// When they were last tried.
    tried: Option<Instant>,
}

/// Pauses between calls of a driver that does not wait.
#[derive(Debug, Default)]
struct Patience {
    told: u32,
    nothing: u32,
    rests: u32,
}

/// The next action after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextAction {
    Ask,
    Rest(Duration),
    End,
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallResult {
    /// The driver reported an event.
    Told,
    /// The driver reported no event.
    Nothing,
    /// The call failed without waiting.
    Failed,
}

/// Follows a card from now on, in its own thread.
///
/// # Errors
/// The system refuses a thread.
pub fn start(followed: EventSource) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("card-events".to_owned());
    // The thread need not be joined: it sleeps in the driver, and has nothing to release. It ends with the card's loss.
    thread.spawn(move || follow(followed))
}

fn follow(EventSource { card, mut events, book, era, replaced, recorded }: EventSource) {
    let mut writer = HealthWriter::new(card, book, era, (replaced, recorded));
    let mut patience = Patience::default();
    while !writer.is_replaced() {
        match ask(events.as_mut(), &mut writer, &mut patience) {
            NextAction::Ask => {}
            NextAction::Rest(rest) => std::thread::sleep(rest),
            NextAction::End => return,
        }
    }
}

/// Calls the driver once.
fn ask(events: &mut dyn Events, writer: &mut HealthWriter, patience: &mut Patience) -> NextAction {
    let asked = clock::now();
    let told = events.next(writer.longest());
    let now = clock::now();
    let answer = match told {
        Ok(Some((Cause::Lost, part))) => {
            // The driver reports the loss again while it lasts.
            return if writer.lost(part) { NextAction::End } else { NextAction::Rest(AGAIN) };
        }
        Ok(Some(seen)) => {
            writer.hear(seen, now);
            CallResult::Told
        }
        Ok(None) => CallResult::Nothing,
        Err(_) => CallResult::Failed,
    };
    writer.try_again(now);
    patience.after(answer, now.duration_since(asked)).map_or(NextAction::Ask, NextAction::Rest)
}

// === impl HealthWriter ===

impl HealthWriter {
    fn new(
        card: CardUuid,
        book: HealthBook,
        era: Era,
        (replaced, recorded): (Arc<AtomicBool>, Arc<Notify>),
    ) -> Self {
        let (noted, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { card, book, era, replaced, recorded, noted, waiting, tried: None }
    }

    fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// The longest sleep.
    fn longest(&self) -> Duration {
        if self.waiting.is_empty() { SLEEP } else { AGAIN }
    }

    fn hear(&mut self, seen: (Cause, Part), now: Instant) {
        let recently = |at: &Instant| now.duration_since(*at) < REPEAT;
        if self.noted.get(&seen).is_some_and(recently) || self.waiting.contains_key(&seen) {
            return;
        }
        let at = clock::unix();
        // If one event cannot be recorded, no other can, and each try may take long.
        if self.waiting.is_empty() && self.write(&seen, at) {
            self.remember(seen, now);
        } else if self.waiting.len() < NOTED_MAX {
            self.tried.get_or_insert(now);
            self.waiting.insert(seen, at);
        }
    }

    /// Records that the card is lost; returns whether that succeeded. Earlier events no longer apply once the card answers again.
    fn lost(&mut self, part: Part) -> bool {
        self.noted.clear();
        self.waiting.clear();
        self.tried = None;
        self.write(&(Cause::Lost, part), clock::unix())
    }

    /// Records waiting events, if it is time.
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
            self.remember(seen, now);
        }
        self.tried = None;
    }

    /// Records an event; returns whether that succeeded.
    fn write(&self, (cause, part): &(Cause, Part), at: UnixSeconds) -> bool {
        if self.is_replaced() {
            return true;
        }
        let of = Subject { card: self.card.clone(), part: part.clone() };
        let outcome = self.book.note(&self.era, of, *cause, at);
        if matches!(outcome, Ok(NoteOutcome::New)) {
            self.recorded.notify_one();
        }
        outcome.is_ok()
    }

    fn remember(&mut self, seen: (Cause, Part), now: Instant) {
        if self.noted.len() < NOTED_MAX || self.noted.contains_key(&seen) {
            self.noted.insert(seen, now);
        }
    }
}

// === impl Patience ===

impl Patience {
    /// The pause after a call of duration `took`; `None`: none.
    fn after(&mut self, answer: CallResult, took: Duration) -> Option<Duration> {
        if answer != CallResult::Failed && took >= AT_ONCE {
            *self = Self::default();
            return None;
        }
        match answer {
            CallResult::Told => {
                // The driver works.
                (self.nothing, self.rests) = (0, 0);
                self.told += 1;
                if self.told < AT_ONCE_MAX {
                    return None;
                }
                self.told = 0;
                Some(STORM_REST)
            }
            CallResult::Nothing => {
                self.nothing += 1;
                if self.nothing < AT_ONCE_MAX {
                    return None;
                }
                self.nothing = 0;
                Some(self.rest())
            }
            CallResult::Failed => Some(self.rest()),
        }
    }

    /// The next pause, each twice as long.
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
            (0..8).map(|_| patience.after(CallResult::Failed, Duration::ZERO).unwrap().as_secs()).collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 60, 60]);
        // A driver that waits again resets the pauses.
        assert_eq!(patience.after(CallResult::Nothing, SLEEP), None);
        assert_eq!(patience.after(CallResult::Failed, SLEEP), Some(REST));
    }

    #[test]
    fn a_storm_of_answers_keeps_no_processor_busy_and_hides_none() {
        let rests = |answers: &[CallResult]| {
            let mut patience = Patience::default();
            let of = answers.iter().cycle().take(64_000);
            of.filter_map(|answer| patience.after(*answer, Duration::ZERO)).collect::<Vec<_>>()
        };
        assert!(rests(&[CallResult::Nothing]).iter().sum::<Duration>() > Duration::from_secs(900 * 60));
        // 6,400 a second, with no gap longer than one pause.
        assert_eq!(rests(&[CallResult::Told]), vec![STORM_REST; 1_000]);
        // Calls without an event between them do not lengthen the pause.
        assert_eq!(rests(&[CallResult::Told, CallResult::Nothing]), vec![STORM_REST; 500]);
        // Rare events are read at once.
        let mut patience = Patience::default();
        assert!((0..1_000).all(|_| patience.after(CallResult::Told, AT_ONCE).is_none()));
    }

    /// A driver that reports these events at once.
    #[derive(Debug)]
    struct Script(Vec<(Cause, Part)>);

    impl Events for Script {
        fn next(&mut self, _: Duration) -> Result<Option<(Cause, Part)>, String> {
            Ok(if self.0.is_empty() { None } else { Some(self.0.remove(0)) })
        }
    }

    fn writer(state: &Path) -> HealthWriter {
        let era = Era { boot: "b".to_owned(), driver: Some("d".to_owned()) };
        HealthWriter::new(CardUuid::new("GPU-0").unwrap(), HealthBook::of(state), era, Default::default())
    }

    fn noted(writer: &HealthWriter) -> Vec<Cause> {
        let notes = writer.book.notes(&writer.era).unwrap();
        notes.all().map(|(_, _, cause, _)| cause).collect()
    }

    /// Puts a pipe in the place of the lock file, so that no process can lock it.
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
    fn event_that_repeats_after_a_clear_is_recorded() {
        let state = tempfile::tempdir().unwrap();
        let (mut writer, now) = (writer(state.path()), clock::now());
        writer.hear((Cause::Code(48), Part::Card), now);
        writer.book.clear_all().unwrap();
        writer.hear((Cause::Code(48), Part::Card), now);
        assert_eq!(noted(&writer), [], "a storm of the same event is recorded once a second");
        writer.hear((Cause::Code(48), Part::Card), now + REPEAT);
        assert_eq!(noted(&writer), [Cause::Code(48)]);
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
        let mut next = |writer: &mut HealthWriter| ask(&mut events, writer, &mut patience);
        assert_eq!((next(&mut writer), next(&mut writer)), (NextAction::Ask, NextAction::Rest(AGAIN)));
        assert_eq!(next(&mut writer), NextAction::Rest(AGAIN));
        // It answers again: earlier events no longer apply, later ones do.
        fs::remove_file(&lock).unwrap();
        assert_eq!(next(&mut writer), NextAction::Ask);
        assert_eq!(noted(&writer), [Cause::Code(48)]);
        assert_eq!(next(&mut writer), NextAction::End);
        assert_eq!(noted(&writer), [Cause::Code(48), Cause::Lost]);
    }
}
