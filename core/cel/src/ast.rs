//! The expression as written, with the macros taken apart into the few forms they stand for.

use std::sync::Arc;

use super::lexer::Offset;
use super::value::Value;

/// An expression and where it begins.
#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) at: Offset,
    pub(super) form: Form,
}

/// What an expression is.
#[derive(Clone, Debug)]
pub(super) enum Form {
    Literal(Value),
    Ident(Arc<str>),
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        how: Selection,
    },
    /// A call of a function or operator; operators have names such as `_+_`.
    Call {
        name: Arc<str>,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    /// `&&` or `||` over two or more terms.
    Logic(Connective, Vec<Expr>),
    List(Vec<(Expr, Presence)>),
    Map(Vec<(Expr, Expr, Presence)>),
    /// `cel.bind` and what is built on it: `body` with `name` standing for `init`.
    Bind {
        name: Arc<str>,
        init: Box<Expr>,
        body: Box<Expr>,
    },
    Fold(Box<Fold>),
}

/// How a field is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// `a.b`
    Value,
    /// `has(a.b)`
    Test,
    /// `a.?b`
    Optional,
}

/// Whether an element of a list or map literal is always there, or only where its optional has a value (`?`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Always,
    IfValue,
}

/// A logical operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connective {
    And,
    Or,
}

/// A macro that walks over a list or a map.
#[derive(Clone, Debug)]
pub(super) struct Fold {
    pub(super) range: Expr,
    /// The element of a list or the key of a map; with a second variable, the index or the key.
    pub(super) var: Arc<str>,
    /// The element or the value.
    pub(super) var2: Option<Arc<str>>,
    pub(super) result: FoldResult,
}

/// What a fold makes of each element.
#[derive(Clone, Debug)]
pub(super) enum FoldResult {
    All(Expr),
    Exists(Expr),
    ExistsOne(Expr),
    List { filter: Option<Expr>, element: Expr },
    Map { filter: Option<Expr>, value: Expr },
    MapEntries { filter: Option<Expr>, entries: Expr },
}

/// The deepest nesting of an expression, as upstream has it; what lies deeper is refused, so that walking the tree
/// never runs out of stack.
pub(super) const DEPTH_MAX: usize = 250;
