//! Key input as requests. Unknown keys and incomplete sequences are ignored.

/// A request of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyCommand {
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
pub(super) fn wishes(mut bytes: &[u8]) -> Vec<KeyCommand> {
    const SEQUENCES: [(&[u8], KeyCommand); 10] = [
        (b"\x1b[A", KeyCommand::Lines(-1)),
        (b"\x1bOA", KeyCommand::Lines(-1)),
        (b"\x1b[B", KeyCommand::Lines(1)),
        (b"\x1bOB", KeyCommand::Lines(1)),
        (b"\x1b[5~", KeyCommand::Screens(-1)),
        (b"\x1b[6~", KeyCommand::Screens(1)),
        (b"\x1b[H", KeyCommand::Top),
        (b"\x1b[1~", KeyCommand::Top),
        (b"\x1b[F", KeyCommand::Bottom),
        (b"\x1b[4~", KeyCommand::Bottom),
    ];
    let mut wishes = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        if let Some((sequence, wish)) = SEQUENCES.iter().find(|(sequence, _)| bytes.starts_with(sequence)) {
            wishes.push(*wish);
            bytes = bytes.get(sequence.len()..).unwrap_or_default();
            continue;
        }
        match first {
            b'q' | b'Q' | 0x03 | 0x04 => wishes.push(KeyCommand::End),
            b' ' | b'\r' | b'\n' => wishes.push(KeyCommand::Look),
            b'k' => wishes.push(KeyCommand::Lines(-1)),
            b'j' => wishes.push(KeyCommand::Lines(1)),
            b'g' => wishes.push(KeyCommand::Top),
            b'G' => wishes.push(KeyCommand::Bottom),
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
