//! The vendor's command-line tool as a fall-back: the templates of a card, which no function of the library lists.
//!
//! The text of `npu-smi info -t template-info` is a table for people. A table that is cut or of another shape is refused as a
//! whole: half a list would take templates away that exist.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Where the tool lies, below the root.
const PLACES: [&str; 3] =
    ["usr/local/bin/npu-smi", "usr/local/sbin/npu-smi", "usr/local/Ascend/driver/tools/npu-smi"];
/// Longest text that is read.
const BYTES_MAX: u64 = 256 << 10;
/// How long the tool may take.
const LIMIT: Duration = Duration::from_secs(20);
/// Names of the columns, by which the table is known.
const FIRST_HEADER: [&str; 7] = ["Name", "AICORE", "Memory", "AICPU", "VPC", "VENC", "JPEGD"];
/// Most templates that a card is believed to have.
const TEMPLATES_MAX: usize = 64;

/// A template as the tool lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTemplate {
    /// Name.
    pub name: String,
    /// AI cores.
    pub ai_cores: u32,
    /// Nominal memory in GiB.
    pub memory_gib: u32,
}

/// Why there is no list of templates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The text has no such table.
    #[error(
        "npu-smi template table: found no header with Name, AICORE and Memory, expected one: npu-smi may be of another version"
    )]
    Foreign,
    /// A line is not what the header says.
    #[error("npu-smi template table: line {line}: found `{found}`, expected a template or its second line")]
    Line {
        /// Which, from 1.
        line: usize,
        /// Its beginning.
        found: String,
    },
    /// It ends within the table.
    #[error(
        "npu-smi template table: found an end after {found} templates without a closing rule, expected the whole table: ask again"
    )]
    Cut {
        /// Templates until then.
        found: usize,
    },
}

/// Reads the text of `npu-smi info -t template-info`.
///
/// # Errors
/// [`TableError`] if the table is cut, or is another one.
pub fn templates(text: &str) -> Result<Vec<ListedTemplate>, TableError> {
    let is_header = |line: &str| line_cells(line).is_some_and(|cells| cells == FIRST_HEADER);
    let start = text.lines().position(is_header).ok_or(TableError::Foreign)?;
    let mut listed: Vec<ListedTemplate> = Vec::new();
    let mut open = false;
    // The header has a second line and a rule below it.
    for (number, line) in text.lines().enumerate().skip(start + 2) {
        let bad = || TableError::Line { line: number + 1, found: line.chars().take(40).collect() };
        if is_rule(line) {
            if open {
                return Err(bad());
            }
            continue;
        }
        let Some(cells) = line_cells(line) else {
            // Something behind the table: a prompt, an empty line.
            if line.trim().is_empty() {
                continue;
            }
            return Err(bad());
        };
        match cells[..] {
            [name, cores, memory, _, _, _, _] if !open && name.starts_with("vir") && name.len() < 32 => {
                let number = |cell: &str| cell.parse::<u32>().map_err(|_| bad());
                listed.push(ListedTemplate {
                    name: name.to_owned(),
                    ai_cores: number(cores)?,
                    memory_gib: number(memory)?,
                });
                open = true;
            }
            [_, _, _] if open => open = false,
            _ => return Err(bad()),
        }
        if listed.len() > TEMPLATES_MAX {
            return Err(bad());
        }
    }
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    if open || !is_rule(last) || listed.is_empty() {
        return Err(TableError::Cut { found: listed.len() });
    }
    Ok(listed)
}

fn is_rule(line: &str) -> bool {
    let line = line.trim();
    line.len() > 40 && line.starts_with(['+', '|']) && line.ends_with(['+', '|']) && {
        let inner = line.get(1..line.len() - 1).unwrap_or_default();
        inner.chars().all(|c| c == '-') || inner.chars().all(|c| c == '=')
    }
}

/// Words between the bars of a line.
fn line_cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split_whitespace().collect())
}

/// Names of the templates of a card, as the tool lists them; `None`: there is no tool, or its text cannot be used.
pub(crate) fn names(root: &Path, card: i32) -> Option<BTreeSet<String>> {
    let tool = PLACES.iter().map(|place| root.join(place)).find(|path| path.is_file())?;
    let listed = templates(&ask(tool, card)?).ok()?;
    Some(listed.into_iter().map(|template| template.name).collect())
}

fn ask(tool: PathBuf, card: i32) -> Option<String> {
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || {
        let mut command = Command::new(tool);
        command.args(["info", "-t", "template-info", "-i", &card.to_string()]).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let text = command.spawn().ok().and_then(|mut child| {
            let mut text = String::new();
            let read = child.stdout.take()?.take(BYTES_MAX).read_to_string(&mut text);
            let ended = child.wait().ok()?;
            (read.is_ok() && ended.success()).then_some(text)
        });
        // The caller may have given up.
        drop(answer.send(text));
    });
    answered.recv_timeout(LIMIT).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str =
        "+------------------------------------------------------------------------------------------+\n";
    const HEAD: &str = "|NPU instance template info is:                                                            |\n\
         |Name                AICORE    Memory    AICPU     VPC            VENC           JPEGD     |\n\
         |                               GB                 PNGD           VDEC           JPEGE     |\n\
         |==========================================================================================|\n";
    const QUARTER: &str = "|vir02               2         6         2         3              1              4         |\n\
         |                                                  0              3              2         |\n";

    #[test]
    fn good_table_lists_its_templates() {
        let text = format!("{RULE}{HEAD}{QUARTER}{RULE}{}{RULE}", QUARTER.replace("vir02   ", "vir02_1c"));
        let names: Vec<(String, u32, u32)> = templates(&text)
            .unwrap()
            .into_iter()
            .map(|one| (one.name, one.ai_cores, one.memory_gib))
            .collect();
        assert_eq!(names, [("vir02".to_owned(), 2, 6), ("vir02_1c".to_owned(), 2, 6)]);
        // Some versions rule the header with pluses.
        let other = text.replace("|====", "+====").replace("====|", "====+");
        assert_eq!(templates(&other).unwrap().len(), 2);
    }

    #[test]
    fn cut_table_is_refused_wherever_it_is_cut() {
        let text = format!("{RULE}{HEAD}{QUARTER}{RULE}{}{RULE}", QUARTER.replace("vir02   ", "vir02_1c"));
        let whole = templates(&text).unwrap();
        for end in 0..text.len() - 1 {
            match templates(&text[..end]) {
                Err(_) => {}
                // Behind a rule between two templates nothing tells that one is missing.
                Ok(listed) => {
                    assert!(text[..end].trim_end().ends_with("-+"), "{end}: {listed:?}");
                    assert!(whole.starts_with(&listed) && !listed.is_empty());
                }
            }
        }
    }

    #[test]
    fn foreign_tables_are_refused() {
        for text in [
            "",
            "bash: npu-smi: command not found\n",
            "+-----+\n| NVIDIA-SMI 580.65.06 |\n+-----+\n",
            "| Name AICORE Memory |\n",
        ] {
            assert_eq!(templates(text), Err(TableError::Foreign), "{text}");
        }
        let worded = format!("{RULE}{HEAD}{}{RULE}", QUARTER.replace("2         6 ", "two       6 "));
        assert!(
            matches!(templates(&worded), Err(TableError::Line { line: 6, .. })),
            "{:?}",
            templates(&worded)
        );
        let other = format!("{RULE}{HEAD}{}{RULE}", QUARTER.replace("vir02", "1g.10"));
        assert!(matches!(templates(&other), Err(TableError::Line { .. })));
    }
}
