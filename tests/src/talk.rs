//! A program that executes commands, one a line, and answers each.

#![expect(clippy::panic, reason = "a program that does not answer is a failed test")]

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running program.
#[derive(Debug)]
pub struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talk {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let input = child.stdin.take();
        let Some(output) = child.stdout.take() else { panic!("{command:?}: no output") };
        Self { child, input, output: BufReader::new(output) }
    }

    /// Says a line; what it answers.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn say(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    /// Says a line, and does not wait for the answer.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn tell(&mut self, line: &str) {
        let written = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        assert!(matches!(written, Some(Ok(()))), "{line}: {written:?}");
    }

    /// The next answer.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn hear(&mut self) -> String {
        let mut answer = String::new();
        let read = self.output.read_line(&mut answer);
        assert!(matches!(read, Ok(count) if count > 0), "no answer: {read:?}");
        answer.trim_end().to_owned()
    }

    /// Whether there is something to hear.
    ///
    /// # Panics
    ///
    /// If its state cannot be read.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        let mut answers = [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut answers, PollTimeout::ZERO);
        ready.unwrap_or_else(|error| panic!("{error}")) > 0
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The same, to send signals to.
    #[must_use]
    pub fn process(&self) -> Pid {
        Pid::from_raw(self.pid().cast_signed())
    }

    /// Ends it by ending its input.
    ///
    /// # Panics
    ///
    /// When it does not end well.
    pub fn end(mut self) {
        self.input = None;
        let status = self.child.wait();
        assert!(matches!(status, Ok(status) if status.success()), "{status:?}");
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.input = None;
        // A failed test leaves no process behind; a passed one has waited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
