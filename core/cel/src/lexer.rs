//! Text to tokens: the lexical grammar of CEL, string and number literals already decoded.

use std::ops::Range;
use std::sync::Arc;

/// Where a token or a problem begins, in bytes from the start of the expression.
pub(super) type Offset = usize;

/// A lexical or grammatical problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) at: Offset,
    pub(super) why: String,
}

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Ident(Arc<str>),
    /// Magnitude only: the sign belongs to the parser, so that −2^63 can be written.
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    /// Punctuation and operators, `in`, `true`, `false` and `null`.
    Sign(&'static str),
    End,
}

/// Longest first, so that `<=` is not read as `<`.
const SIGNS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":",
    "+", "*", "/", "%",
];

/// Words that are tokens of their own.
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

/// All tokens of `text` with their offsets, closed by [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, Offset)>, SyntaxError> {
    let mut found = Vec::new();
    let mut lexer = Lexer { text, at: 0 };
    loop {
        lexer.skip_blank();
        let start = lexer.at;
        let token = lexer.next()?;
        let last = token == Token::End;
        found.push((token, start));
        if last {
            return Ok(found);
        }
    }
}

/// All tokens of `text`, each with its bytes.
pub(super) fn spans(text: &str) -> Result<Vec<(Token, Range<Offset>)>, SyntaxError> {
    let mut found = Vec::new();
    let mut lexer = Lexer { text, at: 0 };
    loop {
        lexer.skip_blank();
        let start = lexer.at;
        let token = lexer.next()?;
        if token == Token::End {
            return Ok(found);
        }
        found.push((token, start..lexer.at));
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: Offset,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError { at: self.at, why: why.into() })
    }

    fn skip_blank(&mut self) {
        loop {
            match self.peek(0) {
                Some(b'\t' | b' ' | b'\r' | b'\n' | 0x0c) => self.at += 1,
                Some(b'/') if self.peek(1) == Some(b'/') => {
                    self.at += self.rest().find('\n').unwrap_or(self.rest().len());
                }
                _ => return,
            }
        }
    }

    /// Takes bytes while `accept` holds; returns what was taken.
    fn take(&mut self, accept: impl Fn(u8) -> bool) -> &str {
        let start = self.at;
        while self.peek(0).is_some_and(&accept) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn next(&mut self) -> Result<Token, SyntaxError> {
        let Some(first) = self.peek(0) else {
            return Ok(Token::End);
        };
        if first.is_ascii_digit() || (first == b'.' && self.peek(1).is_some_and(|b| b.is_ascii_digit())) {
            return self.number();
        }
        if let Some(prefix) = self.literal_prefix() {
            return self.literal(prefix);
        }
        if first.is_ascii_alphabetic() || first == b'_' {
            let word = self.take(|b| b.is_ascii_alphanumeric() || b == b'_');
            return Ok(match WORDS.iter().find(|known| **known == word) {
                Some(known) => Token::Sign(known),
                None => Token::Ident(word.into()),
            });
        }
        match SIGNS.iter().find(|sign| self.rest().starts_with(**sign)) {
            Some(sign) => {
                self.at += sign.len();
                Ok(Token::Sign(sign))
            }
            None => {
                let found = self.rest().chars().next().unwrap_or('\u{fffd}');
                self.fail(format!("unexpected character {found:?}"))
            }
        }
    }

    fn number(&mut self) -> Result<Token, SyntaxError> {
        let start = self.at;
        if self.peek(0) == Some(b'0')
            && self.peek(1) == Some(b'x')
            && self.peek(2).is_some_and(|b| b.is_ascii_hexdigit())
        {
            self.at += 2;
            let digits = self.take(|b| b.is_ascii_hexdigit()).to_owned();
            return self.integer(start, &digits, 16);
        }
        self.take(|b| b.is_ascii_digit());
        let mut double = false;
        if self.peek(0) == Some(b'.') && self.peek(1).is_some_and(|b| b.is_ascii_digit()) {
            double = true;
            self.at += 1;
            self.take(|b| b.is_ascii_digit());
        }
        let sign = usize::from(matches!(self.peek(1), Some(b'+' | b'-')));
        if matches!(self.peek(0), Some(b'e' | b'E'))
            && self.peek(1 + sign).is_some_and(|b| b.is_ascii_digit())
        {
            double = true;
            self.at += 1 + sign;
            self.take(|b| b.is_ascii_digit());
        }
        let text = self.text[start..self.at].to_owned();
        if !double {
            return self.integer(start, &text, 10);
        }
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Token::Double(value)),
            _ => Err(SyntaxError { at: start, why: format!("{text} is not a double") }),
        }
    }

    fn integer(&mut self, start: Offset, digits: &str, radix: u32) -> Result<Token, SyntaxError> {
        let unsigned = matches!(self.peek(0), Some(b'u' | b'U'));
        self.at += usize::from(unsigned);
        match u64::from_str_radix(digits, radix) {
            Ok(value) if unsigned => Ok(Token::Uint(value)),
            Ok(value) if value <= 1 << 63 => Ok(Token::Int(value)),
            _ => Err(SyntaxError { at: start, why: "the number does not fit in 64 bits".to_owned() }),
        }
    }

    /// What kind of quoted literal begins here, if one does.
    fn literal_prefix(&self) -> Option<Prefix> {
        let letter = |b: u8, wanted: u8| b.eq_ignore_ascii_case(&wanted);
        let quote = |b: u8| matches!(b, b'"' | b'\'');
        let (a, b, c) = (self.peek(0)?, self.peek(1).unwrap_or(0), self.peek(2).unwrap_or(0));
        if quote(a) {
            Some(Prefix { length: 0, bytes: false, raw: false })
        } else if letter(a, b'r') && quote(b) {
            Some(Prefix { length: 1, bytes: false, raw: true })
        } else if letter(a, b'b') && quote(b) {
            Some(Prefix { length: 1, bytes: true, raw: false })
        } else if letter(a, b'b') && letter(b, b'r') && quote(c) {
            Some(Prefix { length: 2, bytes: true, raw: true })
        } else {
            None
        }
    }

    fn literal(&mut self, prefix: Prefix) -> Result<Token, SyntaxError> {
        let start = self.at;
        self.at += prefix.length;
        let quote = if self.peek(0) == Some(b'"') { "\"" } else { "'" };
        let triple = if quote == "\"" { "\"\"\"" } else { "'''" };
        let fence = if self.rest().starts_with(triple) { triple } else { quote };
        self.at += fence.len();
        let mut decoded = LiteralContent::default();
        loop {
            if self.rest().starts_with(fence) {
                self.at += fence.len();
                break;
            }
            match self.rest().chars().next() {
                None => return Err(SyntaxError { at: start, why: "the string is not closed".to_owned() }),
                Some('\n' | '\r') if fence.len() == 1 => {
                    return Err(SyntaxError {
                        at: start,
                        why: "the string is not closed on its line".to_owned(),
                    });
                }
                Some('\\') if !prefix.raw => self.escape(prefix, &mut decoded)?,
                Some(c) => {
                    decoded.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        Ok(if prefix.bytes { Token::Bytes(decoded.bytes.into()) } else { Token::Text(decoded.text.into()) })
    }

    /// Decodes one escape sequence. In bytes, `\x` and octal are a byte; in text they are a code point.
    fn escape(&mut self, prefix: Prefix, decoded: &mut LiteralContent) -> Result<(), SyntaxError> {
        let Some(kind) = self.peek(1) else {
            return self.fail("the string is not closed");
        };
        let simple = match kind {
            b'a' => Some('\u{7}'),
            b'b' => Some('\u{8}'),
            b'f' => Some('\u{c}'),
            b'n' => Some('\n'),
            b'r' => Some('\r'),
            b't' => Some('\t'),
            b'v' => Some('\u{b}'),
            b'\\' | b'\'' | b'"' | b'`' | b'?' => Some(char::from(kind)),
            _ => None,
        };
        if let Some(c) = simple {
            decoded.push(c);
            self.at += 2;
            return Ok(());
        }
        let (skip, length, radix) = match kind {
            b'x' | b'X' => (2, 2, 16),
            b'u' if !prefix.bytes => (2, 4, 16),
            b'U' if !prefix.bytes => (2, 8, 16),
            b'0'..=b'3' => (1, 3, 8),
            _ => return self.fail("unknown escape sequence"),
        };
        let from = self.at + skip;
        let digits = self.text.get(from..from + length).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(code) = digits.and_then(|digits| u32::from_str_radix(digits, radix).ok()) else {
            return self.fail("malformed escape sequence");
        };
        match (prefix.bytes, u8::try_from(code), char::from_u32(code)) {
            (true, Ok(byte), _) => decoded.bytes.push(byte),
            (false, _, Some(c)) => decoded.push(c),
            _ => return self.fail("the escape sequence is not a character"),
        }
        self.at = from + length;
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Prefix {
    length: usize,
    bytes: bool,
    raw: bool,
}

/// A literal's content both ways; only one of them is used.
#[derive(Default)]
struct LiteralContent {
    text: String,
    bytes: Vec<u8>,
}

impl LiteralContent {
    fn push(&mut self, c: char) {
        self.text.push(c);
        self.bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}
