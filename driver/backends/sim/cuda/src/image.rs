//! Images of modules, as far as they say how much memory their variables take, which kernels there are, and what those need.
//!
//! | image | variables | kernels |
//! |---|---|---|
//! | ELF | sections named `.nv.global`, `.nv.global.…` | none |
//! | text | `.global` of PTX that is defined in it, whatever the kernels: a type, a name, extents in numbers | what is named behind `.entry`; `.local` up to the next one, in the same way |
//! | anything else, a file that cannot be read | none | none |
//!
//! A text says besides what else is got by name: what stands behind `.texref`, `.surfref` and the attribute `.unified(…)`.

use crate::code::Answer;
use std::ffi::CString;

/// Unit to which the variables of a module are rounded, in bytes.
const UNIT: u64 = 64 << 10;
const ELF: [u8; 4] = *b"\x7fELF";
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;

/// Bytes of a module's variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variables(pub(crate) u64);

/// Bytes of local memory that each thread of a kernel has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Local(pub(crate) u64);

/// A kernel of an image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) name: CString,
    pub(crate) local: Local,
}

/// What an image says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) variables: Variables,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) others: Vec<(Other, String)>,
}

/// What else an image has under names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    Texture,
    Surface,
    /// A function with one address on all cards.
    Unified,
}

impl Image {
    /// Of an image in memory, of which `part` reads so many bytes.
    pub(crate) fn of_memory(part: &dyn Fn(u64, usize) -> Answer<Vec<u8>>) -> Answer<Self> {
        let byte = |at: u64| Ok(part(at, 1)?.first().copied().unwrap_or(0));
        let mut text = Vec::new();
        loop {
            match byte(u64::try_from(text.len()).unwrap_or(u64::MAX))? {
                0 => return Ok(Self::of_text(&String::from_utf8_lossy(&text))),
                byte => text.push(byte),
            }
            if text == ELF {
                return Self::of_elf(part);
            }
        }
    }

    /// Of an image in a file.
    pub(crate) fn of_file(path: &CString) -> Answer<Self> {
        let Ok(content) = std::fs::read(path.to_string_lossy().as_ref()) else { return Ok(Self::default()) };
        let part = |from: u64, count: usize| {
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            Ok(content
                .iter()
                .skip(from)
                .take(count)
                .copied()
                .chain(std::iter::repeat(0))
                .take(count)
                .collect())
        };
        if content.starts_with(&ELF) {
            return Self::of_elf(&part);
        }
        Ok(Self::of_text(&String::from_utf8_lossy(&content)))
    }

    fn of_elf(part: &dyn Fn(u64, usize) -> Answer<Vec<u8>>) -> Answer<Self> {
        let header = part(0, HEADER_BYTES)?;
        let (table, count, names) = (number(&header, 40, 8), number(&header, 60, 2), number(&header, 62, 2));
        let width = u64::try_from(SECTION_BYTES).unwrap_or(0);
        let section = |index: u64| part(table.wrapping_add(index * width), SECTION_BYTES);
        let names = number(&section(names)?, 24, 8);
        let mut sum = 0_u64;
        for index in 0..count {
            let section = section(index)?;
            let name = part(names.wrapping_add(number(&section, 0, 4)), 11)?;
            if name == b".nv.global\0" || name == b".nv.global." {
                sum = sum.saturating_add(number(&section, 32, 8));
            }
        }
        Ok(Self { variables: Variables(sum), ..Self::default() })
    }

    fn of_text(text: &str) -> Self {
        let text = without_comments(text);
        let named = text.split(".entry").skip(1).filter_map(|rest| {
            let name = rest.split(['(', '{', ';']).next()?.split_whitespace().next()?;
            Some(Kernel { name: CString::new(name).ok()?, local: Local(all_defined(rest, ".local")) })
        });
        let kinds =
            [(Other::Texture, ".texref"), (Other::Surface, ".surfref"), (Other::Unified, ".unified(")];
        let others =
            kinds.into_iter().flat_map(|(kind, mark)| all_named(&text, mark).map(move |name| (kind, name)));
        let variables = Variables(all_defined(&text, ".global"));
        Self { variables, kernels: named.collect(), others: others.collect() }
    }
}

impl Variables {
    /// What the card pays for them.
    pub(crate) fn charged(self) -> u64 {
        self.0.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX)
    }
}

/// A little-endian number of so many bytes.
fn number(bytes: &[u8], at: usize, count: usize) -> u64 {
    bytes.iter().skip(at).take(count).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn without_comments(text: &str) -> String {
    let mut rest = text.to_owned();
    for (open, close) in [("/*", "*/"), ("//", "\n"), ("\"", "\"")] {
        while let Some(from) = rest.find(open) {
            let behind = from + open.len();
            let to = rest[behind..].find(close).map_or(rest.len(), |length| behind + length + close.len());
            rest.replace_range(from..to, " ");
        }
    }
    rest
}

/// The first name behind each place with a mark.
fn all_named(text: &str, mark: &str) -> impl Iterator<Item = String> {
    text.split(mark).skip(1).filter_map(|rest| {
        let mut names = rest.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        names.find(|name| name.starts_with(|letter: char| letter.is_ascii_alphabetic())).map(str::to_owned)
    })
}

/// Bytes of the variables that a text defines in a state space.
fn all_defined(text: &str, space: &str) -> u64 {
    let statements = text.split([';', '{', '}', ')']);
    statements.map(|statement| defined(statement, space)).fold(0, u64::saturating_add)
}

/// Bytes of those that a statement defines.
fn defined(statement: &str, space: &str) -> u64 {
    let words: Vec<&str> = statement.split_whitespace().collect();
    let Some(at) = words.iter().position(|word| *word == space) else { return 0 };
    if words[..at].contains(&".extern") {
        return 0;
    }
    let text = words[at + 1..].join(" ");
    let types = || text.split(' ').filter(|word| word.starts_with('.') && *word != ".align");
    let element: u64 = if types().count() == 0 { 0 } else { types().map(width).product() };
    let names = text.split('=').next().unwrap_or_default().split(',');
    names.map(|name| extents(name).saturating_mul(element)).fold(0, u64::saturating_add)
}

/// The product of what stands in brackets.
fn extents(name: &str) -> u64 {
    let inside = name.split('[').skip(1).map(|part| part.split(']').next().unwrap_or_default().trim());
    inside.map(|extent| extent.parse().unwrap_or(0)).fold(1, u64::saturating_mul)
}

/// Bytes of a type; a vector multiplies.
fn width(word: &str) -> u64 {
    match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" | ".v2" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" | ".v4" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        ".b128" => 16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_text_takes_what_it_defines() {
        let text = "// .global .u8 no[9];\n.version 8.0 .target sm_90 .address_size 64 .visible .global .align 8 .b64 a[4];\n\
                    .global .v4 .f32 b; .extern .global .b8 c[100]; .global .b8 d[2] = {1, 2}; .global .u16 e, f[3][5];\n\
                    .entry k(.param .u64 .ptr .global .align 4 p) { ld.global.u32 %r1, [%rd1]; /* .global .u8 x; */ }\n\
                    .entry l() { .local .align 8 .b8 depot[40]; .local .u64 one; .reg .b64 %SP; ld.local.u32 %r1, [%SP]; }";
        let kernel = |name: &CStr, local| Kernel { name: name.to_owned(), local: Local(local) };
        let image = Image::of_text(text);
        assert_eq!(
            (image.variables, image.kernels),
            (Variables(32 + 16 + 2 + 2 + 30), vec![kernel(c"k", 0), kernel(c"l", 48)])
        );
        assert_eq!(Image::of_text("any image"), Image::default());
        let others = Image::of_text(
            ".global .texref seen; .visible .global .surfref drawn; .func .attribute(.unified(0xAB, 0x1)) one() { ret; }",
        );
        let named = |kind, name: &str| (kind, name.to_owned());
        assert_eq!(
            (others.variables, others.others),
            (
                Variables(0),
                vec![
                    named(Other::Texture, "seen"),
                    named(Other::Surface, "drawn"),
                    named(Other::Unified, "one")
                ]
            )
        );
        assert_eq!((Variables(0).charged(), Variables(1).charged()), (0, 65536));
    }
}
