//! The live form of `aliquot top`, in a terminal of its own: what it shows, and how it gives the terminal back.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it did not expect")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// Longest wait for anything.
const BOUND: Duration = Duration::from_secs(60);
/// Time between two questions whether something has come about.
const AGAIN: Duration = Duration::from_millis(5);
/// Beginning of each frame.
const FRAME: &[u8] = b"\x1b[?2026h";

/// A program in a terminal, and what it wrote there.
struct Pty {
    child: Child,
    master: File,
    slave: File,
    arriving: Receiver<Vec<u8>>,
    written: Vec<u8>,
    before: LocalFlags,
}

/// What a terminal shows after some bytes: enough of its language for what is written here.
struct Shown {
    rows: Vec<Vec<u8>>,
    other_screen: bool,
    cursor: bool,
}

impl Shown {
    fn of(bytes: &[u8], width: usize, height: usize) -> Self {
        let mut shown = Self { rows: vec![vec![b' '; width]; height], other_screen: false, cursor: true };
        let (mut row, mut column) = (0, 0);
        let mut rest = bytes;
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            if *first == 0x1b {
                let Some(last) = rest.iter().position(u8::is_ascii_alphabetic) else { break };
                let parameters = String::from_utf8(rest[1..last].to_vec()).unwrap();
                match (rest[last], parameters.as_str()) {
                    (b'h', "?1049") => shown.other_screen = true,
                    (b'l', "?1049") => shown.other_screen = false,
                    (b'h', "?25") => shown.cursor = true,
                    (b'l', "?25") => shown.cursor = false,
                    (b'h' | b'l', "?2026") | (b'm', _) => {}
                    (b'H', place) => {
                        let (to, at) = place.split_once(';').unwrap();
                        (row, column) = (to.parse::<usize>().unwrap() - 1, at.parse::<usize>().unwrap() - 1);
                    }
                    (b'K', "") => shown.rows[row][column..].fill(b' '),
                    (b'J', "") => shown.rows[row..].iter_mut().for_each(|row| row.fill(b' ')),
                    other => panic!("an order that this screen does not know: {other:?}"),
                }
                rest = &rest[last + 1..];
            } else if shown.other_screen {
                assert!(row < height && column < width, "written beside the screen: {row} {column}");
                shown.rows[row][column] = *first;
                column += 1;
            }
        }
        shown
    }

    fn text(&self) -> String {
        let lines = self.rows.iter().map(|row| String::from_utf8_lossy(row).trim_end().to_owned());
        lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }
}

impl Pty {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let (master, slave) = (File::from(pty.master), File::from(pty.slave));
        let before = tcgetattr(&slave).unwrap().local_flags;
        let end = || Stdio::from(slave.try_clone().unwrap());
        // The program is the first of a session, so that the terminal's signals reach it, also where whoever started this test
        // ignores them, as `nohup` and a script's background job do.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", "setsid", "--ctty"])
            .arg(env!("CARGO_BIN_EXE_aliquot"))
            .args(arguments);
        command.env("TERM", "xterm").env_remove("NO_COLOR").envs(environment.iter().copied());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let mut reader = master.try_clone().unwrap();
        let (tell, arriving) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                if tell.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, master, slave, arriving, written: Vec::new(), before }
    }

    /// Reads what the program writes until it is as wanted.
    fn until(&mut self, what: &str, is: impl Fn(&[u8]) -> bool) {
        let start = Instant::now();
        while !is(&self.written) {
            assert!(start.elapsed() < BOUND, "{what}: {}", String::from_utf8_lossy(&self.written));
            self.written.extend(self.arriving.recv_timeout(Duration::from_millis(50)).unwrap_or_default());
        }
    }

    /// Reads until a screen of this size shows a text after whole frames; the screen.
    fn shows(&mut self, (width, height): (usize, usize), text: &str) -> Shown {
        let shown = |bytes: &[u8]| Shown::of(bytes, width, height);
        self.until(text, |bytes| bytes.ends_with(b"\x1b[?2026l") && shown(bytes).text().contains(text));
        shown(&self.written)
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        let mut stty = Command::new("stty");
        stty.args(["cols", &columns.to_string(), "rows", &rows.to_string()]);
        assert!(stty.stdin(Stdio::from(self.slave.try_clone().unwrap())).status().unwrap().success());
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    fn send(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    fn keys(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    fn ended(&mut self) -> ExitStatus {
        soon("it ends", || self.child.try_wait().unwrap())
    }

    /// Waits until it is stopped; what it does before is done then.
    fn stopped(&self) {
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        soon("it stops", || {
            let status = waitid(Id::Pid(self.pid()), flags).unwrap();
            (!matches!(status, WaitStatus::StillAlive)).then_some(())
        });
    }

    /// Waits until the terminal takes nothing more.
    fn is_held(&self) {
        soon("the terminal takes nothing", || {
            let mut slave = [PollFd::new(self.slave.as_fd(), PollFlags::POLLOUT)];
            (poll(&mut slave, PollTimeout::ZERO).unwrap() == 0).then_some(())
        });
    }

    /// Whether the terminal is as it was before; asked of a program that has ended or is stopped, as the screen comes
    /// back before the flags.
    fn is_given_back(&mut self) {
        self.until("the usual screen", |bytes| {
            let shown = Shown::of(bytes, 80, 24);
            !shown.other_screen && shown.cursor
        });
        assert_eq!(self.flags(), self.before);
    }

    fn flags(&self) -> LocalFlags {
        tcgetattr(self.slave.as_fd()).unwrap().local_flags
    }

    fn wrote(&self, bytes: &[u8]) -> bool {
        self.written.windows(bytes.len()).any(|part| part == bytes)
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What a question says, asked until it says something.
fn soon<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < BOUND, "not within {} s: {what}", BOUND.as_secs());
        std::thread::sleep(AGAIN);
    }
}

/// A state directory with one share.
fn prepared(dir: &Path) -> String {
    let state = dir.join("state").display().to_string();
    let claim = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/input/share.yaml");
    let mut aliquot = Command::new(env!("CARGO_BIN_EXE_aliquot"));
    let done = aliquot.args(["prepare", "-f", claim, "--node", "t4-2", "--state", &state]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    state
}

#[test]
fn live_view_follows_the_size_and_restores_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let state = prepared(dir.path());
    let mut pty = Pty::start(&["top", "--state", &state, "--node", "t4-2", "-n", "0.1"], &[]);
    // The first line says more while a look is late.
    let shown = pty.shows((80, 24), "aliquot top, every 0.1 s; q ends\n2 cards, 1 share, 0 processes");
    assert!(shown.other_screen && !shown.cursor);
    let text = shown.text();
    assert!(text.starts_with("aliquot top,") && text.contains("default/share"), "{text}");
    assert!(text.contains("card 0 Tesla T4") && text.contains("4Gi") && text.contains("unseen"), "{text}");
    assert!(pty.wrote(b"\x1b[1m"), "headings stand out");
    // The rate is there with the second look.
    pty.shows((80, 24), " 0%");
    assert!(!pty.wrote(b"[2J"), "a screen that is emptied first flickers");

    pty.resize(50, 5);
    pty.shows((80, 24), "lines 1-4 of 6");
    let last = pty.written.windows(FRAME.len()).rposition(|bytes| bytes == FRAME).unwrap();
    // A frame that is written beside the smaller screen ends the test.
    let text = Shown::of(&[b"\x1b[?1049h", &pty.written[last..]].concat(), 50, 5).text();
    assert_eq!(text.lines().count(), 5, "{text}");
    pty.keys(b"j");
    pty.shows((80, 24), "lines 2-5 of 6");
    pty.keys(b"\x1b[F");
    pty.shows((80, 24), "lines 3-6 of 6");

    pty.keys(b"q");
    assert_eq!(pty.ended().code(), Some(0));
    pty.is_given_back();
}

#[test]
fn signals_end_it_and_the_terminal_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let state = prepared(dir.path());
    let start = || {
        let mut pty = Pty::start(&["top", "--state", &state], &[("NO_COLOR", "1")]);
        pty.shows((80, 24), "default/share");
        assert_ne!(pty.flags(), pty.before, "keys arrive one by one");
        assert!(!pty.wrote(b"\x1b[1m") && !pty.wrote(b"\x1b[0m"), "NO_COLOR is not honoured");
        pty
    };
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut pty = start();
        pty.send(signal);
        assert_eq!(pty.ended().signal(), Some(signal as i32), "whoever waits sees the signal");
        pty.is_given_back();
    }
    // Typed, it is a wish.
    let mut pty = start();
    pty.keys(b"\x03");
    assert_eq!(pty.ended().code(), Some(0));
    pty.is_given_back();

    // Stopped, it gives the terminal back, and takes it again afterwards.
    let mut pty = start();
    pty.send(Signal::SIGTSTP);
    pty.stopped();
    pty.is_given_back();
    pty.send(Signal::SIGCONT);
    pty.until("the other screen again", |bytes| Shown::of(bytes, 80, 24).other_screen);
    assert_ne!(pty.flags(), pty.before, "keys arrive one by one again");
    pty.keys(b"q");
    assert_eq!(pty.ended().code(), Some(0));
    pty.is_given_back();
}

#[test]
fn a_terminal_that_takes_nothing_does_not_keep_it_from_ending() {
    let dir = tempfile::tempdir().unwrap();
    let state = prepared(dir.path());
    let mut pty = Pty::start(&["top", "--state", &state, "-n", "0.1"], &[]);
    pty.shows((80, 24), "default/share");
    // Ctrl-S: from now on the terminal takes nothing.
    pty.keys(b"\x13");
    pty.is_held();
    pty.send(Signal::SIGTERM);
    assert_eq!(pty.ended().signal(), Some(Signal::SIGTERM as i32));
    assert_eq!(pty.flags(), pty.before);
}

#[test]
fn unreadable_journal_sets_the_usual_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let state = prepared(dir.path());
    std::fs::write(dir.path().join("state/journal"), "nonsense").unwrap();
    for keys in [&b"q"[..], b"\x03"] {
        let mut pty = Pty::start(&["top", "--state", &state], &[]);
        pty.shows((80, 24), "journal");
        pty.keys(keys);
        assert_eq!(pty.ended().code(), Some(3), "{keys:?}");
        pty.is_given_back();
    }
}

#[test]
fn where_nothing_can_be_drawn_it_shows_once() {
    let dir = tempfile::tempdir().unwrap();
    let state = prepared(dir.path());
    for (more, environment) in [
        (vec!["--once"], vec![]),
        (vec!["-o", "table"], vec![]),
        (vec![], vec![("TERM", "dumb")]),
        (vec![], vec![("TERM", "")]),
    ] {
        let arguments = [vec!["top", "--state", &state, "-n", "0"], more].concat();
        let mut pty = Pty::start(&arguments, &environment);
        pty.until("a share", |bytes| bytes.windows(13).any(|part| part == b"default/share"));
        assert_eq!(pty.ended().code(), Some(0));
        assert!(!pty.wrote(b"\x1b[?1049h"), "{arguments:?}");
    }
}
