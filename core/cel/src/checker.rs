//! From an expression to a program: every name resolved, every call held against its signatures.
//!
//! What upstream refuses when a selector is stored is refused here too: an unknown variable, field, function, argument
//! type, a list of mixed types, a result that cannot be a bool.

use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{Connective, Expr, Fold, FoldResult, Form, Presence, Selection};
use super::declarations::{self, Signature, Style, function, type_named};
use super::environment::Environment;
use super::lexer::Offset;
use super::program::{FoldNode, Node, Walk};
use super::typing::{Bindings, Type, most_general};
use super::value::{Key, Value};
use super::{calls, functions};

/// Why an expression is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckError {
    pub(super) at: Offset,
    pub(super) why: String,
}

/// What was found out about the parts of an expression, each known by its place in memory.
#[derive(Debug, Default)]
pub(super) struct Notes {
    types: HashMap<*const Expr, Type>,
    calls: HashMap<*const Expr, Called>,
}

/// A call with the signatures that fit, in the order of their declaration.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) name: Arc<str>,
    pub(super) style: Style,
    pub(super) overloads: Vec<&'static Signature>,
}

/// A program that yields a bool, as far as is known before it runs.
pub(super) fn check(expr: &Expr, environment: &Environment) -> Result<(Node, Notes), CheckError> {
    let mut checker = Checker::of(environment);
    let (node, found) = checker.expr(expr)?;
    checker.check_uniform()?;
    match checker.bindings.settled(&found) {
        found if environment.may_yield(&found) => Ok((node, checker.into_notes())),
        found => fail(expr.at, format!("must evaluate to bool or the unknown type, not {found}")),
    }
}

type TypedNode = (Node, Type);

fn fail<T>(at: Offset, why: impl Into<String>) -> Result<T, CheckError> {
    Err(CheckError { at, why: why.into() })
}

struct Checker<'a> {
    environment: &'a Environment,
    bindings: Bindings,
    /// Variables in scope, innermost last; the position is the slot at run time.
    scope: Vec<(Arc<str>, Type)>,
    /// Pairs of elements that must turn out to be of one type.
    uniform: Vec<(Offset, Type, Type)>,
    /// How many calls of `format` are open: literals in them may mix types.
    in_format: usize,
    /// Types of the elements of the list literal that was checked last.
    elements: Vec<Type>,
    notes: Notes,
}

impl<'a> Checker<'a> {
    fn of(environment: &'a Environment) -> Self {
        Self {
            environment,
            bindings: Bindings::default(),
            scope: Vec::new(),
            uniform: Vec::new(),
            in_format: 0,
            elements: Vec::new(),
            notes: Notes::default(),
        }
    }

    /// The notes, with every type as it turned out to be.
    fn into_notes(self) -> Notes {
        let Self { mut notes, bindings, .. } = self;
        notes.types.values_mut().for_each(|of| *of = bindings.settled(of));
        notes
    }

    fn expr(&mut self, expr: &Expr) -> Result<TypedNode, CheckError> {
        let (node, found) = match &expr.form {
            Form::Literal(value) => (Node::Const(value.clone()), literal_type(value)),
            Form::Ident(name) => self.ident(expr.at, name)?,
            Form::Select { operand, field, how } => self.select(expr, operand, field, *how)?,
            Form::Call { name, target, args } => self.call(expr, name, target.as_deref(), args)?,
            Form::Logic(connective, terms) => self.logic(*connective, terms)?,
            Form::List(elements) => self.list(elements)?,
            Form::Map(entries) => self.map(entries)?,
            Form::Bind { name, init, body } => {
                let (init, init_type) = self.expr(init)?;
                self.scope.push((name.clone(), init_type));
                let body = self.expr(body);
                self.scope.pop();
                let (body, found) = body?;
                (Node::Bind(Box::new([init, body])), found)
            }
            Form::Fold(fold) => self.fold(fold)?,
        };
        if found.is_oversized() {
            return fail(expr.at, "the type of this is too large");
        }
        self.notes.types.insert(expr, found.clone());
        Ok((node, found))
    }

    fn ident(&self, at: Offset, name: &str) -> Result<TypedNode, CheckError> {
        if let Some((slot, (_, found))) =
            self.scope.iter().enumerate().rev().find(|(_, (known, _))| **known == *name)
        {
            return Ok((Node::Local(slot), found.clone()));
        }
        let Environment { variable, type_name, .. } = *self.environment;
        if name == variable {
            return Ok((Node::Variable, Type::Object(type_name)));
        }
        match type_named(name) {
            Some((of, name)) => Ok((Node::Const(Value::Type(name)), Type::Meta(Arc::new(of)))),
            None => fail(at, format!("undeclared reference to '{name}': the one variable is '{variable}'")),
        }
    }

    fn select(
        &mut self,
        expr: &Expr,
        operand: &Expr,
        field: &Arc<str>,
        how: Selection,
    ) -> Result<TypedNode, CheckError> {
        if how == Selection::Value
            && let Some((of, name)) = qualified(expr).and_then(|name| type_named(&name))
        {
            return Ok((Node::Const(Value::Type(name)), Type::Meta(Arc::new(of))));
        }
        let (node, operand_type) = self.expr(operand)?;
        let operand_type = self.bindings.resolve(&operand_type);
        let (bare, was_optional) = match &operand_type {
            Type::Optional(inner) => ((**inner).clone(), true),
            other => (other.clone(), false),
        };
        let found = match &bare {
            Type::Map(pair) => pair.1.clone(),
            Type::Object(name) if *name == self.environment.type_name => {
                match self.environment.field(field) {
                    Some(found) => found,
                    None => {
                        let variable = self.environment.variable;
                        return fail(operand.at, format!("undefined field '{field}' of {variable}"));
                    }
                }
            }
            Type::Param(_) => {
                self.bindings.assignable(&Type::Dyn, &bare);
                Type::Dyn
            }
            other if other.is_dyn() => Type::Dyn,
            other => return fail(operand.at, format!("type '{other}' does not support field selection")),
        };
        let operand = Box::new(node);
        let field = Key::Text(field.clone());
        Ok(match how {
            Selection::Test => (Node::Test(operand, field), Type::Bool),
            Selection::Optional => (Node::OptSelect(operand, field), Type::optional(found)),
            Selection::Value if was_optional => (Node::Select(operand, field), Type::optional(found)),
            Selection::Value => (Node::Select(operand, field), found),
        })
    }

    fn call(
        &mut self,
        expr: &Expr,
        name: &str,
        target: Option<&Expr>,
        args: &[Expr],
    ) -> Result<TypedNode, CheckError> {
        let at = expr.at;
        // `a.b(c)` is a function of the name `a.b`, if there is one, whatever `a` is.
        if let Some(target) = target
            && let Some(qualified) = qualified(target).map(|prefix| format!("{prefix}.{name}"))
            && function(&qualified).is_some()
        {
            return self.call(expr, &qualified, None, args);
        }
        let style = if target.is_some() { Style::Member } else { Style::Global };
        let formats = usize::from(name == "format");
        self.in_format += formats;
        let (mut nodes, mut types) = (Vec::new(), Vec::new());
        for arg in target.into_iter().chain(args) {
            let (node, found) = self.expr(arg)?;
            nodes.push(node);
            types.push(found);
        }
        self.in_format -= formats;
        let Some(known) = function(name) else {
            return fail(at, format!("undeclared reference to '{name}': no such function"));
        };
        let result = self.overload(expr, name, known, style, &types)?;
        if let (1, Some(Form::Literal(Value::String(template))), [Expr { form: Form::List(_), .. }]) =
            (formats, target.map(|target| &target.form), args)
        {
            let found: Vec<Type> =
                self.elements.iter().map(|element| self.bindings.settled(element)).collect();
            functions::check_format(template, &found).map_err(|why| CheckError { at, why })?;
        }
        Ok((calls::bind(name, style, nodes).map_err(|why| CheckError { at, why })?, result))
    }

    /// The result type of a call: that of the one signature that fits, `dyn` where several fit and differ.
    fn overload(
        &mut self,
        expr: &Expr,
        name: &str,
        known: &'static declarations::Function,
        style: Style,
        args: &[Type],
    ) -> Result<Type, CheckError> {
        let (mut result, mut overloads): (Option<Type>, _) = (None, Vec::new());
        for signature in known.signatures(style).iter().filter(|signature| signature.args.len() == args.len())
        {
            let (expected, yields) = signature.instance(&mut self.bindings);
            if self.bindings.assignable_all(args, &expected) {
                let yields = self.bindings.resolve(&yields);
                overloads.push(signature);
                match &result {
                    None => result = Some(yields),
                    Some(first) if !first.is_dyn() && *first != yields => result = Some(Type::Dyn),
                    Some(_) => {}
                }
            }
        }
        self.notes.calls.insert(expr, Called { name: name.into(), style, overloads });
        result.map_or_else(
            || {
                let found: Vec<String> =
                    args.iter().map(|arg| self.bindings.resolve(arg).to_string()).collect();
                fail(
                    expr.at,
                    format!("found no matching overload for '{name}' applied to '({})'", found.join(", ")),
                )
            },
            Ok,
        )
    }

    fn expect(&mut self, at: Offset, found: &Type, expected: &Type) -> Result<(), CheckError> {
        if self.bindings.assignable(found, expected) {
            return Ok(());
        }
        let (expected, found) = (self.bindings.resolve(expected), self.bindings.resolve(found));
        fail(at, format!("expected type '{expected}' but found '{found}'"))
    }

    fn condition(&mut self, expr: &Expr) -> Result<Node, CheckError> {
        let (node, found) = self.expr(expr)?;
        self.expect(expr.at, &found, &Type::Bool)?;
        Ok(node)
    }

    fn logic(&mut self, connective: Connective, terms: &[Expr]) -> Result<TypedNode, CheckError> {
        let nodes = terms.iter().map(|term| self.condition(term)).collect::<Result<Vec<_>, _>>()?;
        Ok((if connective == Connective::And { Node::And(nodes) } else { Node::Or(nodes) }, Type::Bool))
    }

    /// The type of an element that may be marked with `?`.
    fn element(&mut self, expr: &Expr, presence: Presence) -> Result<TypedNode, CheckError> {
        let (node, found) = self.expr(expr)?;
        match (presence, &found) {
            (Presence::IfValue, Type::Optional(inner)) => {
                let inner = (**inner).clone();
                Ok((node, inner))
            }
            (Presence::IfValue, other) if !other.is_dyn() => {
                fail(expr.at, format!("expected type 'optional({other})' but found '{other}'"))
            }
            _ => Ok((node, found)),
        }
    }

    /// The common type of what came before and `current`.
    fn join(&mut self, before: Option<Type>, current: &Type) -> Type {
        match before {
            None => current.clone(),
            Some(before) if self.bindings.assignable(&before, current) => most_general(&before, current),
            Some(_) => Type::Dyn,
        }
    }

    /// Notes that elements of a literal are to be of one type, which is known only at the end.
    fn note_uniform(&mut self, types: &[(Offset, Type)]) {
        if let (0, Some(((_, first), others))) = (self.in_format, types.split_first()) {
            self.uniform.extend(others.iter().map(|(at, other)| (*at, first.clone(), other.clone())));
        }
    }

    /// Literals of mixed types are refused, but in the arguments of `format`.
    fn check_uniform(&self) -> Result<(), CheckError> {
        for (at, first, other) in &self.uniform {
            let (first, other) = (self.bindings.settled(first), self.bindings.settled(other));
            if first != other {
                let why =
                    format!("expected type '{first}' but found '{other}': elements must be of one type");
                return fail(*at, why);
            }
        }
        Ok(())
    }

    fn list(&mut self, elements: &[(Expr, Presence)]) -> Result<TypedNode, CheckError> {
        let (mut nodes, mut types, mut common) = (Vec::new(), Vec::new(), None);
        for (element, presence) in elements {
            let (node, found) = self.element(element, *presence)?;
            common = Some(self.join(common, &found));
            nodes.push((node, *presence));
            types.push((element.at, found));
        }
        self.note_uniform(&types);
        self.elements = types.into_iter().map(|(_, found)| found).collect();
        let element = common.unwrap_or_else(|| self.bindings.fresh());
        Ok((Node::list(nodes), Type::list(element)))
    }

    fn map(&mut self, entries: &[(Expr, Expr, Presence)]) -> Result<TypedNode, CheckError> {
        let (mut nodes, mut key_types, mut value_types) = (Vec::new(), Vec::new(), Vec::new());
        let (mut keys, mut values) = (None, None);
        for (key, value, presence) in entries {
            let (key_node, key_type) = self.expr(key)?;
            keys = Some(self.join(keys, &key_type));
            let (value_node, value_type) = self.element(value, *presence)?;
            values = Some(self.join(values, &value_type));
            nodes.push((key_node, value_node, *presence));
            key_types.push((key.at, key_type));
            value_types.push((value.at, value_type));
        }
        self.note_uniform(&key_types);
        self.note_uniform(&value_types);
        let key = keys.unwrap_or_else(|| self.bindings.fresh());
        let value = values.unwrap_or_else(|| self.bindings.fresh());
        Ok((Node::Map(nodes), Type::map(key, value)))
    }

    fn fold(&mut self, fold: &Fold) -> Result<TypedNode, CheckError> {
        let (range, range_type) = self.expr(&fold.range)?;
        let (first, second) = match self.bindings.resolve(&range_type) {
            Type::List(element) if fold.var2.is_some() => (Type::Int, (*element).clone()),
            Type::List(element) => ((*element).clone(), Type::Dyn),
            Type::Map(pair) => (*pair).clone(),
            free @ (Type::Dyn | Type::Param(_)) => {
                self.bindings.assignable(&Type::Dyn, &free);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let why = format!("expression of type '{other}' cannot be range of a comprehension");
                return fail(fold.range.at, why);
            }
        };
        let outer = self.scope.len();
        let key_type = first.clone();
        self.scope.push((fold.var.clone(), first));
        if let Some(var2) = &fold.var2 {
            self.scope.push((var2.clone(), second));
        }
        let walk = self.walk(fold, key_type);
        self.scope.truncate(outer);
        let (walk, found) = walk?;
        let with_value = fold.var2.is_some();
        Ok((Node::Fold(Box::new(FoldNode { range, with_value, walk })), found))
    }

    fn walk(&mut self, fold: &Fold, key_type: Type) -> Result<(Walk, Type), CheckError> {
        let filter = match &fold.result {
            FoldResult::List { filter, .. }
            | FoldResult::Map { filter, .. }
            | FoldResult::MapEntries { filter, .. } => {
                filter.as_ref().map(|filter| self.condition(filter)).transpose()?
            }
            _ => None,
        };
        Ok(match &fold.result {
            FoldResult::All(body) => (Walk::All(self.condition(body)?), Type::Bool),
            FoldResult::Exists(body) => (Walk::Exists(self.condition(body)?), Type::Bool),
            FoldResult::ExistsOne(body) => (Walk::ExistsOne(self.condition(body)?), Type::Bool),
            FoldResult::List { element, .. } => {
                let (element, found) = self.expr(element)?;
                (Walk::List { filter, element }, Type::list(found))
            }
            FoldResult::Map { value, .. } => {
                let (value, found) = self.expr(value)?;
                (Walk::Map { filter, value }, Type::map(key_type, found))
            }
            FoldResult::MapEntries { entries, .. } => {
                let (node, found) = self.expr(entries)?;
                let expected = Type::map(self.bindings.fresh(), self.bindings.fresh());
                self.expect(entries.at, &found, &expected)?;
                (Walk::MapEntries { filter, entries: node }, expected)
            }
        })
    }
}

// === impl Notes ===

impl Notes {
    /// The type of a part.
    pub(super) fn type_of(&self, expr: &Expr) -> Type {
        self.types.get(&std::ptr::from_ref(expr)).cloned().unwrap_or(Type::Dyn)
    }

    /// Whether it is a part of its own, and not of a name with dots.
    pub(super) fn knows(&self, expr: &Expr) -> bool {
        self.types.contains_key(&std::ptr::from_ref(expr))
    }

    pub(super) fn call(&self, expr: &Expr) -> Option<&Called> {
        self.calls.get(&std::ptr::from_ref(expr))
    }
}

/// `a.b.c` as one name, if the expression is nothing but names and plain selections.
fn qualified(expr: &Expr) -> Option<String> {
    match &expr.form {
        Form::Ident(name) => Some(name.to_string()),
        Form::Select { operand, field, how: Selection::Value } => {
            Some(format!("{}.{field}", qualified(operand)?))
        }
        _ => None,
    }
}

fn literal_type(value: &Value) -> Type {
    match value {
        Value::Bool(_) => Type::Bool,
        Value::Int(_) => Type::Int,
        Value::Uint(_) => Type::Uint,
        Value::Double(_) => Type::Double,
        Value::String(_) => Type::String,
        Value::Bytes(_) => Type::Bytes,
        Value::Null => Type::Null,
        _ => Type::Dyn,
    }
}
