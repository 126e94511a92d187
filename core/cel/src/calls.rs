//! The step of a program that a call becomes.

use super::declarations::Style;
use super::functions::pattern::{Hunt, Search};
use super::functions::{Builtin, implementation};
use super::meter::Meter;
use super::program::Node;
use super::value::{Fault, Key, Value};

/// The step for a call of `name`; the error is about a pattern that is not a regular expression.
pub(super) fn bind(name: &str, style: Style, args: Vec<Node>) -> Result<Node, String> {
    let args = match (name, <[Node; 2]>::try_from(args)) {
        ("_[_]", Ok([operand, Node::Const(Value::String(key))])) => {
            return Ok(Node::Select(Box::new(operand), Key::Text(key)));
        }
        // Nothing is in an empty list, not even what cannot be evaluated.
        ("@in", Ok([_, Node::Const(Value::List(list))])) if list.is_empty() => {
            return Ok(Node::Const(Value::Bool(false)));
        }
        ("or", Ok(sides)) => return Ok(Node::OptOr(Box::new(sides))),
        ("orValue", Ok(sides)) => return Ok(Node::OptOrValue(Box::new(sides))),
        (_, Ok(args)) => args.into(),
        (_, Err(args)) => args,
    };
    let args = match (name, <[Node; 3]>::try_from(args)) {
        ("_?_:_", Ok(parts)) => return Ok(Node::Conditional(Box::new(parts))),
        (_, Ok(args)) => args.into(),
        (_, Err(args)) => args,
    };
    if let (Some(hunt), Some(Node::Const(Value::String(pattern)))) = (Hunt::named(name), args.get(1)) {
        return Ok(Node::Search(Search::new(hunt, pattern)?, args));
    }
    match implementation(name, style) {
        Some((_, builtin)) if FOLDED.contains(&name) && matches!(args[..], [Node::Const(_)]) => {
            folded(builtin, args)
        }
        Some((name, builtin)) => Ok(Node::Call(name, builtin, args)),
        None => Err(format!("function '{name}' cannot be called like this")),
    }
}

/// Conversions that are done beforehand where their argument is a constant, so that an impossible one is refused.
const FOLDED: [&str; 7] = ["bool", "bytes", "double", "dyn", "int", "string", "uint"];

fn folded(builtin: Builtin, args: Vec<Node>) -> Result<Node, String> {
    let values: Vec<Value> = args
        .into_iter()
        .filter_map(|arg| if let Node::Const(value) = arg { Some(value) } else { None })
        .collect();
    match builtin(&values, &mut Meter::full()) {
        Ok(value) => Ok(Node::Const(value)),
        Err(Fault::Error(why)) => Err(why),
        Err(Fault::Budget) => Err("the constant is too large to convert".to_owned()),
    }
}
