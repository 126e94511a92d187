//! What `--node` names: a node file, a built-in node, or so many cards of a model; any number of copies of it.

use std::path::Path;

use aliquot_backend_sim::{NodeFile, Personality};
use aliquot_core::catalogue::{CardModel, Catalogue};

use super::{HardwareError, read_text};

/// Most copies of one node: the largest cluster that Kubernetes supports, twice over.
pub const COPIES_MAX: usize = 10_000;

/// What `--node` names.
pub struct NodeSpec {
    /// Where it is described, for messages.
    pub source: String,
    /// Its cards.
    pub file: NodeFile,
    /// Number of nodes.
    pub copies: usize,
}

/// Reads what `--node` names.
///
/// # Errors
/// It is neither a file, nor a built-in node, nor a number of cards of a known model.
pub fn node_spec(spec: &str, catalogue: &Catalogue) -> Result<NodeSpec, HardwareError> {
    let (name, copies) = match spec.rsplit_once('*') {
        None => (spec, 1),
        Some((name, copies)) => match copies.parse() {
            Ok(copies) if (1..=COPIES_MAX).contains(&copies) => (name, copies),
            _ => return Err(HardwareError::Choice(no_copies(spec, name, copies))),
        },
    };
    let file = match Personality::named(name) {
        Some(personality) => personality.load().map_err(|error| HardwareError::description(name, error))?,
        None => match count_and_model(name, catalogue) {
            Some((count, model)) => match Personality::named(&format!("{model}-{count}")) {
                Some(personality) => {
                    personality.load().map_err(|error| HardwareError::description(name, error))?
                }
                None => cards_of(spec, count, model, catalogue)?,
            },
            None => node_file(name)?,
        },
    };
    Ok(NodeSpec { source: format!("--node {name}"), file, copies })
}

/// What is wrong with a number of copies; `8*h100` may be cards as well as nodes.
fn no_copies(spec: &str, name: &str, copies: &str) -> String {
    let model = copies.trim();
    if let Ok(count) = name.trim().parse::<u32>()
        && is_model(model)
        && model.parse::<u128>().is_err()
    {
        return format!(
            "--node {spec}: expected NODE*COPIES; write {count}x{model} for a node of {count} such cards, or \
             1x{model}*{count} for {count} nodes of one"
        );
    }
    format!("--node {spec}: found {copies} copies, expected 1 to {COPIES_MAX}")
}

/// Whether a text could be a model.
fn is_model(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c: char| c.is_ascii_alphanumeric() || c == '-')
}

/// `8xh100`, also as `8Xh100`, `8 x h100` or `8×h100`: a number and what could be a model. `h100x8` if there is such a model.
fn count_and_model<'n>(name: &'n str, catalogue: &Catalogue) -> Option<(u32, &'n str)> {
    let is_times = |c: char| matches!(c, 'x' | 'X' | '×');
    let read = |count: &str, model: &'n str| {
        let model = model.trim();
        Some((count.trim().parse().ok().filter(|_| is_model(model))?, model))
    };
    let count_first = name.split_once(is_times).and_then(|(count, model)| read(count, model));
    let count_last = || name.rsplit_once(is_times).and_then(|(model, count)| read(count, model));
    count_first.or_else(|| count_last().filter(|(_, model)| !catalogue.resolve(model).is_empty()))
}

/// A node of so many cards of one model.
fn cards_of(spec: &str, count: u32, model: &str, catalogue: &Catalogue) -> Result<NodeFile, HardwareError> {
    let known = catalogue.resolve(model);
    let Some(found) = known.first() else {
        let ids: Vec<&str> = catalogue.models().iter().map(|m| m.id.as_str()).collect();
        let message = format!("--node {spec}: no card model is called {model}; known are {}", ids.join(", "));
        return Err(HardwareError::Choice(message));
    };
    // Several products share a name; the one with a built-in node is meant before the others, then the one that its
    // driver calls by that name alone (`NVIDIA H20`).
    let built_in =
        |m: &CardModel| Personality::all().iter().any(|p| p.text.contains(&format!("\"{}\"", m.id)));
    let plain =
        |m: &CardModel| m.product_name().rsplit(' ').next().is_some_and(|n| n.eq_ignore_ascii_case(model));
    let meant = known.iter().find(|m| built_in(m)).or_else(|| known.iter().find(|m| plain(m)));
    let model = meant.unwrap_or(found).id.as_str();
    let text = format!(
        "schema = 1\nname = \"{count}x{short}\"\n[[card]]\nmodel = \"{model}\"\ncount = {count}\n",
        short = model.split_once('-').map_or(model, |(_, rest)| rest),
    );
    NodeFile::parse(&text).map_err(|error| HardwareError::Choice(format!("--node {spec}: {error}")))
}

fn node_file(name: &str) -> Result<NodeFile, HardwareError> {
    let path = Path::new(name);
    if !path.exists() {
        let known: Vec<&str> = Personality::names().collect();
        let message = format!(
            "--node {name}: neither a file nor a built-in node. Built in are {}; 8xh100 makes a node of 8 such cards",
            known.join(", ")
        );
        return Err(HardwareError::Choice(message));
    }
    let text = read_text(path, "Check the name given with --node")?;
    NodeFile::parse(&text).map_err(|error| HardwareError::description(name, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_backend_sim::SimNode;
    use aliquot_core::ports::DeviceBackend;

    #[test]
    fn number_and_name_of_a_card_make_a_node_of_that_model() {
        let catalogue = Catalogue::embedded();
        for (spec, model) in [
            ("1xh20", "nvidia-h20-96gb"),
            ("1xh20-3e", "nvidia-h20-3e-141gb"),
            ("1xh20-141gb", "nvidia-h20-3e-141gb"),
            ("2xb300", "nvidia-b300-269gb"),
            ("1xgb300", "nvidia-gb300-278gb"),
            ("1xa800", "nvidia-a800-40gb"),
            ("1xa800-80", "nvidia-a800-80gb"),
            ("1xh800", "nvidia-h800-80gb-sxm"),
            ("1xgh200", "nvidia-gh200-144gb"),
            ("1xrtx-pro-5000", "nvidia-rtx-pro-5000-48gb"),
            ("1xh100", "nvidia-h100-80gb-sxm"),
            ("1Xh20", "nvidia-h20-96gb"),
            ("1 x h20", "nvidia-h20-96gb"),
            ("1×h20", "nvidia-h20-96gb"),
            ("h20x1", "nvidia-h20-96gb"),
        ] {
            let file = node_spec(spec, &catalogue).unwrap_or_else(|error| panic!("{spec}: {error}")).file;
            let node = SimNode::in_memory(&file, &catalogue).unwrap();
            let cards = node.discover().unwrap().cards;
            assert!(cards.iter().all(|card| card.model.as_str() == model), "{spec}: {}", cards[0].model);
        }
    }

    #[test]
    fn copies_in_front_are_answered_with_a_tip() {
        let said = |spec: &str| node_spec(spec, &Catalogue::embedded()).map(|_| ()).unwrap_err().to_string();
        let tip = said("8*h100");
        assert!(tip.contains("8xh100 for a node of 8") && tip.contains("1xh100*8 for 8 nodes"), "{tip}");
        assert!(said("t4-2*20000").contains("expected 1 to 10000"));
        assert!(said("box2").contains("neither a file nor a built-in node"));
    }
}
