//! Texts of unknown origin as a terminal may have them (CVE-2021-25743).
//!
//! Names, selectors, attributes, kinds and file names come from clusters and files. A character that moves the cursor,
//! colours, reorders or hides text is written as its code: `\u{1b}`. Line breaks stay, so that a selector of several
//! lines is legible; every further line is indented, so that no text can look like a message of its own.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Indentation of every line but the first.
const CONTINUED: &str = "    ";
/// Marks that [`crate::cli`] puts around coloured words before a text is escaped. They are no characters: no name has them.
pub(crate) const TONE_MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdd3}';

/// The text, its hidden characters as codes, its line breaks kept.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c, out| match c {
        '\n' => {
            out.push('\n');
            out.push_str(CONTINUED);
        }
        '\t' => out.push_str(CONTINUED),
        c => push_code(c, out),
    })
}

/// The text in one line: line breaks are codes, too.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, push_code)
}

/// The text in one line of at most about `max` bytes: where it was cut there is `…`.
pub(crate) fn line_of(text: &str, max: usize) -> String {
    // Codes only grow a text: more than this of it is never kept, so that a huge one is not escaped whole.
    let kept = text.char_indices().map(|(at, _)| at).find(|at| *at >= max).unwrap_or(text.len());
    let mut line = line(&text[..kept]).into_owned();
    let cut = line.char_indices().map(|(at, _)| at).find(|at| *at >= max);
    line.truncate(cut.unwrap_or(line.len()));
    if kept < text.len() || cut.is_some() {
        line.push('…');
    }
    line
}

/// A JSON text with hidden characters as JSON writes them; its own line breaks are kept.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    escaped(text, |c, out| {
        if c == '\n' {
            return out.push(c);
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            let written = write!(out, "\\u{unit:04x}");
            debug_assert!(written.is_ok(), "writing to a String does not fail");
        }
    })
}

fn push_code(c: char, out: &mut String) {
    out.extend(c.escape_default());
}

fn escaped(text: &str, hidden: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) { hidden(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Whether a terminal shows something other than the character: controls, formats, marks of direction, fillers, tags.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{fdd0}'..='\u{fdef}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_written_as_codes() {
        assert_eq!(lines("plain ½ text"), "plain ½ text");
        assert_eq!(lines("a\u{1b}[2Jb\rc\u{9b}d\u{7f}"), "a\\u{1b}[2Jb\\rc\\u{9b}d\\u{7f}");
        assert_eq!(lines("x\u{202e}y\u{feff}"), "x\\u{202e}y\\u{feff}");
        assert_eq!(lines("a &&\n\tb\nerror: c"), "a &&\n        b\n    error: c");
        assert_eq!(line("a\nb"), "a\\nb");
        assert_eq!(line_of("a\nb", 4), "a\\nb");
        assert_eq!(line_of("a\n½ and more", 6), "a\\n½ …");
        assert_eq!(line_of("\u{202e}\u{202e}", 9), "\\u{202e}\\…");
        assert_eq!(json("{\n\"\u{7f}\u{e0041}\"}"), "{\n\"\\u007f\\udb40\\udc41\"}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_has_no_hidden_characters_left(text in "\\PC*|[\\x00-\\u{2100}]*") {
            proptest::prop_assert!(!lines(&text).chars().any(|c| is_hidden(c) && c != '\n'));
            proptest::prop_assert!(!line(&text).chars().any(is_hidden));
        }
    }
}
