//! The text of a node's journal, taken apart and put together as a program of another version writes it.

#![expect(clippy::unwrap_used, reason = "a text that is no journal fails the test that has it")]

/// Bytes of the line that says how far a log is acknowledged.
pub const SEAL_BYTES: usize = 57;

/// Lines of changes behind a header, sealed as they are.
#[must_use]
pub fn framed(version: u32, min_reader: u32, changes: &[String]) -> String {
    let header = format!("aliquot-journal {version} min-reader {min_reader} header ");
    let header = format!("{header}{:08x}\n", crc32c::crc32c(header.as_bytes()));
    let start = crc32c::crc32c(header.as_bytes());
    let (mut body, mut chain) = (String::new(), start);
    for json in changes {
        chain = crc32c::crc32c_append(chain, json.as_bytes());
        body += &format!("{} {chain:08x} {json}\n", json.len());
    }
    let bytes = header.len() + SEAL_BYTES + body.len();
    format!("{header}{}{body}", seal(&header, bytes, chain))
}

/// The line that says how far a log is acknowledged.
#[must_use]
pub fn seal(header: &str, bytes: usize, chain: u32) -> String {
    let text = format!("sealed {bytes:020} chain {chain:08x} seal ");
    let own = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), text.as_bytes());
    format!("{text}{own:08x}\n")
}

/// The changes in a journal.
#[must_use]
pub fn changes(text: &str) -> Vec<String> {
    text.lines().skip(2).map(|line| line.splitn(3, ' ').nth(2).unwrap().to_owned()).collect()
}

/// The journal as version 2 writes it, with a field for each claim that version 1 does not know.
#[must_use]
pub fn of_version_2(text: &str, min_reader: u32) -> String {
    let claim = "\"record\":\"claim\"";
    let newer = |change: String| match change.contains("sinceVersion2") {
        true => change,
        false => change.replace(claim, &format!("{claim},\"sinceVersion2\":[1,2]")),
    };
    framed(2, min_reader, &changes(text).into_iter().map(newer).collect::<Vec<_>>())
}
