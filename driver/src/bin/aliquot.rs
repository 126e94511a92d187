//! The `aliquot` command; the work is in the library.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use aliquot_driver::cli::{Colour, Progress, RedrawMode, Terminal, is_tenant, run};
use aliquot_driver::config::{colours, leave_grants, screen};

// UNSAFETY: changing the environment requires that no other thread reads it; only `main` can ensure that.
#[expect(unsafe_code, reason = "the environment is changed before anything else begins")]
fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if !is_tenant(&args) {
        // SAFETY: this is the first that the program does, in its one thread.
        unsafe { leave_grants() };
    }
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
        screen: if io::stdout().is_terminal() { screen() } else { RedrawMode::None },
    };
    let code = run(args, &mut terminal);
    match out.flush() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _also_lost = writeln!(err, "error: cannot write the answer: {error}");
            ExitCode::from(3)
        }
        _ => ExitCode::from(code),
    }
}
