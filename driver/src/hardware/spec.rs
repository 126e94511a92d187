//! What `--node` names: a node file, a built-in node, or so many cards of a model; any number of copies of it.

use std::path::Path;

use aliquot_backend_sim::{NodeFile, Personality};
use aliquot_core::catalogue::Catalogue;

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
            _ => {
                let message = format!("--node {spec}: found {copies} copies, expected 1 to {COPIES_MAX}");
                return Err(HardwareError::Choice(message));
            }
        },
    };
    let file = match Personality::named(name) {
        Some(personality) => personality.load().map_err(|error| HardwareError::description(name, error))?,
        None => match count_and_model(name) {
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

/// `8xh100`: a number, an x, and what could be a model.
fn count_and_model(name: &str) -> Option<(u32, &str)> {
    let (count, model) = name.split_once('x')?;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let plausible = !model.is_empty() && model.chars().all(word);
    Some((count.parse().ok().filter(|_| plausible)?, model))
}

/// A node of so many cards of one model.
fn cards_of(spec: &str, count: u32, model: &str, catalogue: &Catalogue) -> Result<NodeFile, HardwareError> {
    let known = catalogue.resolve(model);
    let Some(found) = known.first() else {
        let ids: Vec<&str> = catalogue.models().iter().map(|m| m.id.as_str()).collect();
        let message = format!("--node {spec}: no card model is called {model}; known are {}", ids.join(", "));
        return Err(HardwareError::Choice(message));
    };
    // Several products share a name; the one with a built-in node is meant before the others.
    let built_in = |id: &str| Personality::all().iter().any(|p| p.text.contains(&format!("\"{id}\"")));
    let model = known.iter().find(|m| built_in(m.id.as_str())).unwrap_or(found).id.as_str();
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
