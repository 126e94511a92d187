//! Input and output of a command in files: a pipe would fill while the command is waited for.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::Stdio;

use crate::wire::Output;

/// The three streams of a command.
#[derive(Debug)]
pub(crate) struct Captured {
    input: File,
    out: File,
    err: File,
}

impl Captured {
    /// Streams with this input.
    ///
    /// # Errors
    /// There is no temporary file.
    pub(crate) fn with_input(text: &str) -> io::Result<Self> {
        let mut input = tempfile::tempfile()?;
        input.write_all(text.as_bytes())?;
        input.rewind()?;
        Ok(Self { input, out: tempfile::tempfile()?, err: tempfile::tempfile()? })
    }

    /// Standard input, output and error for one command.
    ///
    /// # Errors
    /// The process has too many open files.
    pub(crate) fn streams(&self) -> io::Result<[Stdio; 3]> {
        Ok([self.input.try_clone()?.into(), self.out.try_clone()?.into(), self.err.try_clone()?.into()])
    }

    /// What the command wrote until it ended.
    pub(crate) fn output(self, code: i32) -> Output {
        Output { code, out: text(self.out), err: text(self.err) }
    }
}

fn text(mut file: File) -> String {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
