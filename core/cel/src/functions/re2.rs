//! The syntax of Go's RE2, rewritten into that of the `regex` crate.
//!
//! The two agree but for this: in RE2 `\d`, `\w`, `\s` and `\b` know ASCII only, a class holds no sets or operators,
//! `\Q…\E` quotes, octal escapes exist, a brace that starts no repetition is itself, no repetition is repeated, and
//! repetitions multiply to 1,000 at most. What only the crate knows (flags, properties by key) is refused.

/// Most repetitions of an atom, nested ones multiplied.
const REPEAT_MAX: u32 = 1_000;

/// Names that may stand in `[[:name:]]`.
const POSIX_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

/// `pattern` for the crate; `None` where RE2 would refuse it and the crate might not.
pub(super) fn translate(pattern: &str) -> Option<String> {
    let mut translator =
        Translator { rest: pattern, out: String::with_capacity(pattern.len() + 8), atom: 1, groups: vec![1] };
    while let Some(c) = translator.next() {
        translator.element(c)?;
    }
    Some(translator.out)
}

struct Translator<'a> {
    rest: &'a str,
    out: String,
    /// Repetitions within the last atom, 0 after a repetition.
    atom: u32,
    /// The same for each open group, the largest so far.
    groups: Vec<u32>,
}

/// What an escape stands for.
enum EscapeMeaning {
    Char(char),
    /// The inside of a class.
    Class(&'static str),
    /// A class of its own.
    Outside(String),
}

impl Translator<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn accept(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn push_literal(&mut self, c: char) {
        if c.is_ascii_alphanumeric() || !c.is_ascii() {
            self.out.push(c);
        } else {
            self.out.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
        }
    }

    /// One element outside of a class.
    fn element(&mut self, c: char) -> Option<()> {
        match c {
            '*' => return self.repeat("*", 1),
            '+' => return self.repeat("+", 1),
            '?' => return self.repeat("?", 1),
            '{' => match self.braces() {
                Some((length, times)) => {
                    let braces = format!("{{{}", self.rest.get(..length)?);
                    self.rest = self.rest.get(length..)?;
                    return self.repeat(&braces, times?);
                }
                None => self.out.push_str("\\{"),
            },
            '\\' => self.escape()?,
            '[' => self.class()?,
            '(' => {
                self.group()?;
                self.groups.push(1);
            }
            ')' => {
                let inner = self.groups.pop().filter(|_| !self.groups.is_empty())?;
                self.out.push(')');
                self.atom = inner;
                self.note(inner);
                return Some(());
            }
            c => self.out.push(c),
        }
        self.atom = 1;
        Some(())
    }

    fn note(&mut self, times: u32) {
        if let Some(largest) = self.groups.last_mut() {
            *largest = times.max(*largest);
        }
    }

    /// The length of `n}`, `n,}` or `n,m}` ahead and its repetitions (`None`: too many, or m < n).
    fn braces(&self) -> Option<(usize, Option<u32>)> {
        let end = self.rest.find('}')?;
        let (min, max) = match self.rest[..end].split_once(',') {
            Some((min, max)) => (min, max),
            None => (&self.rest[..end], &self.rest[..end]),
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(min) || !(max.is_empty() || digits(max)) {
            return None;
        }
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n <= REPEAT_MAX);
        let times = match (number(min), number(max)) {
            (Some(min), None) if max.is_empty() => Some(min),
            (Some(min), Some(max)) if min <= max => Some(max),
            _ => None,
        };
        Some((end + 1, times))
    }

    fn repeat(&mut self, sign: &str, times: u32) -> Option<()> {
        if self.atom == 0 {
            return None;
        }
        let product = self.atom.checked_mul(times.max(1)).filter(|product| *product <= REPEAT_MAX)?;
        self.note(product);
        self.out.push_str(sign);
        if self.accept("?") {
            self.out.push('?');
        }
        self.atom = 0;
        Some(())
    }

    /// What follows an opening parenthesis. The names of groups do not matter here.
    fn group(&mut self) -> Option<()> {
        self.out.push('(');
        if self.accept("?P<") || self.accept("?<") {
            let end = self.rest.find('>')?;
            let name = &self.rest[..end];
            self.rest = &self.rest[end + 1..];
            return (!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
                .then_some(());
        }
        if !self.accept("?") {
            return Some(());
        }
        let end = self.rest.find([')', ':'])?;
        let flags = &self.rest[..end];
        self.out.push('?');
        flags.chars().all(|flag| matches!(flag, 'i' | 'm' | 's' | 'U' | '-')).then_some(())
    }

    fn escape(&mut self) -> Option<()> {
        match self.rest.chars().next()? {
            'b' => self.out.push_str("(?-u:\\b)"),
            'B' => self.out.push_str("(?-u:\\B)"),
            'A' => self.out.push_str("\\A"),
            'z' => self.out.push_str("\\z"),
            'Q' => {
                let (quoted, after) = self.rest[1..].split_once("\\E").unwrap_or((&self.rest[1..], ""));
                self.rest = after;
                quoted.chars().for_each(|c| self.push_literal(c));
                return Some(());
            }
            _ => {
                match self.escaped()? {
                    EscapeMeaning::Char(c) => self.push_literal(c),
                    EscapeMeaning::Class(inner) => self.out.push_str(&format!("[{inner}]")),
                    EscapeMeaning::Outside(class) => self.out.push_str(&class),
                }
                return Some(());
            }
        }
        self.next().map(drop)
    }

    /// An escape that means the same in and out of a class.
    fn escaped(&mut self) -> Option<EscapeMeaning> {
        let c = self.next()?;
        Some(match c {
            'd' => EscapeMeaning::Class("0-9"),
            'w' => EscapeMeaning::Class("0-9A-Za-z_"),
            's' => EscapeMeaning::Class("\\t\\n\\x0c\\r "),
            'D' => EscapeMeaning::Outside("[^0-9]".to_owned()),
            'W' => EscapeMeaning::Outside("[^0-9A-Za-z_]".to_owned()),
            'S' => EscapeMeaning::Outside("[^\\t\\n\\x0c\\r ]".to_owned()),
            'p' | 'P' => return self.property(c),
            'a' => EscapeMeaning::Char('\u{7}'),
            'f' => EscapeMeaning::Char('\u{c}'),
            't' => EscapeMeaning::Char('\t'),
            'n' => EscapeMeaning::Char('\n'),
            'r' => EscapeMeaning::Char('\r'),
            'v' => EscapeMeaning::Char('\u{b}'),
            'x' => return self.hexadecimal(),
            '0'..='7' => return self.octal(c),
            c if c.is_ascii_punctuation() => EscapeMeaning::Char(c),
            _ => return None,
        })
    }

    /// `\pL`, `\p{Lu}`, `\p{^Greek}`: categories and scripts by name alone.
    fn property(&mut self, kind: char) -> Option<EscapeMeaning> {
        let inner = if self.accept("{") {
            let end = self.rest.find('}')?;
            let inner = &self.rest[..end];
            self.rest = &self.rest[end + 1..];
            inner.to_owned()
        } else {
            self.next()?.to_string()
        };
        let (name, negated) = inner.strip_prefix('^').map_or((&*inner, false), |name| (name, true));
        let kind = if (kind == 'P') == negated { 'p' } else { 'P' };
        let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_');
        plain.then(|| EscapeMeaning::Outside(format!("\\{kind}{{{name}}}")))
    }

    fn hexadecimal(&mut self) -> Option<EscapeMeaning> {
        let digits = if self.accept("{") {
            let (digits, rest) = self.rest.split_once('}')?;
            self.rest = rest;
            digits
        } else {
            let (digits, rest) = self.rest.split_at_checked(2)?;
            self.rest = rest;
            digits
        };
        let code =
            digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())??;
        char::from_u32(code).map(EscapeMeaning::Char)
    }

    /// `\0`, `\07`, `\141`; a single digit from 1 on would be a back reference, which there is none of.
    fn octal(&mut self, first: char) -> Option<EscapeMeaning> {
        let is_octal = |c: &char| c.is_digit(8);
        if first != '0' && !self.rest.chars().next().is_some_and(|c| is_octal(&c)) {
            return None;
        }
        let mut digits = first.to_string();
        while digits.len() < 3 && self.rest.chars().next().is_some_and(|c| is_octal(&c)) {
            digits.extend(self.next());
        }
        u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32).map(EscapeMeaning::Char)
    }

    /// The rest of a class.
    fn class(&mut self) -> Option<()> {
        self.out.push('[');
        if self.accept("^") {
            self.out.push('^');
        }
        let mut first = true;
        while first || !self.rest.starts_with(']') {
            first = false;
            if self.accept("[:") {
                let (name, rest) = self.rest.split_once(":]")?;
                self.rest = rest;
                let known = POSIX_CLASSES.contains(&name.strip_prefix('^').unwrap_or(name));
                self.out.push_str(&known.then(|| format!("[:{name}:]"))?);
                continue;
            }
            let low = match self.class_member()? {
                EscapeMeaning::Char(c) => c,
                EscapeMeaning::Class(inner) => {
                    self.out.push_str(inner);
                    continue;
                }
                EscapeMeaning::Outside(class) => {
                    self.out.push_str(&class);
                    continue;
                }
            };
            self.push_literal(low);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.next();
                let EscapeMeaning::Char(high) = self.class_member()? else { return None };
                if high < low {
                    return None;
                }
                self.out.push('-');
                self.push_literal(high);
            }
        }
        self.next();
        self.out.push(']');
        Some(())
    }

    fn class_member(&mut self) -> Option<EscapeMeaning> {
        match self.next()? {
            '\\' => self.escaped(),
            c => Some(EscapeMeaning::Char(c)),
        }
    }
}
