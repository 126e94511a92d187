//! Answers of the library: awaited for a limited time, and their texts checked.

use std::sync::mpsc;
use std::time::Duration;

use super::Fault;

/// The text of a field, which ends with a zero and is printable.
pub(super) fn text(call: &'static str, field: &[u8]) -> Result<String, Fault> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let text = field.get(..end).unwrap_or_default();
    if end < field.len() && text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') {
        return Ok(String::from_utf8_lossy(text).trim().to_owned());
    }
    let found = text.iter().take(16).flat_map(|byte| byte.escape_ascii()).map(char::from).collect::<String>();
    Err(Fault::Garbage { call, found: format!("`{found}`"), expected: "printable text that ends" })
}

/// An answer that a chip need not have.
pub(super) fn optional<T>(answer: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(fault) if fault.is_unsupported() => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Runs a call on a thread of its own and waits for it for so long.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    call: &'static str,
    body: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let (answer, answered) = mpsc::channel();
    std::thread::spawn(move || {
        // The caller may have given up.
        drop(answer.send(body()));
    });
    answered.recv_timeout(limit).map_err(|_| Fault::Silent { call, seconds: limit.as_secs() })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_end_or_unprintable_is_garbage() {
        assert_eq!(text("f", b"310P3\0\xff\xff").unwrap(), "310P3");
        for bad in [&b"\xff\xff\xff\xff"[..], b"310P3", b"a\x1b[2J\0"] {
            assert!(matches!(text("f", bad), Err(Fault::Garbage { .. })), "{bad:?}");
        }
    }

    #[test]
    fn call_without_answer_ends_with_its_limit() {
        let slow = within(Duration::from_millis(20), "slow", || {
            std::thread::park();
            Ok(())
        });
        assert_eq!(slow, Err(Fault::Silent { call: "slow", seconds: 0 }));
    }
}
