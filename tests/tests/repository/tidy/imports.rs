//! What the files of a crate use of each other: one module per file, names followed to the file that defines them.
//!
//! - A name that a module re-exports counts as one of the file that defines it. So `pub use` is no arrow by itself,
//!   and neither is `mod`, nor the import of a module: what the file then names is.
//! - Unit tests (`#[cfg(test)]`, `tests.rs`, `tests/`), comments and texts count nothing.
//! - Methods and fields are named without their file, so they count nothing either.

use std::collections::{BTreeMap, BTreeSet};

/// Where a module lies below its crate's root: the root itself is empty.
type Place = Vec<String>;
/// File, the files that it uses, and the names by which it does.
pub(super) type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Imports of imports that are followed.
const STEPS_MAX: u32 = 12;

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Path,
    Mark(char),
}

/// Code without comments, texts, characters and lifetimes.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(length) = raw_text(rest).or_else(|| quoted(rest)) {
            length
        } else if word > 0 {
            found.push(Token::Word(&rest[..word]));
            word
        } else if rest.starts_with("::") {
            found.push(Token::Path);
            2
        } else {
            if !first.is_whitespace() {
                found.push(Token::Mark(first));
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    found
}

/// Bytes of the raw text that begins here.
fn raw_text(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = inside.len() - inside.trim_start_matches('#').len();
    let body = inside[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest.len() - body.len() + body.find(&end)? + end.len())
}

/// Bytes of the text, character or lifetime that begins here.
fn quoted(rest: &str) -> Option<usize> {
    let quote = rest.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let mut inside = rest.char_indices().skip(1);
    let (_, second) = inside.next()?;
    if quote == '\'' && second != '\\' {
        let (at, third) = inside.next()?;
        return Some(if third == '\'' { at + 1 } else { 1 + second.len_utf8() });
    }
    let mut escaped = false;
    rest.char_indices().skip(1).find_map(|(at, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at + 1)
    })
}

/// Without the items that only unit tests have.
fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    use Token::{Mark, Word};
    let attribute = [Mark('#'), Mark('['), Word("cfg"), Mark('('), Word("test"), Mark(')'), Mark(']')];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].starts_with(&attribute) {
            at += attribute.len() + item_length(&tokens[at + attribute.len()..]);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Tokens of the item, field or statement that begins here.
fn item_length(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark('}') if depth == 1 => return at + 1,
            Token::Mark(')' | ']' | '}') if depth == 0 => return at,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            Token::Mark(';' | ',') if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[derive(Clone, Copy, PartialEq)]
enum Reach {
    Private,
    ReExport,
}

struct Import {
    reach: Reach,
    path: Vec<String>,
    name: String,
}

/// The imports of one tree (`a::{b, c as d}`) that begins here, and its tokens.
fn import_tree(tokens: &[Token<'_>], before: &[String]) -> (Vec<(Vec<String>, String)>, usize) {
    let mut path = before.to_vec();
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(Token::Mark('{')) => {
                let mut found = Vec::new();
                at += 1;
                while at < tokens.len() && tokens[at] != Token::Mark('}') {
                    let (inside, length) = import_tree(&tokens[at..], &path);
                    found.extend(inside);
                    at += length.max(1);
                }
                return (found, at + 1);
            }
            Some(Token::Word("as")) => {
                let Some(Token::Word(name)) = tokens.get(at + 1) else { return (Vec::new(), at + 1) };
                return (vec![(path, (*name).to_owned())], at + 2);
            }
            Some(Token::Word("self")) if !path.is_empty() => at += 1,
            Some(Token::Word(word)) => {
                path.push((*word).to_owned());
                at += 1;
            }
            Some(Token::Mark('*')) => {
                path.push("*".to_owned());
                at += 1;
            }
            Some(Token::Path) => at += 1,
            _ => {
                let name = path.last().cloned().unwrap_or_default();
                return (vec![(path, name)], at);
            }
        }
    }
}

/// One file as a module.
#[derive(Default)]
struct Module {
    file: String,
    place: Place,
    defines: BTreeSet<String>,
    imports: Vec<Import>,
    /// Words outside imports.
    words: BTreeSet<String>,
    /// Paths of two words and more outside imports.
    paths: BTreeSet<Vec<String>>,
}

const DEFINING: &[&str] =
    &["struct", "enum", "union", "trait", "fn", "type", "const", "static", "macro_rules"];

impl Module {
    fn read(file: &str, place: Place, text: &str) -> Self {
        let tokens = without_tests(&tokens(text));
        let mut module = Self { file: file.to_owned(), place, ..Self::default() };
        let mut reach = Reach::Private;
        let mut depth = 0;
        let mut at = 0;
        while at < tokens.len() {
            let mut length = 1;
            match tokens[at] {
                Token::Word("use") => {
                    let (found, tree) = import_tree(&tokens[at + 1..], &[]);
                    let imports = found.into_iter().map(|(path, name)| Import { reach, path, name });
                    module.imports.extend(imports);
                    reach = Reach::Private;
                    length += tree;
                }
                Token::Word("pub") => {
                    reach = Reach::ReExport;
                    if tokens.get(at + 1) == Some(&Token::Mark('(')) {
                        length += item_length(&tokens[at + 1..=at + 3]);
                    }
                }
                // A declaration is no use.
                Token::Word("mod") => {
                    reach = Reach::Private;
                    length += 1;
                }
                Token::Word(word) => {
                    reach = Reach::Private;
                    let is_pointer = at > 0 && tokens[at - 1] == Token::Mark('*');
                    if depth == 0 && !is_pointer && DEFINING.contains(&word) {
                        module.defines.extend(defined(&tokens[at + 1..]));
                    }
                    length = module.note_path(&tokens, at);
                }
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => depth -= 1,
                Token::Mark(_) | Token::Path => {}
            }
            at += length;
        }
        module
    }

    /// Notes the word or path that begins here; returns its tokens.
    fn note_path(&mut self, tokens: &[Token<'_>], at: usize) -> usize {
        let mut path = Vec::new();
        let mut end = at;
        while let Some(Token::Word(word)) = tokens.get(end) {
            path.push((*word).to_owned());
            let goes_on = tokens.get(end + 1) == Some(&Token::Path);
            end += 1;
            if !goes_on || !matches!(tokens.get(end + 1), Some(Token::Word(_))) {
                break;
            }
            end += 1;
        }
        self.words.extend(path.iter().cloned());
        let before = at.checked_sub(1).map(|before| tokens[before]);
        let is_member = matches!(before, Some(Token::Path | Token::Mark('.' | '$')));
        if path.len() > 1 && !is_member {
            self.paths.insert(path);
        }
        end - at
    }

    fn import(&self, name: &str) -> Option<&Import> {
        self.imports.iter().find(|import| import.name == name && name != "_" && name != "*")
    }

    fn globs(&self) -> impl Iterator<Item = &Import> {
        self.imports.iter().filter(|import| import.path.last().is_some_and(|last| last == "*"))
    }
}

/// The name that a defining word stands before.
fn defined(tokens: &[Token<'_>]) -> Option<String> {
    let between = [Token::Word("mut"), Token::Word("fn"), Token::Word("unsafe"), Token::Mark('!')];
    match tokens.iter().find(|token| !between.contains(token)) {
        Some(Token::Word(name)) => Some((*name).to_owned()),
        _ => None,
    }
}

/// What a path names: a module, or something in it.
enum Target {
    Module(Place),
    Item(Place),
}

impl Target {
    fn place(self) -> Place {
        match self {
            Self::Module(place) | Self::Item(place) => place,
        }
    }
}

/// The files of one crate.
pub(super) struct Modules(BTreeMap<Place, Module>);

impl Modules {
    /// Of these files (path, text), those below the root.
    pub(super) fn read(crate_root: &str, files: &[(String, String)]) -> Self {
        let modules = files.iter().filter_map(|(file, text)| {
            let inside = file.strip_prefix(crate_root)?.strip_suffix(".rs")?;
            let place: Place = inside.split('/').map(str::to_owned).filter(|part| part != "lib").collect();
            let shipped = !place.iter().any(|part| part == "tests") && !inside.starts_with("bin/");
            shipped.then(|| (place.clone(), Module::read(file, place, text)))
        });
        Self(modules.collect())
    }

    fn child(&self, place: &[String], name: &str) -> Option<&Module> {
        let mut child = place.to_vec();
        child.push(name.to_owned());
        self.0.get(&child)
    }

    /// What a path in this module names, if it is of this crate.
    fn named(&self, module: &Module, path: &[String], steps: u32) -> Option<Target> {
        let steps = steps.checked_sub(1)?;
        let first = path.first()?;
        let mut place = module.place.clone();
        let rest = match first.as_str() {
            "crate" => {
                place.clear();
                &path[1..]
            }
            "self" | "super" => {
                let up = path.iter().take_while(|word| *word == "self" || *word == "super").count();
                let leave = path[..up].iter().filter(|word| *word == "super").count();
                place.truncate(place.len().checked_sub(leave)?);
                &path[up..]
            }
            _ => {
                let foreign = self.child(&place, first).is_none()
                    && module.import(first).is_some_and(|import| import.path.first() == Some(first));
                return if foreign { None } else { self.item(module, path, steps) };
            }
        };
        if rest.is_empty() {
            return Some(Target::Module(place));
        }
        let within = self.0.get(&place)?;
        Some(self.item(within, rest, steps).unwrap_or(Target::Item(place)))
    }

    /// What this path names below a module, re-exports followed.
    fn item(&self, module: &Module, path: &[String], steps: u32) -> Option<Target> {
        let steps = steps.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let below = |place: Place| {
            if rest.is_empty() {
                return Some(Target::Module(place));
            }
            let within = self.0.get(&place)?;
            Some(self.item(within, rest, steps).unwrap_or(Target::Item(place)))
        };
        if let Some(child) = self.child(&module.place, first) {
            return below(child.place.clone());
        }
        if module.defines.contains(first) {
            return Some(Target::Item(module.place.clone()));
        }
        if let Some(import) = module.import(first) {
            return match self.named(module, &import.path, steps)? {
                Target::Module(place) => below(place),
                item @ Target::Item(_) => Some(item),
            };
        }
        module.globs().find_map(|glob| match self.named(module, glob.path.split_last()?.1, steps)? {
            Target::Module(place) if place != module.place => self.item(self.0.get(&place)?, path, steps),
            _ => None,
        })
    }

    /// What this module uses: the file, and the name.
    fn uses(&self, module: &Module) -> Vec<(Place, String)> {
        let item = |path: &[String]| match self.named(module, path, STEPS_MAX) {
            Some(Target::Item(place)) => Some(place),
            _ => None,
        };
        let imports = module
            .imports
            .iter()
            .filter(|import| import.name != "*")
            .filter(|import| import.reach == Reach::Private || module.words.contains(&import.name));
        let paths = imports.map(|import| &import.path).chain(&module.paths);
        let mut found: Vec<_> = paths.filter_map(|path| Some((item(path)?, path.join("::")))).collect();
        for glob in module.globs().filter(|glob| glob.reach == Reach::Private) {
            let Some((_, of)) = glob.path.split_last() else { continue };
            let names = module.words.iter().filter(|word| !module.defines.contains(*word));
            for name in names.filter(|word| module.import(word).is_none()) {
                let path: Vec<String> = of.iter().chain([name]).cloned().collect();
                let is_there = self
                    .named(module, of, STEPS_MAX)
                    .map(Target::place)
                    .and_then(|place| self.item(self.0.get(&place)?, std::slice::from_ref(name), STEPS_MAX));
                found.extend(is_there.and(item(&path)).map(|place| (place, path.join("::"))));
            }
        }
        found
    }

    /// Files and the files that they use.
    pub(super) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for module in self.0.values() {
            let used = arrows.entry(module.file.clone()).or_default();
            for (place, name) in self.uses(module) {
                let Some(to) = self.0.get(&place).filter(|to| to.file != module.file) else { continue };
                used.entry(to.file.clone()).or_default().insert(name);
            }
        }
        arrows
    }
}
