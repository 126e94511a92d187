//! The checked program and its evaluation against one value of the variable.

use std::sync::Arc;

use super::ast::Presence;
use super::functions::Builtin;
use super::functions::pattern::Search;
use super::meter::Meter;
use super::value::{Fault, Key, Map, Outcome, Value, error, no_overload, present, select};

/// One step of a program.
#[derive(Debug)]
pub(super) enum Node {
    Const(Value),
    /// The variable of the environment.
    Variable,
    /// A bound variable, by its position on the stack.
    Local(usize),
    /// A field of a map, or of the map in an optional.
    Select(Box<Node>, Key),
    Test(Box<Node>, Key),
    OptSelect(Box<Node>, Key),
    And(Vec<Node>),
    Or(Vec<Node>),
    Conditional(Box<[Node; 3]>),
    /// `a.or(b)` and `a.orValue(b)`: `b` is evaluated only where `a` has no value.
    OptOr(Box<[Node; 2]>),
    OptOrValue(Box<[Node; 2]>),
    Call(&'static str, Builtin, Vec<Node>),
    /// A search for a pattern that is known beforehand.
    Search(Search, Vec<Node>),
    List(Vec<(Node, Presence)>),
    Map(Vec<(Node, Node, Presence)>),
    /// The first, bound to the next variable, then the second.
    Bind(Box<[Node; 2]>),
    Fold(Box<FoldNode>),
}

/// A walk over a list or map.
#[derive(Debug)]
pub(super) struct FoldNode {
    pub(super) range: Node,
    /// Whether there is a second variable.
    pub(super) with_value: bool,
    pub(super) walk: Walk,
}

/// What a walk makes of the elements.
#[derive(Debug)]
pub(super) enum Walk {
    All(Node),
    Exists(Node),
    ExistsOne(Node),
    List { filter: Option<Node>, element: Node },
    Map { filter: Option<Node>, value: Node },
    MapEntries { filter: Option<Node>, entries: Node },
}

/// One evaluation.
pub(super) struct Run<'a> {
    variable: &'a Value,
    /// Variables. Upstream binds lazily: a variable with a failed value is an error where it is used, not
    /// before.
    locals: Vec<Outcome>,
    meter: Meter,
}

// === impl Run ===

impl<'a> Run<'a> {
    pub(super) const fn new(variable: &'a Value, meter: Meter) -> Self {
        Self { variable, locals: Vec::new(), meter }
    }

    /// What its meter has left.
    pub(super) const fn left(&self) -> u64 {
        self.meter.left()
    }

    /// Evaluates `body` with one more variable.
    fn with_local(&mut self, value: Outcome, body: &Node) -> Outcome {
        self.locals.push(value);
        let result = body.eval(self);
        self.locals.pop();
        result
    }
}

// === impl Node ===

impl Node {
    /// A list literal; one of constants is built once.
    pub(super) fn list(elements: Vec<(Self, Presence)>) -> Self {
        let constant = |(node, presence): &(Self, Presence)| match (node, presence) {
            (Self::Const(value), Presence::Always) => Some(value.clone()),
            _ => None,
        };
        match elements.iter().map(constant).collect::<Option<Vec<_>>>() {
            Some(values) => Self::Const(Value::list(values)),
            None => Self::List(elements),
        }
    }

    /// The value of a chain of selections, found without copying anything; `None` sends the caller the long way.
    fn path<'a>(&'a self, run: &'a Run<'_>) -> Option<&'a Value> {
        match self {
            Self::Const(value) => Some(value),
            Self::Variable => Some(run.variable),
            Self::Local(slot) => run.locals.get(*slot)?.as_ref().ok(),
            Self::Select(operand, key) => match operand.path(run)? {
                Value::Map(map) => map.get(key),
                _ => None,
            },
            _ => None,
        }
    }

    /// The value of the step.
    pub(super) fn eval(&self, run: &mut Run<'_>) -> Outcome {
        match self {
            Self::Const(value) => Ok(value.clone()),
            Self::Variable => {
                run.meter.charge(1)?;
                Ok(run.variable.clone())
            }
            Self::Local(slot) => {
                run.meter.charge(1)?;
                run.locals.get(*slot).cloned().unwrap_or_else(|| error("unbound variable"))
            }
            Self::Select(operand, key) => {
                run.meter.charge(1)?;
                if let Some(found) = self.path(run) {
                    return Ok(found.clone());
                }
                select(&operand.eval(run)?, key)
            }
            Self::Test(operand, key) => Ok(Value::Bool(present(&operand.eval(run)?, key).is_some())),
            Self::OptSelect(operand, key) => {
                run.meter.charge(1)?;
                Ok(Value::Optional(present(&operand.eval(run)?, key).map(Arc::new)))
            }
            Self::And(terms) => logic(terms, run, false),
            Self::Or(terms) => logic(terms, run, true),
            Self::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                match condition.eval(run)? {
                    Value::Bool(true) => then.eval(run),
                    Value::Bool(false) => otherwise.eval(run),
                    other => no_overload("_?_:_", &[other]),
                }
            }
            Self::OptOr(sides) => match sides[0].eval(run)? {
                Value::Optional(None) => sides[1].eval(run),
                found => Ok(found),
            },
            Self::OptOrValue(sides) => match sides[0].eval(run)? {
                Value::Optional(None) => sides[1].eval(run),
                Value::Optional(Some(value)) => Ok((*value).clone()),
                found => Ok(found),
            },
            Self::Call(name, builtin, args) => {
                run.meter.charge(1)?;
                call(name, *builtin, args, run)
            }
            Self::Search(search, args) => {
                let args = args.iter().map(|arg| arg.eval(run)).collect::<Outcome<Vec<_>>>()?;
                search.run(&args, &mut run.meter)
            }
            Self::List(elements) => list(elements, run),
            Self::Map(entries) => map(entries, run),
            Self::Bind(parts) => match parts[0].eval(run) {
                Err(Fault::Budget) => Err(Fault::Budget),
                value => run.with_local(value, &parts[1]),
            },
            Self::Fold(fold) => fold.eval(run),
        }
    }
}

fn call(name: &'static str, builtin: Builtin, args: &[Node], run: &mut Run<'_>) -> Outcome {
    let result = match args {
        [one] => {
            let args = [one.eval(run)?];
            builtin(&args, &mut run.meter)
        }
        [one, two] => {
            let args = [one.eval(run)?, two.eval(run)?];
            builtin(&args, &mut run.meter)
        }
        more => {
            let args = more.iter().map(|arg| arg.eval(run)).collect::<Outcome<Vec<_>>>()?;
            builtin(&args, &mut run.meter)
        }
    };
    match result {
        Err(Fault::Error(why)) if why.is_empty() => error(format!("no such overload: {name}")),
        other => other,
    }
}

/// `&&` (`decides` = false) or `||` (true): the deciding value wins over errors, wherever it stands.
fn logic(terms: &[Node], run: &mut Run<'_>, decides: bool) -> Outcome {
    let mut fault = None;
    for term in terms {
        match term.eval(run) {
            Ok(Value::Bool(found)) if found == decides => return Ok(Value::Bool(decides)),
            Ok(Value::Bool(_)) => {}
            Ok(other) => {
                fault.get_or_insert_with(|| Fault::Error(format!("no such overload: {}", other.type_name())));
            }
            Err(Fault::Budget) => return Err(Fault::Budget),
            Err(found) => {
                fault.get_or_insert(found);
            }
        }
    }
    fault.map_or(Ok(Value::Bool(!decides)), Err)
}

fn list(elements: &[(Node, Presence)], run: &mut Run<'_>) -> Outcome {
    run.meter.charge(10)?;
    let mut values = Vec::with_capacity(elements.len());
    for (element, presence) in elements {
        match (presence, element.eval(run)?) {
            (Presence::Always, value) => values.push(value),
            (Presence::IfValue, Value::Optional(value)) => values.extend(value.map(|value| (*value).clone())),
            (Presence::IfValue, other) => return no_overload("optional element", &[other]),
        }
    }
    Ok(Value::list(values))
}

fn map(entries: &[(Node, Node, Presence)], run: &mut Run<'_>) -> Outcome {
    run.meter.charge(30)?;
    let mut map = Map::default();
    for (key, value, presence) in entries {
        let key = key.eval(run)?;
        match (presence, value.eval(run)?) {
            (Presence::Always, value) => map.replace(key, value)?,
            (Presence::IfValue, Value::Optional(Some(value))) => map.replace(key, (*value).clone())?,
            (Presence::IfValue, Value::Optional(None)) => {}
            (Presence::IfValue, other) => return no_overload("optional entry", &[other]),
        }
    }
    Ok(Value::Map(Arc::new(map)))
}

// === impl FoldNode ===

/// What a walk has gathered so far.
#[derive(Default)]
struct WalkState {
    fault: Option<Fault>,
    count: usize,
    list: Vec<Value>,
    map: Map,
}

/// Whether a walk goes on.
enum Next {
    Element,
    Done(Value),
}

impl FoldNode {
    fn eval(&self, run: &mut Run<'_>) -> Outcome {
        let range = self.range.eval(run)?;
        let mut gathered = WalkState::default();
        let base = run.locals.len();
        let result = self.visit_all(&range, run, &mut gathered);
        run.locals.truncate(base);
        match result? {
            Next::Done(value) => Ok(value),
            Next::Element => self.walk.finish(gathered),
        }
    }

    fn visit_all(&self, range: &Value, run: &mut Run<'_>, gathered: &mut WalkState) -> Outcome<Next> {
        match range {
            Value::List(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let key = if self.with_value { Value::count(index) } else { element.clone() };
                    if let done @ Next::Done(_) = self.visit(key, element, run, gathered)? {
                        return Ok(done);
                    }
                }
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    if let done @ Next::Done(_) = self.visit(key.clone(), value, run, gathered)? {
                        return Ok(done);
                    }
                }
            }
            other => return no_overload("comprehension", std::slice::from_ref(other)),
        }
        Ok(Next::Element)
    }

    fn visit(&self, key: Value, value: &Value, run: &mut Run<'_>, gathered: &mut WalkState) -> Outcome<Next> {
        run.meter.charge(1)?;
        let base = run.locals.len();
        run.locals.push(Ok(key.clone()));
        if self.with_value {
            run.locals.push(Ok(value.clone()));
        }
        let next = self.walk.visit(key, run, gathered);
        run.locals.truncate(base);
        next
    }
}

// === impl Walk ===

fn condition(node: &Node, run: &mut Run<'_>) -> Outcome<bool> {
    match node.eval(run)? {
        Value::Bool(found) => Ok(found),
        other => no_overload("condition", &[other]),
    }
}

impl Walk {
    fn visit(&self, key: Value, run: &mut Run<'_>, gathered: &mut WalkState) -> Outcome<Next> {
        match self {
            Self::All(body) => return Self::quantify(body, false, run, gathered),
            Self::Exists(body) => return Self::quantify(body, true, run, gathered),
            Self::ExistsOne(body) => gathered.count += usize::from(condition(body, run)?),
            Self::List { filter, .. } | Self::Map { filter, .. } | Self::MapEntries { filter, .. } => {
                if let Some(filter) = filter
                    && !condition(filter, run)?
                {
                    return Ok(Next::Element);
                }
                run.meter.charge(10)?;
                self.gather(key, run, gathered)?;
            }
        }
        Ok(Next::Element)
    }

    /// One element of `all` or `exists`: the deciding value ends the walk, an error does not.
    fn quantify(body: &Node, decides: bool, run: &mut Run<'_>, gathered: &mut WalkState) -> Outcome<Next> {
        match condition(body, run) {
            Ok(found) if found == decides => return Ok(Next::Done(Value::Bool(decides))),
            Ok(_) => {}
            Err(Fault::Budget) => return Err(Fault::Budget),
            Err(fault) => {
                gathered.fault.get_or_insert(fault);
            }
        }
        Ok(Next::Element)
    }

    fn gather(&self, key: Value, run: &mut Run<'_>, gathered: &mut WalkState) -> Outcome<()> {
        match self {
            Self::List { element, .. } => gathered.list.push(element.eval(run)?),
            Self::Map { value, .. } => {
                let value = value.eval(run)?;
                gathered.map.insert(key, value)?;
            }
            Self::MapEntries { entries, .. } => match entries.eval(run)? {
                Value::Map(entries) => {
                    run.meter.charge_size(entries.len())?;
                    for (key, value) in entries.iter() {
                        gathered.map.insert(key.clone(), value.clone())?;
                    }
                }
                other => return no_overload("transformMapEntry", &[other]),
            },
            Self::All(_) | Self::Exists(_) | Self::ExistsOne(_) => {}
        }
        Ok(())
    }

    fn finish(&self, gathered: WalkState) -> Outcome {
        Ok(match self {
            Self::All(_) => gathered.fault.map_or(Ok(Value::Bool(true)), Err)?,
            Self::Exists(_) => gathered.fault.map_or(Ok(Value::Bool(false)), Err)?,
            Self::ExistsOne(_) => Value::Bool(gathered.count == 1),
            Self::List { .. } => Value::list(gathered.list),
            Self::Map { .. } | Self::MapEntries { .. } => Value::Map(Arc::new(gathered.map)),
        })
    }
}
