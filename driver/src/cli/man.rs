//! `aliquot man`: this command line as manual pages.

use std::fs;
use std::path::PathBuf;

use super::Failure;
use super::failure::CommandAnswer;

/// Write manual pages to a directory, one page a command
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory for `aliquot.1`, `aliquot-devices.1` and so on; it is made where it is missing
    directory: PathBuf,
}

/// Commands that are not for people have no page.
pub(super) fn run(args: &Args, command: clap::Command) -> Result<CommandAnswer, Failure> {
    let cannot = |source| Failure::Path {
        verb: "write",
        path: args.directory.clone(),
        source,
        advice: "Check the directory's path and permissions",
    };
    fs::create_dir_all(&args.directory).map_err(cannot)?;
    clap_mangen::generate_to(command.disable_help_subcommand(true), &args.directory).map_err(cannot)?;
    Ok(CommandAnswer::Yes)
}
