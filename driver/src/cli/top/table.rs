//! The picture for people: one tree of cards, partitions, shares and processes, in as many columns as the width allows.
//!
//! Pure, and bounded: a tenant with a thousand processes fills a screen, not a disk. Texts that others write (names of
//! claims and programs) lose every character that a terminal could take for an order.

use std::path::Path;

use aliquot_core::partition::Part;
use aliquot_core::units::Bytes;

use super::json::{limit, policy};
use crate::checkpoint::Phase;
use crate::cli::output::{Side, Tone};
use crate::view::model::{
    CardHealthView, CardPart, CardRow, Enforcement, Picture, ProcessRow, ShareRow, Shim, TimeRate, phase_word,
};

/// Most processes shown of one share or card.
const PROCESSES_MAX: usize = 64;
/// Most problems shown.
const PROBLEMS_MAX: usize = 32;
/// Narrowest column of names before other columns give way.
const NAME_MIN: usize = 22;
/// Said where nothing names a card.
const NO_CARDS: &str =
    "note: no driver and no claim names a card here; --node NODE describes the cards of a simulated node";
/// Number of columns behind the name.
const COLUMNS: usize = 12;

/// Columns: title, side, and the order in which they give way; 0 never does.
const TITLES: [(&str, Side, u8); COLUMNS] = [
    ("USED", Side::Right, 0),
    ("DRIVER", Side::Right, 2),
    ("PEAK", Side::Right, 1),
    ("LIMIT", Side::Right, 0),
    ("DENIED", Side::Right, 1),
    ("REAPED", Side::Right, 4),
    ("UNKNOWN", Side::Right, 5),
    ("SHARE", Side::Right, 1),
    ("NOW", Side::Right, 1),
    ("TIME", Side::Right, 0),
    ("POLICY", Side::Left, 3),
    ("STATE", Side::Left, 0),
];

/// A line to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableLine {
    pub(super) text: String,
    pub(super) tone: Option<Tone>,
}

/// A line before it is laid out.
#[derive(Clone, Debug, Default)]
struct TableRow {
    name: String,
    cells: Cells,
    tone: Option<Tone>,
}

/// What stands in the columns.
#[derive(Clone, Debug, Default)]
struct Cells {
    used: String,
    driver: String,
    peak: String,
    limit: String,
    denied: String,
    reaped: String,
    unknown: String,
    share: String,
    now: String,
    time: String,
    policy: String,
    state: String,
}

/// The lines of a picture, at most so wide; `None`: as wide as they are.
pub(super) fn lines(picture: &Picture, width: Option<usize>) -> Vec<TableLine> {
    let mut lines = vec![TableLine { text: summary(picture), tone: None }];
    let rows: Vec<TableRow> = picture.cards.iter().flat_map(|card| card_rows(card, picture, width)).collect();
    match rows.is_empty() {
        true => lines.extend(wrapped(NO_CARDS, width).into_iter().map(|text| TableLine { text, tone: None })),
        false => {
            lines.push(TableLine { text: String::new(), tone: None });
            lines.extend(laid_out(&rows, width));
        }
    }
    if !picture.problems.is_empty() || !picture.closed.is_empty() {
        lines.push(TableLine { text: String::new(), tone: None });
    }
    for home in &picture.closed {
        let text = plain(&format!("note: what another user keeps below {} is not shown", home.display()));
        lines.extend(wrapped(&text, width).into_iter().map(|text| TableLine { text, tone: None }));
    }
    for problem in picture.problems.iter().take(PROBLEMS_MAX) {
        let text = plain(&format!("warning: {}: {}", problem.subject, problem.text));
        lines.extend(wrapped(&text, width).into_iter().map(|text| TableLine { text, tone: Some(Tone::Bad) }));
    }
    let more = picture.problems.len().saturating_sub(PROBLEMS_MAX);
    if more > 0 {
        lines.push(TableLine { text: format!("and {more} more warnings"), tone: Some(Tone::Bad) });
    }
    for line in &mut lines {
        cut(&mut line.text, width);
    }
    lines
}

fn summary(picture: &Picture) -> String {
    let places = || picture.cards.iter().flat_map(places);
    let shares = places().map(|place| place.shares.len()).sum();
    let inside = places().flat_map(|place| &place.shares).map(|share| share.processes.len()).sum::<usize>();
    let outside = places().map(|place| place.outside.len()).sum::<usize>();
    let partitions = picture.cards.iter().map(|card| card.partitions.len()).sum();
    let mut parts = vec![count(picture.cards.len(), "card", "cards")];
    if partitions > 0 {
        parts.push(count(partitions, "partition", "partitions"));
    }
    parts.push(count(shares, "share", "shares"));
    parts.push(count(inside + outside, "process", "processes"));
    parts.join(", ")
}

fn count(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// A card itself, then its partitions.
pub(super) fn places(card: &CardRow) -> impl Iterator<Item = &CardPart> {
    std::iter::once(&card.place).chain(card.partitions.iter().map(|partition| &partition.place))
}

fn card_rows(card: &CardRow, picture: &Picture, width: Option<usize>) -> Vec<TableRow> {
    let (state, tone) = match &card.health {
        CardHealthView::Unknown => (String::new(), Tone::Strong),
        CardHealthView::Well => ("healthy".to_owned(), Tone::Strong),
        CardHealthView::Unwell(why) => (plain(briefly(why)), Tone::Bad),
    };
    let name = card.name.as_deref().unwrap_or_default();
    let id = match (card.index, width) {
        (Some(index), Some(_)) => format!("card {index} {name}"),
        (Some(index), None) => format!("card {index} {name} {}", card.uuid),
        (None, Some(_)) => format!("{} {name}", short(&card.uuid, picture)),
        (None, None) => format!("{} {name}", card.uuid),
    };
    // Nodes that are simulated side by side may have cards of one name.
    let node = card.state.as_deref().and_then(Path::file_name).filter(|_| picture.states.len() > 1);
    let node = node.map(|node| format!("{}: ", node.to_string_lossy())).unwrap_or_default();
    let label = plain(&format!("{node}{}", id.trim_end()));
    let mut rows = vec![place_row(label, &card.place, state, tone)];
    rows.extend(inside(&card.place, "  "));
    for partition in &card.partitions {
        let name = plain(&format!("  {}@{}", partition.template, partition.placement));
        let (state, tone) = match &partition.health {
            // Problems of the whole card are shown at the card.
            CardHealthView::Unwell(why) if partition.health != card.health => {
                (plain(briefly(why)), Tone::Bad)
            }
            _ if partition.uuid.is_some() => ("made".to_owned(), Tone::Strong),
            _ => ("not made".to_owned(), Tone::Strong),
        };
        rows.push(place_row(name, &partition.place, state, tone));
        rows.extend(inside(&partition.place, "    "));
    }
    rows
}

/// The problem alone; `aliquot health` shows the rest.
fn briefly(why: &str) -> &str {
    why.split(", seen on").next().unwrap_or_default()
}

fn place_row(name: String, place: &CardPart, state: String, tone: Tone) -> TableRow {
    let driver = place.driver.as_ref();
    let cells = Cells {
        used: human(place.books),
        driver: driver.map(|driver| human(driver.in_use)).unwrap_or_default(),
        peak: driver.and_then(|driver| driver.high_water).map(human).unwrap_or_default(),
        limit: place.memory.map(human).unwrap_or_default(),
        time: driver.map(|driver| percent(driver.busy)).unwrap_or_default(),
        state,
        ..Cells::default()
    };
    TableRow { name, cells, tone: Some(tone) }
}

/// Shares, their processes, and processes without a grant.
fn inside(place: &CardPart, indent: &str) -> Vec<TableRow> {
    let mut rows = Vec::new();
    for share in &place.shares {
        let twins = place.shares.iter().filter(|other| other.claim == share.claim).count();
        rows.push(share_row(share, indent, twins));
        let mut processes = process_rows(&share.processes, indent.len() + 2);
        if matches!(share.enforcement, Enforcement::Unlimited | Enforcement::Hardware) {
            // Without limits no process bypasses them.
            processes.iter_mut().for_each(|row| row.tone = None);
        }
        rows.extend(processes);
    }
    rows.extend(process_rows(&place.outside, indent.len()));
    let unattributed = place.driver.map_or(Bytes(0), |driver| driver.unattributed);
    if unattributed.0 > 0 {
        let cells = Cells { driver: human(unattributed), ..Cells::default() };
        rows.push(TableRow { name: format!("{indent}in no books"), cells, tone: None });
    }
    rows
}

fn share_row(share: &ShareRow, indent: &str, twins: usize) -> TableRow {
    let mut name = format!("{indent}{}", share.claim);
    if twins > 1 {
        name = format!("{name}:{}", share.grant.request);
    }
    if let Part::Slot { .. } = share.grant.part {
        name = format!("{name} {}", share.grant.part);
    }
    if share.phase != Phase::Prepared {
        name = format!("{name} ({})", phase_word(share.phase));
    }
    let tone = match &share.enforcement {
        Enforcement::Bypassed | Enforcement::Contradicted(_) | Enforcement::Broken(_) => Some(Tone::Bad),
        Enforcement::Observed => Some(Tone::Good),
        Enforcement::Unseen | Enforcement::Unlimited | Enforcement::Hardware | Enforcement::Absent => None,
    };
    let (limits, usage) = (share.limits.as_ref(), share.usage.as_ref());
    let counted = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    let limit_shown = limits.map(|limits| limit(limits).map_or("-".to_owned(), |bytes| human(Bytes(bytes))));
    let cells = Cells {
        used: usage.map(|usage| human(usage.total)).unwrap_or_default(),
        driver: String::new(),
        peak: usage.map(|usage| human(usage.high_water)).unwrap_or_default(),
        limit: limit_shown.unwrap_or_else(|| human(share.grant.memory)),
        denied: counted(usage.map(|usage| usage.denied)),
        reaped: counted(usage.map(|usage| usage.reaped)),
        unknown: counted(usage.map(|usage| usage.unknown_symbols)),
        share: share.guaranteed.map(of_ppm).unwrap_or_default(),
        now: share.granted.map(of_ppm).unwrap_or_default(),
        time: percent(share.measured),
        policy: limits.map(|limits| policy(limits.policy).to_owned()).unwrap_or_default(),
        state: share.enforcement.word().to_owned(),
    };
    TableRow { name: plain(&name), cells, tone }
}

fn process_rows(processes: &[ProcessRow], indent: usize) -> Vec<TableRow> {
    let indent = " ".repeat(indent);
    let mut rows: Vec<TableRow> =
        processes.iter().take(PROCESSES_MAX).map(|p| process_row(p, &indent)).collect();
    let more = processes.len().saturating_sub(PROCESSES_MAX);
    if more > 0 {
        rows.push(TableRow { name: format!("{indent}and {more} more"), ..TableRow::default() });
    }
    rows
}

fn process_row(process: &ProcessRow, indent: &str) -> TableRow {
    let number = match (process.pid, process.inner_pid) {
        (Some(pid), _) => pid.to_string(),
        (None, Some(inner)) => format!("({inner})"),
        (None, None) => "?".to_owned(),
    };
    let name = format!("{indent}{number} {}", process.command.as_deref().unwrap_or_default());
    let (state, tone) = match process.shim {
        Shim::Held => ("shim", None),
        Shim::Named => ("named", None),
        Shim::Dead => ("dead", None),
        Shim::Missing => ("no shim", Some(Tone::Bad)),
        Shim::Outside => ("no grant", Some(Tone::Bad)),
    };
    let cells = Cells {
        used: process.books.map(human).unwrap_or_default(),
        driver: process.driver.map(human).unwrap_or_default(),
        time: percent(process.measured),
        state: state.to_owned(),
        ..Cells::default()
    };
    TableRow { name: plain(name.trim_end()), cells, tone }
}

// === layout ===

/// Titles and rows, without the columns that have to give way.
fn laid_out(rows: &[TableRow], width: Option<usize>) -> Vec<TableLine> {
    let mut widths = TITLES.map(|(title, _, _)| title.len());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.cells.each()) {
            *width = (*width).max(cell.len());
        }
    }
    let longest = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut shown = [true; COLUMNS];
    let gap = if width.is_some_and(|width| width < 100) { 1 } else { 2 };
    let taken = |shown: &[bool; COLUMNS]| -> usize {
        widths.iter().zip(shown).filter(|(_, shown)| **shown).map(|(width, _)| width + gap).sum()
    };
    let room = |shown: &[bool; COLUMNS]| width.map_or(longest, |width| width.saturating_sub(taken(shown)));
    let fits = |shown: &[bool; COLUMNS]| room(shown) >= longest;
    // Columns in which nothing stands go first: they take room from names.
    for column in (0..COLUMNS).filter(|column| TITLES[*column].2 > 0) {
        let is_blank = |row: &TableRow| matches!(row.cells.each()[column], "" | "0");
        if !fits(&shown) && rows.iter().all(is_blank) {
            shown[column] = false;
        }
    }
    for weakest in (1..=u8::MAX).rev() {
        if room(&shown) >= longest.min(NAME_MIN) {
            break;
        }
        for (shown, (_, _, order)) in shown.iter_mut().zip(TITLES) {
            *shown &= order != weakest;
        }
    }
    let name_width = room(&shown).min(longest);
    let line = |name: &str, cells: [&str; COLUMNS]| {
        let mut text = name.to_owned();
        cut(&mut text, Some(name_width));
        text.push_str(&" ".repeat(name_width.saturating_sub(text.len())));
        for (((cell, width), (_, side, _)), shown) in cells.into_iter().zip(widths).zip(TITLES).zip(shown) {
            match side {
                _ if !shown => {}
                Side::Right => text.push_str(&format!("{:gap$}{cell:>width$}", "")),
                Side::Left => text.push_str(&format!("{:gap$}{cell:<width$}", "")),
            }
        }
        text.truncate(text.trim_end().len());
        text
    };
    let titles = TableLine { text: line("", TITLES.map(|(title, _, _)| title)), tone: Some(Tone::Strong) };
    let rows = rows.iter().map(|row| TableLine { text: line(&row.name, row.cells.each()), tone: row.tone });
    std::iter::once(titles).chain(rows).collect()
}

/// Untrusted text for a terminal: printable ASCII, everything else as `?`.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect()
}

/// Cuts a line of ASCII to a width, with a mark where something is missing.
fn cut(text: &mut String, width: Option<usize>) {
    let Some(width) = width.filter(|width| *width < text.len()) else { return };
    text.truncate(width);
    if width > 1 {
        text.pop();
        text.push('~');
    }
}

/// A text in lines of a width, broken between words; what continues is indented.
fn wrapped(text: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else { return vec![text.to_owned()] };
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A UUID as short as it can be told apart from the others of the picture: its beginning, or else its end.
fn short(uuid: &str, picture: &Picture) -> String {
    let first =
        |uuid: &str| uuid.match_indices('-').nth(1).map_or(uuid.to_owned(), |(at, _)| uuid[..at].to_owned());
    let beginning = first(uuid);
    let twins = picture.cards.iter().filter(|card| first(&card.uuid) == beginning).count();
    if twins < 2 || !uuid.is_ascii() {
        return beginning;
    }
    let kind = uuid.split('-').next().unwrap_or_default();
    format!("{kind}..{}", &uuid[uuid.len().saturating_sub(6)..])
}

/// Bytes in at most three digits and a unit.
pub(super) fn human(bytes: Bytes) -> String {
    const UNITS: [&str; 5] = ["Ki", "Mi", "Gi", "Ti", "Pi"];
    if bytes.0 < 1024 {
        return bytes.0.to_string();
    }
    let mut scale: u64 = 1;
    let mut unit = "";
    for name in UNITS {
        if bytes.0 / scale < 1024 {
            break;
        }
        scale *= 1024;
        unit = name;
    }
    let (whole, rest) = (bytes.0 / scale, bytes.0 % scale);
    if rest == 0 || whole >= 10 {
        return format!("{}{unit}", whole + u64::from(rest >= scale.div_ceil(2) && rest > 0));
    }
    let tenths = u128::from(rest) * 10 / u128::from(scale);
    format!("{whole}.{tenths}{unit}")
}

fn percent(measured: TimeRate) -> String {
    match measured {
        TimeRate::Ppm(ppm) => of_ppm(ppm),
        TimeRate::Unknown => String::new(),
        TimeRate::Implausible => "?".to_owned(),
    }
}

/// Parts per million as percent: tenths below ten.
fn of_ppm(ppm: u64) -> String {
    let tenths = (ppm + 500) / 1000;
    match (tenths / 10, tenths % 10) {
        (whole @ 0..=9, tenth @ 1..=9) => format!("{whole}.{tenth}%"),
        (whole, 5..=9) => format!("{}%", whole + 1),
        (whole, _) => format!("{whole}%"),
    }
}

// === impl Cells ===

impl Cells {
    fn each(&self) -> [&str; COLUMNS] {
        [
            &self.used,
            &self.driver,
            &self.peak,
            &self.limit,
            &self.denied,
            &self.reaped,
            &self.unknown,
            &self.share,
            &self.now,
            &self.time,
            &self.policy,
            &self.state,
        ]
    }
}
