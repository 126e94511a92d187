//! Work that is held: it stands in line behind what waits for the host.
//!
//! ```text
//!   handed in ──nothing before it is held──▶ the card: a mark
//!       │ something is
//!       ▼
//!   line: [function][kernel][write] … ──its thread──▶ what is before it was handed in ─▶ the card, a call, a word ─▶ ticket
//! ```
//!
//! While no work is held there is no line and no thread. A function on the host, or a wait for a value or for
//! an event in a line, starts one. The line and its thread end when the line is empty. Code that waits for an
//! item in a line holds its ticket, which receives the mark at the end.
//!
//! Locks are taken in this order: [`LINES`], the places of one line, a ticket.

use crate::code::{Answer, Code, INVALID_HANDLE};
use crate::process::{self, OurCard, lock};
use aliquot_sim_device::{Mark, Seat, monotonic_nanos};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Which streams a stream waits for by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A context's legacy stream: all but those apart.
    Legacy,
    /// The legacy one.
    Blocking,
    /// None.
    Apart,
}

/// The order of one stream: how far its work is with the card, and what stands in line for it.
pub(crate) struct Line {
    context: u64,
    device: usize,
    role: Role,
    /// The mark behind the last work that was handed in.
    tail: AtomicU64,
    /// The same over all streams that the legacy stream waits for.
    joined: Arc<AtomicU64>,
    places: Mutex<Places>,
    moved: Condvar,
    /// Its context is gone, and what stands in it with it.
    is_ended: AtomicBool,
}

#[derive(Default)]
struct Places {
    items: VecDeque<Item>,
    /// Of what stands last, or is at its turn; `None`: there is no line.
    last: Option<Arc<Ticket>>,
}

struct Item {
    after: Vec<Point>,
    what: QueuedWork,
    ticket: Arc<Ticket>,
}

/// What is done when its turn comes; the mark behind it.
pub(crate) type QueuedWork = Box<dyn FnOnce(&Turn<'_>) -> Mark + Send>;

/// The turn of something that stood in line.
pub(crate) struct Turn<'a> {
    line: &'a Line,
    ours: &'static OurCard,
    seat: &'a Seat,
    /// The mark behind everything before it.
    pub(crate) before: Mark,
}

/// When something that stood in line came to the card.
#[derive(Clone, Copy, Debug, Default)]
struct ArrivalTimes {
    mark: Mark,
    /// On the monotonic clock.
    at: u64,
}

/// A place in line, as others know it.
#[derive(Default)]
pub(crate) struct Ticket {
    reached: Mutex<Option<ArrivalTimes>>,
    called: Condvar,
}

/// A point in the work of a card: reached with a mark and with all that stood in line then.
#[derive(Clone, Default)]
pub(crate) struct Point {
    device: usize,
    mark: Mark,
    tickets: Vec<Arc<Ticket>>,
}

/// All lines in which something stands.
static LINES: Mutex<Vec<Arc<Line>>> = Mutex::new(Vec::new());
/// How many these are: at zero the list is not read.
static HELD: AtomicUsize = AtomicUsize::new(0);
/// No thread could be had.
const NO_THREAD: Code = Code(304);

// === impl Ticket ===

impl Ticket {
    fn reach(&self, mark: Mark) {
        *lock(&self.reached) = Some(ArrivalTimes { mark, at: monotonic_nanos() });
        self.called.notify_all();
    }

    fn wait(&self) -> ArrivalTimes {
        let mut reached = lock(&self.reached);
        loop {
            if let Some(reached) = *reached {
                return reached;
            }
            reached = self.called.wait(reached).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

// === impl Point ===

impl Point {
    /// Whether nothing before it is held.
    pub(crate) fn is_handed_in(&self) -> bool {
        self.tickets.iter().all(|ticket| lock(&ticket.reached).is_some())
    }

    /// The last of its marks, and when the last of what stood in line had its turn; `None`: something still stands there.
    fn settled(&self) -> Option<ArrivalTimes> {
        let first = ArrivalTimes { mark: self.mark, at: 0 };
        self.tickets.iter().try_fold(first, |last, ticket| Some(last.and(*lock(&ticket.reached).as_ref()?)))
    }

    /// Waits until it is handed in; the mark.
    fn handed_in(&self) -> Mark {
        let first = ArrivalTimes { mark: self.mark, at: 0 };
        self.tickets.iter().fold(first, |last, ticket| last.and(ticket.wait())).mark
    }

    /// Waits until it is reached.
    pub(crate) fn wait(&self) -> Answer {
        let mark = self.handed_in();
        let ours = process::cards()?.get(self.device).ok_or(INVALID_HANDLE)?;
        ours.seat()?.wait(mark);
        Ok(())
    }

    /// When it was reached, on the monotonic clock: the later of its mark and its tickets. `None`: not yet.
    pub(crate) fn reached(&self, seat: &Seat) -> Option<u64> {
        let settled = self.settled()?;
        seat.reached(settled.mark).map(|at| at.max(settled.at))
    }

    /// Whether it is reached.
    pub(crate) fn is_done(&self, seat: &Seat) -> bool {
        self.settled().is_some_and(|settled| seat.done() >= settled.mark)
    }

    /// The card that runs its work.
    pub(crate) fn device(&self) -> usize {
        self.device
    }
}

impl ArrivalTimes {
    fn and(self, other: Self) -> Self {
        Self { mark: self.mark.max(other.mark), at: self.at.max(other.at) }
    }
}

// === impl Turn ===

impl Turn<'_> {
    /// Hands work in to the card.
    pub(crate) fn submit(&self, nanos: u64) -> Mark {
        let mark = submit(self.ours, self.seat, nanos);
        self.line.join(mark);
        mark
    }

    /// Waits until the card is there.
    pub(crate) fn wait(&self, mark: Mark) {
        self.seat.wait(mark);
    }

    /// Whether its context is gone meanwhile.
    pub(crate) fn is_over(&self) -> bool {
        self.line.is_ended.load(Ordering::Acquire)
    }
}

// === impl Line ===

impl Line {
    /// That of a new stream.
    pub(crate) fn new(context: u64, device: usize, joined: Arc<AtomicU64>, role: Role) -> Self {
        Self {
            context,
            device,
            role,
            tail: AtomicU64::new(0),
            joined,
            places: Mutex::default(),
            moved: Condvar::new(),
            is_ended: AtomicBool::new(false),
        }
    }

    /// Which streams it waits for.
    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Work that follows comes behind `mark`.
    fn join(&self, mark: Mark) {
        self.tail.fetch_max(mark.0, Ordering::AcqRel);
        if self.role != Role::Apart {
            self.joined.fetch_max(mark.0, Ordering::AcqRel);
        }
    }

    fn mark(&self) -> Mark {
        let other = if self.role == Role::Legacy { self.joined.load(Ordering::Acquire) } else { 0 };
        Mark(self.tail.load(Ordering::Acquire).max(other))
    }

    /// Whether what stands in `other` comes before what is put here.
    fn comes_behind(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || self.context == other.context
                && matches!(
                    (self.role, other.role),
                    (Role::Legacy, Role::Blocking) | (Role::Blocking, Role::Legacy)
                )
    }

    fn tickets(&self, lines: &[Arc<Self>]) -> Vec<Arc<Ticket>> {
        let before = lines.iter().filter(|other| self.comes_behind(other));
        let last = before.filter_map(|other| lock(&other.places).last.clone());
        // Where the last had its turn its thread is about to end the line.
        last.filter(|ticket| lock(&ticket.reached).is_none()).collect()
    }

    /// The point behind everything that is in the stream now, and in those that it waits for.
    pub(crate) fn point(&self) -> Point {
        // The tickets first: what leaves the line meanwhile has joined its mark.
        let tickets =
            if HELD.load(Ordering::Acquire) == 0 { Vec::new() } else { self.tickets(&lock(&LINES)) };
        Point { device: self.device, mark: self.mark(), tickets }
    }

    /// Whether nothing stands in line before what is put here now.
    pub(crate) fn is_free(&self) -> bool {
        HELD.load(Ordering::Acquire) == 0 || self.tickets(&lock(&LINES)).is_empty()
    }

    /// What follows comes behind `point`.
    pub(crate) fn follow(self: &Arc<Self>, point: Point) -> Answer {
        if point.device == self.device && point.is_handed_in() && self.is_free() {
            self.join(point.handed_in());
            return Ok(());
        }
        self.put(vec![point], Box::new(|turn| turn.before))
    }

    /// Work of a length, with what it does to content: to the card, or into the line.
    pub(crate) fn work(
        self: &Arc<Self>,
        nanos: u64,
        effect: Option<impl FnOnce() -> Answer + Send + 'static>,
    ) -> Answer {
        if self.is_free() {
            let ours = self.card()?;
            self.join(submit(ours, ours.seat()?, nanos));
            return effect.map_or(Ok(()), |effect| effect());
        }
        let held = move |turn: &Turn<'_>| {
            let mark = turn.submit(nanos);
            // An asynchronous error has no caller to return to; a real card stops with a fault.
            let _unreported = effect.map(|effect| effect());
            mark
        };
        self.put(Vec::new(), Box::new(held))
    }

    fn card(&self) -> Answer<&'static OurCard> {
        process::cards()?.get(self.device).ok_or(INVALID_HANDLE)
    }

    /// Puts something into the line, behind what stands there and behind `after`; waits while there is no place.
    pub(crate) fn put(self: &Arc<Self>, mut after: Vec<Point>, what: QueuedWork) -> Answer {
        let ours = self.card()?;
        // From here on the seat is there.
        ours.seat()?;
        let depth = usize::try_from(ours.card.node().queue_depth).unwrap_or(usize::MAX);
        let mut places = lock(&self.places);
        while places.items.len() >= depth {
            places = self.moved.wait(places).unwrap_or_else(PoisonError::into_inner);
        }
        drop(places);
        let mut lines = lock(&LINES);
        if self.is_ended.load(Ordering::Acquire) {
            return Err(INVALID_HANDLE);
        }
        after.push(Point { device: self.device, tickets: self.tickets(&lines), mark: self.mark() });
        let mut places = lock(&self.places);
        let begins = places.last.is_none();
        let ticket = Arc::<Ticket>::default();
        places.last = Some(Arc::clone(&ticket));
        places.items.push_back(Item { after, what, ticket });
        if begins {
            let line = Arc::clone(self);
            let thread = std::thread::Builder::new().name("sim-line".into());
            if thread.spawn(move || line.serve(ours)).is_err() {
                *places = Places::default();
                return Err(NO_THREAD);
            }
            lines.push(Arc::clone(self));
            HELD.store(lines.len(), Ordering::Release);
        }
        Ok(())
    }

    /// The next item; `None` if the line is empty, which ends it.
    fn next(self: &Arc<Self>) -> Option<Item> {
        let mut lines = lock(&LINES);
        let mut places = lock(&self.places);
        let next = places.items.pop_front();
        if next.is_none() {
            places.last = None;
            lines.retain(|line| !Arc::ptr_eq(line, self));
            HELD.store(lines.len(), Ordering::Release);
        }
        self.moved.notify_all();
        next
    }

    fn serve(self: Arc<Self>, ours: &'static OurCard) {
        while let Some(Item { after, what, ticket }) = self.next() {
            let mark = match ours.seat() {
                Ok(seat) => {
                    let own = Mark(self.tail.load(Ordering::Acquire));
                    let before = after.iter().map(|point| self.behind(point)).fold(own, Mark::max);
                    let turn = Turn { line: &self, ours, seat, before };
                    if turn.is_over() { before } else { what(&turn) }
                }
                // The card is lost, and its work with it.
                Err(_) => Mark::default(),
            };
            self.join(mark);
            ticket.reach(mark);
        }
    }

    /// The mark of this card's work behind a point; waits for that of another card.
    fn behind(&self, point: &Point) -> Mark {
        if point.device == self.device {
            return point.handed_in();
        }
        // A lost card blocks no work.
        let _reached = point.wait();
        Mark::default()
    }

    /// What stands in line goes, but for what is at its turn.
    fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        for item in std::mem::take(&mut lock(&self.places).items) {
            item.ticket.reach(Mark::default());
        }
        self.moved.notify_all();
    }
}

fn lines_of(context: u64) -> Vec<Arc<Line>> {
    if HELD.load(Ordering::Acquire) == 0 {
        return Vec::new();
    }
    lock(&LINES).iter().filter(|line| line.context == context).map(Arc::clone).collect()
}

/// Waits for everything that stands in line in a context now: in its default streams, and in destroyed ones, too.
pub(crate) fn wait_for_all_of(context: u64) -> Answer {
    lines_of(context).into_iter().try_for_each(|line| line.point().wait())
}

/// A context goes, and what stands in line there.
pub(crate) fn end_all_of(context: u64) {
    lines_of(context).into_iter().for_each(|line| line.end());
}

/// Hands `nanos` of work to the card, waiting while too much is outstanding.
fn submit(ours: &OurCard, seat: &Seat, nanos: u64) -> Mark {
    let depth = usize::try_from(ours.card.node().queue_depth).unwrap_or(usize::MAX);
    let full = {
        let mut launches = lock(&ours.launches);
        if launches.len() >= depth {
            let done = seat.done();
            while launches.front().is_some_and(|mark| *mark <= done) {
                launches.pop_front();
            }
        }
        if launches.len() < depth { None } else { launches.front().copied() }
    };
    if let Some(oldest) = full {
        seat.wait(oldest);
    }
    let mark = seat.submit(nanos);
    lock(&ours.launches).push_back(mark);
    mark
}
