//! The process that has a context, as whoever started it sees it: started, heard once, ended.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_core::id::CardUuid;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Unmeasured;
use crate::clock;
use crate::config::{VISIBLE_CARDS, without_preloads};

/// The command that is such a process.
pub(crate) const COMMAND: &str = "hold-context";
/// What it says when its context is there; else it says why there is none.
pub(crate) const READY: &str = "ready";

/// Most that is read of what it says.
const ANSWER_BYTES_MAX: usize = 256;
/// What takes no longer is nothing to tell of.
const SLOW: Duration = Duration::from_secs(1);
/// Longest that it may take to end by itself, and again when it was killed. A driver may keep it longer: then it ends without us.
const END: Duration = Duration::from_secs(2);
/// Between looks whether it has ended.
const STEP: Duration = Duration::from_millis(1);

/// A process with a context.
#[derive(Debug)]
pub(super) struct Holder {
    child: Child,
    /// It ends with this.
    input: Option<ChildStdin>,
    said: ChildStdout,
}

// === impl Holder ===

impl Holder {
    /// Starts it; it has its context when this returns. Where it takes long, `slow` is told.
    pub(super) fn start(
        program: &Path,
        visible: &CardUuid,
        limit: Duration,
        slow: fn(&CardUuid),
    ) -> Result<Self, Unmeasured> {
        let mut command = Command::new(program);
        command.arg(COMMAND).arg(visible.as_str());
        command.env_clear().envs(without_preloads()).env(VISIBLE_CARDS, visible.as_str());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(Unmeasured::Start)?;
        let input = child.stdin.take();
        let Some(said) = child.stdout.take() else { return Err(Unmeasured::Ended) };
        let mut holder = Self { child, input, said };
        let began = clock::now();
        if !holder.is_heard(began + SLOW)? {
            slow(visible);
        }
        let answer = holder.hear(began + limit)?;
        let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
        match words(line) {
            words if words == READY => Ok(holder),
            words if words.is_empty() => Err(Unmeasured::Ended),
            words => Err(Unmeasured::NoContext(words)),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it end: what it has is given back.
    pub(super) fn end(mut self) {
        drop(self.input.take());
        let _is_over = self.ends();
    }

    /// Whether it says something, or ends, by then.
    fn is_heard(&self, until: Instant) -> Result<bool, Unmeasured> {
        loop {
            let left = until.saturating_duration_since(clock::now());
            // A moment at least, so that the last one is not waited for in a circle.
            let millis = u16::try_from(left.as_millis()).unwrap_or(u16::MAX).saturating_add(1);
            let mut ready = [PollFd::new(self.said.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::from(millis)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(Unmeasured::Start(errno.into())),
            }
        }
    }

    /// What it says until the end of a line, or of itself.
    fn hear(&mut self, until: Instant) -> Result<Vec<u8>, Unmeasured> {
        let mut answer = Vec::new();
        while answer.len() < ANSWER_BYTES_MAX && !answer.contains(&b'\n') {
            if !self.is_heard(until)? {
                return Err(Unmeasured::Late);
            }
            let mut piece = [0; ANSWER_BYTES_MAX];
            match self.said.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => answer.extend(piece.iter().take(length)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Unmeasured::Start(error)),
            }
        }
        Ok(answer)
    }

    /// Waits for its end, within bounds. Also where nobody is told of the ends of children: then it is no child any more.
    fn ends(&mut self) -> bool {
        let until = clock::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) {
            if clock::now() >= until {
                return false;
            }
            std::thread::sleep(STEP);
        }
        true
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Once it is known to have ended its number may be somebody else's.
        if matches!(self.child.try_wait(), Ok(None)) {
            match self.child.kill() {
                // It has ended, or does so now.
                Ok(()) | Err(_) => {}
            }
            let _is_over = self.ends();
        }
    }
}

/// A line that may be anything, as words for people.
fn words(line: &[u8]) -> String {
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    String::from_utf8_lossy(line).trim_end().chars().take(ANSWER_BYTES_MAX).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a program that gets our arguments and is something else.
    fn comes_of(program: &str) -> Unmeasured {
        let card = CardUuid::new("GPU-1").unwrap();
        Holder::start(Path::new(program), &card, Duration::from_secs(60), |_| {}).unwrap_err()
    }

    #[test]
    fn bad_output_of_the_holder_is_no_context_and_it_is_reaped() {
        let said = |program: &str| match comes_of(program) {
            Unmeasured::NoContext(words) => words,
            other => format!("{other:?}"),
        };
        assert_eq!(said("/bin/echo"), "hold-context GPU-1");
        // One that never stops.
        assert_eq!(said("/usr/bin/yes"), "hold-context GPU-1");
        assert!(matches!(comes_of("/bin/false"), Unmeasured::Ended));
        assert!(matches!(comes_of("/no/such/program"), Unmeasured::Start(_)));
    }

    #[test]
    fn output_of_the_holder_is_plain_and_cut() {
        assert_eq!(words(b"a\x1b[2Jb\xff\x00c "), "a?[2Jb??c");
        assert_eq!(words(&[b'x'; 1000]).len(), ANSWER_BYTES_MAX);
    }
}
