//! What an expression may cost at most: the estimate by which the API server refuses one before it stores it.
//!
//! The walk is over the expression as written; what macros stand for upstream is charged by what upstream makes of them:
//!
//! ```text
//! range.all(x, p)      start: 0    each: p + 1 to go on + 2 to test     result: 1
//! range.map(x, f)      start: 10   each: f + 12 to append               result: 1
//! cel.bind(x, a, b)    10 + a + b, where x costs 1 each time
//! t.optMap(x, f)       t twice
//! ```
//!
//! Each part has a largest cost, a size, the sizes of its elements, and a path: the names that lead to it from the
//! variable down, by which the environment knows how large it can be. What nothing is known about is as large as a
//! number can be. `tests/tests/answers/selectors.rs` compares the estimates with upstream's, unit for unit.

mod charge;
mod part;
mod size;

use std::sync::Arc;

use super::ast::{Expr, Fold, FoldResult, Form, Selection};
use super::checker::{Called, Notes};
use super::declarations::Style;
use super::environment::Environment;
use super::macros::HIDDEN;
use super::meter::Cost;
use super::typing::Type;
use super::value::Value;
use charge::Call;
use part::{Part, Path, below};
use size::{Container, Entry, Size};

const LIST: u64 = 10;
const MAP: u64 = 30;

/// The largest cost of an expression that was checked.
pub(super) fn estimate(expr: &Expr, notes: &Notes, environment: &Environment) -> Cost {
    Cost(Estimator { notes, environment, locals: Vec::new() }.part(expr).cost)
}

struct Estimator<'e> {
    notes: &'e Notes,
    environment: &'e Environment,
    locals: Vec<(Arc<str>, Local)>,
}

/// A bound variable.
struct Local {
    path: Path,
    size: Option<Size>,
    entry: Option<Entry>,
    kind: LocalKind,
}

enum LocalKind {
    /// Evaluated once.
    Variable,
    /// Written once and evaluated wherever it is named, at this cost.
    Repeated(u64),
}

/// What a walk adds to its range.
struct Walked {
    /// Of the start value and the result.
    once: u64,
    /// Of each element.
    each: u64,
    result: WalkResult,
}

enum WalkResult {
    Scalar,
    /// As large as the range, with these elements.
    Container(Option<Entry>),
}

fn sum(parts: &[Part<'_>]) -> u64 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.cost))
}

/// The size of a value that has one by its type.
fn scalar(of: &Type) -> Option<Size> {
    match of {
        Type::Bool | Type::Double | Type::Int | Type::Uint => Some(Size::ONE),
        Type::Optional(inner) => scalar(inner),
        _ => None,
    }
}

fn literal_size(value: &Value) -> Size {
    let size = match value {
        Value::String(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        _ => 1,
    };
    Size::exactly(u64::try_from(size).unwrap_or(u64::MAX))
}

// === impl Environment ===

impl Environment {
    /// The size of the value at a path.
    fn size(&self, path: &[Arc<str>]) -> Option<Size> {
        let (variable, names) = path.split_first()?;
        let leads = |pattern: &&str, name: &Arc<str>| match *pattern {
            "@values" => matches!(&**name, "@values" | "@items"),
            "*" => **name != *"@keys",
            known => **name == *known,
        };
        let is = |pattern: &[&str]| {
            pattern.len() == names.len()
                && pattern.iter().zip(names).all(|(pattern, name)| leads(pattern, name))
        };
        let (_, most) = self.sizes.iter().find(|(pattern, _)| **variable == *self.variable && is(pattern))?;
        Some(Size { min: 0, max: u64::try_from(*most).unwrap_or(u64::MAX) })
    }
}

// === impl Local ===

impl Local {
    fn of(part: Part<'_>, kind: LocalKind) -> Self {
        Self { path: part.path, size: part.size, entry: part.entry, kind }
    }
}

// === impl Estimator ===

impl<'e> Estimator<'e> {
    /// A part with no size but that of its type.
    fn plain(&self, expr: &'e Expr, cost: u64) -> Part<'e> {
        let of = self.notes.type_of(expr);
        let size = scalar(&of);
        Part { expr, of, cost, size, entry: None, path: Path::new() }
    }

    /// A part that is at a place below a variable.
    fn placed(&self, expr: &'e Expr, cost: u64, path: Path) -> Part<'e> {
        let plain = self.plain(expr, cost);
        Part { size: self.environment.size(&path).or(plain.size), path, ..plain }
    }

    fn part(&mut self, expr: &'e Expr) -> Part<'e> {
        match &expr.form {
            Form::Literal(value) => Part { size: Some(literal_size(value)), ..self.plain(expr, 0) },
            Form::Ident(name) => self.ident(expr, name),
            Form::Select { operand, field, how } => self.select(expr, operand, field, *how),
            Form::Call { target, args, .. } => self.call(expr, target.as_deref(), args),
            Form::Logic(_, terms) => {
                let cost = terms.iter().fold(0_u64, |sum, term| sum.saturating_add(self.part(term).cost));
                self.plain(expr, cost)
            }
            Form::List(elements) => {
                let parts: Vec<_> = elements.iter().map(|(element, _)| self.part(element)).collect();
                let value = Size::of_all(parts.iter().map(Part::size_or_unknown));
                let entry = Entry { container: Container::List, key: Size::ONE, value };
                self.literal(expr, sum(&parts).saturating_add(LIST), parts.len(), entry)
            }
            Form::Map(entries) => {
                let keys: Vec<_> = entries.iter().map(|(key, ..)| self.part(key)).collect();
                let values: Vec<_> = entries.iter().map(|(_, value, _)| self.part(value)).collect();
                let size = |parts: &[Part<'_>]| Size::of_all(parts.iter().map(Part::size_or_unknown));
                let entry = Entry { container: Container::Map, key: size(&keys), value: size(&values) };
                let cost = sum(&keys).saturating_add(sum(&values)).saturating_add(MAP);
                self.literal(expr, cost, keys.len(), entry)
            }
            Form::Bind { name, init, body } => self.bind(expr, name, init, body),
            Form::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn literal(&self, expr: &'e Expr, cost: u64, length: usize, entry: Entry) -> Part<'e> {
        let size = Size::exactly(u64::try_from(length).unwrap_or(u64::MAX));
        Part { size: Some(size), entry: Some(entry), ..self.plain(expr, cost) }
    }

    fn ident(&self, expr: &'e Expr, name: &Arc<str>) -> Part<'e> {
        let Some((_, local)) = self.locals.iter().rev().find(|(known, _)| known == name) else {
            return self.placed(expr, 1, vec![name.clone()]);
        };
        let (path, entry) = (local.path.clone(), local.entry);
        match local.kind {
            LocalKind::Repeated(cost) => Part { path, size: local.size, entry, ..self.plain(expr, cost) },
            LocalKind::Variable => {
                let placed = self.placed(expr, 1, path);
                Part { size: placed.size.or(local.size), entry, ..placed }
            }
        }
    }

    fn select(&mut self, expr: &'e Expr, operand: &'e Expr, field: &str, how: Selection) -> Part<'e> {
        // A name with dots, such as that of a type, has no parts of its own.
        if !self.notes.knows(operand) {
            return self.plain(expr, 1);
        }
        let operand = self.part(operand);
        match how {
            Selection::Test => self.plain(expr, operand.cost),
            Selection::Optional => self.plain(expr, operand.cost.saturating_add(1)),
            Selection::Value => {
                let own = u64::from(matches!(operand.of, Type::Map(_) | Type::Object(_)));
                self.placed(expr, operand.cost.saturating_add(own), below(&operand.path, field))
            }
        }
    }

    fn call(&mut self, expr: &'e Expr, target: Option<&'e Expr>, args: &'e [Expr]) -> Part<'e> {
        let Some(called) = self.notes.call(expr) else { return self.plain(expr, 0) };
        let target = target.filter(|_| called.style == Style::Member).map(|target| self.part(target));
        let args: Vec<Part<'e>> = args.iter().map(|arg| self.part(arg)).collect();
        if let ("dyn", [arg]) = (&*called.name, &args[..]) {
            let cost = arg.cost.saturating_add(1);
            return Part { size: arg.size, entry: arg.entry, ..self.plain(expr, cost) };
        }
        let args_cost = match (&*called.name, &args[..]) {
            ("_?_:_", [condition, then, otherwise]) => {
                condition.cost.saturating_add(then.cost.max(otherwise.cost))
            }
            (_, args) => sum(args),
        };
        let mut part = self.overloads(expr, called, target.as_ref(), &args);
        let target_cost = target.map_or(0, |target| target.cost);
        part.cost = part.cost.saturating_add(args_cost).saturating_add(target_cost);
        part
    }

    /// The largest of what the signatures that fit say.
    fn overloads(
        &self,
        expr: &'e Expr,
        called: &Called,
        target: Option<&Part<'e>>,
        args: &[Part<'e>],
    ) -> Part<'e> {
        let size_of = |path: &Path| self.environment.size(path);
        let call = Call { name: &called.name, target, args, size_of: &size_of };
        let mut part = self.plain(expr, 0);
        let by_type = part.size.take();
        let mut by_place = None;
        for signature in &called.overloads {
            let charge = call.charge(signature);
            part.cost = part.cost.max(charge.cost);
            if let Some(result) = charge.result {
                part.size = Some(part.size.map_or(result, |size| size.union(result)));
            }
            let step = match (&*called.name, signature.args.first()) {
                ("_[_]", Some(Type::List(_))) => Some("@items"),
                ("_[_]", Some(Type::Map(_))) => Some("@values"),
                _ => None,
            };
            if let (Some(step), Some(operand)) = (step, args.first()) {
                part.size = operand.entry.map(|entry| entry.value);
                part.path = below(&operand.path, step);
            }
            by_place = by_place.or_else(|| size_of(&part.path));
            part.size = part.size.or(by_place).or(by_type);
        }
        part.entry = match (&*called.name, args) {
            ("_+_", [left, right]) | ("_?_:_", [_, left, right]) => {
                left.entry.zip(right.entry).map(|(left, right)| left.union(right))
            }
            _ => None,
        };
        part
    }

    fn bind(&mut self, expr: &'e Expr, name: &Arc<str>, init: &'e Expr, body: &'e Expr) -> Part<'e> {
        let init = self.part(init);
        let repeats = **name == *HIDDEN && self.notes.call(body).is_some_and(|call| &*call.name == "_?_:_");
        let (own, kind) = match repeats {
            true => (0, LocalKind::Repeated(init.cost)),
            false => (init.cost.saturating_add(LIST), LocalKind::Variable),
        };
        self.locals.push((name.clone(), Local::of(init, kind)));
        let body = self.part(body);
        self.locals.pop();
        let cost = body.cost.saturating_add(own);
        let plain = self.plain(expr, cost);
        Part { size: body.size.or(plain.size), entry: body.entry, ..plain }
    }

    fn fold(&mut self, expr: &'e Expr, fold: &'e Fold) -> Part<'e> {
        let range = self.part(&fold.range);
        let outer = self.locals.len();
        self.push_elements(fold, &range);
        let walked = self.walk(fold);
        self.locals.truncate(outer);
        let length = range.size_or_unknown();
        let cost = range.cost.saturating_add(walked.once);
        let plain = self.plain(expr, cost.saturating_add(length.max.saturating_mul(walked.each)));
        match walked.result {
            WalkResult::Scalar => plain,
            WalkResult::Container(entry) => Part { size: Some(length), entry, ..plain },
        }
    }

    fn push_elements(&mut self, fold: &Fold, range: &Part<'_>) {
        let container = match (range.entry, &range.of) {
            (Some(entry), _) => Some(entry.container),
            (None, Type::List(_)) => Some(Container::List),
            (None, _) => None,
        };
        let local = |size: Option<Size>, step: &str| Local {
            path: below(&range.path, step),
            size,
            entry: None,
            kind: LocalKind::Variable,
        };
        let key = range.entry.map(|entry| entry.key);
        let value = range.entry.map(|entry| entry.value);
        let list = container == Some(Container::List);
        let first = match (&fold.var2, list) {
            (None, true) => local(value, "@items"),
            (Some(_), true) => local(key, "@indices"),
            (_, false) => local(key, "@keys"),
        };
        self.locals.push((fold.var.clone(), first));
        if let Some(var2) = &fold.var2 {
            self.locals.push((var2.clone(), local(value, if list { "@items" } else { "@values" })));
        }
    }

    fn walk(&mut self, fold: &'e Fold) -> Walked {
        let scalar = |once, each| Walked { once, each, result: WalkResult::Scalar };
        match &fold.result {
            FoldResult::All(body) => scalar(1, self.part(body).cost.saturating_add(3)),
            FoldResult::Exists(body) => scalar(1, self.part(body).cost.saturating_add(4)),
            FoldResult::ExistsOne(body) => scalar(2, self.part(body).cost.saturating_add(2)),
            FoldResult::List { filter, element } => {
                let filter = filter.as_ref().map_or(0, |filter| self.part(filter).cost);
                let element = self.part(element);
                let value = Size::NONE.union(element.size_or_unknown());
                let entry = Entry { container: Container::List, key: Size::ONE, value };
                let each = filter.saturating_add(element.cost).saturating_add(2 + LIST);
                Walked { once: LIST + 1, each, result: WalkResult::Container(Some(entry)) }
            }
            FoldResult::Map { filter, value: inserted }
            | FoldResult::MapEntries { filter, entries: inserted } => {
                let filter = filter.as_ref().map_or(0, |filter| self.part(filter).cost);
                let key = u64::from(matches!(fold.result, FoldResult::Map { .. }));
                let each = filter.saturating_add(self.part(inserted).cost).saturating_add(2 + key);
                Walked { once: MAP + 1, each, result: WalkResult::Container(None) }
            }
        }
    }
}
