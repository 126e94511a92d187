//! What an image says that its module takes of the card at least: its variables, before any caller loads it.
//!
//! Images come without a length, and from anywhere: they are read through the kernel, which answers where nothing is, and never
//! further than they say. An ELF image says it in the sizes of its sections of variables, PTX in its `.global` definitions. Of
//! anything else (compressed images, files) nothing is known here, and so it is of code, which differs with the card.

use crate::accounting::account::Bytes;
use crate::sys;

/// Bytes read at once; a read never goes over the border of such a block of addresses.
const BLOCK: usize = 4096;
/// Bytes of a text that are looked at.
const TEXT_MAX: u64 = 256 << 20;
const SECTION_BYTES: u64 = 64;
/// Longest word that means anything: a number.
const WORD_MAX: usize = 24;

/// Reads at an offset; how much there was.
type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> usize;

/// Bytes of the variables of an image at an address; `None`: it does not say.
pub(crate) fn variables(address: u64) -> Option<Bytes> {
    if address == 0 {
        return None;
    }
    of(&|offset, into| {
        address.checked_add(offset).map_or(0, |from| {
            let left = BLOCK - usize::try_from(from).unwrap_or(0) % BLOCK;
            let length = into.len().min(left);
            into.get_mut(..length).map_or(0, |into| sys::peek(from, into))
        })
    })
}

fn of(read: Read<'_>) -> Option<Bytes> {
    let mut magic = [0; 4];
    if fill(read, 0, &mut magic).is_some() && magic == *b"\x7fELF" {
        return of_elf(read).map(Bytes);
    }
    of_text(read).map(Bytes)
}

/// All of a piece; `None`: it is not all there.
fn fill(read: Read<'_>, at: u64, into: &mut [u8]) -> Option<()> {
    let mut done = 0;
    while done < into.len() {
        let from = at.checked_add(u64::try_from(done).ok()?)?;
        match read(from, into.get_mut(done..)?) {
            0 => return None,
            count => done += count,
        }
    }
    Some(())
}

/// A little-endian number in a piece.
fn number<const COUNT: usize>(piece: &[u8], at: usize) -> Option<u64> {
    let bytes: [u8; COUNT] = piece.get(at..at.checked_add(COUNT)?)?.try_into().ok()?;
    Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

fn of_elf(read: Read<'_>) -> Option<u64> {
    let mut header = [0; 64];
    fill(read, 0, &mut header)?;
    let table = number::<8>(&header, 40)?;
    let (width, count, names) =
        (number::<2>(&header, 58)?, number::<2>(&header, 60)?, number::<2>(&header, 62)?);
    // None: more than the header can count.
    if width != SECTION_BYTES || count == 0 {
        return None;
    }
    let section = |index: u64| {
        let mut section = [0; 64];
        fill(read, table.checked_add(index * SECTION_BYTES)?, &mut section)?;
        Some(section)
    };
    let names = number::<8>(&section(names)?, 24)?;
    let mut sum = 0_u64;
    for index in 0..count {
        let (section, mut name) = (section(index)?, [0; 11]);
        let at = names.checked_add(number::<4>(&section, 0)?)?;
        let is_there = fill(read, at, &mut name).is_some();
        if is_there && matches!(&name, b".nv.global\0" | b".nv.global.") {
            sum = sum.saturating_add(number::<8>(&section, 32)?);
        }
    }
    Some(sum)
}

/// A block of it lies in a mapping: it is large for the stack of whichever thread loads a module.
fn of_text(read: Read<'_>) -> Option<u64> {
    let mut found = None;
    sys::with_bytes(BLOCK, |block| found = of_text_by(block, read));
    found
}

fn of_text_by(block: &mut [u8], read: Read<'_>) -> Option<u64> {
    let (mut scan, mut at) = (Scan::NEW, 0);
    while at < TEXT_MAX {
        let count = read(at, block);
        for byte in block.iter().take(count) {
            if *byte == 0 {
                return scan.is_ptx.then_some(scan.sum);
            }
            scan.byte(*byte);
        }
        if count == 0 {
            break;
        }
        at = at.saturating_add(u64::try_from(count).unwrap_or(0));
    }
    // It has no end.
    None
}

/// What a text is read as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Code,
    /// Behind a `/` that may begin a comment.
    Slash,
    Line,
    Block,
    /// Behind a `*` that may end one.
    Star,
    Quotes,
}

/// A definition of variables, as far as it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Defining {
    Nothing,
    /// Its type is read, then its names and extents.
    Variables,
    /// A number of bytes to align to comes.
    Align,
    /// An initial value.
    Value,
}

/// A text that is read byte by byte.
struct Scan {
    within: Within,
    word: [u8; WORD_MAX],
    length: usize,
    defining: Defining,
    /// What this statement speaks of is defined elsewhere.
    is_foreign: bool,
    /// Bytes of an element; 0: no type yet.
    element: u64,
    extent: u64,
    depth: u32,
    sum: u64,
    /// It says which version of PTX it is in.
    is_ptx: bool,
}

impl Scan {
    const NEW: Self = Self {
        within: Within::Code,
        word: [0; WORD_MAX],
        length: 0,
        defining: Defining::Nothing,
        is_foreign: false,
        element: 0,
        extent: 1,
        depth: 0,
        sum: 0,
        is_ptx: false,
    };

    fn byte(&mut self, byte: u8) {
        self.within = match (self.within, byte) {
            (Within::Slash, b'/') => Within::Line,
            (Within::Slash, b'*') => Within::Block,
            (Within::Code, b'/') => Within::Slash,
            (Within::Code | Within::Slash, b'"') => Within::Quotes,
            (Within::Slash, _) => Within::Code,
            (Within::Line, b'\n') | (Within::Quotes, b'"') | (Within::Star, b'/') => Within::Code,
            (Within::Block | Within::Star, b'*') => Within::Star,
            (Within::Star, _) => Within::Block,
            (within, _) => within,
        };
        if self.within == Within::Code && (byte.is_ascii_alphanumeric() || b"._$%".contains(&byte)) {
            if let Some(place) = self.word.get_mut(self.length) {
                *place = byte;
            }
            self.length = self.length.saturating_add(1);
            return;
        }
        if self.length > 0 {
            let word = self.word;
            self.word(word.get(..self.length).unwrap_or(&[]));
            self.length = 0;
        }
        if self.within == Within::Code {
            self.sign(byte);
        }
    }

    fn word(&mut self, word: &[u8]) {
        match (self.defining, word) {
            (Defining::Nothing, b".version") => self.is_ptx = true,
            (Defining::Nothing, b".extern") => self.is_foreign = true,
            (Defining::Nothing, b".global") if !self.is_foreign => {
                (self.defining, self.element, self.extent) = (Defining::Variables, 0, 1);
            }
            (Defining::Variables, b".align") => self.defining = Defining::Align,
            (Defining::Align, _) => self.defining = Defining::Variables,
            (Defining::Variables, [b'.', ..]) => {
                self.element = width(word).saturating_mul(self.element.max(1));
                if self.element == 0 {
                    // Something that takes nothing of the card, or nothing that is known here.
                    self.defining = Defining::Value;
                }
            }
            (Defining::Variables, _) if self.depth > 0 => {
                self.extent = self.extent.saturating_mul(decimal(word));
            }
            _ => {}
        }
    }

    fn sign(&mut self, sign: u8) {
        match (self.defining, sign) {
            (_, b';' | b')') | (Defining::Nothing, b'{' | b'}') => self.end(Defining::Nothing),
            (Defining::Variables, b'[') => self.depth = 1,
            (Defining::Variables, b']') => self.depth = 0,
            (Defining::Variables, b'=' | b'{') => self.end(Defining::Value),
            (Defining::Variables, b',') => self.end(Defining::Variables),
            _ => {}
        }
    }

    /// A variable was read to its end.
    fn end(&mut self, next: Defining) {
        if self.defining == Defining::Variables {
            self.sum = self.sum.saturating_add(self.element.saturating_mul(self.extent));
        }
        self.is_foreign &= next != Defining::Nothing;
        (self.defining, self.extent, self.depth) = (next, 1, 0);
    }
}

/// Bytes of a type; a vector multiplies. 0: it is none, or takes nothing.
fn width(word: &[u8]) -> u64 {
    match word {
        b".b8" | b".u8" | b".s8" => 1,
        b".b16" | b".u16" | b".s16" | b".f16" | b".bf16" | b".v2" => 2,
        b".b32" | b".u32" | b".s32" | b".f32" | b".f16x2" | b".bf16x2" | b".v4" => 4,
        b".b64" | b".u64" | b".s64" | b".f64" => 8,
        b".b128" => 16,
        _ => 0,
    }
}

/// A number as PTX writes it; 0: it is none.
fn decimal(word: &[u8]) -> u64 {
    let digits = word.strip_suffix(b"U").unwrap_or(word);
    let (digits, base) = match digits {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        [b'0', digits @ ..] if !digits.is_empty() => (digits, 8),
        digits => (digits, 10),
    };
    digits
        .iter()
        .try_fold(0_u64, |sum, digit| {
            let value = char::from(*digit).to_digit(base)?;
            sum.checked_mul(u64::from(base))?.checked_add(u64::from(value))
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bytes(bytes: &[u8]) -> Option<u64> {
        let read = |at: u64, into: &mut [u8]| {
            let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or(&[]);
            // As across the borders of pages.
            let count = rest.len().min(into.len()).min(7);
            into[..count].copy_from_slice(&rest[..count]);
            count
        };
        of(&read).map(|bytes| bytes.0)
    }

    #[test]
    fn a_text_takes_what_it_defines() {
        for (text, bytes) in [
            ("", 0),
            (".visible .global .align 8 .b64 a[4];", 32),
            (".global .v4 .f32 b;", 16),
            (".extern .global .b8 c[100]; .global .b8 d[2] = {1, 2};", 2),
            (".global .u16 e, f[3][0x5];", 32),
            (".global .b8 g[010U];", 8),
            (".global .align 4 .b8 far[3221225472];", 3 << 30),
            (
                "// .global .b8 a[9];\n/* .global .b8 b[9]; **/ .file 1 \".global .b8 c[9];\" .global .b8 d;",
                1,
            ),
            (
                ".entry k(.param .u64 .ptr .global .align 4 p) { ld.global.u32 %r1, [%rd1]; .global .u8 x; }",
                1,
            ),
            (".global .attribute(.managed) .b8 m[64]; .global .texref t; .global .b8 one[1];", 1),
            (".global .b8 many[18446744073709551615], more[9];", u64::MAX),
            (".global .b8 open[5", 0),
        ] {
            let found = of_bytes(format!(".version 8.0 {text}\0.global .b8 behind[77];").as_bytes());
            assert_eq!(found, Some(bytes), "{text}");
            assert_eq!(of_bytes(format!(".version 8.0 {text}").as_bytes()), None, "it has no end");
            assert_eq!(of_bytes(format!("{text}\0").as_bytes()), None, "it is no PTX");
        }
    }

    /// An ELF image of sections with these names and sizes.
    fn elf(sections: &[(&str, u64)]) -> Vec<u8> {
        let mut image = vec![0_u8; 64];
        image[..4].copy_from_slice(b"\x7fELF");
        let mut names = vec![0_u8];
        let count = u16::try_from(sections.len() + 1).unwrap();
        image[40..48].copy_from_slice(&64_u64.to_le_bytes());
        image[58..60].copy_from_slice(&64_u16.to_le_bytes());
        image[60..62].copy_from_slice(&count.to_le_bytes());
        image[62..64].copy_from_slice(&(count - 1).to_le_bytes());
        for (name, size) in sections {
            let mut section = [0; 64];
            section[..4].copy_from_slice(&u32::try_from(names.len()).unwrap().to_le_bytes());
            section[32..40].copy_from_slice(&size.to_le_bytes());
            names.extend_from_slice(name.as_bytes());
            names.push(0);
            image.extend_from_slice(&section);
        }
        let mut last = [0; 64];
        last[24..32].copy_from_slice(&u64::try_from(image.len() + 64).unwrap().to_le_bytes());
        image.extend_from_slice(&last);
        image.extend_from_slice(&names);
        image.extend_from_slice(&[0; 16]);
        image
    }

    #[test]
    fn an_elf_image_takes_its_sections_of_variables() {
        let image =
            elf(&[(".nv.global", 3 << 30), (".text.k", 999), (".nv.global.init", 5), (".nv.shared.k", 48)]);
        assert_eq!(of_bytes(&image), Some((3 << 30) + 5));
        for length in 0..image.len() - 16 {
            assert!(of_bytes(&image[..length]) <= Some((3 << 30) + 5), "cut to {length}");
        }
    }

    #[test]
    fn torn_image_is_harmless() {
        let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos()) | 1;
        println!("seed {seed}");
        let mut random = u64::from(seed);
        let image = elf(&[(".nv.global", 1 << 20), (".text.k", 999)]);
        for _ in 0..20_000 {
            let mut torn = image.clone();
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = usize::try_from(random >> 33).unwrap() % torn.len();
                torn[at] = u8::try_from(random >> 24 & 255).unwrap();
            }
            of_bytes(&torn);
        }
        assert_eq!(variables(0), None);
        assert_eq!(variables(8), None, "nothing lies there");
        assert_eq!(variables(u64::MAX - 2), None);
        let text = c".version 8.0 .global .b8 d[4096];";
        let address = u64::try_from(text.as_ptr().expose_provenance()).unwrap();
        assert_eq!(variables(address), Some(Bytes(4096)));
    }
}
