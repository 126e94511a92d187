//! Kubernetes' CEL: expressions over one variable with typed fields, checked once and evaluated often.
//!
//! ```text
//!  text ──lexer, parser, macros──▶ expression ──checker, Environment──▶ program ─┐
//!  Input: the variable's value ──────────────────────────────────────────────────┴──▶ true, false or an error
//! ```
//!
//! The language is CEL as Kubernetes 1.36 configures it: its macros, optional values, strings, lists, sets, quantities,
//! semantic versions, addresses, URLs and formats. An [`Environment`] declares the variable; [`Expression::compile`] refuses
//! what the API server refuses. An [`Input`] is built once for each value. Evaluation copies nothing and is bounded by the
//! expression's depth and length and by a meter that counts steps in upstream's unit of cost.
//!
//! Invariants: no text makes this panic, hang or recurse without bound; the same text and input give the same answer.

mod ast;
mod calls;
mod checker;
mod declarations;
mod environment;
mod estimate;
mod format;
mod functions;
mod input;
mod lexer;
mod macros;
mod meter;
mod network;
mod parser;
mod program;
pub mod quantity;
mod reads;
mod typing;
mod value;
mod version;

use std::ops::Range;
use std::sync::Arc;

use meter::Meter;
use program::{Node, Run};
use reads::Reads;
use value::{Fault, Value};

pub use environment::{Environment, FieldType};
pub use input::Input;
pub use meter::Cost;

/// Longest expression in bytes, as Kubernetes has it.
pub const EXPRESSION_BYTES_MAX: usize = 10 * 1024;

/// A compiled expression that yields a bool. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Expression {
    text: Arc<str>,
    program: Arc<Node>,
    reads: Arc<Reads>,
    worst_case: Cost,
}

/// One evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The answer for the value of the variable.
    pub answer: Result<bool, ExpressionError>,
    /// What it cost.
    pub cost: Cost,
}

/// Why a text is not an expression of the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The text is longer than Kubernetes allows.
    #[error("the selector has {found} bytes; at most {EXPRESSION_BYTES_MAX} are allowed")]
    TooLong {
        /// Bytes found.
        found: usize,
    },
    /// The text is not an expression.
    #[error("line {line}, column {column}: {why}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong.
        why: String,
    },
    /// The expression names something unknown, mixes types, or does not yield a bool.
    #[error("line {line}, column {column}: {why}")]
    Meaning {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong.
        why: String,
    },
}

/// Why an expression has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// It failed: a field that is absent, a type it did not expect.
    #[error("{0}")]
    Failed(String),
    /// The result is not a bool.
    #[error("the selector yields a {found}, not a bool")]
    NotBool {
        /// Type of the result.
        found: &'static str,
    },
    /// The evaluation takes more steps than upstream allows.
    #[error("the selector costs too much to evaluate: the limit is 1000000 steps")]
    TooCostly,
    /// The evaluation takes more steps than its caller gave it.
    #[error("the selector costs more than {} steps to evaluate, and no more were left for it", .0.0)]
    OverAllowance(Cost),
}

/// A word of an expression, for a program that rewrites one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lexeme {
    /// What it is.
    pub kind: LexemeKind,
    /// Its bytes in the expression.
    pub span: Range<usize>,
}

/// What a word of an expression is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LexemeKind {
    /// A name.
    Name(Arc<str>),
    /// A string, decoded.
    Text(Arc<str>),
    /// Punctuation, an operator, `in`, `true`, `false` or `null`.
    Sign(&'static str),
    /// A number or bytes.
    Literal,
}

/// The words of an expression in order, without blanks and comments.
///
/// # Errors
/// The text is too long, or not an expression.
pub fn lexemes(text: &str) -> Result<Vec<Lexeme>, CompileError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        return Err(CompileError::TooLong { found: text.len() });
    }
    let syntax = |error: lexer::SyntaxError| {
        let (line, column) = position(text, error.at);
        CompileError::Syntax { line, column, why: error.why }
    };
    parser::parse(text).map_err(syntax)?;
    let lexeme = |(token, span)| {
        let kind = match token {
            lexer::Token::Ident(name) => LexemeKind::Name(name),
            lexer::Token::Text(text) => LexemeKind::Text(text),
            lexer::Token::Sign(sign) => LexemeKind::Sign(sign),
            _ => LexemeKind::Literal,
        };
        Lexeme { kind, span }
    };
    Ok(lexer::spans(text).map_err(syntax)?.into_iter().map(lexeme).collect())
}

// === impl Expression ===

impl Expression {
    /// Compiles `text`.
    ///
    /// # Errors
    /// The text is too long, not an expression, or means nothing in the environment.
    pub fn compile(text: &str, environment: &Environment) -> Result<Self, CompileError> {
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(CompileError::TooLong { found: text.len() });
        }
        let expr = parser::parse(text).map_err(|error| {
            let (line, column) = position(text, error.at);
            CompileError::Syntax { line, column, why: error.why }
        })?;
        let (program, notes) = checker::check(&expr, environment).map_err(|error| {
            let (line, column) = position(text, error.at);
            CompileError::Meaning { line, column, why: error.why }
        })?;
        let worst_case = estimate::estimate(&expr, &notes, environment);
        let reads = Arc::new(Reads::of(&program));
        Ok(Self { text: text.into(), program: Arc::new(program), reads, worst_case })
    }

    /// The text it was compiled from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The most that an evaluation can cost, as the API server estimates it. [`Cost::UNBOUNDED`]: a value that the
    /// expression walks over has no bound.
    #[must_use]
    pub const fn worst_case(&self) -> Cost {
        self.worst_case
    }

    /// The answer for a value of the variable.
    ///
    /// # Errors
    /// There is none.
    pub fn matches(&self, variable: &Input) -> Result<bool, ExpressionError> {
        self.evaluate(variable, Cost::MAX).answer
    }

    /// The answer for a value of the variable, if it costs no more than `most`, and its cost.
    #[must_use]
    pub fn evaluate(&self, variable: &Input, most: Cost) -> Evaluation {
        let most = most.min(Cost::MAX);
        let mut run = Run::new(variable.value(), Meter::of(most.0));
        let answer = match self.program.eval(&mut run) {
            Ok(Value::Bool(answer)) => Ok(answer),
            Ok(other) => Err(ExpressionError::NotBool { found: other.type_name() }),
            Err(Fault::Error(why)) => Err(ExpressionError::Failed(why)),
            Err(Fault::Budget) if most < Cost::MAX => {
                return Evaluation { answer: Err(ExpressionError::OverAllowance(most)), cost: most };
            }
            Err(Fault::Budget) => {
                return Evaluation { answer: Err(ExpressionError::TooCostly), cost: Cost::MAX };
            }
        };
        Evaluation { answer, cost: Cost(most.0 - run.left()) }
    }

    /// The parts of the variable that the expression reads, as the keys that lead to each from the variable down; `None`:
    /// a key is no text.
    pub fn paths(&self) -> impl Iterator<Item = Option<Vec<&str>>> {
        self.reads.paths()
    }

    /// What the expression reads of a value of the variable: two values with the same text have the same answer.
    #[must_use]
    pub fn reading(&self, variable: &Input) -> String {
        self.reads.text(variable.value())
    }
}

impl PartialEq for Expression {
    /// The same text is the same expression; texts of different environments are not compared.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

/// Line and column of a byte offset.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct Readme;
