//! What an expression reads of its variable: values whose keys are written in it. Two variables that agree in them have
//! the same answer.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::program::{FoldNode, Node, Walk};
use super::value::{Key, Value};

/// Keys from the variable down; none at all: the whole variable.
type Path = Vec<Key>;

/// All that an expression reads, none of it twice.
#[derive(Debug)]
pub(super) struct Reads(Vec<Path>);

struct Reader {
    paths: BTreeSet<Path>,
    /// Bound variables by their position on the stack; `None`: it is no part of the variable, or its parts are read.
    locals: Vec<Option<Path>>,
}

// === impl Reads ===

impl Reads {
    pub(super) fn of(program: &Node) -> Self {
        let mut reader = Reader { paths: BTreeSet::new(), locals: Vec::new() };
        reader.read(program);
        let mut reads: Vec<Path> = Vec::new();
        // In order, a path comes right before those that lead below it.
        for path in reader.paths {
            if !reads.last().is_some_and(|above| path.starts_with(above)) {
                reads.push(path);
            }
        }
        Self(reads)
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = Option<Vec<&str>>> {
        self.0.iter().map(|path| path.iter().map(Key::as_text).collect())
    }

    /// What they are of one variable, as a text that differs wherever a value does.
    pub(super) fn text(&self, variable: &Value) -> String {
        let mut text = String::new();
        for path in &self.0 {
            let mut value = variable;
            let mut keys = path.iter();
            let missing = loop {
                match (value, keys.len()) {
                    (_, 0) => break false,
                    (Value::Map(map), _) => match keys.next().and_then(|key| map.get(key)) {
                        Some(found) => value = found,
                        None => break true,
                    },
                    _ => break false,
                }
            };
            // Writing to a text does not fail.
            let _written = if missing {
                write!(text, "{}:-;", keys.len())
            } else {
                write!(text, "{}:{value:?};", keys.len())
            };
        }
        text
    }
}

// === impl Reader ===

impl Reader {
    /// The part of the variable that a step is, if it is one.
    fn path(&self, node: &Node) -> Option<Path> {
        match node {
            Node::Variable => Some(Path::new()),
            Node::Local(slot) => self.locals.get(*slot)?.clone(),
            Node::Select(operand, key) => self.below(operand, key),
            _ => None,
        }
    }

    fn below(&self, operand: &Node, key: &Key) -> Option<Path> {
        let mut path = self.path(operand)?;
        path.push(key.clone());
        Some(path)
    }

    fn read(&mut self, node: &Node) {
        if let Some(path) = self.path(node) {
            self.paths.insert(path);
            return;
        }
        match node {
            Node::Const(_) | Node::Variable | Node::Local(_) => {}
            Node::Test(operand, key) | Node::OptSelect(operand, key) => match self.below(operand, key) {
                Some(path) => {
                    self.paths.insert(path);
                }
                None => self.read(operand),
            },
            Node::Select(operand, _) => self.read(operand),
            Node::And(nodes) | Node::Or(nodes) | Node::Call(_, _, nodes) | Node::Search(_, nodes) => {
                nodes.iter().for_each(|node| self.read(node));
            }
            Node::Conditional(parts) => parts.iter().for_each(|node| self.read(node)),
            Node::OptOr(sides) | Node::OptOrValue(sides) => sides.iter().for_each(|node| self.read(node)),
            Node::List(elements) => elements.iter().for_each(|(node, _)| self.read(node)),
            Node::Map(entries) => entries.iter().for_each(|(key, value, _)| {
                self.read(key);
                self.read(value);
            }),
            Node::Bind(parts) => {
                let bound = self.path(&parts[0]);
                if bound.is_none() {
                    self.read(&parts[0]);
                }
                self.locals.push(bound);
                self.read(&parts[1]);
                self.locals.pop();
            }
            Node::Fold(fold) => self.fold(fold),
        }
    }

    fn fold(&mut self, fold: &FoldNode) {
        self.read(&fold.range);
        let before = self.locals.len();
        let variables = if fold.with_value { 2 } else { 1 };
        self.locals.resize(before + variables, None);
        match &fold.walk {
            Walk::All(body) | Walk::Exists(body) | Walk::ExistsOne(body) => self.read(body),
            Walk::List { filter, element: result }
            | Walk::Map { filter, value: result }
            | Walk::MapEntries { filter, entries: result } => {
                filter.iter().for_each(|filter| self.read(filter));
                self.read(result);
            }
        }
        self.locals.truncate(before);
    }
}
