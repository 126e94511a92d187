//! The child process with a context, for its parent: started, read once, ended.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_core::id::CardUuid;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::ContextSizeError;
use crate::clock;
use crate::config::{VISIBLE_CARDS, without_preloads};

/// The command that runs such a process.
pub(crate) const COMMAND: &str = "hold-context";
/// Its output once it has a context; else it prints the reason.
pub(crate) const READY: &str = "ready";

/// The input that asks for its next allocation.
const NEXT: &[u8] = b"\n";
/// Most bytes of its output that are read.
const ANSWER_BYTES_MAX: usize = 256;
/// A longer start is reported to the user.
const SLOW: Duration = Duration::from_secs(1);
/// Longest wait for its end, and again after it was killed. A driver may keep it longer: then it ends unobserved.
const END: Duration = Duration::from_secs(2);
/// Time between two polls for its end.
const STEP: Duration = Duration::from_millis(1);

/// How such a process is started.
#[derive(Clone, Debug)]
pub struct HolderCommand {
    /// This program.
    pub program: PathBuf,
    /// The library that makes contexts; `None`: the loader's.
    pub library: Option<PathBuf>,
}

/// A process with a context.
#[derive(Debug)]
pub(super) struct Holder {
    child: Child,
    /// Closing this ends it.
    input: Option<ChildStdin>,
    said: ChildStdout,
}

// === impl Holder ===

impl Holder {
    /// Starts it; it has its context when this returns. Calls `slow` if that takes long.
    pub(super) fn start(
        holder: &HolderCommand,
        visible: &CardUuid,
        limit: Duration,
        slow: fn(&CardUuid),
    ) -> Result<Self, ContextSizeError> {
        let mut command = Command::new(&holder.program);
        command.arg(COMMAND).arg(visible.as_str()).args(&holder.library);
        command.env_clear().envs(without_preloads()).env(VISIBLE_CARDS, visible.as_str());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(ContextSizeError::Start)?;
        let input = child.stdin.take();
        let Some(said) = child.stdout.take() else { return Err(ContextSizeError::Ended) };
        let mut holder = Self { child, input, said };
        let began = clock::now();
        if !holder.is_heard(began + SLOW)? {
            slow(visible);
        }
        let answer = holder.hear(began + limit)?;
        let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
        match words(line) {
            words if words == READY => Ok(holder),
            words if words.is_empty() => Err(ContextSizeError::Ended),
            words => Err(ContextSizeError::NoContext(words)),
        }
    }

    /// Has it make its next allocation. `NoContext`: the driver refused.
    pub(super) fn grow(&mut self, until: Instant) -> Result<(), ContextSizeError> {
        let input = self.input.as_mut().ok_or(ContextSizeError::Ended)?;
        input.write_all(NEXT).map_err(ContextSizeError::Start)?;
        let answer = self.hear(until)?;
        match words(answer.split(|byte| *byte == b'\n').next().unwrap_or_default()) {
            words if words == READY => Ok(()),
            words if words.is_empty() => Err(ContextSizeError::Ended),
            words => Err(ContextSizeError::NoContext(words)),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it, which frees its context.
    pub(super) fn end(mut self) {
        drop(self.input.take());
        let _is_over = self.ends();
    }

    /// Whether it prints something, or ends, by then.
    fn is_heard(&self, until: Instant) -> Result<bool, ContextSizeError> {
        loop {
            let left = until.saturating_duration_since(clock::now());
            // At least a millisecond, so that the last one is no busy loop.
            let millis = u16::try_from(left.as_millis()).unwrap_or(u16::MAX).saturating_add(1);
            let mut ready = [PollFd::new(self.said.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::from(millis)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(ContextSizeError::Start(errno.into())),
            }
        }
    }

    /// Its output up to the end of a line, or to its own end.
    fn hear(&mut self, until: Instant) -> Result<Vec<u8>, ContextSizeError> {
        let mut answer = Vec::new();
        while answer.len() < ANSWER_BYTES_MAX && !answer.contains(&b'\n') {
            if !self.is_heard(until)? {
                return Err(ContextSizeError::Late);
            }
            let mut piece = [0; ANSWER_BYTES_MAX];
            match self.said.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => answer.extend(piece.iter().take(length)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ContextSizeError::Start(error)),
            }
        }
        Ok(answer)
    }

    /// Waits for its end, within a bound. If this process ignores `SIGCHLD`, the ended process is no child any more.
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
        // After its end was observed, its process id may be reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            match self.child.kill() {
                // It has ended, or does so now.
                Ok(()) | Err(_) => {}
            }
            let _is_over = self.ends();
        }
    }
}

/// An untrusted line as printable text.
fn words(line: &[u8]) -> String {
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    String::from_utf8_lossy(line).trim_end().chars().take(ANSWER_BYTES_MAX).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for another program that gets these arguments.
    fn comes_of(program: &str) -> ContextSizeError {
        let card = CardUuid::new("GPU-1").unwrap();
        let holder = HolderCommand { program: program.into(), library: None };
        Holder::start(&holder, &card, Duration::from_secs(60), |_| {}).unwrap_err()
    }

    #[test]
    fn bad_output_of_the_holder_is_no_context_and_it_is_reaped() {
        let said = |program: &str| match comes_of(program) {
            ContextSizeError::NoContext(words) => words,
            other => format!("{other:?}"),
        };
        assert_eq!(said("/bin/echo"), "hold-context GPU-1");
        // A program that never ends.
        assert_eq!(said("/usr/bin/yes"), "hold-context GPU-1");
        assert!(matches!(comes_of("/bin/false"), ContextSizeError::Ended));
        assert!(matches!(comes_of("/no/such/program"), ContextSizeError::Start(_)));
    }

    #[test]
    fn output_of_the_holder_is_plain_and_cut() {
        assert_eq!(words(b"a\x1b[2Jb\xff\x00c "), "a?[2Jb??c");
        assert_eq!(words(&[b'x'; 1000]).len(), ANSWER_BYTES_MAX);
    }
}
