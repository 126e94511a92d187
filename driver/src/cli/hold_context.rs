//! A process with a context on one card and nothing else, started by [`crate::contexts`] to measure the context's size.
//!
//! It prints one line, and ends with its standard input or its parent process.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use aliquot_core::id::CardUuid;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::contexts::{PROBES, READY};
use crate::hardware::vendors::Context;

/// Have a context on a card until standard input ends
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// UUID of the only card or MIG instance that `CUDA_VISIBLE_DEVICES` shows
    #[arg(value_parser = card)]
    card: CardUuid,
    /// Library that makes the context, instead of the loader's libcuda.so.1
    library: Option<PathBuf>,
}

fn card(text: &str) -> Result<CardUuid, String> {
    CardUuid::new(text).map_err(|error| error.to_string())
}

pub(super) fn run(args: &Args) -> u8 {
    // If this fails, the end of the input ends the process. The parent may have exited before the call: then no signal comes.
    let _dies_with_its_parent = set_pdeathsig(Signal::SIGKILL);
    if input_has_ended() {
        return 1;
    }
    match Context::make(&args.card, args.library.as_deref()) {
        Ok(context) => {
            if say(READY).is_ok() {
                serve(&context);
            }
            drop(context);
            0
        }
        Err(why) => {
            // Without a reader the reason is not needed.
            drop(say(&why.to_string()));
            1
        }
    }
}

fn input_has_ended() -> bool {
    let input = io::stdin();
    let mut ended = [PollFd::new(input.as_fd(), PollFlags::empty())];
    let is_told = poll(&mut ended, PollTimeout::ZERO).is_ok_and(|count| count > 0);
    is_told && ended[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Makes the next allocation for each byte of the input, until its end.
fn serve(context: &Context) {
    let (mut byte, mut input) = ([0; 1], io::stdin().lock());
    let mut probes = PROBES.into_iter();
    while input.read(&mut byte).is_ok_and(|length| length > 0) {
        let said = match probes.next().map(|(_, probe)| context.allocate(probe)) {
            Some(Ok(())) => say(READY),
            Some(Err(why)) => say(&why.to_string()),
            None => say("no further allocation is known"),
        };
        if said.is_err() {
            return;
        }
    }
}
