//! Key input as requests. Unknown keys and incomplete sequences are ignored.

/// A request of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// To end.
    End,
    /// To look now.
    Look,
    /// To scroll down by so many lines.
    Lines(i32),
    /// To scroll down by so many screens.
    Screens(i32),
    /// To see the beginning.
    Top,
    /// To see the end.
    Bottom,
}

/// The wishes of some bytes from a terminal.
pub(super) fn wishes(mut bytes: &[u8]) -> Vec<Wish> {
    const SEQUENCES: [(&[u8], Wish); 10] = [
        (b"\x1b[A", Wish::Lines(-1)),
        (b"\x1bOA", Wish::Lines(-1)),
        (b"\x1b[B", Wish::Lines(1)),
        (b"\x1bOB", Wish::Lines(1)),
        (b"\x1b[5~", Wish::Screens(-1)),
        (b"\x1b[6~", Wish::Screens(1)),
        (b"\x1b[H", Wish::Top),
        (b"\x1b[1~", Wish::Top),
        (b"\x1b[F", Wish::Bottom),
        (b"\x1b[4~", Wish::Bottom),
    ];
    let mut wishes = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        if let Some((sequence, wish)) = SEQUENCES.iter().find(|(sequence, _)| bytes.starts_with(sequence)) {
            wishes.push(*wish);
            bytes = bytes.get(sequence.len()..).unwrap_or_default();
            continue;
        }
        match first {
            b'q' | b'Q' | 0x03 | 0x04 => wishes.push(Wish::End),
            b' ' | b'\r' | b'\n' => wishes.push(Wish::Look),
            b'k' => wishes.push(Wish::Lines(-1)),
            b'j' => wishes.push(Wish::Lines(1)),
            b'g' => wishes.push(Wish::Top),
            b'G' => wishes.push(Wish::Bottom),
            // An unknown sequence ends with its first letter or tilde.
            0x1b if rest.first().is_some_and(|next| matches!(next, b'[' | b'O')) => {
                let last = rest.iter().skip(1).position(|byte| matches!(byte, b'@'..=b'~'));
                bytes = last.and_then(|last| rest.get(last + 2..)).unwrap_or_default();
                continue;
            }
            _ => {}
        }
        bytes = rest;
    }
    wishes
}
