//! Words that people bring from other tools, and numbers of the command line.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options of other tools that mean something here: the option, and the tip.
const FOREIGN: &[(&str, &str)] = &[
    ("--gpus", "a run has a part of one card: --memory 8Gi --cores 25, or --card 0 for one certain card"),
    ("--gpu", "a card is named with --card in `aliquot run`; `aliquot devices` shows all"),
    ("--device", "a card is named with --card in `aliquot run`; `aliquot devices` shows all"),
    ("--gpu-memory", "memory is --memory 8Gi"),
    ("--gpu-mem", "memory is --memory 8Gi"),
    ("--vram", "memory is --memory 8Gi"),
    ("--mem", "memory is --memory 8Gi"),
    ("--gpu-cores", "compute is --cores 25, in percent of the whole card"),
    ("--compute", "compute is --cores 25, in percent of the whole card"),
    ("--context", "a context of the kubeconfig is named with --cluster=CONTEXT"),
    ("--namespace", "everything is read; `aliquot explain NAMESPACE/NAME` is about one Pod or claim"),
    ("--file", "a manifest is named with -f"),
];

/// The answer to manifests that ask for no device.
pub(super) const NOTHING_TO_PLACE: &str = "nothing to place: no Pod and no claim asks for devices";

/// At most so many; 0 for all.
pub(super) fn most(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number, 0 for all".to_owned())
}

/// Whole seconds.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected whole seconds, such as 60".to_owned())
}

/// An error about an option of another tool, with what to write here.
pub(super) fn with_tip(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let named = option.split('=').next().unwrap_or_default();
    let tip = FOREIGN.iter().find(|(foreign, _)| *foreign == named).map(|(_, tip)| *tip);
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(tip) = tip
    {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}
