//! What the manuals of commands have in common.

const EXIT_CODES: &str = "\
Exit codes:
  0  yes: everything fits, or was done
  1  no: something does not fit, or differs from what was expected
  2  the command line or a file is not what it should be
  3  a file, directory or the node cannot be used

Standard output carries the answer alone; progress, warnings and failures go to standard error.
Colours and progress are for terminals; NO_COLOR=1 switches colours off.";

/// The end of a command's manual: its examples, what its exit codes mean, where output goes.
pub(super) fn manual(examples: &str) -> String {
    format!("{examples}\n\n{EXIT_CODES}")
}
