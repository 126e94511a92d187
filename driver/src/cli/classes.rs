//! `aliquot classes`: `DeviceClass`es for what nodes offer, ready to apply.

use aliquot_core::dra::DeviceClass;
use aliquot_core::offer::classes;
use aliquot_core::offer::classes::{DESCRIPTION, SPELLING};
use serde_json::json;

use crate::manifest::{Object, yaml_document};

use super::failure::{Answer, Failure};
use super::nodes::{Fleet, NodeArgs};
use super::output::{Format, Side, Terminal};
use super::part::parts;

/// Print `DeviceClass`es for what nodes offer
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  aliquot classes --node 8xh100
  aliquot classes 1/4 Ascend310P
  aliquot classes --node mixed huawei.com/ascend-310p-1/4
  aliquot classes --node mixed -o yaml | kubectl apply -f -")]
pub(super) struct Args {
    /// Part of a card, such as `1/4 Ascend310P`, `25% H100`, `8Gi L4`, `1g.10gb`: prints class and claim template
    #[arg(value_name = "PART")]
    part: Vec<String>,

    #[command(flatten)]
    nodes: NodeArgs,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Format,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal<'_>) -> Result<Answer, Failure> {
    if !args.part.is_empty() {
        return part(&args.part.join(" "), args, terminal);
    }
    let fleet = Fleet::load(&args.nodes, terminal)?.some()?;
    let slices: Vec<_> = fleet.nodes.iter().flat_map(|n| n.slices.iter().cloned()).collect();
    let classes = classes(&slices);
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
    Ok(Answer::Yes)
}

/// Class and claim template of a part that somebody asks for.
fn part(text: &str, args: &Args, terminal: &mut Terminal<'_>) -> Result<Answer, Failure> {
    let fleet = Fleet::load(&args.nodes, terminal)?;
    let parts = match parts(text, &fleet)? {
        Ok(parts) => parts,
        Err(error) => {
            terminal.note(error)?;
            return Ok(Answer::No);
        }
    };
    let mut shown: Vec<&str> = Vec::new();
    let mut items = Vec::new();
    for part in &parts {
        let mut objects = Vec::new();
        if !shown.contains(&part.class.name.as_str()) {
            shown.push(&part.class.name);
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
    if args.output == Format::Json {
        terminal.value(Format::Json, &json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
    }
    Ok(Answer::Yes)
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
