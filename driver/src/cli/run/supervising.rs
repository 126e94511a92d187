//! A run's command from its start to its end, the work beside it, and the release of its claim.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

use crate::error_text::chain;
use crate::node::Access;
use crate::printable;
use crate::run::enforcement::Loss;
use crate::run::governor::Governor;
use crate::run::record::Run;
use crate::run::supervise::{Signals, SupervisorTask};
use crate::run::watch;

use super::super::failure::Failure;
use super::super::output::Terminal;
use super::args::Args;
use super::home::Home;
use super::prepared::{Beside, Environment, GIVE_BACK_WITHIN, PreparedRun};

/// Exit code of a command that exists and cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// Exit code of a command that does not exist.
const NOT_FOUND: u8 = 127;

/// Without a governor here, those of other runs on the card serve this run, or it has no limits.
struct GovernorTask {
    governor: Option<Governor>,
}

/// Runs the command to its end and releases its claim.
pub(super) fn supervise(
    args: &Args,
    prepared: PreparedRun,
    terminal: &mut Terminal<'_>,
) -> Result<u8, Failure> {
    let PreparedRun { home, mut run, grants, beside, environment } = prepared;
    terminal.out.flush()?;
    let code = match execute(args, &mut run, beside, environment) {
        Ok(code) => code,
        Err(error) => {
            let program = args.command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
            terminal.last_note(format_args!("error: cannot run {program}: {error}"));
            if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
        }
    };
    if let Err(failure) = give_back(&home, run, &grants, terminal) {
        terminal.last_note(format_args!("warning: claim not released; the next call does it: {failure}"));
    }
    Ok(code)
}

fn execute(
    args: &Args,
    run: &mut Run,
    Beside { scope, limits, followed }: Beside,
    environment: Environment,
) -> io::Result<u8> {
    let mut words = args.command.iter();
    let mut command = Command::new(words.next().map(OsString::as_os_str).unwrap_or_default());
    command.args(words).envs(environment);
    let signals = Signals::block()?;
    // Without the liveness descriptor, processes of the run are found by other evidence.
    let running = signals.start(command, run.sign_of_life().ok())?;
    // The same if this fails.
    let noted = run.started(running.pid());
    let followed =
        followed.and_then(|source| started(watch::start(source), "what happens to the card is not recorded"));
    let governor = scope.and_then(|scope| {
        started(
            Governor::start(scope),
            "memory of exited processes and idle compute wait for the governor of another run",
        )
    });
    let watching = limits
        .and_then(|limits| started(limits.start(report), "nothing shows whether the limits of the run hold"));
    let mut watch = GovernorTask { governor };
    let ended = running.wait(&signals, &mut watch)?;
    // Before another thread of this process opens the usage file again.
    drop((watch, watching));
    drop((noted, followed));
    Ok(ended.exit_code())
}

/// What was started beside the command; `None`: the system refuses, which is a warning with its consequence.
fn started<T>(work: io::Result<T>, without: &str) -> Option<T> {
    work.inspect_err(|error| {
        say(format_args!("warning: a thread of `aliquot run` cannot start: {error}: {without}"));
    })
    .ok()
}

/// Reports a limit that does not hold.
fn report(loss: &Loss) {
    let advice = match loss {
        Loss::Bypassed { .. } => {
            "; keep libaliquot.so in LD_PRELOAD where a launcher sets that variable, and use no static or setuid program"
        }
        Loss::Broken(_) => "; start the run again",
    };
    say(format_args!("warning: {loss}{advice}"));
}

/// Writes a line beside the output of the command. A closed standard error is no reason to end it.
fn say(text: fmt::Arguments<'_>) {
    drop(writeln!(io::stderr(), "{}", printable::lines(&text.to_string())));
}

/// Releases the claim, unless a descendant of the command still runs.
fn give_back(home: &Home, run: Run, grants: &Path, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    if run.has_other_live_process(grants) {
        terminal.last_note(
            "note: a process that the command started is still alive; the next call after its end releases the claim",
        );
        return Ok(());
    }
    let (mut node, _) = match home.open_as_it_is(Access::ChangeWithin(GIVE_BACK_WITHIN), terminal) {
        Err(Failure::AgentRuns(_)) => {
            terminal.last_note("note: the node agent has started meanwhile and gives the part back");
            return Ok(());
        }
        opened => opened?,
    };
    node.release(&run.uid).map_err(|error| Failure::Node(chain(&error)))?;
    home.forget_partitions(&node)?;
    run.forget().map_err(|error| home.failed("write", error))
}

impl SupervisorTask for GovernorTask {
    fn pause(&mut self) {
        if let Some(governor) = &self.governor {
            governor.pause();
        }
    }

    fn go_on(&mut self) {
        if let Some(governor) = &self.governor {
            governor.go_on();
        }
    }
}
