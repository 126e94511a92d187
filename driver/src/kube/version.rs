//! `/version` of an API server.

use aliquot_core::offer::ServerVersion;

/// A server's version with what default gates keep, from the texts `major`, `minor` and `gitVersion` of `/version`.
/// Vendors append to them: `36+`, `v1.36.3-eks-1a2b3c`.
pub(super) fn server_version(major: &str, minor: &str, git: &str) -> Option<ServerVersion> {
    if number(major)? != 1 {
        return None;
    }
    let minor = number(minor)?;
    let patch = git.trim_start_matches('v').split('.').nth(2).and_then(number).unwrap_or(0);
    Some(ServerVersion::with_default_gates(minor, patch))
}

/// The number that a text begins with.
fn number(text: &str) -> Option<u32> {
    let digits: &str = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_vendors_are_read() {
        let read = |minor, git| server_version("1", minor, git).map(|v| (v.minor, v.patch));
        assert_eq!(read("36", "v1.36.3"), Some((36, 3)));
        assert_eq!(read("36+", "v1.36.10-eks-1a2b3c"), Some((36, 10)));
        assert_eq!(read("35", "v1.35.2+k3s1"), Some((35, 2)));
        assert_eq!(read("37", ""), Some((37, 0)));
        assert_eq!(read("", "v1.36.3"), None);
        assert_eq!(server_version("2", "1", "v2.1.0"), None);
        assert_eq!(server_version("1", "99999999999", ""), None);
    }
}
