//! Requests in ASCII: fractions of one character, spaces of any kind.

/// Fractions that are one character.
const VULGAR_FRACTIONS: [(char, &str); 15] = [
    ('½', "1/2"),
    ('¼', "1/4"),
    ('¾', "3/4"),
    ('⅓', "1/3"),
    ('⅔', "2/3"),
    ('⅕', "1/5"),
    ('⅖', "2/5"),
    ('⅗', "3/5"),
    ('⅘', "4/5"),
    ('⅙', "1/6"),
    ('⅚', "5/6"),
    ('⅛', "1/8"),
    ('⅜', "3/8"),
    ('⅝', "5/8"),
    ('⅞', "7/8"),
];

/// The text with `½` as ` 1/2 ` and every space as one that ASCII has; `25 %` is `25%`.
pub(super) fn in_ascii(text: &str) -> Result<String, &'static str> {
    let mut plain = String::new();
    for c in text.chars() {
        match VULGAR_FRACTIONS.iter().find(|(vulgar, _)| *vulgar == c) {
            Some(_) if plain.ends_with(|c: char| c.is_ascii_digit()) => {
                return Err("a number and a fraction in one");
            }
            Some((_, digits)) => plain.extend([" ", digits, " "]),
            None if c.is_ascii() => plain.push(c),
            None if c.is_whitespace() => plain.push(' '),
            None => return Err("a character that is not ASCII"),
        }
    }
    Ok(plain.replace(" %", "%"))
}
