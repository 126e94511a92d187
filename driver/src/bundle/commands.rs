//! Answers of this program's own commands for the archive. Each runs in a process of its own, so that one that hangs with a card
//! or is killed takes no other part with it.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::{ENTRY_BYTES_MAX, Entry};
use crate::clock;

/// Longest time of one command, after which it is killed.
pub const COMMAND_TIME: Duration = Duration::from_secs(60);
/// Time between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

/// What a command printed; beside it, as `PATH.stderr`, how it ended and its error output, if there is anything to say.
#[must_use]
pub fn answer(path: &str, command: &mut Command) -> Vec<Entry> {
    match run(command) {
        Ok((answer, None)) => vec![Entry::of(path, answer)],
        Ok((answer, Some(said))) => vec![Entry::of(path, answer), Entry::of(format!("{path}.stderr"), said)],
        Err(error) => vec![Entry::absent(path, error.to_string())],
    }
}

fn run(command: &mut Command) -> io::Result<(Vec<u8>, Option<Vec<u8>>)> {
    // Files, not pipes: nobody has to read while the command runs.
    let (mut out, mut err) = (unnamed()?, unnamed()?);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let status = wait(command.spawn()?)?;
    let (answer, said) = (content(&mut out)?, content(&mut err)?);
    let end = match status {
        Some(status) if status.success() && said.is_empty() => return Ok((answer, None)),
        Some(status) => format!("{status}\n"),
        None => format!("killed after {} s\n", COMMAND_TIME.as_secs()),
    };
    Ok((answer, Some([end.into_bytes(), said].concat())))
}

/// A file in memory, without a name.
fn unnamed() -> io::Result<File> {
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    Ok(nix::sys::memfd::memfd_create(c"aliquot-bundle", flags)?.into())
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(ENTRY_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// How it ended; `None`: it was killed. One that the kernel holds in a call of a driver is left behind.
fn wait(mut child: Child) -> io::Result<Option<ExitStatus>> {
    let deadline = clock::now() + COMMAND_TIME;
    while clock::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK);
    }
    child.kill()?;
    std::thread::sleep(LOOK);
    let _left_behind = child.try_wait()?.is_none();
    Ok(None)
}
