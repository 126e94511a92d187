//! A part of an expression: what it costs, how large its value can be, and the path that leads to it.

use std::sync::Arc;

use super::size::{Entry, Size};
use crate::ast::Expr;
use crate::typing::Type;

/// Names from a variable down; none: it is a value that was computed.
pub(super) type Path = Vec<Arc<str>>;

/// A part of the expression.
pub(super) struct Part<'e> {
    pub(super) expr: &'e Expr,
    pub(super) of: Type,
    pub(super) cost: u64,
    pub(super) size: Option<Size>,
    pub(super) entry: Option<Entry>,
    pub(super) path: Path,
}

pub(super) fn below(path: &Path, name: &str) -> Path {
    path.iter().cloned().chain([name.into()]).collect()
}

// === impl Part ===

impl Part<'_> {
    pub(super) fn size_or_unknown(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }
}
