//! The last refused calls of shares: what each wanted, and what was in its way.

use std::time::Duration;

use aliquot_abi::refusal::RefusalCause;
use aliquot_core::units::Bytes;

use super::table::{human, places, plain};
use crate::cli::failure::Failure;
use crate::cli::output::{Side, Terminal};
use crate::region::{SeenRefusal, UsageCopy};
use crate::view::model::{Picture, ShareRow};

const COLUMNS: [(&str, Side); 8] = [
    ("AGO", Side::Right),
    ("PID", Side::Right),
    ("FOR", Side::Left),
    ("WANTED", Side::Right),
    ("RESERVED", Side::Right),
    ("RESIDUE", Side::Right),
    ("LIMIT", Side::Right),
    ("WHY", Side::Left),
];
/// Claims that are named where none has the name that was given.
const NAMED_MAX: usize = 20;

/// The refusals of the shares of a claim, or of all shares, as tables.
pub(super) fn print(picture: &Picture, claim: &str, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let shares: Vec<&ShareRow> =
        picture.cards.iter().flat_map(places).flat_map(|place| &place.shares).collect();
    let wanted: Vec<&ShareRow> = shares.iter().copied().filter(|share| is_of(share, claim)).collect();
    if wanted.is_empty() && !claim.is_empty() {
        return Err(Failure::Usage(unknown(claim, &shares)));
    }
    let mut silent = 0;
    for share in &wanted {
        match &share.usage {
            Some(usage) if !usage.refusals.is_empty() => table(share, usage, terminal)?,
            usage if !claim.is_empty() => terminal.line(nothing(share, usage.as_ref()))?,
            _ => silent += 1,
        }
    }
    match (silent, wanted.len()) {
        (_, 0) => terminal.line("no shares".to_owned())?,
        (0, _) => {}
        (silent, all) => terminal.line(format!("{silent} of {all} shares have no refusals"))?,
    }
    Ok(())
}

/// Whether a share belongs to the claim that is named so.
fn is_of(share: &ShareRow, claim: &str) -> bool {
    let name = share.claim.rsplit('/').next();
    claim.is_empty() || share.claim == claim || name == Some(claim) || share.grant.claim.as_str() == claim
}

fn unknown(claim: &str, shares: &[&ShareRow]) -> String {
    let mut known: Vec<&str> = shares.iter().map(|share| share.claim.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    let more = known.len().saturating_sub(NAMED_MAX);
    known.truncate(NAMED_MAX);
    let known = match (known.is_empty(), more) {
        (true, _) => "no claim has a share here".to_owned(),
        (false, 0) => known.join(", "),
        (false, more) => format!("{} and {more} more", known.join(", ")),
    };
    format!("--refusals: found {claim:?}, expected a claim with a share: {known}")
}

fn name(share: &ShareRow) -> String {
    plain(&format!("{}:{}", share.claim, share.grant.request))
}

/// What stands in place of a table.
fn nothing(share: &ShareRow, usage: Option<&UsageCopy>) -> String {
    match usage.map(|usage| usage.denied) {
        Some(0) => format!("{}: nothing was refused", name(share)),
        Some(refused) => format!("{}: {refused} refused, which its shim did not record", name(share)),
        None => format!("{}: no usage file is read, its state is {}", name(share), share.enforcement.word()),
    }
}

fn table(share: &ShareRow, usage: &UsageCopy, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let (refused, last) = (usage.denied, usage.refusals.len());
    terminal.line(format!("{}: {refused} refused, the last {last}:", name(share)))?;
    terminal.table(&COLUMNS, usage.refusals.iter().map(row).collect())?;
    Ok(())
}

fn row(seen: &SeenRefusal) -> Vec<String> {
    let SeenRefusal { refusal, ago } = seen;
    let bytes = |bytes: u64| if bytes == u64::MAX { "-".to_owned() } else { human(Bytes(bytes)) };
    let wanted = match refusal.call.wanted_bytes {
        0 => "-".to_owned(),
        u64::MAX => "too much".to_owned(),
        wanted => human(Bytes(wanted)),
    };
    vec![
        elapsed(*ago),
        refusal.pid.to_string(),
        refusal.call.kind.word().to_owned(),
        wanted,
        bytes(refusal.reserved_bytes),
        bytes(refusal.residue_bytes),
        bytes(refusal.limit_bytes),
        why(refusal.call.cause).to_owned(),
    ]
}

/// A time in its largest unit.
fn elapsed(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{}ms", time.as_millis()),
        seconds @ 1..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

const fn why(cause: RefusalCause) -> &'static str {
    match cause {
        RefusalCause::Limit => "over the limit",
        RefusalCause::Table => "a table of the shim is full",
        RefusalCause::Untraceable => "nothing would show its holders",
    }
}
