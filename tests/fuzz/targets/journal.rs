//! Any bytes: a journal or an error. The same bytes as lines of records under right checksums, since a fuzzer seldom
//! guesses those: what is read is written and read back as the same promises.

#![no_main]

use std::path::Path;

use aliquot_driver::checkpoint::{Journal, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let path = Path::new("journal");
    let mut journals: Vec<Journal> = decode(path, data).into_iter().collect();
    if let Ok(text) = std::str::from_utf8(data) {
        for version in [1, 2] {
            journals.extend(decode(path, framed(version, text).as_bytes()));
        }
    }
    for journal in journals {
        let text = encode(path, &journal).expect("what was read is within bounds");
        assert_eq!(decode(path, text.as_bytes()).expect("what was written is read"), journal);
    }
});

/// Frames each line as a record.
fn framed(version: u32, text: &str) -> String {
    let mut body = String::new();
    for json in text.lines() {
        body += &format!("{} {:08x} {json}\n", json.len(), crc32c::crc32c(json.as_bytes()));
    }
    let (crc, count, bytes) = (crc32c::crc32c(body.as_bytes()), text.lines().count(), body.len());
    let header = format!(
        "aliquot-journal {version} min-reader 1 records {count} bytes {bytes} body {crc:08x} header "
    );
    let own = crc32c::crc32c(header.as_bytes());
    format!("{header}{own:08x}\n{body}")
}
