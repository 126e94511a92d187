//! The `aliquot` command; the work is in the library.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use aliquot_driver::cli::{Colour, Progress, Terminal, run};

fn main() -> ExitCode {
    let coloured = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let mut out = BufWriter::new(io::stdout().lock());
    let mut err = io::stderr();
    let mut input = io::stdin();
    let mut terminal = Terminal {
        out: &mut out,
        err: &mut err,
        input: &mut input,
        colour: if coloured { Colour::On } else { Colour::Off },
        progress: if io::stderr().is_terminal() { Progress::On } else { Progress::Off },
    };
    let code = run(std::env::args_os(), &mut terminal);
    match out.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::from(3),
        _ => ExitCode::from(code),
    }
}
