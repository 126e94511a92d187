//! Macros: calls that stand for a walk over a list or map, a presence test, or a binding.
//!
//! A call is a macro by its name, its number of arguments and whether it has a target; any other call of that name is
//! an ordinary function.

use std::sync::Arc;

use super::ast::{Expr, Fold, FoldResult, Form, Selection};
use super::lexer::{Offset, SyntaxError};

/// A name that no expression can spell, for the target of `sortBy`, `optMap` and `optFlatMap`.
pub(super) const HIDDEN: &str = "@target";

/// `name(args…)`.
pub(super) fn global_call(at: Offset, name: Arc<str>, mut args: Vec<Expr>) -> Result<Form, SyntaxError> {
    if &*name != "has" || args.len() != 1 {
        return Ok(Form::Call { name, target: None, args });
    }
    match args.pop().map(|arg| arg.form) {
        Some(Form::Select { operand, field, how: Selection::Value }) => {
            Ok(Form::Select { operand, field, how: Selection::Test })
        }
        _ => Err(SyntaxError { at, why: "has() takes a field selection such as has(a.b)".to_owned() }),
    }
}

/// `target.name(args…)`.
pub(super) fn member_call(
    at: Offset,
    target: Expr,
    name: Arc<str>,
    args: Vec<Expr>,
) -> Result<Form, SyntaxError> {
    match (&*name, args.len()) {
        ("bind", 3) if matches!(&target.form, Form::Ident(root) if &**root == "cel") => bind(args),
        ("optMap", 2) => optional(at, target, args, OptionalBody::Again),
        ("optFlatMap", 2) => optional(at, target, args, OptionalBody::Already),
        ("sortBy", 2) => sort_by(at, target, args),
        ("all" | "exists" | "exists_one" | "filter" | "map", 2) | ("map", 3) => {
            one_variable(&name, target, args)
        }
        ("all" | "exists" | "exists_one" | "existsOne", 3)
        | ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => {
            two_variables(&name, target, args)
        }
        _ => Ok(Form::Call { name, target: Some(Box::new(target)), args }),
    }
}

fn variable(expr: &Expr) -> Result<Arc<str>, SyntaxError> {
    match &expr.form {
        Form::Ident(name) => Ok(name.clone()),
        _ => Err(SyntaxError { at: expr.at, why: "expected the name of a variable here".to_owned() }),
    }
}

/// The arguments as an array; the caller has matched their number.
fn exactly<const N: usize>(args: Vec<Expr>) -> Result<[Expr; N], SyntaxError> {
    let at = args.first().map_or(0, |arg| arg.at);
    args.try_into().map_err(|_| SyntaxError { at, why: format!("expected {N} arguments") })
}

fn one_variable(name: &str, range: Expr, args: Vec<Expr>) -> Result<Form, SyntaxError> {
    if args.len() == 3 {
        let [var, filter, element] = exactly(args)?;
        let result = FoldResult::List { filter: Some(filter), element };
        return Ok(Form::Fold(Box::new(Fold { range, var: variable(&var)?, var2: None, result })));
    }
    let [var_expr, body] = exactly(args)?;
    let var = variable(&var_expr)?;
    let result = match name {
        "all" => FoldResult::All(body),
        "exists" => FoldResult::Exists(body),
        "exists_one" => FoldResult::ExistsOne(body),
        "filter" => FoldResult::List { filter: Some(body), element: var_expr },
        _ => FoldResult::List { filter: None, element: body },
    };
    Ok(Form::Fold(Box::new(Fold { range, var, var2: None, result })))
}

fn two_variables(name: &str, range: Expr, mut args: Vec<Expr>) -> Result<Form, SyntaxError> {
    let filter = if args.len() == 4 { Some(args.remove(2)) } else { None };
    let [first, second, body] = exactly(args)?;
    let (var, var2) = (variable(&first)?, variable(&second)?);
    if var == var2 {
        return Err(SyntaxError {
            at: second.at,
            why: format!("the two variables have the same name `{var}`"),
        });
    }
    let result = match name {
        "all" => FoldResult::All(body),
        "exists" => FoldResult::Exists(body),
        "exists_one" | "existsOne" => FoldResult::ExistsOne(body),
        "transformList" => FoldResult::List { filter, element: body },
        "transformMap" => FoldResult::Map { filter, value: body },
        _ => FoldResult::MapEntries { filter, entries: body },
    };
    Ok(Form::Fold(Box::new(Fold { range, var, var2: Some(var2), result })))
}

fn bind(args: Vec<Expr>) -> Result<Form, SyntaxError> {
    let [name, init, body] = exactly(args)?;
    Ok(Form::Bind { name: variable(&name)?, init: Box::new(init), body: Box::new(body) })
}

/// Whether the body of `optMap` or `optFlatMap` already yields an optional.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OptionalBody {
    Already,
    Again,
}

fn call(at: Offset, name: &str, target: Option<Expr>, args: Vec<Expr>) -> Expr {
    let target = target.map(Box::new);
    Expr { at, form: Form::Call { name: name.into(), target, args } }
}

fn hidden(at: Offset) -> Expr {
    Expr { at, form: Form::Ident(HIDDEN.into()) }
}

/// `t.hasValue() ? optional.of(bind(name, t.value(), body)) : optional.none()`, with the target evaluated once.
fn optional(at: Offset, target: Expr, args: Vec<Expr>, wrapped: OptionalBody) -> Result<Form, SyntaxError> {
    let [name, body] = exactly(args)?;
    let init = Box::new(call(at, "value", Some(hidden(at)), Vec::new()));
    let bound = Form::Bind { name: variable(&name)?, init, body: Box::new(body) };
    let bound = Expr { at, form: bound };
    let then = match wrapped {
        OptionalBody::Already => bound,
        OptionalBody::Again => call(at, "optional.of", None, vec![bound]),
    };
    let condition = call(at, "hasValue", Some(hidden(at)), Vec::new());
    let none = call(at, "optional.none", None, Vec::new());
    let body = Box::new(call(at, "_?_:_", None, vec![condition, then, none]));
    Ok(Form::Bind { name: HIDDEN.into(), init: Box::new(target), body })
}

fn sort_by(at: Offset, target: Expr, args: Vec<Expr>) -> Result<Form, SyntaxError> {
    if matches!(target.form, Form::Literal(_) | Form::Map(_)) {
        return Err(SyntaxError { at: target.at, why: "sortBy() needs a list".to_owned() });
    }
    let keys = Expr { at, form: one_variable("map", hidden(at), args)? };
    let body = Box::new(call(at, "@sortByAssociatedKeys", Some(hidden(at)), vec![keys]));
    Ok(Form::Bind { name: HIDDEN.into(), init: Box::new(target), body })
}
