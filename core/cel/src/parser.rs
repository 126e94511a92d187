//! Tokens to an expression: recursive descent over the grammar of CEL, bounded in depth.

use std::sync::Arc;

use super::ast::{Connective, DEPTH_MAX, Expr, Form, Presence, Selection};
use super::lexer::{Offset, SyntaxError, Token, tokens};
use super::macros;
use super::value::Value;

/// Words that may not name a variable or function.
const RESERVED: [&str; 18] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
    "__result__",
];

/// Binary operators, the loosest first.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["<=", ">=", "<", ">", "==", "!=", "in"], &["+", "-"], &["*", "/", "%"]];

/// Reads `text` whole.
pub(super) fn parse(text: &str) -> Result<Expr, SyntaxError> {
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0 };
    let (expr, _) = parser.expr()?;
    match parser.peek() {
        Token::End => Ok(expr),
        token => parser.fail(format!("unexpected {}", describe(token))),
    }
}

/// An expression and how deep its tree is.
type DepthExpr = (Expr, usize);

struct Parser {
    tokens: Vec<(Token, Offset)>,
    next: usize,
    /// Nested calls of [`Parser::expr`].
    depth: usize,
}

fn describe(token: &Token) -> String {
    match token {
        Token::Ident(name) => format!("name `{name}`"),
        Token::Int(_) | Token::Uint(_) | Token::Double(_) => "number".to_owned(),
        Token::Text(_) | Token::Bytes(_) => "string".to_owned(),
        Token::Sign(sign) => format!("`{sign}`"),
        Token::End => "end of the expression".to_owned(),
    }
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(token, _)| token)
    }

    fn peek_second(&self) -> &Token {
        self.tokens.get(self.next + 1).map_or(&Token::End, |(token, _)| token)
    }

    fn at(&self) -> Offset {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |(_, at)| *at)
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { at: self.at(), why: why.into() })
    }

    fn accept(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(s) if *s == sign);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), SyntaxError> {
        if self.accept(sign) {
            return Ok(());
        }
        self.fail(format!("expected `{sign}`, found {}", describe(self.peek())))
    }

    fn ident(&mut self) -> Result<Arc<str>, SyntaxError> {
        match self.peek().clone() {
            Token::Ident(name) => {
                self.next += 1;
                Ok(name)
            }
            token => self.fail(format!("expected a name, found {}", describe(&token))),
        }
    }

    /// Refuses a tree that has grown deeper than walking it is safe.
    fn grown(&self, at: Offset, form: Form, depth: usize) -> Result<DepthExpr, SyntaxError> {
        if depth > DEPTH_MAX {
            return self.fail(format!("the expression is nested more than {DEPTH_MAX} deep"));
        }
        Ok((Expr { at, form }, depth))
    }

    fn call(&self, at: Offset, name: &str, args: Vec<DepthExpr>) -> Result<DepthExpr, SyntaxError> {
        let depth = 1 + args.iter().map(|(_, depth)| *depth).max().unwrap_or(0);
        let args = args.into_iter().map(|(expr, _)| expr).collect();
        self.grown(at, Form::Call { name: name.into(), target: None, args }, depth)
    }

    fn expr(&mut self) -> Result<DepthExpr, SyntaxError> {
        if self.depth >= DEPTH_MAX {
            return self.fail(format!("the expression is nested more than {DEPTH_MAX} deep"));
        }
        self.depth += 1;
        let at = self.at();
        let found = self.binary(0)?;
        let found = if self.accept("?") { self.choice(at, found) } else { Ok(found) };
        self.depth -= 1;
        found
    }

    /// What follows the `?` of a condition.
    fn choice(&mut self, at: Offset, condition: DepthExpr) -> Result<DepthExpr, SyntaxError> {
        let then = self.binary(0)?;
        self.expect(":")?;
        let otherwise = self.expr()?;
        self.call(at, "_?_:_", vec![condition, then, otherwise])
    }

    /// Takes an operator that binds at least as tightly as `level`.
    fn operator(&mut self, level: usize) -> Option<(&'static str, usize)> {
        let Token::Sign(sign) = *self.peek() else {
            return None;
        };
        let (found, _) = LEVELS.iter().enumerate().skip(level).find(|(_, signs)| signs.contains(&sign))?;
        self.next += 1;
        Some((sign, found))
    }

    /// Operands and operators of `level` and tighter ones, grouped from the left.
    fn binary(&mut self, level: usize) -> Result<DepthExpr, SyntaxError> {
        let at = self.at();
        let mut left = self.unary()?;
        while let Some((sign, found)) = self.operator(level) {
            let right = self.binary(found + 1)?;
            left = self.combined(at, sign, left, right)?;
        }
        Ok(left)
    }

    /// One node for an operator and its operands; a chain of `&&` or of `||` is one node, however long.
    fn combined(
        &self,
        at: Offset,
        sign: &str,
        left: DepthExpr,
        right: DepthExpr,
    ) -> Result<DepthExpr, SyntaxError> {
        let connective = match sign {
            "&&" => Connective::And,
            "||" => Connective::Or,
            "in" => return self.call(at, "@in", vec![left, right]),
            sign => return self.call(at, &format!("_{sign}_"), vec![left, right]),
        };
        let ((left, left_depth), (right, right_depth)) = (left, right);
        match left.form {
            Form::Logic(known, mut terms) if known == connective => {
                terms.push(right);
                self.grown(at, Form::Logic(connective, terms), left_depth.max(right_depth + 1))
            }
            form => {
                let terms = vec![Expr { at: left.at, form }, right];
                self.grown(at, Form::Logic(connective, terms), left_depth.max(right_depth) + 1)
            }
        }
    }

    fn unary(&mut self) -> Result<DepthExpr, SyntaxError> {
        match self.peek() {
            Token::Sign("!" | "-") => self.signed(),
            _ => self.member(),
        }
    }

    /// Pairs of the same sign cancel out; a single minus before a number belongs to the number.
    fn signed(&mut self) -> Result<DepthExpr, SyntaxError> {
        let at = self.at();
        for (sign, name) in [("!", "!_"), ("-", "-_")] {
            let mut count = 0;
            while matches!(self.peek(), Token::Sign(s) if *s == sign)
                && !(sign == "-"
                    && count == 0
                    && matches!(self.peek_second(), Token::Int(_) | Token::Double(_)))
            {
                self.next += 1;
                count += 1;
            }
            if count > 0 {
                let operand = self.member()?;
                return if count % 2 == 0 { Ok(operand) } else { self.call(at, name, vec![operand]) };
            }
        }
        self.member()
    }

    fn member(&mut self) -> Result<DepthExpr, SyntaxError> {
        let mut found = self.primary()?;
        while matches!(self.peek(), Token::Sign("." | "[")) {
            found = self.trailer(found)?;
        }
        Ok(found)
    }

    /// One selection, call or index after `left`.
    fn trailer(&mut self, (left, mut depth): DepthExpr) -> Result<DepthExpr, SyntaxError> {
        let at = self.at();
        let form = if self.accept("[") {
            let name = if self.accept("?") { "_[?_]" } else { "_[_]" };
            let (index, index_depth) = self.expr()?;
            self.expect("]")?;
            depth = depth.max(index_depth);
            Form::Call { name: name.into(), target: None, args: vec![left, index] }
        } else {
            self.expect(".")?;
            let how = if self.accept("?") { Selection::Optional } else { Selection::Value };
            let field = self.ident()?;
            if how == Selection::Value && self.accept("(") {
                let (args, args_depth) = self.arguments(")")?;
                depth = depth.max(args_depth);
                macros::member_call(at, left, field, args)?
            } else {
                Form::Select { operand: Box::new(left), field, how }
            }
        };
        // A macro may put up to four nodes where one was written.
        depth += if matches!(form, Form::Bind { .. }) { 4 } else { 1 };
        self.grown(at, form, depth)
    }

    fn arguments(&mut self, close: &str) -> Result<(Vec<Expr>, usize), SyntaxError> {
        let (mut args, mut deepest) = (Vec::new(), 0);
        if self.accept(close) {
            return Ok((args, deepest));
        }
        loop {
            let (arg, depth) = self.expr()?;
            deepest = deepest.max(depth);
            args.push(arg);
            if !self.accept(",") {
                self.expect(close)?;
                return Ok((args, deepest));
            }
        }
    }

    fn primary(&mut self) -> Result<DepthExpr, SyntaxError> {
        match self.peek() {
            Token::Sign("(") => self.group(),
            Token::Sign("[") => self.list(),
            Token::Sign("{") => self.map(),
            _ => self.atom(),
        }
    }

    fn group(&mut self) -> Result<DepthExpr, SyntaxError> {
        self.expect("(")?;
        let inner = self.expr()?;
        self.expect(")")?;
        Ok(inner)
    }

    /// A literal, a name or a call.
    fn atom(&mut self) -> Result<DepthExpr, SyntaxError> {
        let at = self.at();
        let negative = self.accept("-");
        if !negative && (self.accept(".") || matches!(self.peek(), Token::Ident(_))) {
            return self.name(at);
        }
        let value = match (self.peek(), negative) {
            (Token::Sign("true"), false) => Value::Bool(true),
            (Token::Sign("false"), false) => Value::Bool(false),
            (Token::Sign("null"), false) => Value::Null,
            (Token::Int(size), true) => Value::Int(0_i64.wrapping_sub_unsigned(*size)),
            (Token::Int(size), false) => match i64::try_from(*size) {
                Ok(size) => Value::Int(size),
                Err(_) => return self.fail("the number does not fit in 64 bits"),
            },
            (Token::Double(size), true) => Value::Double(-size),
            (Token::Double(size), false) => Value::Double(*size),
            (Token::Uint(size), false) => Value::Uint(*size),
            (Token::Text(text), false) => Value::String(text.clone()),
            (Token::Bytes(bytes), false) => Value::Bytes(bytes.clone()),
            (token, _) => return self.fail(format!("expected a value, found {}", describe(token))),
        };
        self.next += 1;
        Ok((Expr { at, form: Form::Literal(value) }, 1))
    }

    fn name(&mut self, at: Offset) -> Result<DepthExpr, SyntaxError> {
        let name = self.ident()?;
        if RESERVED.contains(&&*name) {
            return Err(SyntaxError { at, why: format!("`{name}` is a reserved word") });
        }
        if !self.accept("(") {
            return Ok((Expr { at, form: Form::Ident(name) }, 1));
        }
        let (args, depth) = self.arguments(")")?;
        let form = macros::global_call(at, name, args)?;
        self.grown(at, form, depth + 1)
    }

    fn presence(&mut self) -> Presence {
        if self.accept("?") { Presence::IfValue } else { Presence::Always }
    }

    fn list(&mut self) -> Result<DepthExpr, SyntaxError> {
        let at = self.at();
        self.expect("[")?;
        let (mut elements, mut deepest) = (Vec::new(), 0);
        while !self.accept("]") {
            let presence = self.presence();
            let (element, depth) = self.expr()?;
            deepest = deepest.max(depth);
            elements.push((element, presence));
            if !self.accept(",") {
                self.expect("]")?;
                break;
            }
        }
        self.grown(at, Form::List(elements), deepest + 1)
    }

    fn map(&mut self) -> Result<DepthExpr, SyntaxError> {
        let at = self.at();
        self.expect("{")?;
        let (mut entries, mut deepest) = (Vec::new(), 0);
        while !self.accept("}") {
            let presence = self.presence();
            let (key, key_depth) = self.expr()?;
            self.expect(":")?;
            let (value, value_depth) = self.expr()?;
            deepest = deepest.max(key_depth).max(value_depth);
            entries.push((key, value, presence));
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        self.grown(at, Form::Map(entries), deepest + 1)
    }
}
