//! `aliquot classes`: `DeviceClass`es for what nodes offer, ready to apply.

use std::collections::BTreeSet;
use std::ffi::OsString;

use aliquot_core::dra::DeviceClass;
use aliquot_core::fraction::parse_ask;
use aliquot_core::offer::classes;
use aliquot_core::offer::classes::{DESCRIPTION, SPELLING, share_class};
use aliquot_core::offer::legacy::{LegacyNames, legacy_classes};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde_json::json;

use crate::manifest::{ClaimTemplate, Object, yaml_document};

use super::failure::{CommandAnswer, Failure};
use super::manual::manual;
use super::nodes::{Fleet, NodeArgs};
use super::output::{Format, Side, Terminal};
use super::part::{RequestedPart, parts};

const EXAMPLES: &str = "\
Examples:
  aliquot classes --node 8xh100
  aliquot classes 1/4 Ascend310P
  aliquot classes --node mixed huawei.com/ascend-310p-1/4
  aliquot classes --node mixed --legacy nvidia -o yaml | kubectl apply -f -
  aliquot classes --node mixed -o yaml | kubectl apply -f -";

/// Print `DeviceClass`es for what nodes offer
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = manual(EXAMPLES))]
pub(super) struct Args {
    /// Part of a card, such as `1/4 Ascend310P`, `25% H100`, `8Gi L4`, `1g.10gb`: prints class and claim template.
    /// Repeatable where each is quoted; words without quotes are one part
    #[arg(value_name = "PART")]
    part: Vec<String>,

    /// Classes under the resource names of another system instead, so that Pods written for it run unchanged
    #[arg(long, value_enum, value_name = "SYSTEM", conflicts_with = "part")]
    legacy: Option<LegacySystem>,

    #[command(flatten)]
    nodes: NodeArgs,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

/// The system whose resource names classes carry.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LegacySystem {
    /// nvidia.com/gpu, nvidia.com/mig-*, nvidia.com/gpu.shared
    Nvidia,
    /// huawei.com/Ascend310P, huawei.com/Ascend910, their -2c and other templates, huawei.com/npu-core
    Huawei,
    /// Whole cards as HAMi names them: nvidia.com/gpu, huawei.com/Ascend910B3 and others
    Hami,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    if !args.part.is_empty() {
        return asked(args, terminal);
    }
    let fleet = Fleet::load(&args.nodes, terminal)?.some()?;
    let slices: Vec<_> = fleet.nodes.iter().flat_map(|n| n.slices.iter().cloned()).collect();
    let classes = match args.legacy {
        None => classes(&slices),
        Some(system) => legacy_classes(system.names(), &slices),
    };
    match args.output {
        Format::Table => table(&classes, terminal)?,
        Format::Json => {
            let items: Vec<_> = classes.iter().map(|c| Object::Class(c).json()).collect();
            terminal.value(Format::Json, &json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
        }
        Format::Yaml => {
            for class in &classes {
                terminal.line("---")?;
                terminal.out.write_all(yaml_document(&Object::Class(class).json()).as_bytes())?;
            }
        }
    }
    Ok(fleet.answer(CommandAnswer::Yes))
}

/// The problem of a part that begins with a minus, which the command-line parser read as an option.
pub(super) fn signed_part(error: &clap::Error, args: &[OsString]) -> Option<Failure> {
    let Some(ContextValue::String(refused)) = error.get(ContextKind::InvalidArg) else { return None };
    let number =
        refused.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| "0123456789.".contains(c)));
    let mut words = args.iter().skip(1).filter_map(|word| word.to_str());
    if error.kind() != ErrorKind::UnknownArgument || !number || words.next() != Some("classes") {
        return None;
    }
    let part = words.find(|word| word.starts_with(refused.as_str()))?;
    parse_ask(part).err().map(|error| Failure::Usage(error.to_string()))
}

/// One part for each argument where one has a space in it, else one for all words together.
fn texts(words: &[String]) -> Vec<String> {
    match words.iter().any(|word| word.contains(char::is_whitespace)) {
        true => words.to_vec(),
        false => vec![words.join(" ")],
    }
}

/// Class and claim template of each requested part.
fn asked(args: &Args, terminal: &mut Terminal<'_>) -> Result<CommandAnswer, Failure> {
    let fleet = Fleet::load(&args.nodes, terminal)?;
    let mut answer = CommandAnswer::Yes;
    let mut found: Vec<(String, RequestedPart)> = Vec::new();
    for text in texts(&args.part) {
        match parts(&text, &fleet)? {
            Ok(parts) => {
                if let Some(note) = several_classes(&text, &parts) {
                    terminal.note(note)?;
                }
                found.extend(parts.into_iter().map(|part| (text.clone(), part)));
            }
            Err(error) => {
                terminal.note(error)?;
                answer = CommandAnswer::No;
            }
        }
    }
    name_apart(&mut found);
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    let mut items = Vec::new();
    for (text, part) in &found {
        let mut objects = Vec::new();
        if shown.insert(&part.class.name) {
            objects.push(Object::Class(&part.class).json());
        }
        objects.push(Object::Template(&part.template).json());
        if args.output != Format::Json {
            terminal.line(format_args!("# {text}: {}", part.about))?;
            for object in &objects {
                terminal.line("---")?;
                terminal.out.write_all(yaml_document(object).as_bytes())?;
            }
        }
        items.extend(objects);
    }
    if args.output == Format::Json && !found.is_empty() {
        terminal.value(Format::Json, &json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
    }
    Ok(fleet.answer(answer))
}

/// Which classes answer a part, where a user has to choose one.
fn several_classes(text: &str, parts: &[RequestedPart]) -> Option<String> {
    let classes: BTreeSet<&str> = parts.iter().map(|part| part.class.name.as_str()).collect();
    let share = share_class();
    let (shares, others): (Vec<&str>, Vec<&str>) = classes.iter().copied().partition(|name| *name == share);
    let choice = match (shares.as_slice(), others.as_slice()) {
        ([share], [partition]) => format!(
            "use {partition} for a partition of that size or near it, which hardware keeps apart, or {share} for \
             exactly that size, which the shim keeps apart"
        ),
        ([share], [_, ..]) => format!(
            "use {share} for exactly that size, which the shim keeps apart, or the class of the cards that your nodes \
             have for a partition, or name the model"
        ),
        _ => "use the class of the cards that your nodes have, or name the model".to_owned(),
    };
    let named = classes.iter().copied().collect::<Vec<_>>().join(", ");
    (classes.len() > 1).then(|| {
        format!("note: part `{text}`: found {} classes, expected one: {named}; {choice}", classes.len())
    })
}

/// Numbers templates that have one name and ask for different things: applied as they were, the last would win.
/// The same template twice is one.
fn name_apart(found: &mut Vec<(String, RequestedPart)>) {
    let mut known: Vec<ClaimTemplate> = Vec::new();
    found.retain_mut(|(_, part)| {
        if known.contains(&part.template) {
            return false;
        }
        known.push(part.template.clone());
        let earlier = known.iter().filter(|t| t.name == part.template.name).count();
        if earlier > 1 {
            part.template.name = format!("{}-{earlier}", part.template.name);
        }
        true
    });
}

fn table(classes: &[DeviceClass], terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let columns = [
        ("CLASS", Side::Left),
        ("EXTENDED RESOURCE", Side::Left),
        ("ALSO SPELLED", Side::Left),
        ("WHAT IT IS", Side::Left),
    ];
    let rows = classes
        .iter()
        .map(|class| {
            let note = |name: &str| class.annotations.get(name).cloned();
            vec![
                class.name.clone(),
                class.extended_resource_name.clone().unwrap_or_else(|| "-".to_owned()),
                note(SPELLING).unwrap_or_else(|| "-".to_owned()),
                note(DESCRIPTION).unwrap_or_default(),
            ]
        })
        .collect();
    terminal.table(&columns, rows)?;
    Ok(())
}

// === impl LegacySystem ===

impl LegacySystem {
    const fn names(self) -> LegacyNames {
        match self {
            Self::Nvidia => LegacyNames::Nvidia,
            Self::Huawei => LegacyNames::Huawei,
            Self::Hami => LegacyNames::Hami,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{Colour, Progress, RedrawMode, Terminal, run};

    fn aliquot(words: &[&str]) -> (u8, String, String) {
        let (mut out, mut err, mut input) = (Vec::new(), Vec::new(), std::io::empty());
        let mut terminal = Terminal {
            out: &mut out,
            err: &mut err,
            input: &mut input,
            colour: Colour::Off,
            progress: Progress::Off,
            screen: RedrawMode::None,
        };
        let code = run(words.iter().map(Into::into), &mut terminal);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    fn names(list: &str, kind: &str) -> Vec<String> {
        let list: serde_json::Value = serde_json::from_str(list).unwrap();
        let items = list["items"].as_array().unwrap().iter().filter(|item| item["kind"] == kind);
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn quoted_parts_stay_apart_and_unquoted_words_join() {
        let node = ["--node", "mixed", "-o", "json"];
        let (code, two, _) =
            aliquot(&[&["aliquot", "classes", "1/4 Ascend310P", "25% H100"], &node[..]].concat());
        assert_eq!(
            (code, names(&two, "DeviceClass")),
            (
                0,
                ["ascend310p-quarter", "h100-quarter", "share"]
                    .map(|name| format!("{name}.aliquot.dev"))
                    .to_vec()
            )
        );
        let (code, one, _) = aliquot(&[&["aliquot", "classes", "1/4", "Ascend310P"], &node[..]].concat());
        assert_eq!(
            (code, names(&one, "DeviceClass")),
            (0, vec!["ascend310p-quarter.aliquot.dev".to_owned()])
        );
        let (code, some, err) =
            aliquot(&[&["aliquot", "classes", "100Gi T4", "1/4 Ascend310P"], &node[..]].concat());
        assert_eq!((code, names(&some, "DeviceClass").len()), (1, 1));
        assert!(err.contains("no card has 100Gi of T4"), "{err}");
    }

    #[test]
    fn templates_of_one_answer_have_names_of_their_own() {
        for part in ["1/4", "3/8", "8Gi", "1g.10gb", "1/3"] {
            let (code, list, _) = aliquot(&["aliquot", "classes", part, "--node", "mixed", "-o", "json"]);
            let mut templates = names(&list, "ResourceClaimTemplate");
            assert!(code == 0 && !templates.is_empty(), "{part}");
            let all = templates.len();
            templates.sort();
            templates.dedup();
            assert_eq!(templates.len(), all, "{part}: two templates with one name in {list}");
        }
    }
}
