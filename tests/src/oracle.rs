//! Upstream Kubernetes as the judge: the client of the Go program in `tests/oracle`.
//!
//! The program is a filter of JSON lines (its README.md has the protocol). A test starts one [`Oracle`], asks, and
//! compares. It is found by the environment variable `ALIQUOT_ORACLE`, or else built once into the target directory:
//!
//! ```text
//!  Oracle::start ─▶ ALIQUOT_ORACLE=path ──────────────────────────────▶ spawn ─▶ ask, ask_all
//!                ├▶ ALIQUOT_ORACLE=none, or no `go` ─▶ StoodAside(why)      ▲
//!                └▶ not set, or empty: lock target/oracle/lock ─▶ go build ─┘
//! ```
//!
//! Invariants: every wait has a limit; an answer belongs to the request with its id, or it is an error; the process
//! does not outlive its [`Oracle`].

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

/// The environment variable that names a built judge, or says `none`.
const PROGRAM_VARIABLE: &str = "ALIQUOT_ORACLE";
/// The same for the judge of 1.37.
const PROGRAM_1_37_VARIABLE: &str = "ALIQUOT_ORACLE_1_37";
/// How long one answer may take: above the 10 s that the judge gives to one decision, with room for a slow machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// How long the first build may take: two minutes on two free cores, much more on busy ones.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// How much of a request an error message repeats.
const EXCERPT_BYTES: usize = 4_000;

/// Why upstream gave no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OracleError {
    /// There is no judge on this machine, for a reason that is no fault: the test says so and ends.
    #[error("the judge stands aside: {0}")]
    StoodAside(String),
    /// The program did not build.
    #[error(
        "`go build` in {directory} failed: {message}; set {PROGRAM_VARIABLE}=none to do without the judge"
    )]
    Build {
        /// Where the sources are.
        directory: PathBuf,
        /// What the compiler said, or why it did not run.
        message: String,
    },
    /// The program did not start, or its pipes failed.
    #[error("the judge {program}: {message}")]
    Process {
        /// The program that was run.
        program: PathBuf,
        /// What went wrong.
        message: String,
    },
    /// No answer came in time.
    #[error("the judge gave no answer within {} s to {request}", ANSWER_LIMIT.as_secs())]
    Late {
        /// The beginning of the request.
        request: String,
    },
    /// The answer is not what the protocol says.
    #[error("the judge answered {answer:?} to {request}, expected a JSON object with the id of the request")]
    Garbled {
        /// The beginning of the request.
        request: String,
        /// What came back.
        answer: String,
    },
    /// The judge did not understand the request, or upstream panicked on it.
    #[error("the judge could not take the request: {message}; it was {request}")]
    Fatal {
        /// The beginning of the request.
        request: String,
        /// The judge's own words.
        message: String,
    },
}

/// A running judge.
#[derive(Debug)]
pub struct Oracle {
    program: PathBuf,
    child: Child,
    /// Lines on their way to the judge; a thread writes them, so that asking never blocks on a full pipe.
    requests: Sender<Vec<u8>>,
    answers: Receiver<io::Result<String>>,
    asked: u64,
}

impl Oracle {
    /// Finds or builds the judge and starts it.
    ///
    /// # Errors
    ///
    /// [`OracleError::StoodAside`] where there is no Go toolchain or `ALIQUOT_ORACLE` is `none`;
    /// [`OracleError::Build`] and [`OracleError::Process`] when it should be there and does not come up.
    pub fn start() -> Result<Self, OracleError> {
        Self::start_judge(Judge::V1_36)
    }

    fn start_judge(judge: Judge) -> Result<Self, OracleError> {
        let program = program(judge)?;
        let failed = |message: String| OracleError::Process { program: program.clone(), message };
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("cannot be started: {error}")))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("has no pipes".to_owned()));
        };
        Ok(Self { program, child, requests: writer(stdin), answers: reader(stdout), asked: 0 })
    }

    /// As [`Oracle::start`]; where the judge stands aside the reason goes to standard error and there is none.
    ///
    /// # Errors
    ///
    /// [`OracleError::Build`] and [`OracleError::Process`] when the judge should be there and does not come up.
    pub fn start_or_say_why_not() -> Result<Option<Self>, OracleError> {
        said(Self::start())
    }

    /// As [`Oracle::start_or_say_why_not`], for the judge of 1.37, which answers `allocate` alone.
    ///
    /// # Errors
    ///
    /// [`OracleError::Build`] and [`OracleError::Process`] when the judge should be there and does not come up.
    pub fn start_1_37_or_say_why_not() -> Result<Option<Self>, OracleError> {
        said(Self::start_judge(Judge::V1_37))
    }

    /// Sends one question; the `id` of the request is set here.
    ///
    /// # Errors
    ///
    /// Every variant of [`OracleError`] but those of [`Oracle::start`]. What upstream says about the question is part
    /// of the answer, not an error.
    pub fn ask(&mut self, request: Value) -> Result<Value, OracleError> {
        let (id, line) = self.post(request)?;
        self.receive(&id, &line)
    }

    /// Sends many questions at once and returns the answers in their order. Much faster than one after
    /// another.
    ///
    /// # Errors
    ///
    /// As [`Oracle::ask`], for the first question without an answer; the judge is of no more use then.
    pub fn ask_all(&mut self, requests: impl IntoIterator<Item = Value>) -> Result<Vec<Value>, OracleError> {
        let posted = requests.into_iter().map(|request| self.post(request)).collect::<Result<Vec<_>, _>>()?;
        posted.iter().map(|(id, line)| self.receive(id, line)).collect()
    }

    /// The processor time that it used, whatever else ran on this machine; in hundredths of a second.
    ///
    /// # Panics
    ///
    /// The kernel does not say.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name before the last parenthesis may hold anything; its own time and the kernel's for it are words 14 and 15.
        let words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: Vec<u64> = words.skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
        assert_eq!(ticks.len(), 2, "{stat:?}");
        Duration::from_millis(10 * ticks.iter().sum::<u64>())
    }

    fn post(&mut self, mut request: Value) -> Result<(String, String), OracleError> {
        self.asked += 1;
        let id = self.asked.to_string();
        if let Some(fields) = request.as_object_mut() {
            fields.insert("id".to_owned(), Value::from(id.as_str()));
        }
        let line = request.to_string();
        let excerpt = excerpt(&line);
        let mut bytes = line.into_bytes();
        bytes.push(b'\n');
        self.requests.send(bytes).map_err(|_| self.ended())?;
        Ok((id, excerpt))
    }

    fn receive(&self, id: &str, request: &str) -> Result<Value, OracleError> {
        let line = match self.answers.recv_timeout(ANSWER_LIMIT) {
            Ok(line) => line.map_err(|error| OracleError::Process {
                program: self.program.clone(),
                message: format!("cannot be read: {error}"),
            })?,
            Err(RecvTimeoutError::Timeout) => return Err(OracleError::Late { request: request.to_owned() }),
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
        };
        let garbled = || OracleError::Garbled { request: request.to_owned(), answer: excerpt(&line) };
        let answer: Value = serde_json::from_str(&line).map_err(|_| garbled())?;
        if let Some(message) = answer.get("fatal").and_then(Value::as_str) {
            return Err(OracleError::Fatal { request: request.to_owned(), message: message.to_owned() });
        }
        if answer.get("id").and_then(Value::as_str) != Some(id) {
            return Err(garbled());
        }
        Ok(answer)
    }

    fn ended(&self) -> OracleError {
        OracleError::Process { program: self.program.clone(), message: "ended before it answered".to_owned() }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("the judge {} did not end: {error}", self.program.display());
        }
    }
}

/// A thread that writes whole lines; it ends with its channel or with the pipe, and the reader notices the latter.
fn writer(mut stdin: ChildStdin) -> Sender<Vec<u8>> {
    let (sender, lines) = mpsc::channel::<Vec<u8>>();
    thread::spawn(move || {
        for line in lines {
            if stdin.write_all(&line).is_err() {
                return;
            }
        }
    });
    sender
}

/// A thread that reads whole lines; it ends with the pipe or with its receiver.
fn reader(stdout: ChildStdout) -> Receiver<io::Result<String>> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// The first bytes of a line, cut between characters.
fn excerpt(line: &str) -> String {
    if line.len() <= EXCERPT_BYTES {
        return line.to_owned();
    }
    let mut end = EXCERPT_BYTES;
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}… ({} bytes)", &line[..end], line.len())
}

/// The release that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judge {
    V1_36,
    V1_37,
}

impl Judge {
    /// The directory of its sources, which is the name of its program.
    const fn name(self) -> &'static str {
        match self {
            Self::V1_36 => "oracle",
            Self::V1_37 => "oracle137",
        }
    }

    /// The environment variable that names it where it is built, or says `none`.
    const fn variable(self) -> &'static str {
        match self {
            Self::V1_36 => PROGRAM_VARIABLE,
            Self::V1_37 => PROGRAM_1_37_VARIABLE,
        }
    }
}

/// A judge that stands aside is none, and says why on standard error.
fn said(started: Result<Oracle, OracleError>) -> Result<Option<Oracle>, OracleError> {
    match started {
        Ok(oracle) => Ok(Some(oracle)),
        Err(OracleError::StoodAside(reason)) => {
            eprintln!("the judge stands aside: {reason}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Which judge the environment selects.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// None at all.
    Nothing,
    /// One that has been built already.
    Program(PathBuf),
    /// One built here.
    Own,
}

impl Wanted {
    /// An empty variable is how shells and CI systems unset one.
    fn of(value: Option<OsString>) -> Self {
        match value {
            Some(value) if value == "none" => Self::Nothing,
            Some(value) if !value.is_empty() => Self::Program(PathBuf::from(value)),
            Some(_) | None => Self::Own,
        }
    }
}

/// The judge's path, built at most once in this process.
fn program(judge: Judge) -> Result<PathBuf, OracleError> {
    static BUILT: [OnceLock<Result<PathBuf, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    let built = match judge {
        Judge::V1_36 => &BUILT[0],
        Judge::V1_37 => &BUILT[1],
    };
    let variable = judge.variable();
    match Wanted::of(std::env::var_os(variable)) {
        Wanted::Nothing => Err(OracleError::StoodAside(format!("{variable} is none"))),
        Wanted::Program(path) => Ok(path),
        Wanted::Own if !go_exists() => {
            Err(OracleError::StoodAside("no Go toolchain here: `go version` cannot be run".to_owned()))
        }
        Wanted::Own => built
            .get_or_init(|| build(judge))
            .clone()
            .map_err(|message| OracleError::Build { directory: sources(judge), message }),
    }
}

fn go_exists() -> bool {
    Command::new("go").arg("version").output().is_ok_and(|output| output.status.success())
}

fn sources(judge: Judge) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(judge.name())
}

/// Where this test program was built: the directory that Cargo marks as its own.
fn target_directory() -> PathBuf {
    let marked = |directory: &&Path| directory.join("CACHEDIR.TAG").exists();
    std::env::current_exe()
        .ok()
        .and_then(|program| program.ancestors().find(marked).map(Path::to_path_buf))
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"))
}

/// Builds the judge; other test processes wait at the lock and then find everything up to date.
fn build(judge: Judge) -> Result<PathBuf, String> {
    let directory = target_directory().join("oracle");
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    let lock_path = directory.join("lock");
    let lock = File::create(&lock_path)
        .map_err(|error| format!("cannot create {}: {error}", lock_path.display()))?;
    lock.lock().map_err(|error| format!("cannot lock {}: {error}", lock_path.display()))?;
    let program = directory.join(judge.name());
    let arguments = [OsStr::new("build"), OsStr::new("-o"), program.as_os_str(), OsStr::new(".")];
    let mut child = Command::new("go")
        .args(arguments)
        .current_dir(sources(judge))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run go: {error}"))?;
    let messages = child.stderr.take().map(collect);
    let Some(Ok(messages)) = messages.map(|channel| channel.recv_timeout(BUILD_LIMIT)) else {
        return Err(match child.kill().and_then(|()| child.wait()) {
            Ok(_) => format!("not finished after {} s", BUILD_LIMIT.as_secs()),
            Err(error) => format!("not finished after {} s, and not stopped: {error}", BUILD_LIMIT.as_secs()),
        });
    };
    match child.wait() {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(format!("{status}\n{messages}")),
        Err(error) => Err(format!("cannot wait for it: {error}")),
    }
}

/// A thread that hands over the whole text of a pipe when it closes.
fn collect(mut pipe: ChildStderr) -> Receiver<String> {
    let (sender, text) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let end = pipe.read_to_end(&mut bytes).map_or_else(|error| format!("\n{error}"), |_| String::new());
        // After the time limit there is no receiver; the text is of no use then.
        sender.send(String::from_utf8_lossy(&bytes).into_owned() + &end).is_ok()
    });
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_come_back_in_the_order_of_the_questions() {
        let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
        let question = |size: u32| {
            let expression = format!("device.attributes['d.x'].size < {size}");
            let device = json!({"name": "d", "attributes": {"size": {"int": 50}}});
            json!({"op": "cel", "driver": "d.x", "expression": expression, "device": device})
        };
        let answers = oracle.ask_all((0..100).map(question)).unwrap();
        let matches: Vec<bool> = answers.iter().map(|answer| answer["result"] == json!(true)).collect();
        assert_eq!(matches, (0..100).map(|size| 50 < size).collect::<Vec<_>>());
    }

    #[test]
    fn bad_question_is_an_error_and_the_next_one_is_answered() {
        let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
        let error = oracle.ask(json!({"op": "guess"})).unwrap_err();
        assert!(matches!(&error, OracleError::Fatal { message, .. } if message.contains("guess")), "{error}");
        let valid = json!({"op": "validate", "kind": "DeviceClass", "object": {"metadata": {"name": "c"}, "spec": {}}});
        assert_eq!(oracle.ask(valid).unwrap()["errors"], json!([]));
    }

    #[test]
    fn an_empty_variable_is_as_good_as_none() {
        assert_eq!(Wanted::of(Some(OsString::new())), Wanted::Own);
        assert_eq!(Wanted::of(None), Wanted::Own);
        assert_eq!(Wanted::of(Some("none".into())), Wanted::Nothing);
        assert_eq!(Wanted::of(Some("a/judge".into())), Wanted::Program("a/judge".into()));
    }

    #[test]
    fn excerpts_are_cut_between_characters() {
        let long = "é".repeat(EXCERPT_BYTES);
        assert!(excerpt(&long).starts_with(&"é".repeat(EXCERPT_BYTES / 2)));
        assert_eq!(excerpt("short"), "short");
    }
}
