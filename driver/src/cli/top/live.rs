//! The live form: look, draw, wait.
//!
//! ```text
//!   looker thread ◀─ asked ──┐                       ┌── keys ───── terminal
//!        └─ picture, a byte ─┴▶ main thread: poll ◀──┼── signals ── TERM, HUP, INT, QUIT, WINCH, TSTP, CONT
//!                                     └─ frame ─▶ screen
//! ```
//!
//! The looker has a thread of its own, so that the program can end although a driver does not answer; the screen shows the age of
//! the last look. Signals are blocked and read in order; before a signal ends the program, the terminal is restored.

use std::fmt::Write as _;
use std::io::{self, PipeReader, Read, Write as _};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::keys::{KeyCommand, wishes};
use super::screen::Screen;
use super::table::{self, TableLine};
use crate::cli::failure::Failure;
use crate::cli::output::{Colour, tone_code};
use crate::clock::now;
use crate::view::Looker;
use crate::view::model::{Picture, picture};

/// Signals that are read in order.
const SIGNALS: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];
/// Shortest interval for a rate: a look right after another one is compared with the look before both.
const WINDOW_MIN: Duration = Duration::from_millis(100);
/// A look that takes longer is reported as missing.
const LATE: Duration = Duration::from_secs(2);

/// How it ended.
enum End {
    /// By the user.
    Wished,
    /// By a signal.
    Signal(Signal),
}

/// Whether there are keys to read: a read without any blocks if another process has the terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyInput {
    Something,
    Nothing,
}

/// The looker thread, for the thread that draws.
struct ViewThread {
    ask: Sender<()>,
    pictures: Receiver<Picture>,
    ready: PipeReader,
    asked: Option<Instant>,
}

/// Content of the screen.
struct ScreenContent {
    picture: Option<Picture>,
    /// First line shown.
    from: usize,
    every: Duration,
    colour: Colour,
}

/// Shows pictures until the user or a signal ends it; returns the last one.
pub(super) fn run(looker: Looker, every: Duration, colour: Colour) -> Result<Option<Picture>, Failure> {
    let mut set = SigSet::empty();
    SIGNALS.into_iter().for_each(|signal| set.add(signal));
    let mut before = SigSet::empty();
    let failed = |errno: Errno| Failure::Output(errno.into());
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before)).map_err(failed)?;
    let end = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(io::Error::from)
        .and_then(|signals| {
            let mut shown = ScreenContent { picture: None, from: 0, every, colour };
            Ok((watch(looker, &signals, &mut shown)?, shown.picture))
        });
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None).map_err(failed)?;
    match end? {
        (End::Wished | End::Signal(Signal::SIGINT), last) => Ok(last),
        (End::Signal(signal), _) => {
            raise(signal).map_err(failed)?;
            Err(Failure::Node(format!("ended by {signal}")))
        }
    }
}

fn watch(looker: Looker, signals: &SignalFd, shown: &mut ScreenContent) -> io::Result<End> {
    let mut looking = ViewThread::start(looker)?;
    let mut screen = Screen::open()?;
    let mut due = now();
    loop {
        let time = now();
        if time >= due && looking.asked.is_none() {
            looking.ask(time)?;
            due = time + shown.every;
        }
        let rest = if looking.asked.is_some() { LATE } else { due.saturating_duration_since(now()) };
        let typed = wait(signals, &screen, &looking, rest)?;
        while let Some(info) = signals.read_signal()? {
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            match signal {
                Some(Signal::SIGTSTP) => {
                    screen.leave();
                    raise(Signal::SIGSTOP)?;
                    screen.enter()?;
                }
                // Another process may have changed the terminal meanwhile.
                Some(Signal::SIGCONT) => screen.enter()?,
                // The size is read for each frame.
                Some(Signal::SIGWINCH) | None => {}
                Some(signal) => return Ok(End::Signal(signal)),
            }
        }
        if let Some(picture) = looking.take()? {
            shown.picture = Some(picture);
        }
        let (width, height) = screen.size();
        let keys = if typed == KeyInput::Something { screen.typed()? } else { Vec::new() };
        for wish in wishes(&keys) {
            match wish {
                KeyCommand::End => return Ok(End::Wished),
                KeyCommand::Look => due = now(),
                other => shown.scroll(other, width, height),
            }
        }
        let frame = shown.frame(width, height, looking.asked.map(|asked| now() - asked));
        screen.draw(frame.as_bytes(), signals.as_fd())?;
    }
}

/// Waits until something is ready, or the next look is due.
fn wait(signals: &SignalFd, screen: &Screen, looking: &ViewThread, rest: Duration) -> io::Result<KeyInput> {
    let fds = [Some(signals.as_fd()), Some(looking.ready.as_fd()), screen.keys()];
    let mut ready: Vec<PollFd<'_>> =
        fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // Rounded up, so that a rest below a millisecond is no busy loop.
    let timeout = PollTimeout::try_from(rest + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
    match poll(&mut ready, timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let keys = ready.get(2).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
    if keys.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
        return Err(io::Error::other("the terminal is gone"));
    }
    Ok(if keys.contains(PollFlags::POLLIN) { KeyInput::Something } else { KeyInput::Nothing })
}

// === impl ViewThread ===

impl ViewThread {
    fn start(mut looker: Looker) -> io::Result<Self> {
        let (ask, asked) = channel::<()>();
        let (tell, pictures) = channel();
        let (ready, mut wake) = io::pipe()?;
        std::thread::Builder::new().name("looker".to_owned()).spawn(move || {
            let mut before = None;
            while asked.recv().is_ok() {
                let time = now();
                let look = looker.look();
                let drawn = picture(before.as_ref().map(|(_, look)| look), &look);
                if before.as_ref().is_none_or(|(taken, _)| time.duration_since(*taken) >= WINDOW_MIN) {
                    before = Some((time, look));
                }
                // The drawing thread has ended.
                if tell.send(drawn).is_err() || wake.write_all(&[0]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { ask, pictures, ready, asked: None })
    }

    fn ask(&mut self, time: Instant) -> io::Result<()> {
        self.asked = Some(time);
        self.ask.send(()).map_err(|_| gone())
    }

    /// The requested picture, once it is ready.
    fn take(&mut self) -> io::Result<Option<Picture>> {
        match self.pictures.try_recv() {
            Ok(picture) => {
                self.asked = None;
                self.ready.read_exact(&mut [0])?;
                Ok(Some(picture))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that looks has ended")
}

// === impl ScreenContent ===

impl ScreenContent {
    fn lines(&self, width: usize) -> Vec<TableLine> {
        self.picture.as_ref().map(|picture| table::lines(picture, Some(width))).unwrap_or_default()
    }

    fn scroll(&mut self, wish: KeyCommand, width: usize, height: usize) {
        let page = height.saturating_sub(1).max(1);
        let step = |by: i32| isize::try_from(by).unwrap_or(0);
        let by = match wish {
            KeyCommand::Lines(by) => step(by),
            KeyCommand::Screens(by) => step(by).saturating_mul(isize::try_from(page).unwrap_or(1)),
            KeyCommand::Top => isize::MIN,
            KeyCommand::Bottom => isize::MAX,
            KeyCommand::End | KeyCommand::Look => 0,
        };
        let last = self.lines(width).len().saturating_sub(page);
        self.from = self.from.saturating_add_signed(by).min(last);
    }

    /// The whole output for the terminal: each line at its row, the rest cleared, as one synchronized update if the terminal
    /// supports it.
    fn frame(&mut self, width: usize, height: usize, waited: Option<Duration>) -> String {
        let lines = self.lines(width);
        let page = height.saturating_sub(1);
        self.from = self.from.min(lines.len().saturating_sub(page));
        let mut head = format!("aliquot top, every {} s; q ends", self.every.as_secs_f64());
        if lines.len() > page {
            let to = (self.from + page).min(lines.len());
            head = format!("{head}; lines {}-{to} of {}", self.from + 1, lines.len());
        }
        if let Some(waited) = waited.filter(|waited| *waited >= LATE) {
            head = format!("{head}; no answer for {} s", waited.as_secs());
        }
        head.truncate(width);
        let mut frame = String::from("\x1b[?2026h");
        let visible = lines.into_iter().skip(self.from).take(page);
        let head = TableLine { text: head, tone: None };
        let mut rows = 0;
        for line in std::iter::once(head).chain(visible) {
            rows += 1;
            let text = match line.tone.filter(|_| self.colour == Colour::On) {
                Some(tone) => format!("\x1b[{}m{}\x1b[0m", tone_code(tone), line.text),
                None => line.text.clone(),
            };
            let clear = if line.text.len() < width { "\x1b[K" } else { "" };
            // Writing to a String cannot fail.
            let written = write!(frame, "\x1b[{rows};1H{text}{clear}");
            debug_assert!(written.is_ok(), "text takes what is written");
        }
        if rows < height {
            let written = write!(frame, "\x1b[{};1H\x1b[J", rows + 1);
            debug_assert!(written.is_ok(), "text takes what is written");
        }
        frame.push_str("\x1b[?2026l");
        frame
    }
}
