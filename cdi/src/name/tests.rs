//! Names: what is accepted, what is refused and how it is said.

use proptest::prelude::*;

use super::*;

fn message<T: FromStr<Err = NameError>>(text: &str) -> String {
    match text.parse::<T>() {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_subrequest_gives_a_device_name_without_a_slash() {
    let (uid, share) = ("4ee7".parse().unwrap(), "0".parse().unwrap());
    let request = "gpu/big".parse().unwrap();
    let name = QualifiedName::of_share(&uid, &request, &share);
    assert_eq!(name.to_string(), "aliquot.dev/claim=4ee7-gpu.big-0");
}

#[test]
fn refusals_name_the_part_and_the_place() {
    for (found, expected) in [
        (message::<ShareName>(""), "share name is empty, expected at least one letter or digit"),
        (
            message::<ShareName>("a-"),
            r#"share name "a-" has '-' at byte 1, expected a letter or digit (A-Z, a-z, 0-9)"#,
        ),
        (message::<ShareName>(&"c".repeat(65)), "share name has 65 bytes, expected at most 64: shorten it"),
        (message::<ClaimUid>(&"0".repeat(128)), "accepted"),
        (message::<ClaimUid>("gpü"), r#"claim uid "gpü" has 'ü' at byte 2, expected letters, digits or '-'"#),
        (
            message::<ClaimUid>("../x"),
            r#"claim uid "../x" has '.' at byte 0, expected a letter or digit (A-Z, a-z, 0-9)"#,
        ),
        (
            message::<RequestName>("a/b/c"),
            r#"request name "b/c" has '/' at byte 1, expected letters, digits or '-'"#,
        ),
    ] {
        assert_eq!(found, expected);
    }
}

/// The character rules once more, written as a set of allowed bytes by position.
fn fits(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
}

proptest! {
    #[test]
    fn a_name_is_accepted_exactly_when_its_characters_fit(text in "[a-c0-2:_.=/ü-]{0,6}") {
        prop_assert_eq!(text.parse::<ClaimUid>().is_ok(), fits(&text));
        prop_assert_eq!(text.parse::<ShareName>().is_ok(), fits(&text));
        prop_assert_eq!(text.parse::<RequestName>().is_ok(), text.splitn(2, '/').all(fits));
    }
}
