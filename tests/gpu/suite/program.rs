//! A program at work on the card: what it says, line by line, and never for longer than it may take.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Exit code of programs for what the driver or the card cannot do, shim or not.
const ABSENT: i32 = 3;
/// How often a program that should end is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// Longest time in which a killed program is waited for; one that is stuck in the driver may never end.
const KILLED: Duration = Duration::from_secs(5);
/// The same for its standard error, once it has ended.
const COMPLAINT: Duration = Duration::from_millis(300);

/// Why there is no figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The driver or the card cannot do it: where that is so without the shim as well, the check stands aside.
    Aside(String),
    /// Something else happened on the card meanwhile: nothing can be said.
    Disturbed(String),
    /// Something that had to work did not.
    Failed(String),
}

/// Keys and numbers that a program said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    text: String,
    numbers: BTreeMap<String, u64>,
}

/// A program that runs, and ends with its handle.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    lines: Receiver<String>,
    complaint: Receiver<String>,
    until: Instant,
    /// What it said so far.
    text: String,
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) text: String,
    /// The last line of its standard error.
    pub(crate) complaint: String,
}

impl Trouble {
    /// What is the matter.
    pub(crate) fn why(&self) -> &str {
        let (Self::Aside(why) | Self::Disturbed(why) | Self::Failed(why)) = self;
        why
    }
}

// === impl Said ===

impl Said {
    /// Reads lines of a key and a number.
    pub(crate) fn of(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        let numbers = pairs.filter_map(|(key, value)| Some((key.to_owned(), value.parse().ok()?)));
        Self { text: text.to_owned(), numbers: numbers.collect() }
    }

    /// A number by its key.
    ///
    /// # Errors
    /// It was not said.
    pub(crate) fn number(&self, key: &str) -> Result<u64, Trouble> {
        let found = self.numbers.get(key).copied();
        found.ok_or_else(|| Trouble::Failed(format!("the program did not say {key}: {}", self.text)))
    }

    /// The rest of the first line that begins with the key.
    pub(crate) fn word(&self, key: &str) -> Option<String> {
        self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned))
    }

    /// The lines of this key, each as the numbers after it.
    pub(crate) fn rows(&self, key: &str) -> Vec<Vec<f64>> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        lines.map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect()).collect()
    }
}

// === impl Ended ===

impl Ended {
    /// What it said.
    ///
    /// # Errors
    /// It did not end well.
    pub(crate) fn well(self, name: &str) -> Result<Said, Trouble> {
        let said = Said::of(&self.text);
        if self.status.success() {
            return Ok(said);
        }
        if self.status.code() == Some(ABSENT)
            && let Some(why) = said.word("reason")
        {
            return Err(Trouble::Aside(why));
        }
        let last = said.word("failed").unwrap_or(self.complaint);
        Err(Trouble::Failed(format!("{name}: {}: {last}", self.status)))
    }
}

// === impl Program ===

fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            // Without a receiver the rest is read all the same, so that the program can end.
            drop(tell.send(String::from_utf8_lossy(&line).into_owned()));
            line.clear();
        }
    });
    told
}

fn last_line(mut output: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        drop(output.read_to_end(&mut bytes));
        let text = String::from_utf8_lossy(&bytes);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        drop(tell.send(last.trim().to_owned()));
    });
    told
}

impl Program {
    /// Starts it; it may take so long.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(command: &mut Command, limit: Duration) -> Result<Self, Trouble> {
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let program = command.get_program().to_string_lossy().into_owned();
        let short = program.rsplit('/').next().unwrap_or_default().to_owned();
        let name = format!("{short} {}", arguments.join(" "));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Trouble::Aside(format!("{short}: {error}")))?;
        let nothing = || Trouble::Failed(format!("{name}: no output"));
        let lines = lines_of(child.stdout.take().ok_or_else(nothing)?);
        let complaint = last_line(child.stderr.take().ok_or_else(nothing)?);
        Ok(Self { name, child, lines, complaint, until: Instant::now() + limit, text: String::new() })
    }

    /// May take so long from now on.
    pub(crate) fn allow(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
    }

    fn late(&mut self) -> Trouble {
        self.kill();
        let (name, text) = (&self.name, self.text.lines().last().unwrap_or_default());
        Trouble::Failed(format!("{name}: did not end in time, and was killed; it said last: {text}"))
    }

    fn kill(&mut self) {
        drop(self.child.kill());
        let _status = self.gone_by(Instant::now() + KILLED);
    }

    fn gone_by(&mut self, until: Instant) -> Option<ExitStatus> {
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
                _ => return None,
            }
        }
    }

    /// The next line; `None` at the end of its output.
    ///
    /// # Errors
    /// It takes too long.
    pub(crate) fn line(&mut self) -> Result<Option<String>, Trouble> {
        match self.lines.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.text.push_str(&line);
                Ok(Some(line.trim_end().to_owned()))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(self.late()),
        }
    }

    /// Waits until it says that it is ready; what it said before.
    ///
    /// # Errors
    /// It ended before, or takes too long.
    pub(crate) fn ready(&mut self) -> Result<Said, Trouble> {
        loop {
            match self.line()? {
                Some(line) if line == "ready" => return Ok(Said::of(&self.text)),
                Some(_) => {}
                None => {
                    let name = self.name.clone();
                    let early = || Trouble::Failed(format!("{name}: ended before it was ready"));
                    return self.finish()?.well(&name).and_then(|_| Err(early()));
                }
            }
        }
    }

    /// Gives it a line of input and takes a line of output.
    ///
    /// # Errors
    /// It has ended, or takes too long.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String, Trouble> {
        let ended = || Trouble::Failed("it has ended".to_owned());
        let input = self.child.stdin.as_mut().ok_or_else(ended)?;
        writeln!(input, "{line}").map_err(|error| Trouble::Failed(format!("{}: {error}", self.name)))?;
        self.line()?.ok_or_else(ended)
    }

    /// Lets it go on.
    pub(crate) fn go(&mut self) {
        drop(self.child.stdin.take());
    }

    fn finish(&mut self) -> Result<Ended, Trouble> {
        self.go();
        while self.line()?.is_some() {}
        let Some(status) = self.gone_by(self.until) else { return Err(self.late()) };
        // Something that it started may hold its standard error for longer.
        let complaint = self.complaint.recv_timeout(COMPLAINT).unwrap_or_default();
        Ok(Ended { status, text: std::mem::take(&mut self.text), complaint })
    }

    /// Lets it go on and waits for its end, however it ends.
    ///
    /// # Errors
    /// It takes too long.
    pub(crate) fn end(mut self) -> Result<Ended, Trouble> {
        self.finish()
    }

    /// Lets it go on and waits until it has ended well.
    ///
    /// # Errors
    /// It did not, or takes too long.
    pub(crate) fn ended(self) -> Result<Said, Trouble> {
        let name = self.name.clone();
        self.end()?.well(&name)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Gone is gone: it may have ended by itself.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.kill();
        }
    }
}
