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
fn qualified_names_are_taken_apart_and_put_together() {
    let name: QualifiedName = "aliquot.dev/claim=4ee7-gpu.big-0:1".parse().unwrap();
    assert_eq!(name.kind, Kind::claim());
    assert_eq!(name.device.as_str(), "4ee7-gpu.big-0:1");
    assert_eq!(name.to_string(), "aliquot.dev/claim=4ee7-gpu.big-0:1");
}

#[test]
fn a_subrequest_gives_a_device_name_without_a_slash() {
    let (uid, share) = ("4ee7".parse().unwrap(), "0".parse().unwrap());
    let request = "gpu/big".parse().unwrap();
    let name = QualifiedName::of_share(&uid, &request, &share);
    assert_eq!(name.to_string(), "aliquot.dev/claim=4ee7-gpu.big-0");
    assert_eq!(name.to_string().parse(), Ok(name));
}

#[test]
fn refusals_name_the_part_and_the_place() {
    for (found, expected) in [
        (message::<Vendor>(""), "vendor is empty, expected at least one letter or digit"),
        (message::<Vendor>("1a"), r#"vendor "1a" has '1' at byte 0, expected a letter (A-Z, a-z)"#),
        (
            message::<Class>("a-"),
            r#"class "a-" has '-' at byte 1, expected a letter or digit (A-Z, a-z, 0-9)"#,
        ),
        (
            message::<Class>("a:b"),
            r#"class "a:b" has ':' at byte 1, expected letters, digits, '-', '_' or '.'"#,
        ),
        (message::<Class>(&"c".repeat(64)), "class has 64 bytes, expected at most 63: shorten it"),
        (message::<Vendor>(&"v".repeat(253)), "accepted"),
        (message::<DeviceName>("0"), "accepted"),
        (message::<DeviceName>("0:_.-1"), "accepted"),
        (
            message::<DeviceName>("a/b"),
            r#"device name "a/b" has '/' at byte 1, expected letters, digits, '-', '_', '.' or ':'"#,
        ),
        (
            message::<DeviceName>("gpü"),
            r#"device name "gpü" has 'ü' at byte 2, expected letters, digits, '-', '_', '.' or ':'"#,
        ),
        (
            message::<ClaimUid>("../x"),
            r#"claim uid "../x" has '.' at byte 0, expected a letter or digit (A-Z, a-z, 0-9)"#,
        ),
        (
            message::<RequestName>("a/b/c"),
            r#"request name "b/c" has '/' at byte 1, expected letters, digits or '-'"#,
        ),
        (message::<Kind>("vendor.com"), r#""vendor.com" has no '/', expected <vendor>/<class>"#),
        (message::<QualifiedName>("v.com/c"), r#""v.com/c" has no '=', expected <vendor>/<class>=<device>"#),
        (
            message::<Kind>("v/c/d"),
            r#"class "c/d" has '/' at byte 1, expected letters, digits, '-', '_' or '.'"#,
        ),
    ] {
        assert_eq!(found, expected);
    }
}

/// The character rules once more, written as a set of allowed bytes by position.
fn fits(text: &str, first_digit_allowed: bool, between: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    let first_fits = first.is_ascii_alphabetic() || (first_digit_allowed && first.is_ascii_digit());
    first_fits
        && last.is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || between.contains(b))
}

proptest! {
    #[test]
    fn a_name_is_accepted_exactly_when_its_characters_fit(text in "[a-c0-2:_.=/ü-]{0,6}") {
        prop_assert_eq!(text.parse::<Vendor>().is_ok(), fits(&text, false, b"-_."));
        prop_assert_eq!(text.parse::<Class>().is_ok(), fits(&text, false, b"-_."));
        prop_assert_eq!(text.parse::<DeviceName>().is_ok(), fits(&text, true, b"-_.:"));
        prop_assert_eq!(text.parse::<ClaimUid>().is_ok(), fits(&text, true, b"-"));
        prop_assert_eq!(text.parse::<ShareName>().is_ok(), fits(&text, true, b"-"));
    }

    #[test]
    fn parsed_name_prints_unchanged(text in "[a-z0-2:_./=-]{1,16}") {
        if let Ok(name) = text.parse::<QualifiedName>() {
            prop_assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn the_device_of_a_share_is_always_a_name(
        uid in "[a-z0-9]{1,8}(-[a-z0-9]{1,4}){0,4}",
        request in "[a-z]([a-z0-9-]{0,10}[a-z0-9])?(/[a-z]([a-z0-9-]{0,10}[a-z0-9])?)?",
        share in "[0-9]{1,3}",
    ) {
        let name = QualifiedName::of_share(
            &uid.parse().unwrap(),
            &request.parse().unwrap(),
            &share.parse().unwrap(),
        );
        prop_assert_eq!(name.to_string().parse::<QualifiedName>(), Ok(name));
    }
}
