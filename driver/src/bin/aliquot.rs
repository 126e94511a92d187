//! The `aliquot` command; the work is in the library.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use aliquot_driver::cli::{Colour, Progress, Screen, Terminal, run};
use aliquot_driver::config::{colours, screen};

fn main() -> ExitCode {
    let colour = if io::stdout().is_terminal() { colours() } else { Colour::Off };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut err = io::stderr();
    let mut input = io::stdin();
    let mut terminal = Terminal {
        out: &mut out,
        err: &mut err,
        input: &mut input,
        colour,
        progress: if io::stderr().is_terminal() { Progress::On } else { Progress::Off },
        screen: if io::stdout().is_terminal() { screen() } else { Screen::None },
    };
    let code = run(std::env::args_os(), &mut terminal);
    match out.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::from(3),
        _ => ExitCode::from(code),
    }
}
